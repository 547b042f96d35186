"""Which numbers of a run a second one brings back: those that fall into the first one's prediction intervals.

The second run asks the same of the same machine, so that what a block's traffic does to a number comes back too. What
the machine did on another day is in no interval: that is told by the effects, which are relative to a baseline.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from bench.analysis.obstacles import View
from bench.analysis.result import DeploymentResult
from bench.comparability import Pair, differences, unreadable
from bench.compare_runs import MEMORY_NUMBERS
from bench.compare_speed import not_ranked, views
from bench.difference import MEMORY, SPEED, Difference, reason, voiding
from bench.launch_values import by_block, launch_values
from bench.predict import Prediction, Residual, predict, residual
from bench.reproduce_accuracy import accuracy_numbers
from bench.reproduction import (
    INCONCLUSIVE,
    NOT_COMPARABLE,
    NOT_REPRODUCED,
    REPRODUCED,
    SCHEMA_VERSION,
    Number,
    Reproduction,
)
from bench.sides import Named, Side
from harness.errors import ConfigError

WIDTH_PCT = 25.0
"""A prediction interval of a speed that reaches further than this decides nothing."""


def reproduction(first: Named, second: Named, width_pct: float = WIDTH_PCT) -> Reproduction:
    """Every number of the first run, as found in the second.

    Raises
    ------
    ConfigError
        Where one of them can't be read, or the first has no complete block.
    """
    if refused := unreadable(first, second):
        raise ConfigError(f"not comparable: {reason(refused)}")
    a, b = Side.of(first), Side.of(second)
    if not a.record.blocks:
        raise ConfigError(f"{a.path} has no complete block: there is nothing to reproduce")
    numbers: list[Number] = []
    holders: dict[Difference, list[str]] = {}
    for one in a.analysis.deployments:
        other = b.deployment(one.id)
        if other is None:
            gone = "the second run has no such deployment"
            numbers.append(Number(one.id, "state", "", "state", "exact", one.state, None, NOT_REPRODUCED, gone))
            continue
        pair = Pair(a, one, b, other)
        found = differences(pair)
        for difference in found:
            holders.setdefault(_hashable(difference), []).append(one.id)
        numbers += [_state(one, other), *_memory(pair, found), *_speed(pair, found, width_pct)]
        numbers += accuracy_numbers(pair, found)
    return Reproduction(
        schema_version=SCHEMA_VERSION,
        first=first.label,
        second=second.label,
        path_first=str(first.path),
        path_second=str(second.path),
        width_pct_max=width_pct,
        deployments=tuple(one.id for one in a.analysis.deployments),
        differences=tuple((difference, tuple(ids)) for difference, ids in holders.items()),
        numbers=tuple(numbers),
    )


def _hashable(one: Difference) -> Difference:
    plain = (None, bool, int, float, str)
    a, b = (value if value is None or isinstance(value, plain[1:]) else str(value) for value in (one.a, one.b))
    return replace(one, a=a, b=b)


def _state(one: DeploymentResult, other: DeploymentResult) -> Number:
    same = one.state == other.state
    why = "" if same else f"first {one.reason or one.state}; now {other.reason or other.state}"
    verdict = REPRODUCED if same else NOT_REPRODUCED
    return Number(one.id, "state", "", "state", "exact", one.state, other.state, verdict, why)


def _memory(pair: Pair, found: Sequence[Difference]) -> Iterator[Number]:
    """What a deployment holds by its making: equal, or not."""
    refused = reason(voiding(found, MEMORY))
    for name in MEMORY_NUMBERS:
        old, new = getattr(pair.one.memory, name), getattr(pair.other.memory, name)
        if old is None and new is None:
            continue
        row = Number(pair.one.id, "memory", "", name, "exact", old, new, NOT_COMPARABLE, refused)
        if not refused:
            same = old == new
            row = replace(row, verdict=REPRODUCED if same else NOT_REPRODUCED, reason="equal" if same else "differs")
        yield row


def _speed(pair: Pair, found: Sequence[Difference], width_pct: float) -> Iterator[Number]:
    loads = sorted(pair.one.cells.keys() | pair.other.cells.keys())
    for load in loads:
        obstacles = reason(voiding(found, SPEED, load))
        for view in views(pair, load, len(loads)):
            if obstacles:
                yield _number(pair, "speed", view, NOT_COMPARABLE, obstacles)
            else:
                yield _of_itself(pair, view, width_pct)
                if view.role == "primary" and not pair.one.engine_baseline:
                    yield _of_effect(pair, view, width_pct)


def _of_itself(pair: Pair, view: View, width_pct: float) -> Number:
    if why := not_ranked(pair, view):
        return _number(pair, "speed", view, INCONCLUSIVE, why)
    if unbounded := _unbounded(pair, view):
        return _number(pair, "speed", view, *unbounded)
    old, new = (by_block(launch_values(d, "", view, pair.shared_blocks(view.load))) for d in (pair.one, pair.other))
    return _judged(pair, "speed", view, old, new, width_pct)


def _of_effect(pair: Pair, view: View, width_pct: float) -> Number:
    """A statistic over the engine's own baseline of the same block: a shift of the machine cancels out."""
    base = pair.a.engine_baseline(pair.one)
    again = base and pair.b.deployment(base.id)
    if base is None or again is None:
        return _number(pair, "effect", view, INCONCLUSIVE, "the engine's baseline is not in both runs")
    held = Pair(pair.a, base, pair.b, again)
    if refused := voiding(differences(held), SPEED, view.load):
        return _number(pair, "effect", view, NOT_COMPARABLE, f"the baseline: {reason(refused)}")
    if unbounded := _unbounded(pair, view) or _unbounded(held, view):
        return _number(pair, "effect", view, INCONCLUSIVE, unbounded[1])
    ratios = []
    for own, reference in ((pair.one, base), (pair.other, again)):
        blocks = pair.shared_blocks(view.load)
        over, under = (by_block(launch_values(d, "", view, blocks)) for d in (own, reference))
        ratios.append({block: over[block] / under[block] for block in over.keys() & under.keys()})
    return _judged(pair, "effect", view, ratios[0], ratios[1], width_pct)


def _judged(
    pair: Pair, kind: str, view: View, old: dict[int, float], new: dict[int, float], width_pct: float
) -> Number:
    blocks = sorted(old.keys() & new.keys())
    if len(blocks) < 2:
        why = "one block gives no verdict" if blocks else "no block was measured in both"
        return _number(pair, kind, view, INCONCLUSIVE, f"{why}: how much a launch varies isn't known")
    spread = _residual(pair, view)
    prediction = predict(old, new, spread, 2 if kind == "effect" else 1) if spread else None
    if spread is None or prediction is None:
        return _number(pair, kind, view, INCONCLUSIVE, "too few launches of the first run to tell how much one varies")
    means = [math.exp(sum(math.log(side[block]) for block in blocks) / len(blocks)) for side in (old, new)]
    verdict, why = _verdict(prediction, width_pct)
    if all(old[block] == new[block] for block in blocks):
        verdict, why = REPRODUCED, "equal in every block"
    return replace(
        _number(pair, kind, view, verdict, why),
        old=means[0],
        new=means[1],
        low=means[0] * math.exp(-prediction.half),
        high=means[0] * math.exp(min(prediction.half, 50.0)),
        width=prediction.width_pct,
        old_blocks=prediction.old_blocks,
        new_blocks=prediction.new_blocks,
        degrees_of_freedom=spread.degrees_of_freedom,
        residual_pct=100 * math.expm1(spread.sd),
        method=f"95 % prediction interval; {spread.method}",
    )


def _verdict(prediction: Prediction, width_pct: float) -> tuple[str, str]:
    change = f"{100 * math.expm1(prediction.log_ratio):+.1f} %".replace("-", "−")
    place = "inside" if prediction.holds else "outside"
    if prediction.width_pct > width_pct:
        return INCONCLUSIVE, f"{change}, {place} an interval that is too wide (beyond ± {width_pct:g} %)"
    return (REPRODUCED if prediction.holds else NOT_REPRODUCED), f"{change}, {place} the interval"


def _residual(pair: Pair, view: View) -> Residual | None:
    """How much a launch of the first run varies: of all that was measured of the engine under the load."""
    family = [
        d
        for d in pair.a.family(pair.one)
        if d.state == "measured" and (cell := d.cells.get(view.load)) and cell.state == "measured"
    ]
    values = pd.concat([found for d in family if len(found := launch_values(d, d.id, view))])
    return residual(values, view.resolution(values))


def _unbounded(pair: Pair, view: View) -> tuple[str, str] | None:
    """Verdict and reason where statistics have no logarithm: infinite, zero, or found by no probe.

    No interval holds them; a number that is so in every launch of one run, and in none of the other, didn't come back.
    """
    told, every, none = [], [], []
    for name, one in (("first", pair.one), ("second", pair.other)):
        launches = one.cells[view.load].launches
        bad = len(launches) - len(launch_values(one, "", view))
        told += [f"{bad} of {len(launches)} launches of the {name} run"] if bad else []
        every.append(bad == len(launches) and len({x.block for x in launches}) > 1)
        none.append(not bad)
    if not told:
        return None
    why = f"{view.metric} is not bounded in {' and '.join(told)}"
    if all(every):
        return REPRODUCED, why
    changed = (every[0] and none[1]) or (none[0] and every[1])
    return (NOT_REPRODUCED if changed else INCONCLUSIVE), why


def _number(pair: Pair, kind: str, view: View, verdict: str, why: str) -> Number:
    return Number(pair.one.id, kind, view.load, view.metric, view.role, None, None, verdict, why)
