"""Two deployments of one run: measured in the same blocks, so that the run's own comparison holds."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from bench.analysis.compare import across_engines, judge, within_engine
from bench.analysis.obstacles import View
from bench.analysis.result import Comparison
from bench.comparability import Pair, differences
from bench.compare_speed import as_ratio, blank, failed, not_ranked, views
from bench.difference import SPEED, Difference, reason, voiding
from bench.launch_values import launch_values
from bench.run_comparison import NOT_COMPARABLE, Ratio, SpeedVerdict


def own_speed(pair: Pair, found: Sequence[Difference]) -> Iterator[SpeedVerdict]:
    """Two deployments of one run: its own comparison where it has one, else one made in the same way."""
    loads = sorted(pair.one.cells.keys() | pair.other.cells.keys())
    for load in loads:
        obstacles = voiding(found, SPEED, load)
        for view in views(pair, load, len(loads)):
            row = blank(pair, view)
            own = _own_comparison(pair, view)
            if own is not None:
                yield _from_own(row, own, len(pair.shared_blocks(load)))
            elif obstacles:
                yield replace(row, reason=reason(obstacles))
            else:
                yield _made_now(row, pair, view)


def _own_comparison(pair: Pair, view: View) -> Comparison | None:
    known = [
        c
        for c in pair.a.analysis.comparisons
        if (c.load, c.metric, c.deployment, c.baseline) == (view.load, view.metric, pair.other.id, pair.one.id)
    ]
    return min(known, key=lambda c: c.against != "engine", default=None)


def _from_own(row: SpeedVerdict, own: Comparison, blocks: int) -> SpeedVerdict:
    ratio = None
    if own.effect_pct is not None and own.low_pct is not None and own.high_pct is not None:
        ratio = Ratio(
            effect_pct=own.effect_pct,
            low_pct=own.low_pct,
            high_pct=own.high_pct,
            degrees_of_freedom=own.degrees_of_freedom or 0,
            blocks=blocks,
            launches_a=own.baseline_launches,
            launches_b=own.launches,
            smallest_effect_pct=own.smallest_effect_pct or 0.0,
            method=own.method,
        )
    rests_on = "own comparison" if own.verdict != NOT_COMPARABLE else "nothing"
    return replace(
        row,
        role=own.role,
        verdict=own.verdict,
        reason=own.reason,
        rests_on=rests_on,
        direct=ratio,
        direct_verdict=own.verdict,
    )


def _made_now(row: SpeedVerdict, pair: Pair, view: View) -> SpeedVerdict:
    """What the run compares with neither's baseline: B against A, alone, by the rule that holds within a run."""
    if why := not_ranked(pair, view):
        return replace(row, reason=why)
    if unbounded := failed(pair, view):
        return replace(row, verdict=unbounded[0], reason=unbounded[1])
    blocks = pair.shared_blocks(view.load)
    if len(blocks) < 2:
        return replace(row, verdict="inconclusive", reason="no verdict: one block")
    if (pair.one.backend, pair.one.model) == (pair.other.backend, pair.other.model):
        family = [d for d in pair.a.family(pair.one) if _joins(pair, d.id, view.load)]
        values = pd.concat([launch_values(d, d.id, view, blocks) for d in family])
        step = view.resolution(values)
        estimate = within_engine(values, pair.one.id, adjust=False, alpha=view.alpha, step=step).get(pair.other.id)
        method = "log(statistic) ~ deployment + block, A and A′ averaged, pooled residual"
    else:
        values = pd.concat([launch_values(d, d.id, view, blocks) for d in (pair.one, pair.other)])
        step = view.resolution(values)
        estimate = across_engines(values, pair.other.id, pair.one.id, alpha=view.alpha, step=step)
        method = "log ratio paired by block, A and A′ averaged"
    if estimate is None:
        return replace(row, verdict="inconclusive", reason="too few launches for an interval")
    verdict, why = judge(estimate, view.metric, view.margin)
    return replace(
        row,
        verdict=verdict,
        reason=f"{why}; the run itself doesn't compare these two: not adjusted",
        rests_on="direct",
        direct=as_ratio(estimate, len(blocks), f"{method}, {view.level} t interval, not adjusted"),
        direct_verdict=verdict,
    )


def _joins(pair: Pair, deployment_id: str, load: str) -> bool:
    """Whether a deployment of the family can tell of the residual."""
    one = pair.a.deployment(deployment_id)
    if one is None or load not in one.cells:
        return False
    return not voiding(differences(Pair(pair.a, pair.one, pair.a, one)), SPEED, load)
