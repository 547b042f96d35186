"""The request records of a cell: what the clients left in their spools, as one row a request (`docs/results.md`).

Every planned request has exactly one row, in schedule order: also one that a client had under way when it died, and one
that was never sent. Rows are written in groups, so memory is bounded whatever the number and length of the answers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness.clock import boot_id, clock
from harness.files import read_json, write_lines
from harness.traffic.outcome import WORKERS_FILE
from harness.traffic.planned import Plan, Planned
from harness.traffic.row import row_of
from harness.traffic.row_groups import parquet_pieces
from harness.traffic.spool import Recorded, SpoolReader, Worker
from harness.traffic.wire.exchange import TRANSPORT_ERRORS, Exchange

ERRORS: Mapping[str, str] = {
    **{name: words for name, words in TRANSPORT_ERRORS.items() if name != "eof"},
    "reset": "the connection was reset, or closed without an answer",
    "http_status": "the status is not 200",
    "content_encoding": "the answer is compressed although that was declined",
    "not_a_stream": "a 200 whose body is no event stream",
    "error_event": "an error inside the stream",
    "malformed_event": "an event that is no JSON object of the expected shape",
    "truncated_stream": "the answer ended without finish reason or [DONE], or in the middle of its HTTP message",
    "no_output": "a whole stream without any output",
    "output_length": "more or fewer tokens than planned",
    "client_lost": "under way when the client died",
    "not_sent": "never sent: the client had ended before",
}
"""Every way to fail, by the name in column `error`."""

VERSION = {b"kvmark_requests_version": b"2"}

SCHEMA = pa.schema(
    [
        ("request_id", pa.string()),
        ("phase", pa.string()),
        ("session_id", pa.string()),
        ("turn", pa.int32()),
        ("tenant", pa.string()),
        ("worker", pa.int16()),
        ("scheduled_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("send_lag_us", pa.int64()),
        ("ended_ns", pa.int64()),
        ("planned_prompt_tokens", pa.int32()),
        ("planned_output_tokens", pa.int32()),
        ("prompt_tokens", pa.int32()),
        ("cached_prompt_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("event_us", pa.list_(pa.uint32())),
        ("event_tokens", pa.list_(pa.uint32())),
        ("tokens_estimated", pa.bool_()),
        ("buffered", pa.bool_()),
        ("finish_reason", pa.string()),
        ("http_status", pa.int32()),
        ("error", pa.string()),
        ("error_detail", pa.string()),
        ("connection_reused", pa.bool_()),
        ("resends", pa.int16()),
        ("text", pa.string()),
    ],
    metadata=VERSION,
)
_REPEATED = ["phase", "session_id", "tenant", "finish_reason", "error", "error_detail"]


@dataclass(frozen=True)
class Conversion:
    """What the records of a cell come to.

    Attributes
    ----------
    workers : tuple of Worker
        What each client process said of itself, on its own clock.
    window : (int, int, int) or None
        First and last arrival of the window's requests (when they were due; in a closed loop when they were sent) and
        the last end of one, monotonic ns. None when none was sent.
    window_requests, failed_requests : int
        Requests of the window, and how many of them failed.
    errors : dict
        Failures of the window by name.
    commonest_error : str or None
        The most frequent failure, with the words of its first case.
    peak_context_tokens : int
        Largest sum of contexts (prompt + output, as planned) of requests of the window that were under way at once.
    """

    workers: tuple[Worker, ...]
    window: tuple[int, int, int] | None
    window_requests: int
    failed_requests: int
    errors: dict[str, int]
    commonest_error: str | None
    peak_context_tokens: int


def convert(folder: Path, schedule: Path, parquet: Path, lost_ns: int) -> Conversion:
    """Turn what the clients of a cell left into `requests.parquet`.

    Parameters
    ----------
    folder : Path
        Where their spools lie; any of them may be missing or cut off.
    schedule : Path
        What was to be sent.
    parquet : Path
        File to write, whole or not at all.
    lost_ns : int
        When the clients were found to have ended (this host's monotonic clock): the end of requests that they never
        finished or never sent.

    Raises
    ------
    StorageError
        When the file can't be written.
    """
    plan = Plan(schedule)
    spool = SpoolReader(folder, plan.requests)
    start = _common_start(folder)
    offsets = {worker.number: _offset_ns(worker, start) for worker in spool.workers}
    summary = _Summary(plan.requests)

    def rows() -> Iterator[dict[str, Any]]:
        for planned in plan:
            recorded = spool.read(planned.ordinal)
            row = record(planned, recorded, lost_ns, offsets.get(recorded.worker, 0) if recorded else 0)
            summary.add(planned, row)
            yield row

    try:
        write_lines(parquet, parquet_pieces(rows(), SCHEMA, _REPEATED))
    finally:
        spool.close()
    return summary.conversion(tuple(spool.workers))


def record(planned: Planned, recorded: Recorded | None, lost_ns: int, offset_ns: int = 0) -> dict[str, Any]:
    """One row: the plan of a request and what came back.

    Parameters
    ----------
    planned : Planned
        The plan.
    recorded : Recorded or None
        What its client left of it; None: nothing, it was never started.
    lost_ns : int
        End of a request that has none.
    offset_ns : int
        What to add to the client's times to get this host's.
    """
    if recorded is None:
        lost = Exchange(ended_ns=lost_ns, error="not_sent", error_detail=ERRORS["not_sent"])
        return row_of(planned, None, None, lost)
    exchange = recorded.exchange
    if exchange.error == "client_lost":
        exchange.error_detail = ERRORS["client_lost"]
        exchange.sent_ns = recorded.started_ns if exchange.sent_ns is None else exchange.sent_ns
        exchange.ended_ns = lost_ns - offset_ns
    row = row_of(planned, recorded.worker, recorded.scheduled_ns, exchange)
    for name in ("scheduled_ns", "sent_ns", "ended_ns") if offset_ns else ():
        row[name] = row[name] if row[name] is None else row[name] + offset_ns
    return row


def _common_start(folder: Path) -> dict[str, int] | None:
    """The moment at which several client processes started, by this host's two clocks; None: not known."""
    path = folder / WORKERS_FILE
    if not path.exists():
        return None
    found = read_json(path)
    return found if {"origin_ns", "origin_wall_ns"} <= set(found) else None


def _offset_ns(worker: Worker, start: dict[str, int] | None) -> int:
    """What to add to a worker's monotonic times to get this host's: nothing on the same boot.

    Else its own reading of the common start, taken by the wall clocks once, before anything was sent: a wall clock that
    steps later, here or there, moves nothing. A worker that was lost left its first clock pair only; where the master
    was lost as well, the later of its two pairs is held against ours of now.
    """
    theirs = worker.client.get("clock") or worker.hello.get("clock")
    if theirs is None or worker.hello.get("boot_id", boot_id()) == boot_id():
        return 0
    if start is not None and (origin_ns := worker.client.get("origin_ns")) is not None:
        return int(start["origin_ns"] - origin_ns)
    ours = clock()
    if start is not None:
        theirs = worker.hello.get("clock") or theirs
        ours = {"monotonic_ns": start["origin_ns"], "wall_ns": start["origin_wall_ns"]}
    return int(theirs["wall_ns"] - theirs["monotonic_ns"] - ours["wall_ns"] + ours["monotonic_ns"])


class _Summary:
    """What a conversion says of all rows, gathered row by row."""

    def __init__(self, requests: int) -> None:
        self._spans = np.zeros((requests, 3), np.int64)
        """Sent, ended and context of each request of the window that was sent."""
        self._sent = 0
        self._requests = 0
        self._errors: dict[str, int] = {}
        self._words: dict[str, str] = {}
        self._first_ns = self._last_ns = self._last_ended_ns = 0

    def add(self, planned: Planned, row: Mapping[str, Any]) -> None:
        if planned.phase != "window":
            return
        self._requests += 1
        if error := row["error"]:
            self._errors[error] = self._errors.get(error, 0) + 1
            self._words.setdefault(error, row["error_detail"])
        sent, due = row["sent_ns"], row["scheduled_ns"]
        if sent is not None:
            context = planned.prompt_tokens + planned.output_tokens
            self._spans[self._sent] = sent, row["ended_ns"], context
            self._sent += 1
        if (arrival := (sent or due) if planned.closed else (due or sent)) is None:
            if error == "not_sent":
                return
            arrival = row["ended_ns"]
        self._first_ns = min(arrival, self._first_ns or arrival)
        self._last_ns = max(arrival, self._last_ns)
        self._last_ended_ns = max(row["ended_ns"], self._last_ended_ns)

    def conversion(self, workers: tuple[Worker, ...]) -> Conversion:
        commonest = max(self._errors, key=self._errors.__getitem__, default=None)
        return Conversion(
            workers=workers,
            window=(self._first_ns, self._last_ns, self._last_ended_ns) if self._first_ns else None,
            window_requests=self._requests,
            failed_requests=sum(self._errors.values()),
            errors=self._errors,
            commonest_error=f"{commonest}: {self._words[commonest]}" if commonest else None,
            peak_context_tokens=_peak(self._spans[: self._sent]),
        )


def _peak(spans: NDArray[np.int64]) -> int:
    """Largest sum of sizes over (start, end, size) rows that overlap; one that ends as another starts does not."""
    if not len(spans):
        return 0
    at = np.concatenate([spans[:, 1], spans[:, 0]])
    change = np.concatenate([-spans[:, 2], spans[:, 2]])
    return int(np.cumsum(change[np.argsort(at, kind="stable")]).max())  # at equal times ends come first
