"""One row of the records: the plan of a request and what came back, read and judged."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.traffic.bulk import read_body
from harness.traffic.planned import Planned
from harness.traffic.stream import Answer
from harness.traffic.wire.exchange import Exchange
from harness.traffic.wire.framing import HttpMessage, read_message

BUFFERED_TOKENS_PER_S = 50_000
"""Output that arrives faster than this in one stream was held back on its way: no engine decodes one so fast."""

MAX_US = 2**32 - 1

_FIELD = re.compile(rb"(?:^|[\r\n])(?:\xef\xbb\xbf)?(?:data|event|id|retry|error|:)")
"""What a line of an event stream begins with."""


def row_of(planned: Planned, worker: int | None, scheduled_ns: int | None, exchange: Exchange) -> dict[str, Any]:
    """The row, by column; all times are on the clock that the exchange was taken with.

    Parameters
    ----------
    planned : Planned
        The plan.
    worker : int or None
        The client process that had it.
    scheduled_ns : int or None
        When it was due.
    exchange : Exchange
        What came back.
    """
    message = read_message(exchange.raw)
    is_stream = message.status == 200 and _is_event_stream(message)
    answer = read_body(message.body) if is_stream else Answer()
    arrival_ns = _arrivals(exchange, message, answer)
    sent_ns = exchange.sent_ns
    event_us = (arrival_ns - (sent_ns or 0)) // 1000
    error, detail = _error(exchange, message, answer, planned.output_tokens)
    if len(event_us) and (event_us[0] < 0 or event_us[-1] > MAX_US):
        # Can't be: a load's timeout is an hour at most. It must not pass for a latency if it ever is.
        error, detail = "timeout", f"output came {event_us[-1] / 1e6:.0f} s after the request was sent"
        event_us = np.clip(event_us, 0, MAX_US)
    counts = answer.event_tokens
    return {
        "request_id": f"{planned.session_id}-{planned.turn}",
        "phase": planned.phase,
        "session_id": planned.session_id,
        "turn": planned.turn,
        "tenant": planned.tenant,
        "worker": worker,
        "scheduled_ns": scheduled_ns,
        "sent_ns": sent_ns,
        "send_lag_us": None if sent_ns is None or scheduled_ns is None else (sent_ns - scheduled_ns) // 1000,
        "ended_ns": exchange.ended_ns,
        "planned_prompt_tokens": planned.prompt_tokens,
        "planned_output_tokens": planned.output_tokens,
        "prompt_tokens": answer.prompt_tokens,
        "cached_prompt_tokens": answer.cached_prompt_tokens,
        "output_tokens": answer.output_tokens,
        "event_us": event_us.astype(np.uint32),
        "event_tokens": None if counts is None else np.asarray(counts, np.uint32),
        "tokens_estimated": answer.tokens_estimated,
        "buffered": _is_buffered(arrival_ns, answer.counted_tokens),
        "finish_reason": answer.finish_reason,
        "http_status": message.status,
        "error": error,
        "error_detail": detail,
        "connection_reused": exchange.reused,
        "resends": exchange.resends,
        "text": answer.text,
    }


def _arrivals(exchange: Exchange, message: HttpMessage, answer: Answer) -> NDArray[np.int64]:
    """When each event with output was complete: the arrival of the read that brought its last byte."""
    if not answer.ends:
        return np.empty(0, np.int64)
    raw = message.body_to_raw(np.asarray(answer.ends, np.int64))
    read_ends = np.cumsum(np.frombuffer(exchange.read_bytes, np.uint32), dtype=np.int64)
    arrivals: NDArray[np.int64] = np.frombuffer(exchange.read_ns, np.int64)[np.searchsorted(read_ends, raw, "right")]
    return arrivals


def _error(
    exchange: Exchange, message: HttpMessage, answer: Answer, planned_output_tokens: int
) -> tuple[str | None, str | None]:
    """The first thing that went wrong with a request, by name, and in words."""
    ended, detail = exchange.error, exchange.error_detail
    status = message.status
    own = ended in ("timeout", "aborted", "client_lost", "not_sent")
    # What the server said outranks how the connection ended, unless the client itself gave up.
    if status is not None and status != 200 and not own:
        return "http_status", f"HTTP {status}: {_start_of(message.body)}"
    if answer.error == "error_event" and (not own or ended == "timeout"):
        return answer.error, answer.error_detail
    is_whole = answer.done and answer.finish_reason is not None
    if ended == "eof" and status is None:
        return "reset", detail
    if ended and (own or not is_whole):  # how a connection ends after [DONE] is no part of the answer
        return "truncated_stream" if ended == "eof" else ended, detail
    if message.error and not is_whole:
        return "malformed_http", message.error
    if status is None:
        return "reset", "no answer"
    encoding = message.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        return "content_encoding", encoding
    if not _is_event_stream(message):
        return "not_a_stream", f"content-type {message.headers.get('content-type')}: {_start_of(message.body)}"
    if answer.error:
        return answer.error, answer.error_detail
    if not is_whole and message.body.strip() and not _FIELD.search(message.body):
        return "not_a_stream", f"no event in the body: {_start_of(message.body)}"
    if not is_whole:
        ends = {"finish reason": answer.finish_reason is not None, "[DONE]": answer.done}
        missing = " and ".join(name for name, came in ends.items() if not came)
        return "truncated_stream", f"the stream ended without {missing}"
    if not answer.ends:
        return "no_output", "the stream carried no output"
    counted = None if answer.tokens_estimated else answer.counted_tokens
    got = counted if answer.output_tokens is None else answer.output_tokens
    if got is not None and got != planned_output_tokens:
        return "output_length", f"{got} tokens instead of {planned_output_tokens}"
    return None, None


def _start_of(body: bytes) -> str:
    return body[:500].decode(errors="replace")


def _is_event_stream(message: HttpMessage) -> bool:
    """Whether the answer is server-sent events, by its type; some proxies send none."""
    return message.headers.get("content-type", "text/event-stream").lower().startswith("text/event-stream")


def _is_buffered(arrival_ns: NDArray[np.int64], tokens: int) -> bool:
    """Whether the whole output came at once."""
    if tokens < 2 or not len(arrival_ns):
        return False
    return int(arrival_ns[-1] - arrival_ns[0]) * BUFFERED_TOKENS_PER_S <= (tokens - 1) * 1_000_000_000
