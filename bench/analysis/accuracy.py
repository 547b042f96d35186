"""Accuracy against the same engine's 16-bit baseline, every question paired with itself (rule 12).

Of the baseline's two launches in a block A is used, and A′ only where A has no scores: averaging them would turn right
or wrong into a half, for which the score interval isn't made.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy import optimize, stats
from statsmodels.stats.proportion import proportion_confint

from bench.analysis.load import LaunchRecord, RunRecord, TaskRecord
from bench.analysis.result import AccuracyComparison, AccuracyScore, DeploymentResult

ALPHA = 0.05

Scores = dict[tuple[int, str], tuple[float, str]]
"""(block, item) → (score, document)."""


@dataclass(frozen=True)
class PairedInterval:
    """A mean paired difference with its 95 % interval, as shares, and the method that it came from."""

    difference: float
    low: float
    high: float
    method: str


def scored(launches: Sequence[LaunchRecord], task: str) -> dict[int, TaskRecord]:
    """Block → what a deployment answered there; of two launches in a block, the first replica that has scores."""
    found: dict[int, TaskRecord] = {}
    for launch in sorted(launches, key=lambda one: (one.block, one.replica)):
        record = launch.tasks.get(task)
        if record is None or record.facts.get("state") != "measured" or launch.block in found:
            continue
        if any(sample.get("score") is not None for sample in record.samples):
            found[launch.block] = record
    return found


def scores(launches: Sequence[LaunchRecord], task: str) -> Scores:
    """A deployment's scored items."""
    return {
        (block, str(sample["item_id"])): (float(sample["score"]), str(sample.get("document_id") or sample["item_id"]))
        for block, record in scored(launches, task).items()
        for sample in record.samples
        if sample.get("score") is not None
    }


def items_differ(mine: Mapping[int, TaskRecord], theirs: Mapping[int, TaskRecord]) -> str | None:
    """Why answers can't be paired though their names agree: the questions themselves differ; None where they don't."""
    differing = [
        block
        for block in sorted(mine.keys() & theirs.keys())
        if mine[block].facts.get("items_sha256") != theirs[block].facts.get("items_sha256")
    ]
    if not differing:
        return None
    one = differing[0]
    ways = [str(record[one].facts.get("mode")) for record in (mine, theirs)]
    how = f" (asked by {ways[0]}, the baseline by {ways[1]})" if ways[0] != ways[1] else " (items_sha256)"
    return f"the questions differ from the baseline's in block {', '.join(map(str, differing))}{how}"


def task_score(launches: Sequence[LaunchRecord], task: str) -> AccuracyScore:
    """A deployment's score on one task, or why there is none."""
    records = [launch.tasks[task].facts for launch in launches if task in launch.tasks]
    items = scores(launches, task)
    facts: dict[str, Any] = records[0] if records else {}
    unmeasured = [r for r in records if r.get("state") != "measured"]
    state = "measured" if items else str(unmeasured[0]["state"]) if unmeasured else "not measured"
    reason = None if items else str(unmeasured[0].get("reason")) if unmeasured else "no launch took this task"
    exercises = facts.get("exercises") or ()
    return AccuracyScore(
        task=task,
        state=state,
        reason=reason,
        metric=str(facts.get("metric") or "score"),
        n=len(items),
        score=float(np.mean([score for score, _ in items.values()])) if items else None,
        chance=_chance(list(scored(launches, task).values())),
        exercises=(exercises,) if isinstance(exercises, str) else tuple(map(str, exercises)),
    )


def _chance(records: Sequence[TaskRecord]) -> float | None:
    """Chance over blocks, which ask different items: their mean, by items; no less than one constant answer to all."""
    known = [(float(r.facts["chance"]), len(r.samples)) for r in records if r.facts.get("chance") is not None]
    return sum(chance * items for chance, items in known) / sum(items for _, items in known) if known else None


def accuracy_comparisons(run: RunRecord, deployments: Sequence[DeploymentResult]) -> Iterable[AccuracyComparison]:
    """Every task of every deployment against its engine's 16-bit baseline, and against the common one."""
    launches = {d.id: [x for x in run.launches if x.deployment == d.id] for d in deployments}
    common = next((d for d in deployments if d.common_baseline), None)
    for task, facts in (run.plan.get("accuracy") or {}).items():
        margin = float(facts.get("margin_pp") or 0.0)
        for one in (d for d in deployments if d.accuracy):
            base = next(
                (d for d in deployments if d.engine_baseline and (d.backend, d.model) == (one.backend, one.model)), None
            )
            for against, reference in (("engine", base), ("common", common)):
                if reference is None or reference.id == one.id:
                    continue
                obstacle = _obstacle(one, reference, task) or items_differ(
                    scored(launches[one.id], task), scored(launches[reference.id], task)
                )
                if obstacle is not None:
                    yield AccuracyComparison(
                        task, one.id, reference.id, against, margin, verdict="not comparable", reason=obstacle
                    )
                    continue
                yield compare_task(
                    scores(launches[one.id], task),
                    scores(launches[reference.id], task),
                    task=task,
                    ids=(one.id, reference.id),
                    against=against,
                    margin_pp=margin,
                    chance=reference.accuracy[task].chance or 0.0,
                )


def _obstacle(one: DeploymentResult, reference: DeploymentResult, task: str) -> str | None:
    if one.model != reference.model:
        return "another model"
    for who, d in (("", one), ("the baseline: ", reference)):
        if d.state == "not in effect":
            return f"{who}{d.state}"
        if (score := d.accuracy[task]).score is None:
            return f"{who}{score.state}: {score.reason}"
    return None


def compare_task(
    candidate: Scores,
    baseline: Scores,
    *,
    task: str,
    ids: tuple[str, str],
    against: str,
    margin_pp: float,
    chance: float,
) -> AccuracyComparison:
    """Non-inferiority of one task at `margin_pp`; `ids` are the deployments, candidate first."""
    pairs = sorted(candidate.keys() & baseline.keys())
    common: dict[str, Any] = {
        "task": task,
        "deployment": ids[0],
        "baseline": ids[1],
        "against": against,
        "margin_pp": margin_pp,
    }
    if len(pairs) < 2:
        return AccuracyComparison(
            **common, n=len(pairs), verdict="not comparable", reason=f"{len(pairs)} questions were answered by both"
        )
    mine = np.array([candidate[key][0] for key in pairs])
    theirs = np.array([baseline[key][0] for key in pairs])
    documents = np.array([baseline[key][1] for key in pairs])
    lost, gained = int((mine < theirs).sum()), int((mine > theirs).sum())
    interval = paired_interval(mine, theirs, documents)
    numbers: dict[str, Any] = {
        "n": len(pairs),
        "documents": len(set(documents)),
        "difference_pp": 100 * interval.difference,
        "low_pp": 100 * interval.low,
        "high_pp": 100 * interval.high,
        "lost": lost,
        "gained": gained,
        "method": interval.method,
    }
    blocks = len({block for block, _ in pairs})
    reason_near_chance = near_chance(theirs, chance, margin_pp / 100)
    non_inferior = reason_near_chance is None and blocks > 1 and 100 * interval.low > -margin_pp
    verdict, reason = _judge(interval, margin_pp / 100)
    if blocks < 2:
        verdict, reason = "inconclusive", "no verdict: one block"
    elif reason_near_chance is not None:
        verdict, reason = "not informative", reason_near_chance
    return AccuracyComparison(**common, **numbers, verdict=verdict, reason=reason, non_inferior=non_inferior)


def _judge(interval: PairedInterval, margin: float) -> tuple[str, str]:
    percent = f"{100 * margin:g} pp"
    if interval.low > -margin and interval.high < margin:
        return "equivalent", f"loss and gain are below {percent}"
    if interval.low > 0:
        return "better", "the interval excludes a loss"
    if interval.high < 0:
        return "worse", "the interval excludes no loss"
    if interval.low > -margin:
        return "inconclusive", f"no loss of {percent} (non-inferior), but a gain is not bounded by it"
    return "inconclusive", f"a loss of {percent} is not excluded"


def near_chance(baseline: NDArray[np.float64], chance: float, margin: float) -> str | None:
    """Why a baseline's scores can't show a loss of `margin`; None where they can."""
    score, n = float(baseline.mean()), len(baseline)
    if score - chance < margin:
        return f"the baseline's {score:.0%} lies within the margin of chance ({chance:.0%}): no loss could show"
    low, _ = proportion_confint(round(float(baseline.sum())), n, alpha=ALPHA, method="beta")
    if low <= chance:
        return f"the baseline's {score:.0%} of {n} is not above chance ({chance:.0%}) with 95 % confidence"
    return None


def paired_interval(mine: NDArray[np.float64], theirs: NDArray[np.float64], documents: NDArray[Any]) -> PairedInterval:
    """The wider of the cluster-robust t interval (questions of a document together) and Tango's score interval."""
    difference = mine - theirs
    mean = float(difference.mean())
    found = []
    if len(set(documents)) > 1:
        groups = np.unique(documents, return_inverse=True)[1]
        fit = sm.OLS(difference, np.ones(len(difference))).fit(
            cov_type="cluster", cov_kwds={"groups": groups}, use_t=True
        )
        half = float(stats.t.ppf(1 - ALPHA / 2, len(set(documents)) - 1)) * float(np.nan_to_num(fit.bse[0]))
        found.append(PairedInterval(mean, mean - half, mean + half, f"cluster t over {len(set(documents))} documents"))
    if set(np.unique(mine)) | set(np.unique(theirs)) <= {0.0, 1.0}:
        low, high = tango(int((difference > 0).sum()), int((difference < 0).sum()), len(difference))
        found.append(PairedInterval(mean, low, high, f"Tango's score interval, {len(difference)} pairs"))
    if not found:
        return PairedInterval(mean, -math.inf, math.inf, "no interval: one document and graded scores")
    return max(found, key=lambda interval: interval.high - interval.low)


def tango(gained: int, lost: int, n: int) -> tuple[float, float]:
    """Score interval for a difference of paired proportions, (gained − lost) / n (Tango, 1998, Stat. Med. 17:891).

    The bounds are where the score statistic under the restricted maximum likelihood reaches the normal quantile.
    """
    z = float(stats.norm.ppf(1 - ALPHA / 2))
    estimate = (gained - lost) / n

    def statistic(delta: float) -> float:
        b = -gained - lost + (2 * n - gained + lost) * delta
        c = -lost * delta * (1 - delta)
        q = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
        variance = n * (2 * q + delta * (1 - delta))
        return (gained - lost - n * delta) / math.sqrt(variance) if variance > 0 else math.inf * (estimate - delta or 0)

    edge = 1e-9
    low = -1.0 if estimate <= -1 else optimize.brentq(lambda d: statistic(d) - z, -1 + edge, estimate - edge)
    high = 1.0 if estimate >= 1 else optimize.brentq(lambda d: statistic(d) + z, estimate + edge, 1 - edge)
    return float(low), float(high)
