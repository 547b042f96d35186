"""From raw reads to a row."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.traffic.client import Exchange
from harness.traffic.journal import Journal, exchange_of, read_journal
from harness.traffic.records import SCHEMA, convert, peak_context_tokens, record

FACTS = {
    "phase": "window", "session_id": "window-00000", "turn": 0, "scheduled_ns": None,
    "started_ns": 900, "planned_prompt_tokens": 5, "planned_output_tokens": 3,
}  # fmt: skip
PLAN = {"request_id": "window-00000-0", **FACTS}
STREAM = {"content-type": "text/event-stream; charset=utf-8"}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def test_one_stream_by_hand() -> None:
    # Sent at 1,000 ns. Read 1 brings the first token and half of the second; read 2 its other half; read 3 the third
    # token, usage and end in one.
    first = event({"choices": [{"index": 0, "text": "a", "token_ids": [11]}]})
    second = event({"choices": [{"index": 0, "text": "b", "token_ids": [12]}]})
    third = event({"choices": [{"index": 0, "text": "c", "token_ids": [13], "finish_reason": "length"}]})
    usage = {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    reads = [
        (5_000, first + second[:20]),
        (7_000_000, second[20:]),
        (9_000_000, third + event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n"),
    ]
    exchange = Exchange(sent_ns=1_000, ended_ns=9_000_000, status=200, headers=STREAM, reads=reads)
    assert record(PLAN, exchange) == {
        "request_id": "window-00000-0", "phase": "window", "session_id": "window-00000", "turn": 0,
        "scheduled_ns": None, "sent_ns": 1_000, "ended_ns": 9_000_000, "planned_prompt_tokens": 5,
        "planned_output_tokens": 3, "prompt_tokens": 5, "cached_prompt_tokens": 2, "output_tokens": 3,
        "event_ns": [5_000, 7_000_000, 9_000_000], "event_tokens": [1, 1, 1], "tokens_estimated": False,
        "buffered": False, "finish_reason": "length", "http_status": 200, "error": None, "error_detail": None,
        "text": "abc",
    }  # fmt: skip


def test_the_journal_gives_back_what_was_written(tmp_path: Path) -> None:
    exchange = Exchange(7, 99, 200, STREAM, [(10, b"\xff\x00a"), (12, b"b")], "reset", "broke")
    journal = Journal(tmp_path / "stream.jsonl")
    journal.start("r", FACTS)
    journal.end("r", exchange)
    start, end = read_journal(tmp_path / "stream.jsonl")
    assert start == {**PLAN, "kind": "start", "request_id": "r"}
    assert exchange_of(end) == exchange


def test_a_record_cut_off_in_mid_line_gives_the_rest_and_what_was_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "stream.jsonl")
    for name in ("r1", "r2"):
        journal.start(name, FACTS)
    journal.end("r1", Exchange(1, 2, 500, {}, [(2, b"sorry")]))
    journal.end("r2", Exchange(1, 2, 200, STREAM, [(2, b"x")]))
    whole = (tmp_path / "stream.jsonl").read_bytes()
    (tmp_path / "stream.jsonl").write_bytes(whole[:-30])
    rows, client = convert(tmp_path / "stream.jsonl", tmp_path / "requests.parquet", lost_ns=77)
    assert [(row["request_id"], row["error"], row["ended_ns"]) for row in rows] == [
        ("r1", "http_status", 2),
        ("r2", "client_lost", 77),
    ]
    assert client == {}
    assert pq.read_table(tmp_path / "requests.parquet").schema.equals(SCHEMA)


def test_no_record_at_all_gives_an_empty_table(tmp_path: Path) -> None:
    assert convert(tmp_path / "none.jsonl", tmp_path / "requests.parquet", lost_ns=1) == ([], {})
    assert pq.read_table(tmp_path / "requests.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("exchange", "error", "detail"),
    [
        (Exchange(1, 2, 429, {}, [(2, b"slow down")], "reset", "x"), "http_status", "slow down"),
        (Exchange(1, 2, 500, {}, [(2, b"half")], "timeout", "late"), "timeout", "late"),
        (Exchange(1, 2, 200, STREAM, [(2, event({"error": {"message": "oom"}}))], "reset", "x"), "error_event", "oom"),
        (Exchange(1, 2, 200, STREAM, [(2, event({}))], "truncated_stream", "cut"), "truncated_stream", "cut"),
        (Exchange(None, 2, None, {}, [], "connect", "refused"), "connect", "refused"),
        (Exchange(1, 2, 200, {"content-type": "text/html"}, [(2, b"<p>")]), "not_a_stream", "<p>"),
    ],
)  # fmt: skip
def test_what_the_server_said_outranks_how_the_connection_ended(exchange: Exchange, error: str, detail: str) -> None:
    row = record(PLAN, exchange)
    assert row["error"] == error
    assert detail in row["error_detail"]


KEYS = st.sampled_from(
    ["choices", "delta", "usage", "text", "index", "error", "completion_tokens", "token_ids", "finish_reason"]
)
PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(PAYLOADS, max_size=3))
def test_whatever_a_server_sends_can_be_recorded(payloads: list[Any]) -> None:
    body = b"".join(map(event, payloads)) + event({"choices": [{"text": "\ud800", "finish_reason": "stop"}]})
    row = record(PLAN, Exchange(1, 9, 200, STREAM, [(2, body)]))
    assert pa.Table.from_pylist([row], schema=SCHEMA).num_rows == 1
    assert len(row["event_ns"]) == len(row["event_tokens"])


def test_peak_of_contexts_that_overlap() -> None:
    spans = [(0, 10, 100), (5, 12, 30), (10, 20, 60), (None, 99, 1000)]
    rows = [
        {**FACTS, "sent_ns": sent, "ended_ns": ended, "planned_prompt_tokens": size - 3, "planned_output_tokens": 3}
        for sent, ended, size in spans
    ]
    assert peak_context_tokens(rows) == 130
