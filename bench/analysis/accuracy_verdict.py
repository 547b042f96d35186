"""The verdict on a task's score: paired non-inferiority at a stated margin, and a difference (rule 12).

The interval and the p-values are those of `bench.analysis.paired`. What is claimed is adjusted over the tasks of a
deployment (Holm, 1979, Scand. J. Stat. 6:65): more tasks give chance more opportunities.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from statsmodels.stats.multitest import multipletests

from bench.analysis.flips import Flips
from bench.analysis.paired import ALPHA, Numbers, mcnemar_p, paired, score_low
from bench.analysis.pairing import Scores
from bench.analysis.result import AccuracyComparison
from bench.analysis.sample_size import loss_shown

_RATIO = "score interval of Tang et al."
_MCNEMAR = "; McNemar's p ignores the documents"


@dataclass(frozen=True)
class Margin:
    """The largest loss that counts as none: percentage points, or per cent of the baseline's score."""

    pp: float | None = 10.0
    relative_pct: float | None = None

    @classmethod
    def of(cls, task: Mapping[str, Any]) -> "Margin":
        """From a task of the plan."""
        relative, pp = task.get("margin_relative_pct"), task.get("margin_pp")
        return cls(None, float(relative)) if relative is not None else cls(float(pp or 0.0))

    def in_pp(self, baseline: float) -> float:
        """Percentage points at a baseline's score (a share)."""
        return self.pp if self.pp is not None else baseline * (self.relative_pct or 0.0)


@dataclass(frozen=True)
class Compared:
    """One task's comparison before the adjustment over tasks, and what a verdict needs besides."""

    row: AccuracyComparison
    gain_bounded: bool = False
    remark: str = ""

    @property
    def speaks(self) -> bool:
        """Whether it is one of the family's tests: it has a verdict yet to come."""
        return not self.row.verdict


def compare_task(
    row: AccuracyComparison,
    candidate: Scores,
    baseline: Scores,
    margin: Margin,
    chance: float,
    seen: Flips | None = None,
) -> Compared:
    """Fill in a task's numbers; `judged` gives the verdict, for it depends on the deployment's other tasks."""
    keys = sorted(candidate.keys() & baseline.keys())
    if len(keys) < 2:
        reason = f"{len(keys)} questions were answered by both"
        return Compared(replace(row, n=len(keys), verdict="not comparable", reason=reason))
    mine, theirs = (np.array([side[key][0] for key in keys]) for side in (candidate, baseline))
    documents = np.array([baseline[key][1] for key in keys])
    pairs, score = paired(mine, theirs, documents), float(theirs.mean())
    difference, ratio = pairs.difference, pairs.ratio
    lost, gained = int((mine < theirs).sum()), int((mine > theirs).sum())
    relative = margin.relative_pct is not None
    limit = (margin.relative_pct if relative else margin.pp) or 0.0
    shown = loss_shown(pairs.n / pairs.design_effect, pairs.discordance, pairs.quantile)
    row = replace(
        row,
        margin_pp=margin.in_pp(score),
        n=len(keys),
        documents=pairs.documents,
        difference_pp=100 * difference.value,
        low_pp=100 * difference.low,
        high_pp=100 * difference.high,
        relative_pct=100 * (ratio.value - 1) if ratio else None,
        relative_low_pct=100 * (ratio.low - 1) if ratio else None,
        relative_high_pct=100 * (ratio.high - 1) if ratio else None,
        lost=lost,
        gained=gained,
        non_inferiority_p=pairs.loss_p(limit / 100, relative),
        difference_p=pairs.difference_p,
        mcnemar_p=mcnemar_p(lost, gained),
        smallest_loss_pp=100 * shown if shown <= 1 else None,
        flip_floor_pct=seen.floor_pct if seen else None,
        method=pairs.method + (f"; ratio: {_RATIO}" if relative else "") + (_MCNEMAR if pairs.clustered else ""),
    )
    remarks = [seen.remark] if seen and seen.remark else []
    if alone := len(candidate.keys() ^ baseline.keys()):
        remarks.append(f"{alone} questions that only one side answered are left out")
    gain = difference.high if not relative else ratio.high - 1 if ratio else math.inf
    deaf = near_chance(theirs, documents, chance, margin)
    if len({block for block, _ in keys}) < 2:
        row = replace(row, verdict="inconclusive", reason="no verdict: one block")
    elif deaf is not None:
        row = replace(row, verdict="not informative", reason=deaf)
    return Compared(row, 100 * gain < limit, "; ".join(remarks))


def judged(family: Sequence[Compared]) -> list[AccuracyComparison]:
    """The verdicts on one deployment against one baseline, adjusted over the tasks that can speak."""
    speaking = [one.row for one in family if one.speaks]
    loss = _holm([row.non_inferiority_p for row in speaking])
    difference = _holm([row.difference_p for row in speaking])
    adjusted = iter(zip(loss, difference, strict=True))
    rows = []
    for one in family:
        row = one.row
        if one.speaks:
            loss_p, difference_p = next(adjusted)
            row = replace(
                row,
                tasks=len(speaking),
                non_inferiority_p_holm=loss_p,
                difference_p_holm=difference_p,
                non_inferior=loss_p < ALPHA / 2,
            )
            verdict, reason = _verdict(row, one)
            row = replace(row, verdict=verdict, reason="; ".join(filter(None, (reason, one.remark))))
        rows.append(row)
    return rows


def _holm(p_values: Sequence[float | None]) -> list[float]:
    if len(p_values) < 2:
        return [float(p) for p in p_values if p is not None]  # multipletests collects the garbage at every call
    return [float(p) for p in multipletests(p_values, method="holm")[1]]


def _verdict(row: AccuracyComparison, one: Compared) -> tuple[str, str]:
    assert row.difference_pp is not None and row.difference_p is not None and row.difference_p_holm is not None
    change = "gain" if row.difference_pp > 0 else "loss"
    over = f"after Holm's adjustment over {row.tasks} tasks"
    if row.non_inferior and one.gain_bounded:
        seen = f"; a {change} is seen, and smaller than that" if row.difference_p_holm < ALPHA else ""
        return "equivalent", f"loss and gain are below {row.margin}{seen}"
    if row.difference_p_holm < ALPHA:
        return ("better" if change == "gain" else "worse"), f"the whole interval is a {change}"
    if row.difference_p < ALPHA:
        return "inconclusive", f"the interval excludes no difference, but not {over} (p = {row.difference_p_holm:.2g})"
    if row.non_inferior:
        return "inconclusive", f"no loss of {row.margin} (non-inferior), but a gain is not bounded by it"
    if row.non_inferiority_p is not None and row.non_inferiority_p < ALPHA / 2:
        p = f"p = {row.non_inferiority_p_holm:.2g}, one-sided"
        return "inconclusive", f"a loss of {row.margin} is excluded by this task alone, but not {over} ({p})"
    return "inconclusive", f"a loss of {row.margin} is not excluded"


def near_chance(baseline: Numbers, documents: Any, chance: float, margin: Margin) -> str | None:
    """Why a baseline's scores can't show a loss of the margin; None where they can."""
    score, n = float(baseline.mean()), len(baseline)
    if score - chance < margin.in_pp(score) / 100:
        return f"the baseline's {score:.0%} lies within the margin of chance ({chance:.0%}): no loss could show"
    if score_low(baseline, documents) <= chance:
        return f"the baseline's {score:.0%} of {n} is not above chance ({chance:.0%}) with 95 % confidence"
    return None
