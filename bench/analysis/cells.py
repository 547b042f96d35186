"""One deployment under one load, over its launches."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.analysis.load import LaunchRecord
from bench.analysis.metrics import (
    LATENCIES,
    Floats,
    Requests,
    launch_statistics,
    limit_name,
    quantiles,
    sla_limits,
    window_requests,
)
from bench.analysis.result import CellResult, DeploymentResult, LaunchStatistics
from bench.analysis.state import LEAST_ATTAINED, cell_state

OUTPUT_LENGTH_TOLERANCE = 0.01
"""Output lengths that differ more than this between deployments are reported."""


@dataclass(frozen=True)
class _Measured:
    block: int
    replica: int
    requests: Requests
    schedule_sha256: str | None


def cell_result(plan: Mapping[str, Any], load: str, launches: Sequence[LaunchRecord]) -> CellResult:
    """One deployment under one load, over its launches."""
    slas = plan.get("sla") or {}
    open_loop = plan["loads"][load]["arrival"]["kind"] != "closed"
    good: list[_Measured] = []
    faults: list[tuple[str, str]] = []
    seen: list[Requests] = []
    for launch in launches:
        cell = launch.cells.get(load)
        if cell is None:
            if launch.state == "measured":
                faults.append(("failed", "the cell was not recorded"))
            continue
        requests = None if cell.requests is None else window_requests(cell.requests, open_loop=open_loop)
        if requests is not None:
            seen.append(requests)
        state, reason = cell_state(cell, requests)
        if state == "failed":
            faults.append((state, f"block {launch.block}: {reason}"))
        elif requests is not None:
            if state == "client-bound":
                faults.append((state, f"block {launch.block}: {reason}"))
            good.append(_Measured(launch.block, launch.replica, requests, cell.facts.get("schedule_sha256")))
    if not seen and not faults:
        return CellResult(load, "failed", "no cell of it was measured")
    statistics = tuple(
        LaunchStatistics(m.block, m.replica, launch_statistics(m.requests, slas), m.schedule_sha256) for m in good
    )
    worst = next((f for f in faults if f[0] == "failed"), faults[0] if faults else ("measured", None))
    errors: dict[str, int] = {}
    for requests in seen:
        for kind, count in requests.failures().items():
            errors[kind] = errors.get(kind, 0) + count
    return CellResult(
        load=load,
        state=worst[0],
        reason=worst[1],
        requests=sum(map(len, seen)),
        failed_requests=sum(errors.values()),
        errors=errors,
        launches=statistics,
        quantiles={metric: quantiles(_pooled(good, metric)) for metric in LATENCIES} if good else {},
        means=_means(statistics),
        sla_met={name: met for name, limits in slas.items() if (met := _sla_met(statistics, limits)) is not None},
        cache_state=_cache_state(launches, load),
        notes=tuple(_notes(good, statistics, launches, load)),
    )


def _pooled(good: Sequence[_Measured], metric: str) -> Floats:
    return np.concatenate([m.requests.latency(metric) for m in good])


def _means(statistics: Sequence[LaunchStatistics]) -> dict[str, float]:
    """Mean over launches of what every launch has and is finite in; latencies are pooled instead."""
    if not statistics:
        return {}
    shared = set.intersection(*(set(s.values) for s in statistics))
    means = {name: float(np.mean([s.values[name] for s in statistics])) for name in sorted(shared)}
    return {name: value for name, value in means.items() if math.isfinite(value) and not is_latency(name)}


def is_latency(name: str) -> bool:
    return name.startswith(("ttft_", "itl_", "tpot_", "e2e_"))


def _sla_met(statistics: Sequence[LaunchStatistics], limits: Mapping[str, Any]) -> bool | None:
    """Whether every launch keeps every limit; None where nothing is limited or measured."""
    wanted = [(limit_name(metric, p), limit) for metric, p, limit in sla_limits(limits)]
    if not wanted or not statistics:
        return None
    return all(s.values.get(name, math.inf) <= limit for s in statistics for name, limit in wanted)


def _notes(
    good: Sequence[_Measured], statistics: Sequence[LaunchStatistics], launches: Sequence[LaunchRecord], load: str
) -> Iterable[str]:
    tokens = sum(int(m.requests.output_tokens.sum()) for m in good)
    if packed := sum(m.requests.packed for m in good):
        yield f"{packed / max(tokens, 1):.0%} of tokens arrived several at once: their ITL is spread over the event"
    if estimated := sum(m.requests.estimated for m in good):
        yield f"{estimated} requests: tokens an event estimated from the usage total"
    if buffered := sum(m.requests.buffered for m in good):
        yield f"{buffered} requests: the output came all at once, held back on its way; they have no ITL and no TPOT"
    ratios = [
        s.values["attained_over_requested_rate"] for s in statistics if "attained_over_requested_rate" in s.values
    ]
    if ratios and min(ratios) < LEAST_ATTAINED:
        yield f"the requested rate was not attained: {min(ratios):.0%} of it"
    pool = [c.facts.get("working_set_over_pool") for launch in launches if (c := launch.cells.get(load))]
    known = [float(ratio) for ratio in pool if ratio is not None]
    if known and max(known) < 1:
        yield f"the pool does not bind (working set ÷ pool {max(known):.2f}): only overhead shows"
    if _cache_state(launches, load) == "unverified":
        yield "the cache reset before the load could not be verified"


def _cache_state(launches: Sequence[LaunchRecord], load: str) -> str:
    """How the prefix cache was at the start: cold, warm, unverified; mixed where launches differ."""
    cells = [cell for launch in launches if (cell := launch.cells.get(load))]
    found = {str((cell.facts.get("cache") or {}).get("state") or "unverified") for cell in cells}
    return found.pop() if len(found) == 1 else "mixed" if found else "unverified"


def with_length_notes(results: Sequence[DeploymentResult]) -> tuple[DeploymentResult, ...]:
    """Adds a note where output lengths differ from the common baseline's: then the work was not the same."""
    base = next((r for r in results if r.common_baseline), None)
    if base is None:
        return tuple(results)
    for result in results:
        for load, cell in list(result.cells.items()):
            reference = base.cells.get(load)
            mine, theirs = cell.means.get("output_tokens_mean"), reference and reference.means.get("output_tokens_mean")
            if mine and theirs and abs(mine / theirs - 1) > OUTPUT_LENGTH_TOLERANCE:
                note = f"mean output {mine:.1f} tokens, the common baseline's {theirs:.1f}"
                result.cells[load] = replace(cell, notes=(*cell.notes, note))
    return tuple(results)
