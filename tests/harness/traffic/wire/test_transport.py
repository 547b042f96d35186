"""Every behaviour of a server, over real sockets, for every kind of transport."""

import contextlib
import gc
import json
import os
import re
import resource
import socket
import time
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import gevent
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.traffic.wire.endpoint import parse_endpoint
from harness.traffic.wire.exchange import TRANSPORT_ERRORS, Exchange
from harness.traffic.wire.framing import read_message
from harness.traffic.wire.transport import SPILL_BYTES, Kind, Message, open_transport

from .answers import answers, pieces
from .conftest import Asker, FaultServer, Opener, check, started_fault_server

COMPLETE = [
    "v1", "at-once", "text-only", "packed", "buffered", "carriage-returns", "crlf", "pings", "tight", "split", "drip",
    "processing", "late-trailers", "long-trailers", "extensions", "content-length", "close-delimited",
    "close-delimited-silent", "more-after-the-end", "more-after-the-last-event", "http-1-0", "close-announced",
    "keep-alive-lie", "folded", "bare-line-feeds", "no-content-type", "slow-head", "large-head", "half-closed",
    "tempting", "tempting-lines", "long-answer", "long-split", "late-reader",
    # For the transport, these are whole answers.
    "short", "no-done", "no-finish", "error-event", "error-field", "bad-json", "empty", "gzip", "not-streamed",
]  # fmt: skip
STATUS = {
    "server-error": 500, "server-error-length": 500, "too-many": 429, "too-many-chunked": 429, "no-content": 204,
    "early-answer": 400, "early-close": 413,
}  # fmt: skip
FAULTY = {
    "truncated": ("eof", "in the middle of its answer"),
    "half-closed-early": ("eof", "in the middle of its answer"),
    "reset": ("reset", "reset by peer"),
    "hang-up": ("eof", "without an answer"),
    "reset@0": ("reset", "reset by peer"),
    "early-reset": ("reset", "reset by peer"),
    "no-http": ("malformed_http", "starts with"),
    "bad-status": ("malformed_http", "status line"),
    "bad-header": ("malformed_http", "headers"),
    "bad-chunk-size": ("malformed_http", "chunk size"),
    "negative-chunk-size": ("malformed_http", "chunk size"),
    "wrong-chunk-size": ("malformed_http", "chunk size"),
    "bad-trailer": ("malformed_http", "trailers"),
    "two-lengths": ("malformed_http", "content-length"),
    "bad-length": ("malformed_http", "content-length"),
    "other-coding": ("malformed_http", "transfer-encoding"),
    "other-protocol": ("malformed_http", "101"),
    "endless-head": ("malformed_http", "without an end"),
}
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SILENT = ["silent", "silent-after-head", "silent-in-the-middle", "deaf"]


@pytest.mark.parametrize("behaviour", COMPLETE)
def test_a_whole_answer_in_any_form_is_no_error(behaviour: str, ask: Asker) -> None:
    for _ in range(2):
        exchange = ask(behaviour)
        assert exchange.error is None, exchange.error_detail
        message = read_message(exchange.raw)
        assert (message.status, message.error) == (200, None)
        assert message.complete or b"data: [DONE]" in message.body
        assert exchange.ended_ns in exchange.read_ns or message.headers.get("transfer-encoding") is None


@pytest.mark.parametrize("behaviour", STATUS)
def test_refusals_are_whole_answers(behaviour: str, ask: Asker) -> None:
    for _ in range(2):
        exchange = ask(behaviour)
        assert exchange.error is None, exchange.error_detail
        message = read_message(exchange.raw)
        assert (message.status, message.complete) == (STATUS[behaviour], True)
        assert bool(message.body) == (behaviour != "no-content")


@pytest.mark.parametrize("behaviour", FAULTY)
def test_every_fault_has_its_name(behaviour: str, ask: Asker) -> None:
    error, detail = FAULTY[behaviour]
    for _ in range(2):
        exchange = ask(behaviour, timeout_s=5)
        assert exchange.error == error in TRANSPORT_ERRORS
        assert exchange.error_detail is not None and detail in exchange.error_detail
    assert ask().error is None, "and harms no other request"


@pytest.mark.parametrize("behaviour", SILENT)
def test_no_end_is_a_timeout(behaviour: str, ask: Asker) -> None:
    asked_ns = time.monotonic_ns()
    exchange = ask(behaviour, timeout_s=0.3)
    assert exchange.error == "timeout"
    assert exchange.error_detail == "no end after 0.3 s"
    assert exchange.sent_ns is not None and exchange.ended_ns - asked_ns >= 300_000_000
    assert bool(exchange.raw) == (behaviour in ("silent-after-head", "silent-in-the-middle"))


def answer_bytes(ask: Asker, behaviour: str) -> bytes:
    exchange = ask(behaviour)
    assert exchange.error is None
    return bytes(exchange.raw)


@pytest.mark.parametrize("behaviour", ["at-once", "content-length", "late-trailers", "no-done"])
@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_connection_that_ends_at_any_place(behaviour: str, how: str, ask: Asker) -> None:
    body = (b'{"max_tokens": 1}',)
    whole = bytes(ask(behaviour, body=body).raw)
    marked = whole.find(b"data: [DONE]") + 12 if b"[DONE]" in whole else len(whole)
    for length in range(len(whole)):
        exchange = ask(f"{how}-{behaviour}@{length}", body=body)
        assert bytes(exchange.raw) == whole[:length]
        if length >= marked:
            assert exchange.error is None, (length, exchange)
        else:
            assert exchange.error == {"cut": "eof", "reset": "reset"}[how], (length, exchange)
    assert ask(f"{how}-{behaviour}@{len(whole)}", body=body).error is None


@given(
    answers(),
    st.lists(st.integers(0, 10_000), max_size=8),
    st.sampled_from(["whole", "CLOSE", "RESET", "HALF_CLOSE"]),
    st.integers(0, 10_000),
)
@example((CHUNKED + b"1\r\nx\r\nb\r\ndata:[DONE]\r\n0\r\n\r\n", None), [], "whole", 0)
@example((CHUNKED + b"2\r\n\n\n\r\n1\r\nd\r\na;x=y\r\nata:[DONE]\r\n", None), [], "HALF_CLOSE", 10_000)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_answer_in_any_packets_with_any_end(
    ask: Asker, answer: tuple[bytes, object], cuts: list[int], end: str, length: int
) -> None:
    raw, _ = answer
    if end != "whole":
        raw = raw[: length % (len(raw) + 1)]
    expected = read_message(raw)
    by_close = expected.complete and "content-length" not in expected.headers and not expected.headers.get(
        "transfer-encoding"
    ) and expected.status not in (None, 204, 304)  # fmt: skip
    if end == "whole" and by_close:
        end = "CLOSE"
    script: list[str | float] = [step for part in pieces(raw, cuts) for step in (part.hex(), 0.0005)]
    if end != "whole":
        script.append(end)
    if end == "HALF_CLOSE":
        script.append(0.1)
    exchange = ask("scripted", body=(json.dumps({"script": script}).encode(),), timeout_s=5)
    done = re.search(rb"[\r\n]data: ?\[DONE\]", b"\n" + expected.body) is not None
    if done:
        assert exchange.error is None
        assert raw.startswith(exchange.raw)
        return
    assert bytes(exchange.raw) == raw
    if expected.complete and not (by_close and end == "RESET"):
        assert exchange.error is None, exchange.error_detail
    else:
        assert exchange.error == ("reset" if end == "RESET" else "eof")


def test_an_answer_ends_with_its_last_event_even_if_the_connection_stays(ask: Asker) -> None:
    for behaviour in ("held-open", "split-held-open", "held-open-without-length", "late-end"):
        exchange = ask(behaviour, timeout_s=2)
        assert exchange.error is None, (behaviour, exchange.error_detail)
        assert exchange.ended_ns in exchange.read_ns[-3:], behaviour


def test_reads_are_stamped_between_the_servers_send_and_the_present(opener: Opener, server: FaultServer) -> None:
    exchange = opener(server.url)("v1")
    now = time.monotonic_ns()
    (entry,) = server.log(1)
    assert exchange.sent_ns is not None
    assert exchange.sent_ns <= entry["arrived_ns"]
    message = read_message(exchange.raw)
    ends = [at for at in range(1, len(message.body)) if message.body[at - 1 : at + 1] == b"\n\n"]
    assert len(ends) == len(entry["sent_ns"])
    borders = [sum(exchange.read_bytes[: i + 1]) for i in range(len(exchange.read_bytes))]
    for sent_ns, end in zip(entry["sent_ns"], ends, strict=True):
        raw_at = int(message.body_to_raw(array("q", [end]))[0])  # type: ignore[arg-type]
        read = next(i for i, border in enumerate(borders) if raw_at < border)
        assert sent_ns <= exchange.read_ns[read] <= now


# Requests.


def test_the_request_is_what_was_given(opener: Opener, server: FaultServer) -> None:
    ask = opener(server.url, api_key="sekrit", headers={"X-Team": "blue"})
    pieces = (b'{"max_tokens": 2, "prompt": [', b"", *(b"%d," % i for i in range(3000)), b"3000]}")
    assert ask(body=pieces).error is None
    (entry,) = server.log(1)
    assert entry["body"] == {"max_tokens": 2, "prompt": list(range(3001))}
    headers = entry["headers"]
    assert headers["authorization"] == "Bearer sekrit"
    assert headers["x-team"] == "blue"
    assert headers["x-request-id"] == "r.1"
    assert headers["accept-encoding"] == "identity"
    assert headers["accept"] == "text/event-stream"
    assert headers["host"] == server.url.removeprefix("http://")


def long_body(size: int) -> tuple[bytes, ...]:
    return (b'{"max_tokens": 4, "prompt": "', b"x" * (size // 2), b"y" * (size // 2), b'"}')


@pytest.mark.parametrize("size", [700_000, 20_000_000])
def test_long_requests_arrive_whole_and_block_nobody(size: int, ask: Asker) -> None:
    def other() -> list[str | None]:
        return [ask().error for _ in range(5)]

    others = gevent.spawn(other)
    assert ask("late-reader", body=long_body(size)).error is None
    assert others.get() == [None] * 5


@pytest.mark.parametrize("behaviour", ["early-close", "early-answer"])
def test_an_answer_to_a_request_that_is_still_being_sent(behaviour: str, ask: Asker) -> None:
    exchange = ask(behaviour, body=long_body(20_000_000), timeout_s=5)
    assert exchange.error is None, exchange.error_detail
    assert read_message(exchange.raw).status == STATUS[behaviour]
    assert ask().reused is False, "the rest of the request was not sent"


def test_a_reset_while_sending(ask: Asker) -> None:
    exchange = ask("early-reset", body=long_body(20_000_000), timeout_s=5)
    assert (exchange.error, bytes(exchange.raw)) == ("reset", b"")


def test_a_server_that_takes_no_more_is_a_timeout(ask: Asker) -> None:
    exchange = ask("deaf", body=long_body(20_000_000), timeout_s=0.3)
    assert (exchange.error, bytes(exchange.raw)) == ("timeout", b"")


def test_requests_go_out_at_their_time_and_in_its_order(opener: Opener, server: FaultServer) -> None:
    ask = opener(server.url)
    start_ns = time.monotonic_ns() + 1_000_000_000
    due = [start_ns + i * 5_000_000 for i in range(50)]
    asked = [gevent.spawn(partial(ask, due_ns=at)) for at in reversed(due)]
    exchanges = [greenlet.get() for greenlet in reversed(asked)]
    assert all(exchange.error is None for exchange in exchanges)
    sent = [exchange.sent_ns for exchange in exchanges]
    assert sent == sorted(sent)
    assert all(at <= sent_ns for at, sent_ns in zip(due, sent, strict=True))


def test_a_due_time_that_is_past_is_now(ask: Asker) -> None:
    before = time.monotonic_ns()
    exchange = ask(due_ns=before - 10**9)
    assert exchange.error is None and exchange.sent_ns is not None and exchange.sent_ns >= before


def test_the_time_of_a_request_counts_from_when_it_was_due(ask: Asker) -> None:
    due_ns = time.monotonic_ns() + 400_000_000
    exchange = ask("silent", due_ns=due_ns, timeout_s=0.2)
    assert exchange.error == "timeout"
    assert exchange.sent_ns is not None and exchange.sent_ns >= due_ns
    assert exchange.ended_ns >= due_ns + 200_000_000


# Connections.


def test_connections_are_kept_and_used_again(opener: Opener, server: FaultServer) -> None:
    ask = opener(server.url)
    names = ["v1", "content-length", "too-many", "late-trailers", "tempting", "tempting-lines", "at-once", "v1"]
    exchanges = []
    for name in names:
        exchanges.append(ask(name))
        gevent.sleep(0.02)  # for what comes after [DONE]
    assert [exchange.reused for exchange in exchanges] == [False] + [True] * 7
    assert {entry["connection"] for entry in server.log(8)} == {0}


@pytest.mark.parametrize(
    "behaviour",
    [
        "close-announced", "close-delimited", "http-1-0", "truncated", "held-open", "more-after-the-end",
        "more-after-the-last-event",
    ],
)  # fmt: skip
def test_connections_that_can_not_be_used_again_are_not(behaviour: str, ask: Asker) -> None:
    assert ask(behaviour).resends == 0
    exchange = ask()
    assert (exchange.reused, exchange.resends, exchange.error) == (False, 0, None)
    assert ask().reused is True


def test_an_answer_that_nobody_asked_for_is_not_the_next_request_s(opener: Opener, server: FaultServer) -> None:
    ask = opener(server.url)
    ask("answers-twice")
    time.sleep(0.1)  # the hub stands still: it has not seen what arrived meanwhile
    exchange = ask()
    assert (exchange.reused, exchange.resends, exchange.error) == (False, 0, None)
    assert {entry["connection"] for entry in server.log(2)} == {0, 1}


def test_a_message_that_ends_after_its_last_event_frees_its_connection(opener: Opener, server: FaultServer) -> None:
    ask = opener(server.url)
    ask("late-end")
    gevent.sleep(0.3)
    assert ask().reused is True
    assert {entry["connection"] for entry in server.log(2)} == {0}


def test_without_keep_alive_every_request_has_its_connection(opener: Opener, server: FaultServer) -> None:
    ask = opener(server.url, keep_alive=False)
    assert [ask(keep_alive=False).reused for _ in range(3)] == [False] * 3
    assert len({entry["connection"] for entry in server.log(3)}) == 3


@pytest.mark.parametrize("behaviour", ["closes-when-asked-again", "resets-when-asked-again"])
def test_a_kept_connection_that_turns_out_to_be_closed(behaviour: str, opener: Opener, server: FaultServer) -> None:
    ask = opener(server.url)
    first, second, third = ask(behaviour), ask(behaviour), ask(behaviour)
    assert (first.resends, first.reused) == (0, False)
    assert (second.resends, second.reused, second.error) == (1, False, None)
    assert (third.resends, third.reused, third.error) == (0, False, None), "no connection is kept any more"
    assert second.sent_ns is not None
    assert second.sent_ns <= server.log(4)[2]["arrived_ns"], "the time of the last sending"


def test_a_server_that_closes_what_it_said_to_keep(opener: Opener, server: FaultServer) -> None:
    ask = opener(server.url)
    exchanges = [ask("keep-alive-lie") for _ in range(6)]
    gevent.sleep(0.05)
    exchanges += [ask("keep-alive-lie") for _ in range(3)]
    assert all(exchange.error is None for exchange in exchanges)
    assert len({entry["connection"] for entry in server.log(9)}) >= 9
    assert sum(exchange.resends for exchange in exchanges) <= 1


def test_an_engine_that_closes_old_connections_keeps_its_others(opener: Opener, server: FaultServer) -> None:
    """uvicorn closes what was idle for 5 s; here it is 3."""
    ask = opener(server.url)
    asked = [gevent.spawn(partial(ask, "closes-idle")) for _ in range(3)]
    gevent.joinall(asked, raise_error=True)
    for _ in range(7):
        exchange = ask("closes-idle")
        assert (exchange.error, exchange.resends) == (None, 0)
        gevent.sleep(0.5)
    assert exchange.reused is True


def test_no_descriptor_is_left(ask: Asker) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert ask().error is None
    gevent.sleep(0.02)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, limit[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        asked = [gevent.spawn(ask) for _ in range(10)]
        exchanges = [greenlet.get() for greenlet in asked]
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    failed = [exchange for exchange in exchanges if exchange.error is not None]
    assert len(failed) >= 9, "one may have used the kept connection"
    assert {exchange.error for exchange in failed} == {"connect"}
    assert all("Too many open files" in str(exchange.error_detail) for exchange in failed)
    assert ask().error is None


def test_a_reset_after_the_first_bytes_is_never_sent_again(opener: Opener, server: FaultServer) -> None:
    ask = opener(server.url)
    ask()
    exchange = ask("reset@5")
    assert (exchange.error, exchange.reused, exchange.resends) == ("reset", True, 0)
    assert len(server.log(2)) == 2


def test_a_unix_socket(opener: Opener, tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with started_fault_server(tmp_path / "log.jsonl", str(path)) as server:
        ask = opener(server.url)
        assert [ask(name).error for name in ("v1", "v1", "truncated", "v1")] == [None, None, "eof", None]
        asked = [gevent.spawn(ask) for _ in range(64)]
        assert [greenlet.get().error for greenlet in asked] == [None] * 64
    assert opener("http+unix://" + str(tmp_path / "none").replace("/", "%2F"))().error == "connect"


def test_nobody_listens(opener: Opener) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        exchange = opener(f"http://127.0.0.1:{port}")()
    assert exchange.error == "connect"
    assert exchange.error_detail is not None and "refused" in exchange.error_detail.lower()
    assert (exchange.sent_ns, exchange.resends, exchange.reused) == (None, 0, False)


def test_the_addresses_of_a_name_are_tried_in_turn(opener: Opener, shared_server: FaultServer) -> None:
    ask = opener(shared_server.url.replace("127.0.0.1", "localhost"), keep_alive=False)  # ::1 first, where there is one
    assert [gevent.spawn(ask).get().error for _ in range(3)] == [None] * 3


def test_a_name_that_nobody_knows(opener: Opener) -> None:
    exchange = opener("http://no-such-host.invalid")()
    assert (exchange.error, exchange.sent_ns) == ("connect", None)


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """A port whose queue is full: what one sends there is dropped."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0), backlog=0)) as listener:
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])
        for sock in waiting:
            sock.close()


def test_a_host_that_drops_everything_is_a_timeout(opener: Opener) -> None:
    with full_listener() as port:
        ask = opener(f"http://127.0.0.1:{port}")
        for due_ns in (None, time.monotonic_ns() + 400_000_000):
            exchange = ask(timeout_s=0.3, due_ns=due_ns)
            assert (exchange.error, exchange.sent_ns) == ("timeout", None)


def test_a_port_that_speaks_tls_and_is_not_asked_so(
    opener: Opener, tls_files: tuple[Path, Path], tmp_path: Path
) -> None:
    with started_fault_server(tmp_path / "log.jsonl", "0", *tls_files) as server:
        exchange = opener(server.url.replace("https", "http"))(timeout_s=5)
        assert exchange.error in ("malformed_http", "eof", "reset")


# Ends from outside.


def test_abort_ends_everything_under_way_and_what_comes_later(opener: Opener, shared_server: FaultServer) -> None:
    ask = opener(shared_server.url)
    exchanges = [Exchange() for _ in range(5)]
    names = ["silent-in-the-middle", "silent-after-head", "silent", "deaf", "v1"]
    later = [{}, {}, {}, {"body": long_body(20_000_000)}, {"due_ns": time.monotonic_ns() + 10**10}]
    asked = [
        gevent.spawn(partial(ask, name, exchange=exchange, **more))
        for name, exchange, more in zip(names, exchanges, later, strict=True)
    ]
    gevent.sleep(0.3)
    before = time.monotonic_ns()
    ask.transport.abort()
    gevent.joinall(asked, timeout=5, raise_error=True)
    assert [exchange.error for exchange in exchanges] == ["aborted"] * 5
    assert all(exchange.ended_ns >= before for exchange in exchanges)
    assert exchanges[0].raw, "what had arrived is kept"
    assert exchanges[4].sent_ns is None
    assert ask().error == "aborted"


def test_abort_while_connecting(opener: Opener) -> None:
    with full_listener() as port:
        ask = opener(f"http://127.0.0.1:{port}")
        asked = gevent.spawn(ask)
        gevent.sleep(0.1)
        ask.transport.abort()
        assert asked.get(timeout=5).error == "aborted"


def test_a_killed_greenlet_leaves_an_aborted_exchange(ask: Asker) -> None:
    for name in ("silent", "silent-in-the-middle"):
        exchange = Exchange()
        asked = gevent.spawn(partial(ask, name, exchange=exchange))
        gevent.sleep(0.1)
        asked.kill()
        assert exchange.error == "aborted" and exchange.ended_ns
        assert ask().error is None


def test_closing_closes_every_socket(opener: Opener, shared_server: FaultServer) -> None:
    def descriptors() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    ask = opener(shared_server.url)
    gevent.joinall([gevent.spawn(ask) for _ in range(20)], raise_error=True)
    for behaviour in ("truncated", "hang-up", "no-http", "held-open"):
        ask(behaviour)
    ask.transport.close()
    gevent.sleep(0.05)
    assert descriptors() == before
    ask.transport.close()


# Memory.


class Parts:
    """Takes parts away, as the spool does."""

    def __init__(self) -> None:
        self.parts: list[Exchange] = []

    def take(self, exchange: Exchange) -> None:
        assert len(exchange.raw) > SPILL_BYTES
        assert sum(exchange.read_bytes) == len(exchange.raw)
        self.parts.append(Exchange(read_ns=exchange.read_ns, read_bytes=exchange.read_bytes, raw=exchange.raw))
        exchange.read_ns, exchange.read_bytes, exchange.raw = array("q"), array("I"), bytearray()

    def whole(self, last: Exchange) -> Exchange:
        every = [*self.parts, last]
        return Exchange(
            sent_ns=last.sent_ns,
            ended_ns=last.ended_ns,
            read_ns=array("q", [ns for part in every for ns in part.read_ns]),
            read_bytes=array("I", [size for part in every for size in part.read_bytes]),
            raw=bytearray(b"".join(part.raw for part in every)),
        )


class ClearingParts(Parts):
    """Clears in place instead of putting others there."""

    def take(self, exchange: Exchange) -> None:
        self.parts.append(Exchange(read_ns=exchange.read_ns[:], read_bytes=exchange.read_bytes[:], raw=exchange.raw[:]))
        del exchange.read_ns[:], exchange.read_bytes[:]
        exchange.raw.clear()


@pytest.mark.parametrize("parts", [Parts, ClearingParts])
@pytest.mark.parametrize("behaviour", ["long-answer", "long-split"])
def test_long_answers_are_spilled(parts: type[Parts], behaviour: str, ask: Asker) -> None:
    spilled = parts()
    for _ in range(2):
        spilled.parts.clear()
        exchange = ask(behaviour, spill=spilled.take)
        assert exchange.error is None, exchange.error_detail
        assert len(spilled.parts) >= 2
        assert all(len(part.raw) <= 2 * SPILL_BYTES for part in (*spilled.parts, exchange))
        whole = spilled.whole(exchange)
        check(whole)
        message = read_message(whole.raw)
        assert message.error is None
        assert message.body.count(b"token_ids") == 400
        assert message.body.endswith(b"data: [DONE]\n\n")


def test_ends_are_found_across_a_spill(opener: Opener, shared_server: FaultServer) -> None:
    """The border of a spill falls on every byte of the last ones (wherever the server's packets arrive as sent)."""
    ask = opener(shared_server.url)
    spills = 0
    for name in ("spill-chunked", "spill-length"):
        for length in range(1, 60):
            parts = Parts()
            exchange = ask(name, spill=parts.take, body=(json.dumps({"max_tokens": length}).encode(),), timeout_s=3)
            assert exchange.error is None, (name, length, exchange.error_detail)
            message = read_message(parts.whole(exchange).raw)
            assert message.error is None and b"data: [DONE]" in message.body
            spills += len(parts.parts)
    assert spills


def test_a_spill_that_fails_is_raised_to_the_one_who_posted(ask: Asker) -> None:
    def full(exchange: Exchange) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        ask("long-answer", spill=full)
    assert ask().error is None


def test_many_at_once(ask: Asker) -> None:
    names = ["v1", "split", "crlf", "content-length", "truncated", "reset", "close-delimited", "too-many", "pings"]
    asked = [gevent.spawn(partial(ask, names[i % len(names)])) for i in range(180)]
    errors = [greenlet.get().error for greenlet in asked]
    expected = {"truncated": "eof", "reset": "reset"}
    assert errors == [expected.get(names[i % len(names)]) for i in range(180)]


# Which one.


def test_the_transport_says_what_it_is(transport_kind: Kind, opener: Opener) -> None:
    assert opener("http://127.0.0.1:1").transport.name == transport_kind


def test_https_is_always_pure() -> None:
    endpoint = parse_endpoint("https://127.0.0.1:1")
    with contextlib.closing(open_transport(endpoint)) as transport:
        assert transport.name == "pure"
    with pytest.raises(ConfigError, match="speaks no https"):
        open_transport(endpoint, "compiled")


def test_a_message_does_not_show_its_head() -> None:
    endpoint = parse_endpoint("http://127.0.0.1:1", api_key="sekrit")
    message = Message(endpoint.head("/v1/completions", 0, "r"), (), None, 1.0)
    assert "sekrit" not in repr(message) and "sekrit" not in repr(endpoint)
