"""Which statistic of which deployment is compared with which baseline, and what stands in the way."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from bench.analysis.compare import (
    Estimate,
    across_engines,
    judge,
    margins,
    percent,
    spread_between_replicas,
    within_engine,
)
from bench.analysis.distribution import tail_percent
from bench.analysis.metrics import is_latency
from bench.analysis.planned import is_closed, throughput_metric
from bench.analysis.result import Comparison, DeploymentResult, NoiseFloor

EXPLORATORY = (
    "output_tokens_per_s",
    "ttft_p50_ms",
    "itl_p50_ms",
    "itl_p90_ms",
    "tpot_p50_ms",
    "tpot_p90_ms",
    "e2e_p50_ms",
    "e2e_p90_ms",
    "request_rate_attained_rps",
)
"""Compared as well, without adjustment; a finding among them is a hint."""


def comparisons(plan: Mapping[str, Any], blocks: int, deployments: Sequence[DeploymentResult]) -> Iterable[Comparison]:
    """Each deployment against its engine's baseline and against the common one, for every load."""
    loads = plan.get("loads") or {}
    limits = margins(plan.get("margin") or {})
    common = next((d for d in deployments if d.common_baseline), None)
    for load, facts in loads.items():
        closed = is_closed(facts)
        tail = f"ttft_p{_tail(deployments, load)}_ms"
        throughput = throughput_metric(facts)
        # A search ends at the SLA's limits: latencies at different rates say nothing beside each other.
        primary = (throughput,) if facts.get("search") else (throughput, tail)
        for metric in dict.fromkeys((throughput, tail, *EXPLORATORY)):
            role = "primary" if metric in primary else "exploratory"
            margin = limits["latency" if is_latency(metric) else "throughput"]
            view = _View(load, metric, role, margin, closed, len(loads), blocks)
            own: dict[str, Comparison] = {}
            for base in (d for d in deployments if d.engine_baseline):
                family = [d for d in deployments if (d.backend, d.model) == (base.backend, base.model)]
                for comparison in _against_engine(view, base, family):
                    own[comparison.deployment] = comparison
                    yield comparison
            if common is not None:
                yield from _against_common(view, common, deployments, own)


@dataclass(frozen=True)
class _View:
    """One metric under one load: how it is compared."""

    load: str
    metric: str
    role: str
    margin: float
    closed: bool
    loads: int
    blocks: int


def _tail(deployments: Sequence[DeploymentResult], load: str) -> int:
    """The tail percentile that every launch supports."""
    counts = [
        int(s.values["requests"])
        for d in deployments
        if (cell := d.cells.get(load))
        for s in cell.launches
        if "requests" in s.values
    ]
    return tail_percent(min(counts, default=0))


def _against_engine(view: _View, base: DeploymentResult, family: Sequence[DeploymentResult]) -> Iterable[Comparison]:
    others = [d for d in family if d.id != base.id and d.cells]
    obstacles = {other.id: _obstacle(view, other, base) for other in others}
    values = _values([base, *(other for other in others if obstacles[other.id] is None)], view)
    adjust = view.role == "primary"
    estimates = within_engine(values, base.id, families=view.loads, adjust=adjust) if len(values) else {}
    method = "log(statistic) ~ deployment + block, pooled residual, t interval, "
    method += f"Dunnett over {len(estimates)}" if adjust else "not adjusted"
    for other in others:
        yield _comparison(
            view,
            other,
            base,
            against="engine",
            estimate=estimates.get(other.id),
            obstacle=obstacles[other.id],
            values=values,
            method=method,
        )


def _against_common(
    view: _View, common: DeploymentResult, deployments: Sequence[DeploymentResult], own: Mapping[str, Comparison]
) -> Iterable[Comparison]:
    """The second column: of the common baseline's own engine the same numbers, of other engines paired by block."""
    others = [d for d in deployments if d.id != common.id and d.cells]
    foreign = [d for d in others if (d.backend, d.model) != (common.backend, common.model)]
    ranked = [d for d in foreign if d.model == common.model and _obstacle(view, d, common) is None]
    for other in others:
        if other not in foreign:
            if other.id in own:
                yield replace(own[other.id], against="common")
            continue
        obstacle = _obstacle(view, other, common)
        if obstacle is None and other.model != common.model:
            obstacle = "another model"
        if obstacle is None and view.closed and is_latency(view.metric):
            obstacle = "closed loop: a faster server gets more load, so that latencies are not ranked across engines"
        values = _values([common, other], view)
        count = max(1, len(ranked)) * view.loads if view.role == "primary" else 1
        estimate = across_engines(values, other.id, common.id, comparisons=count) if len(values) else None
        method = f"log ratio paired by block, t interval, Bonferroni over {count}"
        yield _comparison(
            view,
            other,
            common,
            against="common",
            estimate=estimate,
            obstacle=obstacle,
            values=values,
            method=method,
        )


def _values(deployments: Sequence[DeploymentResult], view: _View) -> pd.DataFrame:
    """The launches' statistics as a frame; only of deployments that are ranked, and only finite ones."""
    rows = [
        (d.id, s.block, s.replica, s.values[view.metric])
        for d in deployments
        if d.ranked and (cell := d.cells.get(view.load)) and cell.state == "measured"
        for s in cell.launches
        if math.isfinite(s.values.get(view.metric, math.nan)) and s.values[view.metric] > 0
    ]
    return pd.DataFrame(rows, columns=["deployment", "block", "replica", "value"])


def _obstacle(view: _View, other: DeploymentResult, base: DeploymentResult) -> str | None:
    """Why two deployments can't be compared at all in this cell."""
    for who, one in (("", other), ("the baseline: ", base)):
        if one.state != "measured":
            return f"{who}{one.state}"
        cell = one.cells.get(view.load)
        if cell is None or cell.state != "measured":
            return f"{who}{cell.state if cell else 'not measured'}: {cell.reason if cell else 'no cell'}"
        if not any(view.metric in s.values for s in cell.launches):
            return f"{who}{view.metric} is not measured"
    states = [one.cells[view.load].cache_state for one in (other, base)]
    if states[0] != states[1]:
        return f"the prefix cache was {states[0]} at the start, the baseline's {states[1]}"
    # Another model's tokenizer makes other prompts; that obstacle has a name of its own.
    return _traffic_differs(view.load, other, base) if other.model == base.model else None


def _traffic_differs(load: str, other: DeploymentResult, base: DeploymentResult) -> str | None:
    """Why two deployments had other work to do: within a block all get the same schedule."""
    sent: dict[int, set[str | None]] = {}
    for launch in (*other.cells[load].launches, *base.cells[load].launches):
        sent.setdefault(launch.block, set()).add(launch.schedule_sha256)
    differing = [str(block) for block in sorted(sent) if len(sent[block]) > 1]
    return f"traffic differs in block {', '.join(differing)} (schedule_sha256)" if differing else None


def _comparison(
    view: _View,
    other: DeploymentResult,
    base: DeploymentResult,
    *,
    against: str,
    estimate: Estimate | None,
    obstacle: str | None,
    values: pd.DataFrame,
    method: str,
) -> Comparison:
    common: dict[str, Any] = {
        "metric": view.metric,
        "load": view.load,
        "deployment": other.id,
        "baseline": base.id,
        "against": against,
        "role": view.role,
    }
    if obstacle is not None:
        return Comparison(**common, verdict="not comparable", reason=obstacle)
    unbounded = {one.id: _unbounded(one, view) for one in (other, base)}
    if any(unbounded.values()):
        return Comparison(**common, **_failure_verdict(view, other, base, unbounded))
    counts = values["deployment"].value_counts()
    launches: dict[str, Any] = {
        "launches": int(counts.get(other.id, 0)),
        "baseline_launches": int(counts.get(base.id, 0)),
    }
    if estimate is None:
        ratio = _plain_ratio(values, other.id, base.id)
        reason = "no verdict: one block" if view.blocks < 2 else "too few launches for an interval"
        effect = None if ratio is None else percent(ratio)
        return Comparison(**common, **launches, verdict="inconclusive", reason=reason, effect_pct=effect, method="none")
    verdict, reason = judge(estimate, view.metric, view.margin)
    return Comparison(
        **common,
        **launches,
        verdict=verdict,
        reason=reason,
        effect_pct=percent(estimate.log_ratio),
        low_pct=percent(estimate.low),
        high_pct=percent(estimate.high),
        degrees_of_freedom=estimate.degrees_of_freedom,
        residual_pct=percent(estimate.residual_sd),
        smallest_effect_pct=100 * estimate.smallest_effect(),
        equivalence_p=estimate.equivalence_p(view.margin),
        method=method,
    )


def _unbounded(one: DeploymentResult, view: _View) -> int:
    """Launches in which the statistic is infinite: the percentile falls among failed requests."""
    return sum(math.isinf(s.values.get(view.metric, 0.0)) for s in one.cells[view.load].launches)


def _failure_verdict(
    view: _View, other: DeploymentResult, base: DeploymentResult, unbounded: Mapping[str, int]
) -> dict[str, Any]:
    mine, theirs = unbounded[other.id], unbounded[base.id]
    total = len(other.cells[view.load].launches)
    reason = f"so many requests failed that {view.metric} is infinite in {mine} of {total} launches"
    if theirs:
        return {"verdict": "not comparable", "reason": f"the baseline: {view.metric} is infinite in {theirs} launches"}
    if mine == total and view.blocks > 1:
        return {"verdict": "worse", "reason": reason}
    return {"verdict": "inconclusive", "reason": reason}


def _plain_ratio(values: pd.DataFrame, candidate: str, baseline: str) -> float | None:
    means = np.log(values.set_index("deployment")["value"]).groupby(level=0).mean()
    if candidate not in means or baseline not in means:
        return None
    return float(means[candidate] - means[baseline])


def noise_floors(deployments: Sequence[DeploymentResult]) -> Iterable[NoiseFloor]:
    """A against A′ wherever a deployment was launched twice a block."""
    for d in deployments:
        for load in d.cells:
            tail = f"ttft_p{_tail([d], load)}_ms"
            for metric in ("output_tokens_per_s", "saturation_rate_rps", "saturation_concurrency", tail):
                view = _View(load, metric, "primary", 0.0, False, 1, 2)
                values = _values([d], view)
                found = spread_between_replicas(values) if len(values) else None
                if found is not None:
                    yield NoiseFloor(d.id, load, metric, percent(found[0]), found[1])
