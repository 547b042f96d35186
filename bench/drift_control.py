"""What tells of the machine between two runs: a deployment that both hold, and B over A relative to it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pandas as pd
from scipy import stats

from bench.analysis.compare import Estimate, across_engines, percent, within_engine
from bench.analysis.obstacles import View
from bench.comparability import Pair, differences, engine_changed
from bench.difference import SPEED, voiding
from bench.launch_values import by_block, launch_values


@dataclass(frozen=True)
class Control:
    """A deployment that both runs hold; `unchanged`: of the same engine, version, options and model."""

    pair: Pair
    unchanged: bool

    @property
    def id(self) -> str:
        return self.pair.one.id


def control_of(pair: Pair, load: str) -> Control | None:
    """The drift control: the same engine's 16-bit baseline, else another one that ran unchanged in both runs."""
    own = pair.b.engine_baseline(pair.other)
    wanted = [own] if own else []
    wanted += [d for d in pair.b.analysis.deployments if d.engine_baseline and d not in wanted]
    known: list[Control] = []
    for other in wanted:
        one = pair.a.deployment(other.id)
        if one is None or not one.engine_baseline or (one.id, other.id) == (pair.one.id, pair.other.id):
            continue
        held = Pair(pair.a, one, pair.b, other)
        found = differences(held)
        if not voiding(found, SPEED, load):
            known.append(Control(held, not engine_changed(found)))
    return next((control for control in known if control.unchanged), known[0] if known else None)


def machine_shift(drift: Estimate, margin: float) -> str | None:
    """What the drift control says, where it excludes no shift and lies beyond the margin."""
    if drift.low <= 0 <= drift.high or abs(drift.log_ratio) <= math.log1p(margin):
        return None
    return f"the machine itself shifted by {percent(drift.log_ratio):+.0f} %".replace("-", "−")


def relative(pair: Pair, view: View, control: Control, count: int) -> Estimate | None:
    """B over A against the control's B over A: by block, so that what a block's traffic does to both cancels too."""
    rows = [_ratios(pair, "pair", view), _ratios(control.pair, "control", view)]
    same_engine = len({(d.backend, d.model) for d in (pair.one, pair.other, control.pair.other)}) == 1
    if same_engine:
        rows += [_ratios(other, other.one.id, view) for other in _rest_of_family(pair, control, view.load)]
    frame = pd.concat([one for one in rows if len(one)] or rows[:1])
    if frame.empty:
        return None
    step = math.sqrt(2) * view.step
    if same_engine:
        estimate = within_engine(frame, "control", adjust=False, step=step).get("pair")
    else:
        estimate = across_engines(frame, "pair", "control", step=step)
    if estimate is None:
        return None
    critical = float(stats.t.ppf(1 - view.alpha / count / 2, estimate.degrees_of_freedom))
    return replace(estimate, critical=critical, alpha=view.alpha, **_counts(pair, view))


def _rest_of_family(pair: Pair, control: Control, load: str) -> Iterator[Pair]:
    """What else both runs have of the engine, comparable with itself: it tells of the residual."""
    for other in pair.b.family(pair.other):
        one = pair.a.deployment(other.id)
        if one is None or other.id in (pair.one.id, pair.other.id, control.id):
            continue
        held = Pair(pair.a, one, pair.b, other)
        if load in one.cells and load in other.cells and not voiding(differences(held), SPEED, load):
            yield held


def _ratios(pair: Pair, label: str, view: View) -> pd.DataFrame:
    """B over A in each block of equal traffic, as rows that the analysis within a run understands."""
    blocks = pair.shared_blocks(view.load)
    mine, theirs = (by_block(launch_values(d, "", view, blocks)) for d in (pair.one, pair.other))
    rows = [(label, block, 1, theirs[block] / mine[block]) for block in sorted(mine.keys() & theirs.keys())]
    return pd.DataFrame(rows, columns=["deployment", "block", "replica", "value"])


def _counts(pair: Pair, view: View) -> dict[str, int]:
    blocks = pair.shared_blocks(view.load)
    return {
        "launches": len(launch_values(pair.other, "", view, blocks)),
        "baseline_launches": len(launch_values(pair.one, "", view, blocks)),
    }
