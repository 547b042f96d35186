"""B's speed against A's: two launches of different runs, paired by the blocks in which they had equal traffic.

Between two runs a machine may have become faster or slower. A baseline that both runs hold tells by how much (the
drift control), and dividing by it cancels what they share: verdicts rest on that ratio of ratios where there is one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pandas as pd

from bench.analysis.compare import Estimate, across_engines, judge, margins, percent
from bench.analysis.comparisons import EXPLORATORY, waits_for_precision
from bench.analysis.distribution import tail_percent
from bench.analysis.metrics import is_latency
from bench.analysis.obstacles import SEARCHED, View, failure_verdict, unbounded_launches
from bench.analysis.planned import is_closed, throughput_metric
from bench.analysis.power import ALPHA, ALPHA_UNTIL
from bench.comparability import Pair, engine_changed
from bench.difference import SPEED, Difference, reason, voiding
from bench.drift_control import Control, control_of, machine_shift, relative
from bench.launch_values import launch_values
from bench.run_comparison import NOT_COMPARABLE, Ratio, SpeedVerdict

DAY = "a shift of the machine between the two runs is not in the interval"


def speed_verdicts(pair: Pair, found: Sequence[Difference], pairs: int) -> Iterator[SpeedVerdict]:
    """Every metric under every load; primary ones are adjusted over the `pairs` that are compared, and the loads."""
    loads = sorted(pair.one.cells.keys() | pair.other.cells.keys())
    is_control = pair.one.id == pair.other.id and pair.one.engine_baseline and not engine_changed(found)
    for load in loads:
        control = Control(pair, True) if is_control else control_of(pair, load)
        for view in views(pair, load, len(loads)):
            yield _verdict(pair, view, voiding(found, SPEED, load), control, pairs)


def views(pair: Pair, load: str, loads: int) -> Iterator[View]:
    """The metrics of a load, primary ones first, as a run's own comparisons have them."""
    facts = (pair.a.plan.get("loads") or {}).get(load) or (pair.b.plan.get("loads") or {}).get(load) or {}
    limits = margins(pair.a.plan.get("margin") or {})
    cells = [cell for cell in pair.cells(load) if cell]
    counts = [int(x.values["requests"]) for cell in cells for x in cell.launches if "requests" in x.values]
    throughput, tail = throughput_metric(facts), f"ttft_p{tail_percent(min(counts, default=0))}_ms"
    # What ended when its residual happened to be small has too narrow intervals here too.
    alpha = ALPHA_UNTIL if any(waits_for_precision(side.plan) for side in (pair.a, pair.b)) else ALPHA
    primary = (throughput,) if facts.get("search") else (throughput, tail)
    for metric in dict.fromkeys((throughput, tail, *EXPLORATORY)):
        role = "primary" if metric in primary else "exploratory"
        margin = limits["latency" if is_latency(metric) else "throughput"]
        precision = (facts.get("search") or {}).get("precision_pct") if metric.startswith(SEARCHED) else None
        step = math.log1p(float(precision or 0) / 100)
        blocks = len(pair.shared_blocks(load))
        yield View(load, metric, role, margin, is_closed(facts), loads, blocks, alpha, step)


def _verdict(
    pair: Pair, view: View, obstacles: Sequence[Difference], control: Control | None, pairs: int
) -> SpeedVerdict:
    row = blank(pair, view)
    if obstacles:
        return replace(row, reason=reason(obstacles))
    if why := not_ranked(pair, view):
        return replace(row, reason=why)
    if unbounded := failed(pair, view):
        return replace(row, verdict=unbounded[0], reason=unbounded[1])
    blocks = pair.shared_blocks(view.load)
    if len(blocks) < 2:
        return replace(row, verdict="inconclusive", reason="no verdict: one block of equal traffic")
    count = pairs * view.loads if view.role == "primary" else 1
    direct = _direct(pair, view, count)
    if direct is None:
        return replace(row, verdict="inconclusive", reason="too few launches for an interval")
    verdict, why = judge(direct, view.metric, view.margin)
    if direct.log_ratio == direct.standard_error == 0:
        why = "both sides hold the same numbers: no second measurement"
    adjusted = f"Bonferroni over {count}" if view.role == "primary" else "not adjusted"
    row = replace(
        row,
        verdict=verdict,
        reason=f"{why}; {DAY}",
        rests_on="direct",
        direct=as_ratio(direct, len(blocks), f"{_paired(view)}, {adjusted}"),
        direct_verdict=verdict,
    )
    if control is None:
        return row
    return _as_control(row, direct, view) if control.pair is pair else _with_control(row, pair, view, control, count)


def _as_control(row: SpeedVerdict, direct: Estimate, view: View) -> SpeedVerdict:
    """A baseline that ran unchanged in both runs is the drift control itself: what differs is the machine."""
    if shifted := machine_shift(direct, view.margin):
        return replace(row, verdict=NOT_COMPARABLE, direct_verdict=NOT_COMPARABLE, reason=shifted, rests_on="nothing")
    return replace(row, reason=f"{row.reason.removesuffix(DAY)}it is the drift control itself")


def blank(pair: Pair, view: View) -> SpeedVerdict:
    """The verdict before anything is known."""
    ids = pair.one.id, pair.other.id
    return SpeedVerdict(view.load, view.metric, view.role, *ids, 100 * view.margin, NOT_COMPARABLE, "")


def failed(pair: Pair, view: View) -> tuple[str, str] | None:
    """Verdict and reason where a statistic is as bad as can be; None where none is."""
    one, other = replace(pair.one, id="A"), replace(pair.other, id="B")
    unbounded = {"A": unbounded_launches(one, view), "B": unbounded_launches(other, view)}
    if not any(unbounded.values()):
        return None
    found = failure_verdict(view, other, one, unbounded)
    return str(found["verdict"]), str(found["reason"]).replace("the baseline", "A")


def not_ranked(pair: Pair, view: View) -> str | None:
    """What a cell that was measured still can't say."""
    for name, one in (("A", pair.one), ("B", pair.other)):
        cell = one.cells[view.load]
        if not any(view.metric in x.values for x in cell.launches) and not view.metric.startswith(SEARCHED):
            return f"{name}: {view.metric} is not measured"
    if view.closed and is_latency(view.metric) and pair.one.backend != pair.other.backend:
        return "closed loop: a faster server gets more load, so that latencies are not ranked across engines"
    return None


def _with_control(row: SpeedVerdict, pair: Pair, view: View, control: Control, count: int) -> SpeedVerdict:
    """Adds the drift control and the ratio of ratios; on that the verdict rests where the control ran unchanged."""
    drift, cancelled = _direct(control.pair, view, 1), relative(pair, view, control, count)
    if drift is None or cancelled is None:
        return row
    blocks = [b for b in pair.shared_blocks(view.load) if b in control.pair.shared_blocks(view.load)]
    row = replace(
        row,
        control=control.id,
        drift=as_ratio(drift, len(blocks), f"{_paired(view)}, not adjusted"),
        ratio_of_ratios=as_ratio(cancelled, len(blocks), _RELATIVE),
    )
    if not control.unchanged:
        note = f"{control.id} itself ran on another engine or model, so that it is no control of the machine"
        return replace(row, reason=f"{row.reason}; {note}")
    verdict, why = judge(cancelled, view.metric, view.margin)
    why = f"over {control.id} of its own run: {why}"
    if shifted := machine_shift(drift, view.margin):
        row = replace(row, direct_verdict=NOT_COMPARABLE)
        why += f"; directly not comparable: {shifted}"
    return replace(row, verdict=verdict, reason=why, rests_on="ratio of ratios")


_RELATIVE = (
    "log(B over A) ~ deployment + block, each over the control's, residual pooled over what both runs have of the "
    "engine; of another engine's control paired by block"
)


def _paired(view: View) -> str:
    return f"log ratio paired by block, A and A′ averaged, {view.level} t interval"


def _direct(pair: Pair, view: View, count: int) -> Estimate | None:
    blocks = pair.shared_blocks(view.load)
    values = pd.concat([launch_values(pair.one, "A", view, blocks), launch_values(pair.other, "B", view, blocks)])
    if values.empty:
        return None
    step = view.resolution(values)
    return across_engines(values, "B", "A", comparisons=count, alpha=view.alpha, step=step)


def as_ratio(estimate: Estimate, blocks: int, method: str) -> Ratio:
    """An estimate in per cent."""
    return Ratio(
        effect_pct=percent(estimate.log_ratio),
        low_pct=percent(estimate.low),
        high_pct=percent(estimate.high),
        degrees_of_freedom=estimate.degrees_of_freedom,
        blocks=blocks,
        launches_a=estimate.baseline_launches,
        launches_b=estimate.launches,
        smallest_effect_pct=100 * estimate.smallest_effect(),
        method=method,
    )
