"""The request records of a cell: what the client's raw record says, as one row a request (`docs/results.md`)."""

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.files import write_bytes
from harness.traffic.client import Exchange
from harness.traffic.journal import CLIENT, END, START, exchange_of, read_journal
from harness.traffic.stream import Answer, read_answer, server_events, token_counts
from harness.traffic.workload import peak_of

ERRORS: Mapping[str, str] = {
    "connect": "no connection could be made",
    "timeout": "no end within the load's timeout_s",
    "reset": "the connection broke before the answer was whole",
    "malformed_http": "the answer is no HTTP/1.1",
    "http_status": "the status is not 200",
    "content_encoding": "the answer is compressed although that was declined",
    "not_a_stream": "a 200 whose body is no event stream",
    "error_event": "an error inside the stream",
    "malformed_event": "an event that is no JSON object of the expected shape",
    "truncated_stream": "the stream ended without finish reason or [DONE]",
    "no_output": "a whole stream without any output",
    "output_length": "more or fewer tokens than planned",
    "aborted": "under way when the client was told to stop",
    "client_lost": "under way when the client died",
}
"""Every way to fail, by the name in column `error`."""

BUFFERED_TOKENS_PER_S = 50_000
"""Output that arrives faster than this in one stream was held back on its way: no engine decodes one so fast."""

SCHEMA = pa.schema(
    [
        ("request_id", pa.string()),
        ("phase", pa.string()),
        ("session_id", pa.string()),
        ("turn", pa.int32()),
        ("scheduled_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("ended_ns", pa.int64()),
        ("planned_prompt_tokens", pa.int32()),
        ("planned_output_tokens", pa.int32()),
        ("prompt_tokens", pa.int32()),
        ("cached_prompt_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("event_ns", pa.list_(pa.int64())),
        ("event_tokens", pa.list_(pa.int32())),
        ("tokens_estimated", pa.bool_()),
        ("buffered", pa.bool_()),
        ("finish_reason", pa.string()),
        ("http_status", pa.int32()),
        ("error", pa.string()),
        ("error_detail", pa.string()),
        ("text", pa.string()),
    ]
)


def convert(journal: Path, parquet: Path, lost_ns: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Turn the client's raw record into `requests.parquet`.

    Parameters
    ----------
    journal : Path
        `stream.jsonl`; may end in the middle of a line, or be absent.
    parquet : Path
        File to write, whole or not at all.
    lost_ns : int
        When the client was found to have ended: the end of requests that it never finished.

    Returns
    -------
    rows : list of dict
        The records, in order of start.
    client : dict
        The client's own figures; empty when it died before it could write them.
    """
    starts: dict[str, dict[str, Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    client: dict[str, Any] = {}
    for line in read_journal(journal):
        kind = line.pop("kind", None)
        if kind == START:
            starts[line["request_id"]] = line
        elif kind == END and line["request_id"] in starts:
            rows[line["request_id"]] = record(starts[line["request_id"]], exchange_of(line))
        elif kind == CLIENT:
            client = line
    for request_id, start in starts.items():
        if request_id not in rows:
            lost = Exchange(ended_ns=lost_ns, error="client_lost", error_detail=ERRORS["client_lost"])
            rows[request_id] = record(start, lost)
    ordered = [rows[request_id] for request_id in starts]
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ordered, schema=SCHEMA), buffer)
    write_bytes(parquet, buffer.getvalue())
    return ordered, client


def record(start: Mapping[str, Any], exchange: Exchange) -> dict[str, Any]:
    """One row: the plan of a request (its `start` line) and what came back."""
    streamed = exchange.status == 200 and _is_event_stream(exchange)
    answer = read_answer(server_events(exchange.reads)) if streamed else Answer()
    counts, estimated = token_counts(answer)
    times = [output.ns for output in answer.outputs]
    error, detail = _error(exchange, answer, start["planned_output_tokens"], None if estimated else sum(counts))
    return {
        "request_id": start["request_id"],
        "phase": start["phase"],
        "session_id": start["session_id"],
        "turn": start["turn"],
        "scheduled_ns": start["scheduled_ns"],
        "sent_ns": exchange.sent_ns,
        "ended_ns": exchange.ended_ns,
        "planned_prompt_tokens": start["planned_prompt_tokens"],
        "planned_output_tokens": start["planned_output_tokens"],
        "prompt_tokens": answer.prompt_tokens,
        "cached_prompt_tokens": answer.cached_prompt_tokens,
        "output_tokens": answer.output_tokens,
        "event_ns": times,
        "event_tokens": counts,
        "tokens_estimated": estimated,
        "buffered": _is_buffered(times, sum(counts)),
        "finish_reason": answer.finish_reason,
        "http_status": exchange.status,
        "error": error,
        "error_detail": detail,
        "text": answer.text,
    }


def peak_context_tokens(rows: Iterable[Mapping[str, Any]]) -> int:
    """Largest sum of contexts (prompt + output, as planned) over requests of the window that were under way at once."""
    return peak_of(
        [
            (row["sent_ns"], row["ended_ns"], row["planned_prompt_tokens"] + row["planned_output_tokens"])
            for row in rows
            if row["sent_ns"] is not None and row["phase"] == "window"
        ]
    )


def _error(
    exchange: Exchange, answer: Answer, planned_output_tokens: int, counted_tokens: int | None
) -> tuple[str | None, str | None]:
    """The first thing that went wrong with a request, by name, and in words."""
    body = b"".join(data for _, data in exchange.reads[:8])[:500].decode(errors="replace")
    status = exchange.status
    # What the server said outranks how the connection ended, unless the client itself gave up.
    if status is not None and status != 200 and exchange.error not in ("timeout", "aborted"):
        return "http_status", f"HTTP {status}: {body}"
    if answer.error == "error_event" and exchange.error not in ("aborted", "client_lost"):
        return answer.error, answer.error_detail
    if exchange.error:
        return exchange.error, exchange.error_detail
    if status is None:
        return "reset", "no answer"
    if exchange.headers.get("content-encoding", "identity").lower() != "identity":
        return "content_encoding", exchange.headers["content-encoding"]
    if not _is_event_stream(exchange):
        return "not_a_stream", f"content-type {exchange.headers.get('content-type')}: {body}"
    if answer.error:
        return answer.error, answer.error_detail
    if not answer.done or answer.finish_reason is None:
        ends = {"finish reason": answer.finish_reason is not None, "[DONE]": answer.done}
        missing = " and ".join(name for name, came in ends.items() if not came)
        return "truncated_stream", f"the stream ended without {missing}"
    got = answer.output_tokens if answer.output_tokens is not None else counted_tokens
    if not answer.outputs:
        return "no_output", "the stream carried no output"
    if got is not None and got != planned_output_tokens:
        return "output_length", f"{got} tokens instead of {planned_output_tokens}"
    return None, None


def _is_event_stream(exchange: Exchange) -> bool:
    """Whether the answer is server-sent events, by its type; some proxies send none."""
    return exchange.headers.get("content-type", "text/event-stream").lower().startswith("text/event-stream")


def _is_buffered(event_ns: list[int], tokens: int) -> bool:
    """Whether the whole output came at once."""
    if tokens < 2 or not event_ns:
        return False
    return (event_ns[-1] - event_ns[0]) * BUFFERED_TOKENS_PER_S <= (tokens - 1) * 1_000_000_000
