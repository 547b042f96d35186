"""Compares any two runs, or deployments of runs, also of different dates; B is held against A.

What isn't comparable is refused, metric by metric and task by task, and the reason named: accuracy may be comparable
where speed is not. Two deployments of one run keep that run's own comparison.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bench.analysis.accuracy_verdict import Margin, compare_task, judged
from bench.analysis.flips import flips, repeated
from bench.analysis.pairing import scores
from bench.analysis.result import AccuracyComparison, DeploymentResult
from bench.comparability import Pair, differences, unreadable
from bench.compare_own import own_speed
from bench.compare_speed import speed_verdicts
from bench.difference import ACCURACY, ALL, MEMORY, Difference, reason, voiding
from bench.run_comparison import (
    NOT_COMPARABLE,
    SCHEMA_VERSION,
    MemoryNumber,
    PairComparison,
    RunComparison,
)
from bench.sides import Named, Side

MEMORY_NUMBERS = ("kv_dtype", "kv_bytes_per_token", "capacity_tokens", "pool_bytes", "slots")
"""What a deployment holds by its making; peaks vary with the traffic and are not among them."""


def compare_runs(named_a: Named, named_b: Named) -> RunComparison:
    """B against A; raises `KVMarkError` where a folder can't be read, `ConfigError` for an unknown deployment."""
    result = RunComparison(
        schema_version=SCHEMA_VERSION,
        a=named_a.label,
        b=named_b.label,
        path_a=str(named_a.path),
        path_b=str(named_b.path),
        created_a=None,
        created_b=None,
        same_run=named_a.path == named_b.path,
    )
    if refused := unreadable(named_a, named_b):
        return replace(result, refused=tuple(refused))
    a = Side.of(named_a)
    b = Side.of(named_b) if named_a.path != named_b.path else a.again(named_b)
    result = replace(result, created_a=a.manifest.get("created"), created_b=b.manifest.get("created"))
    pairs = list(_pairs(a, b))
    if not pairs:
        ids = [", ".join(d.id for d in side.analysis.deployments) for side in (a, b)]
        return replace(result, refused=(Difference("state", "deployments", ids[0], ids[1], ALL),))
    with_load = sum(bool(pair.one.cells and pair.other.cells) for pair in pairs)
    compared = tuple(_compare(pair, max(1, with_load)) for pair in pairs)
    return replace(result, pairs=compared, only_in_a=_alone(a, b), only_in_b=_alone(b, a))


def _pairs(a: Side, b: Side) -> Iterator[Pair]:
    """The two that were named; else every deployment that both have."""
    if a.named.deployment and b.named.deployment:
        names = [(a.named.deployment, b.named.deployment)]
    else:
        only = a.named.deployment or b.named.deployment
        names = [(d.id, d.id) for d in a.analysis.deployments if only in (None, d.id)]
    for mine, theirs in names:
        one, other = a.deployment(mine), b.deployment(theirs)
        if one is not None and other is not None and {one.state, other.state} != {"unsupported"}:
            yield Pair(a, one, b, other)


def _alone(side: Side, others: Side) -> tuple[str, ...]:
    if side.named.deployment or others.named.deployment:
        return ()
    return tuple(d.id for d in side.analysis.deployments if others.deployment(d.id) is None)


def _compare(pair: Pair, pairs: int) -> PairComparison:
    found = differences(pair)
    within_one_run = pair.a.path == pair.b.path and pair.one.id != pair.other.id
    speed = own_speed(pair, found) if within_one_run else speed_verdicts(pair, found, pairs)
    refused = voiding(found, MEMORY)
    return PairComparison(
        a=pair.one.id,
        b=pair.other.id,
        differences=tuple(found),
        speed=tuple(speed),
        accuracy=tuple(_own_accuracy(pair, found) if within_one_run else _accuracy(pair, found)),
        memory=() if refused else tuple(_memory(pair.one, pair.other)),
        memory_refused=reason(refused) or None,
    )


def _accuracy(pair: Pair, found: Sequence[Difference]) -> list[AccuracyComparison]:
    """Every task that either has, paired by block and item; claims are adjusted over the tasks that can speak."""
    rows: list[AccuracyComparison] = []
    speaking = []
    for task in sorted(pair.one.accuracy.keys() | pair.other.accuracy.keys()):
        margin = Margin.of((pair.a.plan.get("accuracy") or {}).get(task) or {})
        row = AccuracyComparison(task, pair.other.id, pair.one.id, "a", 0.0, NOT_COMPARABLE, "")
        row = replace(row, margin_relative_pct=margin.relative_pct, margin_pp=margin.pp or 0.0)
        if obstacles := voiding(found, ACCURACY, task):
            rows.append(replace(row, reason=reason(obstacles)))
            continue
        mine, theirs = pair.answers(task)
        blocks = pair.shared_questions(task)
        a, b = (scores({block: side[block] for block in blocks}) for side in (mine, theirs))
        if _same_answers(pair, task, blocks):
            rows.append(_same(row, len(a)))
            continue
        base = pair.a.engine_baseline(pair.one)
        seen = flips(b, a, repeated(pair.a.launches(base.id), task)) if base else None
        chance = pair.one.accuracy[task].chance or 0.0
        speaking.append(compare_task(replace(row, verdict=""), b, a, margin, chance, seen))
    return sorted([*rows, *judged(speaking)], key=lambda row: row.task)


def _own_accuracy(pair: Pair, found: Sequence[Difference]) -> list[AccuracyComparison]:
    """The run's own comparisons, and what it has none of made as between runs."""
    own = {
        c.task: c
        for c in sorted(pair.a.analysis.accuracy, key=lambda c: c.against == "engine")
        if (c.deployment, c.baseline) == (pair.other.id, pair.one.id)
    }
    return [own.get(row.task, row) for row in _accuracy(pair, found)]


def _same_answers(pair: Pair, task: str, blocks: Sequence[int]) -> bool:
    """Whether both sides are one and the same measurement: the same launches by their clocks, with the same answers."""
    if not blocks:
        return False
    clocks = [[x.facts.get("clock") for x in s.launches(d.id)] for s, d in ((pair.a, pair.one), (pair.b, pair.other))]
    mine, theirs = pair.answers(task)
    equal = all(mine[block].samples == theirs[block].samples for block in blocks)
    return pair.one.id == pair.other.id and clocks[0] == clocks[1] and equal


def _same(row: AccuracyComparison, n: int) -> AccuracyComparison:
    return replace(
        row,
        difference_pp=0.0,
        low_pp=0.0,
        high_pp=0.0,
        n=n,
        verdict="equivalent",
        non_inferior=True,
        reason="both sides are the same answers of the same launches: no second measurement",
        method="the same record",
    )


def _memory(one: DeploymentResult, other: DeploymentResult) -> Iterator[MemoryNumber]:
    for name in MEMORY_NUMBERS:
        mine, theirs = getattr(one.memory, name), getattr(other.memory, name)
        if mine is None and theirs is None:
            continue
        numbers = isinstance(mine, int | float) and isinstance(theirs, int | float) and mine
        yield MemoryNumber(name, mine, theirs, theirs / mine if numbers else None)
