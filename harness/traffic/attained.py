"""What a client attained of what was asked of it, out of a cell's records: rate, concurrency, and how late it sent."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.traffic.playbook import Playbook
from harness.traffic.report import Attained

Times = npt.NDArray[np.int64]
COLUMNS = ["session_id", "phase", "tenant", "turn", "scheduled_ns", "sent_ns", "ended_ns", "send_lag_us"]


def attained(parquet: Path, playbook: Playbook) -> Attained:
    """Hold a cell's records against its schedule.

    Parameters
    ----------
    parquet : Path
        The cell's `requests.parquet`.
    playbook : Playbook
        Of the whole schedule.
    """
    table = pq.read_table(parquet, columns=COLUMNS)
    window = table.filter(pc.equal(table["phase"], "window"))
    lag_ms = _values(window["send_lag_us"]) / 1e3
    p50, p90, p99, longest = np.percentile(lag_ms, [50, 90, 99, 100]).tolist() if len(lag_ms) else [None] * 4
    is_open = pc.is_in(pc.fill_null(table["tenant"], ""), pa.array(sorted(playbook.open_groups), pa.string()))
    asked_rps, attained_rps = _rates(table.filter(is_open))
    asked = playbook.asked_concurrency or None
    mean = _concurrency(table.filter(pc.invert(is_open))) if asked else None
    ratios = [
        got / wanted
        for got, wanted in ((attained_rps, asked_rps), (mean, asked))
        if got is not None and wanted is not None
    ]
    sent = table.filter(pc.is_valid(table["sent_ns"]))
    return Attained(
        send_lag_p50_ms=p50,
        send_lag_p90_ms=p90,
        send_lag_p99_ms=p99,
        send_lag_max_ms=longest,
        asked_rps=asked_rps,
        attained_rps=attained_rps,
        asked_concurrency=asked,
        attained_concurrency_mean=mean,
        attained_over_asked=min(ratios) if ratios else None,
        streams_peak=_peak(_values(sent["sent_ns"]), _values(sent["ended_ns"])),
    )


def _values(column: Any) -> Times:
    return np.asarray(column.drop_null().to_numpy(), np.int64)


def _rates(table: pa.Table) -> tuple[float | None, float | None]:
    starts = table.filter(pc.and_(pc.equal(table["turn"], 0), pc.equal(table["phase"], "window")))
    scheduled, sent = _values(starts["scheduled_ns"]), _values(starts["sent_ns"])
    return _rate(scheduled), _rate(sent)


def _rate(at_ns: Times) -> float | None:
    if len(at_ns) < 2 or np.ptp(at_ns) == 0:
        return None
    return float((len(at_ns) - 1) / (np.ptp(at_ns) / 1e9))


def _concurrency(table: pa.Table) -> float | None:
    """Warm-up sessions still count while the window's have begun: they hold their places."""
    sent = table.filter(pc.is_valid(table["sent_ns"]))
    sessions = sent.group_by("session_id").aggregate([("sent_ns", "min"), ("ended_ns", "max"), ("phase", "min")])
    start, end = _values(sessions["sent_ns_min"]), _values(sessions["ended_ns_max"])
    in_window = pc.equal(sessions["phase_min"], "window").to_numpy()
    if in_window.sum() < 2:
        return None
    low, high = start[in_window].min(), start[in_window].max()
    if low == high:
        return None
    overlap = np.minimum(end, high) - np.maximum(start, low)
    return float(np.maximum(overlap, 0).sum() / (high - low))


def _peak(start: Times, end: Times) -> int:
    """A request that ends at the moment when another starts makes room for it."""
    if not len(start):
        return 0
    times = np.concatenate([start, end])
    steps = np.concatenate([np.ones_like(start), -np.ones_like(end)])
    return int(np.cumsum(steps[np.lexsort((steps, times))]).max())
