"""Whether questions that were to be asked under load met it: their times against the load's requests."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.backends.interface import EngineState

ENOUGH = 0.9
"""Share of the questions that must have met the load; below it the results say so."""

OURS = ("aborted", "not_sent")
"""What becomes of a load's last requests when it is told to stop: no failures."""

Spans = NDArray[np.int64]
"""Start and end of each, monotonic ns, in two columns."""


@dataclass(frozen=True)
class Reading:
    """The engine's own counters at a moment (monotonic ns)."""

    at_ns: int
    state: EngineState


@dataclass(frozen=True)
class Sent:
    """What a load sent: when each request was under way, and how many failed, by error."""

    spans: Spans
    failed: Mapping[str, int]


def sent_by(folders: Iterable[Path]) -> Sent:
    """Out of the `requests.parquet` of every round; a round without one sent nothing that is known."""
    import pyarrow.parquet as pq

    spans, failed = [np.empty((0, 2), np.int64)], Counter[str]()
    for path in (folder / "requests.parquet" for folder in folders):
        if not path.exists():
            continue
        table = pq.read_table(path, columns=["sent_ns", "ended_ns", "error"])
        sent = table.filter(table["sent_ns"].is_valid())
        spans.append(np.column_stack([sent["sent_ns"].to_numpy(), sent["ended_ns"].to_numpy()]).astype(np.int64))
        failed.update(error for error in table["error"].to_pylist() if error is not None and error not in OURS)
    return Sent(np.concatenate(spans), dict(failed))


def share_met(questions: Spans, load: Spans) -> float | None:
    """Share of the questions during which at least one request of the load was under way."""
    if not len(questions):
        return None
    under_way = _union(load)
    if not len(under_way):
        return 0.0
    # The last stretch that begins before a question's end is the only one that may reach into it.
    last = np.searchsorted(under_way[:, 0], questions[:, 1], side="left") - 1
    met = (last >= 0) & (under_way[np.maximum(last, 0), 1] > questions[:, 0])
    return float(met.mean())


def mean_under_way(questions: Spans, load: Spans) -> float | None:
    """Mean number of the load's requests under way, from the first question to the last answer."""
    if not len(questions):
        return None
    start, end = int(questions[:, 0].min()), int(questions[:, 1].max())
    inside = np.clip(load, start, end)
    return float((inside[:, 1] - inside[:, 0]).sum() / (end - start)) if end > start else None


def evidence(samples: Sequence[Mapping[str, Any]], sent: Sent, readings: Sequence[Reading]) -> dict[str, Any]:
    """What a task's record says of the load beside it; the engine's counters are those between question and answer."""
    questions = np.array([(one["asked_ns"], one["answered_ns"]) for one in samples], np.int64).reshape(-1, 2)
    start, end = (int(questions[:, 0].min()), int(questions[:, 1].max())) if len(questions) else (0, 0)
    in_order = sorted(readings, key=lambda one: one.at_ns)
    states = [one.state for one in in_order if start <= one.at_ns <= end]
    counted = states
    if len(states) < 2:  # questions that took less than the time between two readings
        before = [one.state for one in in_order if one.at_ns < start][-1:]
        counted = [*before, *states, *[one.state for one in in_order if one.at_ns > end][:1]]
        states = states or before
    preempted = _known(counted, "preemptions_total")
    return {
        "requests": len(sent.spans),
        "failed_requests": dict(sent.failed),
        "share_of_questions_under_load": _rounded(share_met(questions, sent.spans)),
        "load_requests_mean": _rounded(mean_under_way(questions, sent.spans)),
        "requests_running_mean": _mean(_known(states, "requests_running")),
        "requests_waiting_mean": _mean(_known(states, "requests_waiting")),
        "kv_cache_usage_mean": _mean(_known(states, "kv_cache_usage")),
        "preemptions": preempted[-1] - preempted[0] if preempted else None,
    }


def _union(spans: Spans) -> Spans:
    """Stretches covered by at least one span, in order, apart from each other."""
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    if not len(ordered):
        return ordered
    reach = np.maximum.accumulate(ordered[:, 1])
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:, 0] > reach[:-1]]))
    ends = np.concatenate([begins[1:] - 1, [len(ordered) - 1]])
    return np.column_stack([ordered[begins, 0], reach[ends]])


def _known(states: Sequence[EngineState], name: str) -> list[float]:
    return [float(value) for state in states if (value := getattr(state, name)) is not None]


def _mean(values: Sequence[float]) -> float | None:
    return _rounded(sum(values) / len(values)) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
