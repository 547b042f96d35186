"""One deployment under one load, over its launches."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.analysis import saturation
from bench.analysis.client import Verdict, client_figures, judge_client, loop_lag_note
from bench.analysis.distribution import Distribution, Floats, pooled, quantile, quantiles
from bench.analysis.drift import drift
from bench.analysis.load import CellRecord, LaunchRecord
from bench.analysis.measure import CellMeasures, measure
from bench.analysis.metrics import (
    LATENCIES,
    Requests,
    held_against,
    is_latency,
    itl_limits,
    launch_statistics,
    steady_statistics,
)
from bench.analysis.planned import Limits, PlannedLoad, planned_load
from bench.analysis.result import CellResult, DeploymentResult, DriftResult, LaunchStatistics, TenantResult
from bench.analysis.state import cell_state
from harness.errors import KVMarkError

OUTPUT_LENGTH_TOLERANCE = 0.01
"""Output lengths that differ more than this between deployments are reported."""


DRIFT_SHARE = 0.05
"""A drift that over a mean output changes the median ITL by less than this share is not worth a note."""


@dataclass(frozen=True)
class _Part:
    """What is kept of one launch's requests, or of one tenant's: small, however many tokens there were."""

    statistics: LaunchStatistics
    latencies: dict[str, Floats | Distribution]
    drift_xy: Floats
    drift_xx: Floats
    tokens: int
    packed: int
    estimated: int
    buffered: int


@dataclass(frozen=True)
class _Launch:
    """One launch under the load: its requests' fate, and the rest where it was measured."""

    requests: int
    errors: dict[str, int]
    part: _Part | None
    tenants: dict[str, "_Tenant"]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Tenant:
    requests: int
    errors: dict[str, int]
    part: _Part


def cell_result(plan: Mapping[str, Any], load: str, launches: Sequence[LaunchRecord]) -> CellResult:
    """One deployment under one load, over its launches."""
    planned = planned_load(plan, load)
    faults: list[tuple[str, str]] = []
    seen: list[_Launch] = []
    for launch in launches:
        cell = launch.cells.get(load)
        if cell is None:
            if launch.state == "measured":
                faults.append(("failed", "the cell was not recorded"))
            continue
        found, state, reason = _launch(launch, cell, planned)
        if found is not None:
            seen.append(found)
        if state != "measured":
            faults.append((state, f"block {launch.block}: {reason}"))
    if not seen and not faults:
        return CellResult(load, "failed", "no cell of it was measured")
    good = [one.part for one in seen if one.part is not None]
    statistics = tuple(part.statistics for part in good)
    worst = next((f for f in faults if f[0] == "failed"), faults[0] if faults else ("measured", None))
    errors = _summed(one.errors for one in seen)
    return CellResult(
        load=load,
        state=worst[0],
        reason=worst[1],
        requests=sum(one.requests for one in seen),
        failed_requests=sum(errors.values()),
        errors=errors,
        launches=statistics,
        quantiles=_quantiles(good),
        means=_means(statistics),
        sla_met={
            name: met for name, limits in planned.slas.items() if (met := _sla_met(statistics, limits)) is not None
        },
        cache_state=_cache_state(launches, load),
        notes=tuple(dict.fromkeys(_notes(good, seen, launches, load))),
        drift=_drift(good),
        tenants={name: _tenant_result(name, planned, seen) for name in planned.tenants},
    )


def _launch(launch: LaunchRecord, cell: CellRecord, planned: PlannedLoad) -> tuple[_Launch | None, str, str | None]:
    """One launch under the load, its state, and why."""
    limits = itl_limits(*planned.slas.values(), *planned.own_slas.values())
    measured, client, verdict = None, None, Verdict(None)
    if cell.requests is not None:
        try:
            measured = measure(cell.requests, planned.groups, limits, tenants=bool(planned.tenants))
        except (OSError, ValueError, KVMarkError) as error:  # pyarrow's own errors are ValueErrors
            return None, "failed", f"requests.parquet can't be read: {error}"
        client = client_figures(cell.facts, measured, planned)
        verdict = judge_client(client, measured.window)
    state, reason = cell_state(cell.facts, measured.window if measured else None, client, verdict)
    if measured is None:
        return None, state, reason
    if state == "failed":
        return _Launch(len(measured.window), measured.window.failures(), None, {}, ()), state, reason
    statistics = LaunchStatistics(
        launch.block,
        launch.replica,
        _statistics(measured.window, measured.everything, measured, planned.slas) | saturation.statistics(cell.facts),
        cell.facts.get("schedule_sha256"),
        client,
        measured.series,
    )
    part = _part(measured.window, statistics)
    lag = loop_lag_note(client, measured.window.itl) if client is not None else None
    notes = (*verdict.notes, *([lag] if lag else ()), *saturation.notes(cell.facts))
    tenants = {name: _tenant(launch, measured, name, planned) for name in planned.tenants if name in measured.tenants}
    return _Launch(len(measured.window), measured.window.failures(), part, tenants, notes), state, reason


def _statistics(
    window: Requests, everything: Requests, measured: CellMeasures, slas: Mapping[str, Limits]
) -> dict[str, float]:
    steady = steady_statistics(everything, measured.steady) if measured.steady is not None else {}
    return launch_statistics(window, slas) | steady


def _part(requests: Requests, statistics: LaunchStatistics) -> _Part:
    return _Part(
        statistics=statistics,
        latencies={metric: requests.latency(metric) for metric in LATENCIES},
        drift_xy=requests.drift_xy,
        drift_xx=requests.drift_xx,
        tokens=int(requests.output_tokens.sum()),
        packed=int(requests.packed_tokens[requests.ok].sum()),
        estimated=int(requests.estimated.sum()),
        buffered=int(requests.buffered.sum()),
    )


def _tenant(launch: LaunchRecord, measured: CellMeasures, name: str, planned: PlannedLoad) -> _Tenant:
    window, everything = measured.tenants[name]
    slas = {label: limits for label, limits in planned.own_slas.items() if label == planned.groups[name].sla}
    values = _statistics(window, everything, measured, slas)
    return _Tenant(
        len(window), window.failures(), _part(window, LaunchStatistics(launch.block, launch.replica, values))
    )


def _tenant_result(name: str, planned: PlannedLoad, seen: Sequence[_Launch]) -> TenantResult:
    found = [one.tenants[name] for one in seen if name in one.tenants]
    statistics = tuple(one.part.statistics for one in found)
    errors = _summed(one.errors for one in found)
    label = planned.groups[name].sla
    return TenantResult(
        tenant=name,
        sla=label,
        requests=sum(one.requests for one in found),
        failed_requests=sum(errors.values()),
        errors=errors,
        launches=statistics,
        quantiles=_quantiles([one.part for one in found]),
        means=_means(statistics),
        sla_met=_sla_met(statistics, planned.own_slas.get(label or "", {})),
    )


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for kind, count in one.items():
            total[kind] = total.get(kind, 0) + count
    return total


def _quantiles(good: Sequence[_Part]) -> dict[str, Any]:
    """Percentiles of all launches' values together."""
    if not good:
        return {}
    return {metric: quantiles(pooled([part.latencies[metric] for part in good])) for metric in LATENCIES}


def _drift(good: Sequence[_Part]) -> DriftResult | None:
    if not good:
        return None
    found = drift(np.concatenate([p.drift_xy for p in good]), np.concatenate([p.drift_xx for p in good]))
    return None if found is None else DriftResult(found.slope, found.low, found.high, found.requests)


def _means(statistics: Sequence[LaunchStatistics]) -> dict[str, float]:
    """Mean over launches of what every launch has and is finite in; latencies are pooled instead."""
    if not statistics:
        return {}
    shared = set.intersection(*(set(s.values) for s in statistics))
    means = {name: float(np.mean([s.values[name] for s in statistics])) for name in sorted(shared)}
    return {name: value for name, value in means.items() if math.isfinite(value) and not is_latency(name)}


def _sla_met(statistics: Sequence[LaunchStatistics], limits: Mapping[str, Any]) -> bool | None:
    """Whether every launch keeps every limit; None where nothing is limited or measured."""
    held = [one for each in statistics for one in held_against(limits, each.values)]
    return all(value <= limit for _, value, limit in held) if held else None


def _notes(
    good: Sequence[_Part], seen: Sequence[_Launch], launches: Sequence[LaunchRecord], load: str
) -> Iterable[str]:
    tokens = sum(part.tokens for part in good)
    if packed := sum(part.packed for part in good):
        share = f"{packed / max(tokens, 1):.1%} of all"
        yield f"chunks carried several tokens ({share}): their ITL is spread over the chunk"
    if estimated := sum(part.estimated for part in good):
        yield f"{estimated} requests: tokens an event estimated from the usage total"
    if buffered := sum(part.buffered for part in good):
        yield f"{buffered} requests: the output came all at once, held back on its way; they have no ITL and no TPOT"
    if (drifting := _drift_note(good)) is not None:
        yield drifting
    for one in seen:
        yield from one.notes
    pool = [c.facts.get("working_set_over_pool") for launch in launches if (c := launch.cells.get(load))]
    known = [float(ratio) for ratio in pool if ratio is not None]
    if known and max(known) < 1:
        yield f"the pool does not bind (working set ÷ pool {max(known):.2f}): only overhead shows"
    if _cache_state(launches, load) == "unverified":
        yield "the cache reset before the load could not be verified"


def _drift_note(good: Sequence[_Part]) -> str | None:
    """Late tokens that come slower, beyond chance, and by enough to matter over an output of mean length.

    The other way is no fault of an engine: early tokens share it with the prompts of requests that began together.
    """
    found = _drift(good)
    if found is None or not math.isfinite(found.low) or found.low <= 0:
        return None
    lengths = [p.statistics.values.get("output_tokens_mean", 0.0) for p in good]
    itl = pooled([part.latencies["itl_ms"] for part in good])
    change = found.ms_per_1k_tokens * float(np.mean(lengths)) / 1000
    if not len(itl) or change < DRIFT_SHARE * quantile(itl, 50).value:
        return None
    bounds = f"[{found.low:+.3g}, {found.high:+.3g}]"
    return f"ITL drifts by {found.ms_per_1k_tokens:+.3g} ms per 1K tokens {bounds}: late tokens come slower"


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
