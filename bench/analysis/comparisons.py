"""Which statistic of which deployment is compared with which baseline."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
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
from bench.analysis.obstacles import SEARCHED, View, failure_verdict, obstacle, unbounded_launches
from bench.analysis.planned import is_closed, throughput_metric
from bench.analysis.power import ALPHA, ALPHA_UNTIL
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


_COLUMNS = ["deployment", "block", "replica", "value"]
_NO_VALUES = pd.DataFrame([], columns=_COLUMNS)


def comparisons(plan: Mapping[str, Any], blocks: int, deployments: Sequence[DeploymentResult]) -> Iterable[Comparison]:
    """Each deployment against its engine's baseline and against the common one, for every load."""
    loads = plan.get("loads") or {}
    limits = margins(plan.get("margin") or {})
    alpha = ALPHA_UNTIL if waits_for_precision(plan) else ALPHA
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
            precision = (facts.get("search") or {}).get("precision_pct") if metric.startswith(SEARCHED) else None
            step = math.log1p(float(precision or 0) / 100)
            view = View(load, metric, role, margin, closed, len(loads), blocks, alpha, step)
            own: dict[str, Comparison] = {}
            for base in (d for d in deployments if d.engine_baseline):
                family = [d for d in deployments if (d.backend, d.model) == (base.backend, base.model)]
                for comparison in _against_engine(view, base, family):
                    own[comparison.deployment] = comparison
                    yield comparison
            if common is not None:
                yield from _against_common(view, common, deployments, own)


def waits_for_precision(plan: Mapping[str, Any]) -> bool:
    """Whether blocks were to be added until intervals are narrow (`scenario.until`)."""
    until = plan.get("until") or {}
    return any(until.get(key) is not None for key in ("throughput_pct", "latency_pct"))


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


def _against_engine(view: View, base: DeploymentResult, family: Sequence[DeploymentResult]) -> Iterable[Comparison]:
    others = [d for d in family if d.id != base.id and d.cells]
    obstacles = {other.id: obstacle(view, other, base) for other in others}
    sound = [one for one in others if obstacles[one.id] is None and not unbounded_launches(one, view)]
    values = _values([base, *sound] if sound else [], view)
    adjust = view.role == "primary"
    step = view.resolution(values)
    estimates = (
        within_engine(values, base.id, families=view.loads, adjust=adjust, alpha=view.alpha, step=step)
        if len(values)
        else {}
    )
    method = f"log(statistic) ~ deployment + block, A and A′ averaged, pooled residual, {view.level} t interval, "
    over = f"Dunnett over {len(estimates)}" + (f", Bonferroni over {view.loads} loads" if view.loads > 1 else "")
    method += over if adjust else "not adjusted"
    for other in others:
        yield _comparison(
            view,
            other,
            base,
            against="engine",
            estimate=estimates.get(other.id),
            why_not=obstacles[other.id],
            values=values,
            method=method,
        )


def _against_common(
    view: View, common: DeploymentResult, deployments: Sequence[DeploymentResult], own: Mapping[str, Comparison]
) -> Iterable[Comparison]:
    """The second column: of the common baseline's own engine the same numbers, of other engines paired by block."""
    others = [d for d in deployments if d.id != common.id and d.cells]
    foreign = [d for d in others if (d.backend, d.model) != (common.backend, common.model)]
    ranked = [d for d in foreign if d.model == common.model and obstacle(view, d, common) is None]
    for other in others:
        if other not in foreign:
            if other.id in own:
                yield replace(own[other.id], against="common")
            continue
        why_not = obstacle(view, other, common)
        if why_not is None and other.model != common.model:
            why_not = "another model"
        if why_not is None and view.closed and is_latency(view.metric):
            why_not = "closed loop: a faster server gets more load, so that latencies are not ranked across engines"
        values = _values([common, other] if why_not is None else [], view)
        count = max(1, len(ranked)) * view.loads if view.role == "primary" else 1
        step = view.resolution(values)
        estimate = (
            across_engines(values, other.id, common.id, comparisons=count, alpha=view.alpha, step=step)
            if len(values)
            else None
        )
        method = f"log ratio paired by block, A and A′ averaged, {view.level} t interval, "
        method += f"Bonferroni over {count}" if view.role == "primary" else "not adjusted"
        yield _comparison(
            view,
            other,
            common,
            against="common",
            estimate=estimate,
            why_not=why_not,
            values=values,
            method=method,
        )


def _values(deployments: Sequence[DeploymentResult], view: View) -> pd.DataFrame:
    """The launches' statistics as a frame; only of deployments that are ranked, and only finite ones."""
    rows = [
        (d.id, s.block, s.replica, s.values[view.metric])
        for d in deployments
        if d.ranked and (cell := d.cells.get(view.load)) and cell.state == "measured"
        for s in cell.launches
        if math.isfinite(s.values.get(view.metric, math.nan)) and s.values[view.metric] > 0
    ]
    return pd.DataFrame(rows, columns=_COLUMNS) if rows else _NO_VALUES


def _comparison(
    view: View,
    other: DeploymentResult,
    base: DeploymentResult,
    *,
    against: str,
    estimate: Estimate | None,
    why_not: str | None,
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
    if why_not is not None:
        return Comparison(**common, verdict="not comparable", reason=why_not)
    unbounded = {one.id: unbounded_launches(one, view) for one in (other, base)}
    if any(unbounded.values()):
        return Comparison(**common, **failure_verdict(view, other, base, unbounded))
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
                view = View(load, metric, "primary", 0.0, False, 1, 2)
                values = _values([d], view)
                found = spread_between_replicas(values) if len(values) else None
                if found is not None:
                    yield NoiseFloor(d.id, load, metric, percent(found[0]), found[1])
