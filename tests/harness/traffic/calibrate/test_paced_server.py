"""What the server logs is what a client saw, and what it sends is a whole HTTP answer in vLLM's shape."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h11
import numpy as np
import pytest

from harness.errors import DamagedFile
from harness.traffic.calibrate.paced_server import Pace, PacedServer, has_compiled_loop, running
from harness.traffic.calibrate.server_log import ABORTED, BLOCKED, ServerLog, read_counts, read_log

LOOPS = [False, pytest.param(True, marks=pytest.mark.skipif(not has_compiled_loop(), reason="not built"))]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(params=LOOPS, ids=lambda compiled: "compiled" if compiled else "python")
def compiled(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Caller:
    """A plain blocking connection that stamps every read."""

    def __init__(self, server: PacedServer) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.counts().port), timeout=20)

    def send(self, name: str, body: dict[str, Any], path: str = COMPLETIONS, headers: str = "") -> None:
        data = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Request-Id: {name}\r\nContent-Length: {len(data)}\r\n{headers}\r\n"
        )
        self.sock.sendall(head.encode() + data)

    def receive(self) -> tuple[h11.Response, bytes, list[tuple[int, bytes]]]:
        """Head, body and body reads of one answer."""
        http = h11.Connection(our_role=h11.CLIENT)
        http.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        http.send(h11.EndOfMessage())
        head, reads = None, []
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                data = self.sock.recv(1 << 20)
                now = time.monotonic_ns()
                http.receive_data(data)
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                reads.append((now, bytes(event.data)))
            else:
                assert isinstance(event, h11.EndOfMessage)
                assert http.trailing_data == (b"", False)
                assert head is not None
                return head, b"".join(data for _, data in reads), reads


def body(tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": [5, 6, 7], "max_tokens": tokens, "stream": True, **more}


def payloads(data: bytes) -> list[Any]:
    events = data.decode().split("\n\n")
    assert events.pop() == ""
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


@contextlib.contextmanager
def served(tmp_path: Path, pace: Pace) -> Iterator[tuple[PacedServer, list[ServerLog]]]:
    logs: list[ServerLog] = []
    with running(pace, tmp_path / "server.log") as server:
        yield server, logs
    logs.append(read_log(server.log_path))


def test_the_log_joins_with_what_a_socket_saw(tmp_path: Path, compiled: bool) -> None:
    with served(tmp_path, Pace(5, 3, compiled=compiled)) as (server, logs):
        callers = [Caller(server) for _ in range(4)]
        sent, seen = {}, {}
        for turn in range(2):
            for number, caller in enumerate(callers):
                sent[f"r{turn}-{number}"] = time.monotonic_ns()
                caller.send(f"r{turn}-{number}", body(number + 1, return_token_ids=True))
            for number, caller in enumerate(callers):
                seen[f"r{turn}-{number}"] = caller.receive()[2]
    log = logs[0]
    assert server.counts().tokens == 20 and server.counts().started == server.counts().ended == 8
    assert sorted(log.ids) == sorted(sent)
    assert log.itl_ns == 3_000_000
    assert (log.flags == 0).all() and (log.sent == log.asked).all()
    for at, name in enumerate(log.ids):
        sends = log.sent_ns[log.starts[at] : log.starts[at + 1]]
        reads = [now for now, data in seen[name] if b"token_ids" in data]
        assert len(sends) == log.sent[at] == int(name.split("-")[1]) + 1
        assert sent[name] <= log.arrived_ns[at] <= sends[0]
        assert log.first_due_ns[at] == log.arrived_ns[at] + 5_000_000
        assert (sends >= log.first_due_ns[at] + np.arange(len(sends)) * 3_000_000).all()  # never early
        assert sends[-1] <= reads[-1] and sends[-1] <= log.ended_ns[at]
        assert sends[0] <= reads[0]
    assert (log.lateness_ns() >= 0).all()


def test_in_lock_step_all_streams_are_due_at_the_same_moments(tmp_path: Path, compiled: bool) -> None:
    with served(tmp_path, Pace(2, 4, lockstep=True, compiled=compiled)) as (server, logs):
        callers = [Caller(server) for _ in range(5)]
        for number, caller in enumerate(callers):
            caller.send(f"{number}", body(3))
            time.sleep(0.001)
        for caller in callers:
            caller.receive()
    assert len({int(due) % 4_000_000 for due in logs[0].first_due_ns}) == 1
    assert (logs[0].first_due_ns >= logs[0].arrived_ns + 2_000_000).all()
    assert (logs[0].lateness_ns() >= 0).all()


def test_answers_have_vllms_shape(tmp_path: Path, compiled: bool) -> None:
    usage = {"stream_options": {"include_usage": True}}
    with served(tmp_path, Pace(0, 0, compiled=compiled)) as (server, _):
        caller = Caller(server)
        caller.send("a", body(70, return_token_ids=True, **usage))
        head, data, _ = caller.receive()
        *tokens, last = payloads(data)
        caller.send("b", body(3))
        plain = payloads(caller.receive()[1])
        caller.send("c", {"messages": [], "max_completion_tokens": 2, "stream": True, **usage}, path=f"/base{CHAT}")
        chat = payloads(caller.receive()[1])
    assert head.status_code == 200
    assert (b"content-type", b"text/event-stream; charset=utf-8") in list(head.headers)
    assert [len(event["choices"][0]["token_ids"]) for event in tokens] == [1] * 70
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 69 + ["length"]
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 3
    assert last["usage"]["completion_tokens"] == 70
    assert last["usage"]["total_tokens"] == 73
    assert len(plain) == 3 and "token_ids" not in plain[0]["choices"][0]
    assert chat[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(event["choices"][0]["delta"]["content"] for event in chat[1:3])
    assert chat[3]["usage"]["completion_tokens"] == 2


def test_the_head_comes_before_the_first_token(tmp_path: Path, compiled: bool) -> None:
    with served(tmp_path, Pace(200, 1, compiled=compiled)) as (server, _):
        caller = Caller(server)
        caller.send("a", body(1))
        assert caller.sock.recv(1 << 20).endswith(b"transfer-encoding: chunked\r\n\r\n")


def test_a_connection_is_closed_where_the_client_says_so(tmp_path: Path, compiled: bool) -> None:
    for pace in (Pace(0, 0, compiled=compiled), Pace(1, 1, compiled=compiled)):
        with served(tmp_path, pace) as (server, logs):
            for tokens in (1, 2):
                caller = Caller(server)
                caller.send(f"{tokens}", body(tokens), headers="Connection: close\r\n")
                head, _, _ = caller.receive()
                assert (b"connection", b"close") in list(head.headers)
                assert caller.sock.recv(1) == b""
        assert logs[0].ids == ["1", "2"]


def test_a_client_that_hangs_up_is_logged(tmp_path: Path, compiled: bool) -> None:
    with served(tmp_path, Pace(0, 2, compiled=compiled)) as (server, logs):
        caller = Caller(server)
        caller.send("gone", body(1000))
        caller.sock.recv(100)
        caller.sock.close()
        deadline = time.monotonic() + 20
        while server.counts().ended == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert logs[0].ids == ["gone"]
    assert logs[0].flags[0] & ABORTED
    assert 0 < logs[0].sent[0] < 1000


def test_what_the_socket_does_not_take_is_sent_later_and_whole(tmp_path: Path, compiled: bool) -> None:
    with served(tmp_path, Pace(0, 0, compiled=compiled)) as (server, logs):
        caller = Caller(server)
        caller.send("slow", body(60_000))
        deadline = time.monotonic() + 30
        while server.counts().tokens < 60_000 and time.monotonic() < deadline:
            time.sleep(0.01)
        events = payloads(caller.receive()[1])
        caller.send("after", body(1))
        assert len(payloads(caller.receive()[1])) == 1
    assert len(events) == 60_000
    assert logs[0].flags.tolist() == [BLOCKED, 0]


def test_two_requests_in_one_packet_are_both_answered(tmp_path: Path, compiled: bool) -> None:
    with served(tmp_path, Pace(1, 1, compiled=compiled)) as (server, logs):
        caller = Caller(server)
        data = json.dumps(body(2)).encode()
        one = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\nx-request-id: x\r\n\r\n%s" % (len(data), data)
        caller.sock.sendall(one + one)
        received = b""
        while received.count(b"[DONE]") < 2:
            part = caller.sock.recv(1 << 20)
            assert part
            received += part
    assert logs[0].ids == ["x", "x"]


def test_what_is_no_stream_gets_a_whole_answer(tmp_path: Path, compiled: bool) -> None:
    with served(tmp_path, Pace(0, 0, compiled=compiled)) as (server, logs):
        caller = Caller(server)
        caller.sock.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert json.loads(caller.receive()[1])["data"][0]["id"] == "paced"
        caller.send("a", {"prompt": "x", "max_tokens": 2, "stream": False})
        assert json.loads(caller.receive()[1])["usage"]["completion_tokens"] == 1
        caller.send("b", {"prompt": "x", "stream": True})
        head, data, _ = caller.receive()
        assert head.status_code == 400 and "error" in json.loads(data)
    assert logs[0].ids == []


def test_a_cut_log_is_read_up_to_the_cut_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    with served(tmp_path, Pace(0, 0, compiled=False)) as (server, _):
        caller = Caller(server)
        for name in ("a", "b"):
            caller.send(name, body(2))
            caller.receive()
    path = server.log_path
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    assert read_log(path).ids == ["a"]
    path.write_bytes(whole[:4096] + b"\xff\x00\x00\x00" + whole[4100:])
    with pytest.raises(DamagedFile, match="byte 4096"):
        read_log(path)
    path.write_bytes(b"something else")
    assert read_counts(path) is None
    with pytest.raises(DamagedFile, match="no log"):
        read_log(path)
