"""What a deployment holds in memory (rule 6): from proofs of effect, telemetry and counters of its launches."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

import pandas as pd

from bench.analysis.load import LaunchRecord
from bench.analysis.result import MemoryResult


def memory(launches: Sequence[LaunchRecord], prompt_and_output_tokens: dict[str, float]) -> MemoryResult:
    """Memory of a deployment over its launches.

    Parameters
    ----------
    launches : sequence of LaunchRecord
        The deployment's launches; those without a proof of effect add nothing.
    prompt_and_output_tokens : dict
        Load → mean prompt + output tokens of a request, as measured.
    """
    proofs = [launch.effect for launch in launches if launch.effect]
    capacity = _median(proof.get("capacity_tokens") for proof in proofs)
    slots = _median(proof.get("slots") for proof in proofs)
    usage = _peak(launches, "kv_cache_usage")
    kv_bytes = _median(proof.get("kv_bytes_per_token") for proof in proofs)
    pool = _median(proof.get("pool_bytes") for proof in proofs)
    return MemoryResult(
        kv_dtype=next((proof["kv_dtype"] for proof in proofs if proof.get("kv_dtype")), None),
        kv_bytes_per_token=kv_bytes,
        capacity_tokens=None if capacity is None else round(capacity),
        pool_bytes=None if pool is None else round(pool),
        slots=None if slots is None else round(slots),
        peak_kv_cache_usage=usage,
        peak_kv_tokens=None if usage is None or capacity is None else usage * capacity,
        peak_pss_bytes=_peak(launches, "pss_bytes"),
        peak_gpu_memory_bytes=_peak(launches, "gpu_memory_bytes"),
        preemptions=_preemptions(launches),
        working_set_over_pool=_working_sets(launches),
        max_concurrency={
            load: max_concurrency(capacity, tokens, slots)
            for load, tokens in prompt_and_output_tokens.items()
            if capacity is not None and tokens > 0
        },
    )


def max_concurrency(capacity_tokens: float, request_tokens: float, slots: float | None) -> float:
    """Requests held at once before one must be preempted: capacity ÷ mean request, and never more than `slots`."""
    held = capacity_tokens / request_tokens
    return held if slots is None else min(held, slots)


def _median(values: Iterable[Any]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return median(known) if known else None


def _peak(launches: Sequence[LaunchRecord], column: str) -> float | None:
    """Highest reading of a telemetry column within the loads of all launches; None where there is no reading."""
    peaks = []
    for launch in launches:
        series = launch.telemetry
        if series is None or column not in series or not launch.cells:
            continue
        readings = series[_during_loads(launch, series)][column].dropna()
        if len(readings):
            peaks.append(float(readings.max()))
    return max(peaks) if peaks else None


def _during_loads(launch: LaunchRecord, series: pd.DataFrame) -> "pd.Series[bool]":
    """Readings between a cell's first and last clock stamps; the window where a cell has no stamps."""
    inside = pd.Series(False, index=series.index)
    for cell in launch.cells.values():
        stamps = [stamp["monotonic_ns"] for stamp in cell.facts.get("clock") or ()]
        window = cell.facts.get("window") or {}
        begin = stamps[0] if len(stamps) > 1 else window.get("start_ns")
        end = stamps[-1] if len(stamps) > 1 else window.get("end_ns")
        if begin is not None and end is not None:
            inside |= series["t_ns"].between(begin, end)
    return inside


def _preemptions(launches: Sequence[LaunchRecord]) -> float | None:
    """Preemptions during the loads, summed over launches: counters after less before, never since boot."""
    changes = []
    for launch in launches:
        for cell in launch.cells.values():
            counters = cell.facts.get("counters") or {}
            before = (counters.get("before") or {}).get("preemptions_total")
            after = (counters.get("after") or {}).get("preemptions_total")
            if before is not None and after is not None:
                changes.append(float(after) - float(before))
    return sum(changes) if changes else None


def _working_sets(launches: Sequence[LaunchRecord]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for launch in launches:
        for name, cell in launch.cells.items():
            if (ratio := cell.facts.get("working_set_over_pool")) is not None:
                found.setdefault(name, []).append(float(ratio))
    return {name: median(ratios) for name, ratios in found.items()}
