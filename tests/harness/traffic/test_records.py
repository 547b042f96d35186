"""From raw reads to a row, and from the spools of all clients to a file with a row for every planned request."""

import json
import tempfile
import time
from array import array
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.clock import boot_id, clock
from harness.traffic import row_groups
from harness.traffic.bulk import read_exchange
from harness.traffic.planned import Planned
from harness.traffic.records import ERRORS, SCHEMA, Conversion, convert
from harness.traffic.row import row_of
from harness.traffic.spool import Spool, inflight_path, stream_path
from harness.traffic.wire.exchange import Exchange

PLAN = Planned(0, "window", "window-00000", 0, None, prompt_tokens=5, output_tokens=3, closed=True)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def word(text: str = "a", finish: str | None = None, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]})


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": tokens}})


def exchange_of(*reads: tuple[int, bytes], sent_ns: int | None = 1_000, error: str | None = None) -> Exchange:
    return Exchange(
        sent_ns=sent_ns,
        ended_ns=reads[-1][0] if reads else 2_000,
        read_ns=array("q", [ns for ns, _ in reads]),
        read_bytes=array("I", [len(data) for _, data in reads]),
        raw=bytearray(b"".join(data for _, data in reads)),
        error=error,
        error_detail=error and f"detail of {error}",
    )


def answered(*payloads: bytes, error: str | None = None, head: bytes = HEAD, last: bytes = LAST) -> Exchange:
    """An answer whose bytes came in one read, at 2,000 ns."""
    return exchange_of((2_000, head + b"".join(map(chunk, payloads)) + last), error=error)


def plain(status: str, body: bytes, headers: str = "", error: str | None = None) -> Exchange:
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    return exchange_of((2_000, head.encode() + body), error=error)


WHOLE = (word(), word(), word(finish="length"), usage(3), DONE)


# --- a row ---


def test_one_stream_by_hand() -> None:
    # Sent at 1,000 ns. Read 1 is the head; read 2 brings the first token and half of the second; read 3 the other half
    # but for the last byte of its blank line; read 4 that byte, the third token, usage and end.
    first, second = word("a", token_ids=[11]), word("b", token_ids=[12])
    third = word("c", "length", token_ids=[13])
    end = event(
        {
            "choices": [],
            "usage": {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
        }
    )
    body = chunk(second)
    rest = body[-3:] + chunk(third + end + DONE) + LAST
    exchange = exchange_of(
        (4_000, HEAD), (5_999, chunk(first) + body[:20]), (7_001_000, body[20:-3]), (9_001_999, rest)
    )
    row = row_of(PLAN, 4, 500, exchange)
    assert row.pop("event_us").tolist() == [4, 9_000, 9_000]
    assert row == {
        "request_id": "window-00000-0", "phase": "window", "session_id": "window-00000", "turn": 0, "tenant": None,
        "worker": 4, "scheduled_ns": 500, "sent_ns": 1_000, "send_lag_us": 0, "ended_ns": 9_001_999,
        "planned_prompt_tokens": 5, "planned_output_tokens": 3, "prompt_tokens": 5, "cached_prompt_tokens": 2,
        "output_tokens": 3, "event_tokens": None, "tokens_estimated": False, "buffered": False,
        "finish_reason": "length", "http_status": 200, "error": None, "error_detail": None,
        "connection_reused": False, "resends": 0, "text": "abc",
    }  # fmt: skip
    assert read_exchange(exchange).token_ids == [11, 12, 13]


@given(st.data())
def test_an_event_is_stamped_by_the_read_that_completed_it_however_the_bytes_were_split(data: st.DataObject) -> None:
    ending = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    texts = data.draw(st.lists(st.sampled_from(["a", "é", "🙂", "[DONE]", "data: \n\n"]), min_size=1, max_size=5))
    body, completed = b"", []
    for text in texts:
        body += data.draw(st.sampled_from([b"", b": ping\n\n"]))
        payload = json.dumps({"choices": [{"text": text}]}, ensure_ascii=False)
        body += f"data: {payload}{ending}{ending}".encode()
        completed.append(len(body) - len(ending))
    framing = data.draw(st.sampled_from(["chunked", "length", "close"]))
    if framing == "chunked":
        edges = [0, *sorted(data.draw(st.lists(st.integers(1, len(body) - 1), max_size=4, unique=True))), len(body)]
        raw, where = HEAD, []
        for a, b in pairwise(edges):
            start = len(raw) + len(b"%x\r\n" % (b - a))
            where += range(start, start + b - a)
            raw += chunk(body[a:b])
        raw += LAST
    else:
        length = f"content-length: {len(body)}\r\n" if framing == "length" else ""
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{length}\r\n".encode()
        raw, where = head + body, list(range(len(head), len(head) + len(body)))
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=9))), len(raw)]
    reads = [(1_000 * (i + 2), raw[a:b]) for i, (a, b) in enumerate(pairwise(cuts))]
    expected = [next(i for i, cut in enumerate(cuts[1:]) if where[at] < cut) + 1 for at in completed]
    row = row_of(PLAN, 0, None, exchange_of(*reads))
    assert row["text"] == "".join(texts)
    assert row["event_us"].tolist() == expected


@pytest.mark.parametrize(
    ("exchange", "error", "detail"),
    [
        (answered(*WHOLE), None, None),
        # What the server said outranks how the connection ended, unless the client itself gave up.
        (plain("429 Too Many Requests", b"slow down", error="reset"), "http_status", "HTTP 429: slow down"),
        (plain("500 Oops", b"half", error="timeout"), "timeout", "detail of timeout"),
        (plain("302 Found", b"", "location: /login\r\n"), "http_status", "HTTP 302"),
        (answered(event({"error": {"message": "oom"}}), error="reset", last=b""), "error_event", "oom"),
        (answered(event({"error": {"message": "oom"}}), error="timeout", last=b""), "error_event", "oom"),
        (answered(word(), error="aborted", last=b""), "aborted", "detail of aborted"),
        (answered(word(), error="timeout", last=b""), "timeout", "detail of timeout"),
        (answered(word(), error="reset", last=b""), "reset", "detail of reset"),
        (answered(word(), error="eof", last=b""), "truncated_stream", "detail of eof"),
        (exchange_of(error="eof"), "reset", "detail of eof"),
        (exchange_of((2_000, b"HTTP/1.1 20"), error="eof"), "reset", "detail of eof"),
        (exchange_of(sent_ns=None, error="connect"), "connect", "detail of connect"),
        (exchange_of(sent_ns=None, error="tls"), "tls", "detail of tls"),
        (exchange_of((2_000, b"SSH-2.0-x\r\n"), error="malformed_http"), "malformed_http", "detail of malformed_http"),
        # A stream that is whole stays so, whatever the connection does then.
        (answered(*WHOLE, error="eof", last=b""), None, None),
        (answered(*WHOLE, error="reset", last=b""), None, None),
        (answered(*WHOLE, last=b"zz\r\n"), None, None),
        (answered(word(), last=b"zz\r\n"), "malformed_http", "chunk size"),
        (answered(*WHOLE, error="timeout", last=b""), "timeout", "detail of timeout"),
        (plain("200 OK", b"<p>", "content-type: text/html\r\n"), "not_a_stream", "text/html: <p>"),
        (
            plain("200 OK", b"\x1f\x8b", "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n"),
            "content_encoding",
            "gzip",
        ),
        (answered(word(), b"data: {broken\n\n", word(finish="length"), DONE), "malformed_event", "{broken"),
        (answered(word(), word(finish="length"), usage(2)), "truncated_stream", "without [DONE]"),
        (answered(word(), word(), usage(2), DONE), "truncated_stream", "without finish reason"),
        (answered(), "truncated_stream", "without finish reason and [DONE]"),
        (answered(b'{"error": "bad"}'), "not_a_stream", 'no event in the body: {"error": "bad"}'),
        (answered(b": ping\n\n"), "truncated_stream", "without finish reason and [DONE]"),
        (answered(word("", "stop"), usage(0), DONE), "no_output", "no output"),
        (answered(word(), word(finish="length"), usage(2), DONE), "output_length", "2 tokens instead of 3"),
        (answered(word(), word(finish="length"), usage(4), DONE), "output_length", "4 tokens instead of 3"),
        (answered(word("ab", "length", token_ids=[1, 2]), DONE), "output_length", "2 tokens instead of 3"),
        (answered(word("ab", "length"), DONE), None, None),  # how many tokens these are, nobody knows
    ],
)
def test_every_way_to_fail_has_its_name(exchange: Exchange, error: str | None, detail: str | None) -> None:
    row = row_of(PLAN, 0, None, exchange)
    assert row["error"] == error
    assert error is None or (error in ERRORS and detail is not None and detail in row["error_detail"])


def test_a_body_without_a_content_type_is_taken_for_a_stream() -> None:
    assert row_of(PLAN, 0, None, plain("200 OK", b"".join(WHOLE)))["error"] is None


def test_an_arrival_that_a_record_cannot_hold_fails_the_request_instead_of_wrapping() -> None:
    late = exchange_of((2_000, HEAD + chunk(word())), (5_000 * 10**9, b"".join(map(chunk, WHOLE[1:])) + LAST))
    row = row_of(PLAN, 0, None, late)
    assert (row["error"], row["event_us"].max()) == ("timeout", 2**32 - 1)
    assert "5000 s" in row["error_detail"]


@pytest.mark.parametrize(("gap_ns", "buffered"), [(39_000, True), (41_000, False)])
def test_output_that_came_faster_than_any_engine_decodes_is_called_buffered(gap_ns: int, buffered: bool) -> None:
    reads = [(10_000, HEAD + chunk(WHOLE[0])), (10_000 + gap_ns, b"".join(map(chunk, WHOLE[1:])) + LAST)]
    assert row_of(PLAN, 0, None, exchange_of(*reads))["buffered"] is buffered


KEYS = st.sampled_from(
    ["choices", "delta", "usage", "text", "index", "error", "completion_tokens", "token_ids", "finish_reason"]
)
PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(PAYLOADS, max_size=3), st.binary(max_size=30), st.sampled_from([None, *ERRORS, "eof"]), st.data())
def test_whatever_a_server_sends_can_be_recorded(
    payloads: list[Any], junk: bytes, error: str | None, data: st.DataObject
) -> None:
    whole = answered(*map(event, payloads), word("\ud800", "stop"), last=junk, error=error)
    cut = data.draw(st.integers(0, len(whole.raw)))
    for exchange in (whole, exchange_of((2_000, bytes(whole.raw[:cut])), error=error)):
        row = row_of(PLAN, 0, None, exchange)
        assert row["error"] in (None, *ERRORS)
        (piece,) = list(row_groups.parquet_pieces([row], SCHEMA, []))
        assert piece.startswith(b"PAR1")


# --- a cell ---

Line = dict[str, Any]


def session(name: str, first: int, turns: int = 1, phase: str = "window", tenant: str = "", **more: Any) -> Line:
    one = {"new": [[0, 9], "5,6"], "prompt_tokens": 5, "output_tokens": 3, "think_ns": 0}
    return {
        "kind": "session", "session_id": name, "phase": phase, "tenant": tenant, "due_ns": None,
        "first_request": first, "turns": [one] * turns, **more,
    }  # fmt: skip


def write_schedule(folder: Path, sessions: Sequence[Line], **groups: str) -> Path:
    requests = sum(len(one["turns"]) for one in sessions)
    warmup = sum(len(one["turns"]) for one in sessions if one["phase"] == "warmup")
    lines = [
        {"kind": "engine", "schema_version": 2, "model": "m", "tokenizer": "t", "extras": {}},
        {
            "kind": "load", "load": {}, "context_tokens": 99, "seed": 1, "api": "completions",
            "requests": requests - warmup, "warmup_requests": warmup, "corpus": "1,2,3", "corpus_sha256": "x",
            "groups": {name: {"kind": kind} for name, kind in (groups or {"": "closed"}).items()},
        },
        *sessions,
    ]  # fmt: skip
    path = folder / "schedule.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def converted(folder: Path, schedule: Path, lost_ns: int = 77_000) -> tuple[list[Line], Conversion]:
    conversion = convert(folder, schedule, folder / "requests.parquet", lost_ns)
    table = pq.read_table(folder / "requests.parquet")
    assert table.schema.equals(SCHEMA)
    assert table.schema.metadata[b"kvmark_requests_version"] == b"2"
    return table.to_pylist(), conversion


def test_every_planned_request_has_one_row_whatever_became_of_it(tmp_path: Path) -> None:
    sessions = [
        session("warmup-00000", 0, phase="warmup"),
        session("window-00000", 1, turns=2, tenant="chat"),
        session("window-00001", 3, tenant="chat"),
        session("window-00002", 4, tenant="batch"),
        session("window-00003", 5, tenant="batch"),
    ]
    schedule = write_schedule(tmp_path, sessions, **{"": "closed", "chat": "open", "batch": "closed"})
    spools = [Spool(tmp_path, worker, 6, {"transport": "pure"}) for worker in (0, 1)]
    spools[0].start(0, None, 900)
    spools[1].start(1, 400, 800)
    spools[1].end(1, 400, plain("503 Busy", b"no"))
    spools[0].end(0, None, answered(*WHOLE))
    spools[1].start(2, 6_000, 6_100)  # goes down under way, after part of the answer
    spools[1].part(2, exchange_of((8_000, HEAD + chunk(word("half"))), sent_ns=6_200))
    spools[1].start(3, 6_500, 6_600)  # … and before any
    spools[0].start(4, None, 10_000)
    spools[0].end(4, None, exchange_of((30_000, HEAD + b"".join(map(chunk, WHOLE)) + LAST), sent_ns=11_000))
    spools[0].client({"cpu_s": 2.0, "complete": False})
    rows, conversion = converted(tmp_path, schedule)

    def of(*names: str) -> list[tuple[Any, ...]]:
        return [tuple(row[name] for name in names) for row in rows]

    assert of("request_id", "phase", "turn", "tenant") == [
        ("warmup-00000-0", "warmup", 0, None),
        ("window-00000-0", "window", 0, "chat"),
        ("window-00000-1", "window", 1, "chat"),
        ("window-00001-0", "window", 0, "chat"),
        ("window-00002-0", "window", 0, "batch"),
        ("window-00003-0", "window", 0, "batch"),
    ]
    assert of("error", "worker", "scheduled_ns", "sent_ns", "ended_ns", "send_lag_us") == [
        (None, 0, None, 1_000, 2_000, None),
        ("http_status", 1, 400, 1_000, 2_000, 0),
        ("client_lost", 1, 6_000, 6_200, 77_000, 0),
        ("client_lost", 1, 6_500, 6_600, 77_000, 0),
        (None, 0, None, 11_000, 30_000, None),
        ("not_sent", None, None, None, 77_000, None),
    ]
    assert of("event_us", "event_tokens", "text")[1:5] == [
        ([], None, ""),
        ([1], None, "half"),
        ([], None, ""),
        ([19] * 3, None, "aaa"),
    ]
    assert conversion.window == (400, 11_000, 77_000)
    assert (conversion.window_requests, conversion.failed_requests) == (5, 4)
    assert conversion.errors == {"http_status": 1, "client_lost": 2, "not_sent": 1}
    assert conversion.commonest_error == f"client_lost: {ERRORS['client_lost']}"
    assert conversion.peak_context_tokens == 3 * 8
    assert [(one.number, one.hello["transport"], one.client.get("cpu_s")) for one in conversion.workers] == [
        (0, "pure", 2.0),
        (1, "pure", None),
    ]


def test_without_any_record_all_requests_are_not_sent(tmp_path: Path) -> None:
    rows, conversion = converted(tmp_path, write_schedule(tmp_path, [session("window-00000", 0, turns=3)]))
    assert [(row["error"], row["ended_ns"], row["http_status"]) for row in rows] == [("not_sent", 77_000, None)] * 3
    assert (conversion.window, conversion.workers, conversion.peak_context_tokens) == (None, (), 0)


@given(st.lists(st.sampled_from(["ended", "started", "part", "not"]), min_size=1, max_size=6), st.data())
def test_a_spool_cut_anywhere_still_gives_a_row_for_each(fates: list[str], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        schedule = write_schedule(folder, [session("window-00000", 0, turns=len(fates))])
        spool = Spool(folder, 0, len(fates), {})
        for ordinal, fate in enumerate(fates):
            if fate != "not":
                spool.start(ordinal, None, 500)
            if fate == "part":
                spool.part(ordinal, exchange_of((2_000, HEAD)))
            if fate in ("part", "ended"):
                last = b"".join(map(chunk, WHOLE)) + LAST
                spool.end(ordinal, None, exchange_of((2_000, last if fate == "part" else HEAD + last)))
        spool.close()
        whole = stream_path(folder, 0).read_bytes()
        size = data.draw(st.integers(0, len(whole)))
        stream_path(folder, 0).write_bytes(whole[:size])
        rows, _ = converted(folder, schedule)
        assert [row["turn"] for row in rows] == list(range(len(fates)))
        for row, fate in zip(rows, fates, strict=True):
            possible = {"not": {"not_sent"}, "started": {"client_lost"}}.get(fate, {None, "client_lost"})
            assert row["error"] in possible
        if size == len(whole):
            assert all(
                (row["error"] is None) == (fate in ("part", "ended")) for row, fate in zip(rows, fates, strict=True)
            )


def test_times_of_another_host_are_converted_by_the_wall_clocks(tmp_path: Path) -> None:
    schedule = write_schedule(tmp_path, [session("window-00000", 0, turns=3)])
    spool = Spool(tmp_path, 0, 3, {})
    now = time.monotonic_ns()
    other = 10**15  # that host's monotonic clock minus ours
    for ordinal in (0, 1):
        spool.start(ordinal, now + other, now + other + 5)
    done = exchange_of(
        (now + other + 3_000_000, HEAD + b"".join(map(chunk, WHOLE)) + LAST), sent_ns=now + other + 1_000
    )
    spool.end(0, now + other, done)
    spool.client({})
    spool.close()
    # Its file as it would be if it came from there.
    frames = stream_path(tmp_path, 0).read_bytes()
    frames = frames.replace(boot_id().encode(), boot_id()[::-1].encode())
    at = frames.rindex(b'{"clock"')
    ours = clock()
    last = json.dumps({"clock": {"monotonic_ns": ours["monotonic_ns"] + other, "wall_ns": ours["wall_ns"]}}).encode()
    frames = frames[: at - 5] + len(last).to_bytes(4, "little") + frames[at - 1 : at] + last
    stream_path(tmp_path, 0).write_bytes(frames)
    lost_ns = now + 10**9
    (first, second, third), _ = converted(tmp_path, schedule, lost_ns)
    near = 10**8  # the clock pairs are taken at different moments of this test
    assert abs(first["sent_ns"] - now - 1_000) < near and abs(first["scheduled_ns"] - now) < near
    assert first["ended_ns"] - first["sent_ns"] == 3_000_000 - 1_000
    assert (first["send_lag_us"], first["event_us"]) == (1, [2_999] * 3)
    assert abs(second["sent_ns"] - now) < near and second["ended_ns"] == lost_ns
    assert (third["error"], third["ended_ns"]) == ("not_sent", lost_ns)


def test_a_step_of_another_host_s_wall_clock_moves_no_time_once_all_have_started(tmp_path: Path) -> None:
    schedule = write_schedule(tmp_path, [session("window-00000", 0)])
    now, other = time.monotonic_ns(), 10**15
    spool = Spool(tmp_path, 0, 1, {})
    spool.end(
        0, now + other, exchange_of((now + other + 3_000_000, HEAD + b"".join(map(chunk, WHOLE)) + LAST),
        sent_ns=now + other + 1_000),
    )  # fmt: skip
    stepped = {"monotonic_ns": now + other, "wall_ns": time.time_ns() + 3600 * 10**9}
    spool.client({"clock": stepped, "origin_ns": now + other})
    spool.close()
    path = stream_path(tmp_path, 0)
    path.write_bytes(path.read_bytes().replace(boot_id().encode(), boot_id()[::-1].encode()))
    start = {"origin_ns": now, "origin_wall_ns": time.time_ns()}
    (tmp_path / "workers.json").write_text(json.dumps({**start, "stopped": False, "workers": []}))
    (row,), _ = converted(tmp_path, schedule, now + 10**9)
    assert (row["scheduled_ns"], row["sent_ns"], row["ended_ns"]) == (now, now + 1_000, now + 3_000_000)


def test_rows_are_written_in_groups_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "GROUP_ROWS", 3)
    schedule = write_schedule(tmp_path, [session("window-00000", 0, turns=8)])
    spool = Spool(tmp_path, 0, 8, {})
    for ordinal in range(8):
        multi = [word("ab", token_ids=[1, 2]), word("c", "length", token_ids=[3]), DONE]
        spool.end(ordinal, None, answered(*(multi if ordinal % 3 else WHOLE)))
    rows, _ = converted(tmp_path, schedule)
    assert [row["event_tokens"] for row in rows] == [[2, 1] if i % 3 else None for i in range(8)]
    assert [len(row["event_us"]) for row in rows] == [2 if i % 3 else 3 for i in range(8)]
    groups = pq.ParquetFile(tmp_path / "requests.parquet").metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [3, 3, 2]
    monkeypatch.setattr(row_groups, "GROUP_BYTES", 1)
    converted(tmp_path, schedule)
    assert pq.ParquetFile(tmp_path / "requests.parquet").metadata.row_group(0).num_rows == 1


def test_contexts_are_summed_where_they_overlap(tmp_path: Path) -> None:
    schedule = write_schedule(tmp_path, [session("window-00000", 0, turns=4), session("warmup-0", 4, phase="warmup")])
    spool = Spool(tmp_path, 0, 5, {})
    for ordinal, (sent, ended) in enumerate([(10, 100), (5, 120), (100, 200), (150, 160), (1, 999)]):
        spool.end(ordinal, None, exchange_of((ended, b""), sent_ns=sent))
    assert converted(tmp_path, schedule)[1].peak_context_tokens == 2 * 8


def test_an_inflight_map_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    schedule = write_schedule(tmp_path, [session("window-00000", 0, turns=2)])
    spool = Spool(tmp_path, 0, 2, {})
    spool.start(0, None, 10)
    spool.start(1, None, 10)
    inflight_path(tmp_path, 0).write_bytes(inflight_path(tmp_path, 0).read_bytes()[:20])
    rows, _ = converted(tmp_path, schedule)
    assert [row["error"] for row in rows] == ["client_lost", "not_sent"]


def test_the_longest_outputs_fit(tmp_path: Path) -> None:
    tokens = 131_072
    schedule = write_schedule(tmp_path, [session("window-00000", 0)])
    spool = Spool(tmp_path, 0, 1, {})
    pieces = [HEAD, *[chunk(word(" x"))] * (tokens - 1), chunk(word(" y", "length") + usage(tokens) + DONE), LAST]
    exchange = exchange_of(*((1_000_000 * i, piece) for i, piece in enumerate(pieces, start=1)), sent_ns=0)
    spool.end(0, None, exchange)
    ((row,), _) = converted(tmp_path, schedule)
    assert row["event_us"] == list(np.arange(tokens) * 1_000 + 2_000)
    assert (row["output_tokens"], row["event_tokens"], row["error"]) == (tokens, None, "output_length")


def test_every_error_and_every_column_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "results.md").read_text()
    named = {name for line in text.splitlines() if line.startswith("| ") for name in line.split("|")[1].split(", ")}
    assert {name.strip() for name in named} >= {*ERRORS, *SCHEMA.names}
