"""How far the client's figures are from the truth: its records joined, request by request, to the server's log.

Both stamp with the same clock of the same host. The truth of a request: TTFT is from its arrival at the server to its
first token's send, ITL the time between two sends, E2E from its arrival to its last token's send.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from harness.traffic.calibrate.server_log import ServerLog

COLUMNS = ["request_id", "scheduled_ns", "sent_ns", "ended_ns", "event_us", "error"]
METRICS = ("ttft", "itl", "e2e")


@dataclass(frozen=True)
class Figures:
    """Of one metric, in ms; NaN where there's nothing to compute it of."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class Compared:
    """One metric as the server knows it and as the client saw it."""

    truth: Figures
    seen: Figures

    def error_pct(self, figure: str = "mean") -> float:
        """How much larger the client's figure is than the truth, in percent of the truth; NaN where there is none."""
        truth, seen = getattr(self.truth, figure), getattr(self.seen, figure)
        return float((seen - truth) / truth * 100) if truth else float("nan")


@dataclass(frozen=True)
class Exactness:
    """What a client got right.

    Attributes
    ----------
    requests, failed : int
        In its record, and those of them that failed.
    unmatched : int
        Requests of one side that the other doesn't know.
    wrong_tokens : int
        Requests for which the client saw another number of tokens than were sent.
    metrics : dict of Compared
        TTFT, ITL and E2E of the requests that both sides know whole.
    send_lag_ms : Figures
        From a request's due time to its first byte; of an open loop.
    attained_over_asked : float
        Rate of the sends over the rate that was due; NaN in a closed loop.
    delay_ms : Figures
        From a token's send to its arrival as the client stamped it.
    seconds : float
        From the first request sent to the last end, by the client's clock.
    requests_per_s, tokens_per_s : float
        Ended requests by that time; tokens sent in the middle half of the time from the first send to the last.
    server_late_ms : Figures
        The server's own lateness; it is part of the truth, not of the error.
    """

    requests: int
    failed: int
    unmatched: int
    wrong_tokens: int
    metrics: dict[str, Compared]
    send_lag_ms: Figures
    attained_over_asked: float
    delay_ms: Figures
    seconds: float
    requests_per_s: float
    tokens_per_s: float
    server_late_ms: Figures

    def is_whole(self) -> bool:
        """Whether nothing failed, was lost or was miscounted."""
        return self.requests > 0 and not (self.failed or self.unmatched or self.wrong_tokens)

    def worst_mean_pct(self, metrics: tuple[str, ...] = ("ttft", "itl")) -> float:
        """Largest error of the means, whatever its sign; metrics without a truth are left out."""
        errors = [abs(self.metrics[name].error_pct()) for name in metrics]
        return max((error for error in errors if error == error), default=float("nan"))


def exactness(requests: Path, log: ServerLog) -> Exactness:
    """Compare a cell's `requests.parquet` with the log of the server that it ran against."""
    table = parquet.read_table(requests, columns=COLUMNS)
    columns: dict[str, Any] = {name: table.column(name).combine_chunks() for name in COLUMNS}
    offsets = columns["event_us"].offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    event_us = columns["event_us"].values.to_numpy(zero_copy_only=False).astype(np.int64)
    # Our client adds a tag after a point, so that an engine never meets an id twice.
    at_server = {name.rpartition(".")[0] or name: at for at, name in enumerate(log.ids)}
    ids = columns["request_id"].to_pylist()
    failed = np.array([error is not None for error in columns["error"].to_pylist()], dtype=bool)
    sent_ns, scheduled_ns = _or_zero(columns["sent_ns"]), _or_zero(columns["scheduled_ns"])
    ended_ns = columns["ended_ns"].to_numpy(zero_copy_only=False).astype(np.int64)
    place = np.array([at_server.get(name, -1) for name in ids], dtype=np.int64)
    unmatched = int((place < 0).sum()) + len(set(at_server) - set(ids)) + len(log.ids) - len(at_server)
    same = (place >= 0) & ~failed
    same[same] = np.diff(offsets)[same] == log.sent[place[same]]
    rows = np.flatnonzero(same)
    count = np.diff(offsets)[rows]
    theirs = log.sent_ns[_ranges(log.starts[place[rows]], count)]
    ours = event_us[_ranges(offsets[:-1][rows], count)] * 1000 + np.repeat(sent_ns[rows], count)
    has_tokens = count > 0
    first = (np.cumsum(count) - count)[has_tokens]
    last = first + count[has_tokens] - 1
    whole = rows[has_tokens]
    arrived = log.arrived_ns[place[whole]]
    within = np.ones(len(ours), dtype=bool)
    within[first] = False
    sent = sent_ns[sent_ns > 0]
    due = (sent_ns > 0) & (scheduled_ns > 0)
    seconds = float(ended_ns.max() - sent.min()) / 1e9 if len(sent) else float("nan")
    return Exactness(
        requests=len(ids),
        failed=int(failed.sum()),
        unmatched=unmatched,
        wrong_tokens=int(((place >= 0) & ~failed & ~same).sum()),
        metrics={
            "ttft": Compared(figures(theirs[first] - arrived), figures(ours[first] - sent_ns[whole])),
            "itl": Compared(figures(_steps(theirs, within)), figures(_steps(ours, within))),
            "e2e": Compared(figures(theirs[last] - arrived), figures(ended_ns[whole] - sent_ns[whole])),
        },
        send_lag_ms=figures(sent_ns[due] - scheduled_ns[due]),
        attained_over_asked=_span(scheduled_ns[due]) / _span(sent_ns[due]) if due.sum() > 1 else float("nan"),
        delay_ms=figures(ours - theirs),
        seconds=seconds,
        requests_per_s=float((~failed).sum()) / seconds if seconds else float("nan"),
        tokens_per_s=_middle_rate(log.sent_ns),
        server_late_ms=figures(log.lateness_ns()),
    )


def figures(values_ns: NDArray[np.int64]) -> Figures:
    """Mean and percentiles of nanoseconds, in ms."""
    if not len(values_ns):
        return Figures(*[float("nan")] * 4)
    p50, p90, p99 = np.percentile(values_ns, [50, 90, 99]) / 1e6
    return Figures(float(values_ns.mean()) / 1e6, float(p50), float(p90), float(p99))


def _or_zero(column: Any) -> NDArray[np.int64]:
    return np.array([at or 0 for at in column.to_pylist()], dtype=np.int64)


def _span(times: NDArray[np.int64]) -> float:
    return float(times.max() - times.min())


def _middle_rate(times: NDArray[np.int64]) -> float:
    """Events a second in the middle half of their span: what it was like without its beginning and its end."""
    span = _span(times) if len(times) else 0.0
    if not span:
        return float("nan")
    share = (times - times.min()) / span
    return float(((share >= 0.25) & (share < 0.75)).sum()) / (span / 2) * 1e9


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers start, start + 1, … of each range, one range after the other."""
    before = np.cumsum(counts) - counts
    result: NDArray[np.int64] = np.arange(int(counts.sum())) - np.repeat(before - starts, counts)
    return result


def _steps(values: NDArray[np.int64], within: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Differences between neighbours of the same request."""
    return np.diff(values)[within[1:]] if len(values) else values
