"""Accuracy against the same engine's 16-bit baseline, every question paired with itself (rule 12).

Of the baseline's two launches in a block A is used, and A′ only where A has no scores; A against A′ is the floor of
the flips.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench.analysis.accuracy_verdict import Compared, Margin, compare_task, judged
from bench.analysis.flips import flips, repeated
from bench.analysis.grid import length_by_depth
from bench.analysis.load import LaunchRecord, RunRecord, TaskRecord
from bench.analysis.pairing import asked_differently, not_measured, scored, scores
from bench.analysis.result import AccuracyComparison, AccuracyScore, DeploymentResult


def task_score(launches: Sequence[LaunchRecord], task: str) -> AccuracyScore:
    """A deployment's score on one task, or why there is none."""
    records = [launch.tasks[task].facts for launch in launches if task in launch.tasks]
    measured = scored(launches, task)
    items = scores(measured)
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
        chance=_chance(list(measured.values())),
        exercises=(exercises,) if isinstance(exercises, str) else tuple(map(str, exercises)),
        grid=length_by_depth(sample for record in measured.values() for sample in record.samples),
        notes=tuple(dict.fromkeys(str(note) for r in records for note in r.get("notes") or ())),
    )


def _chance(records: Sequence[TaskRecord]) -> float | None:
    """Chance over blocks, which ask different items: their mean, by items; no less than one constant answer to all."""
    known = [(float(r.facts["chance"]), len(r.samples)) for r in records if r.facts.get("chance") is not None]
    return sum(chance * items for chance, items in known) / sum(items for _, items in known) if known else None


def accuracy_comparisons(run: RunRecord, deployments: Sequence[DeploymentResult]) -> Iterable[AccuracyComparison]:
    """Every task of every deployment against its engine's 16-bit baseline, and against the common one."""
    tasks: Mapping[str, Mapping[str, Any]] = run.plan.get("accuracy") or {}
    launches = {d.id: [x for x in run.launches if x.deployment == d.id] for d in deployments}
    common = next((d for d in deployments if d.common_baseline), None)
    found: dict[tuple[str, str, str], AccuracyComparison] = {}
    for one in (d for d in deployments if d.accuracy):
        base = next(
            (d for d in deployments if d.engine_baseline and (d.backend, d.model) == (one.backend, one.model)), None
        )
        for against, reference in (("engine", base), ("common", common)):
            if reference is None or reference.id == one.id:
                continue
            family = [
                _compare(one, reference, task, against, Margin.of(facts), launches) for task, facts in tasks.items()
            ]
            found |= {(row.task, one.id, against): row for row in judged(family)}
    return [
        found[task, d.id, against]
        for task in tasks
        for d in deployments
        for against in ("engine", "common")
        if (task, d.id, against) in found
    ]


def _compare(
    one: DeploymentResult,
    reference: DeploymentResult,
    task: str,
    against: str,
    margin: Margin,
    launches: Mapping[str, Sequence[LaunchRecord]],
) -> Compared:
    score = reference.accuracy[task].score if task in reference.accuracy else None
    in_pp = margin.in_pp(math.nan if score is None else score)
    row = AccuracyComparison(
        task, one.id, reference.id, against, in_pp, "", "", margin_relative_pct=margin.relative_pct
    )
    obstacle = not_measured(one, reference, task)
    mine, theirs = scored(launches[one.id], task), scored(launches[reference.id], task)
    obstacle = obstacle or asked_differently(mine, theirs)
    if obstacle is not None:
        return Compared(replace(row, verdict="not comparable", reason=obstacle))
    candidate, baseline = scores(mine), scores(theirs)
    seen = flips(candidate, baseline, repeated(launches[reference.id], task))
    return compare_task(row, candidate, baseline, margin, reference.accuracy[task].chance or 0.0, seen)
