"""How one metric under one load is compared, and what stands in the way: states, caches, traffic, failures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bench.analysis.compare import HIGHER_IS_BETTER
from bench.analysis.power import ALPHA
from bench.analysis.result import DeploymentResult

SEARCHED = "saturation_"
"""Metrics that a search finds, in steps; a launch without one is a launch in which no value met the service level."""


@dataclass(frozen=True)
class View:
    """One metric under one load: how it is compared; `step` is the metric's resolution on the log scale."""

    load: str
    metric: str
    role: str
    margin: float
    closed: bool
    loads: int
    blocks: int
    alpha: float = ALPHA
    step: float = 0.0

    @property
    def level(self) -> str:
        return f"{100 * (1 - self.alpha):g} %"

    def resolution(self, values: pd.DataFrame) -> float:
        """The step, or where values are whole numbers (concurrency) what one more of the least is, if that is wider."""
        if self.metric != "saturation_concurrency" or values.empty:
            return self.step
        return max(self.step, math.log1p(1 / float(values["value"].min())))


def obstacle(view: View, other: DeploymentResult, base: DeploymentResult) -> str | None:
    """Why two deployments can't be compared at all in this cell."""
    for who, one in (("", other), ("the baseline: ", base)):
        if one.state != "measured":
            return f"{who}{one.state}"
        cell = one.cells.get(view.load)
        if cell is None or cell.state != "measured":
            return f"{who}{cell.state if cell else 'not measured'}: {cell.reason if cell else 'no cell'}"
        if not any(view.metric in s.values for s in cell.launches) and not view.metric.startswith(SEARCHED):
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


def unbounded_launches(one: DeploymentResult, view: View) -> int:
    """Launches whose statistic is as bad as can be, and has no logarithm.

    Of a latency infinite (the percentile falls among failed requests), of a rate zero, of a search absent.
    """
    missing = 0.0 if view.metric.startswith(SEARCHED) else math.nan
    values = [s.values.get(view.metric, missing) for s in one.cells[view.load].launches]
    if view.metric in HIGHER_IS_BETTER:
        return sum(value <= 0 for value in values)
    return sum(math.isinf(value) for value in values)


def failure_verdict(
    view: View, other: DeploymentResult, base: DeploymentResult, unbounded: Mapping[str, int]
) -> dict[str, Any]:
    """`worse` where all launches, of two blocks or more, are as bad as can be and none of the baseline's is.

    `better` the other way round.
    """
    mine, theirs = unbounded[other.id], unbounded[base.id]
    launches, references = (one.cells[view.load].launches for one in (other, base))
    if view.metric.startswith(SEARCHED):
        what = "no value that was tried met the service level"
    elif view.metric in HIGHER_IS_BETTER:
        what = f"{view.metric} is zero"
    else:
        what = f"so many requests failed that {view.metric} is infinite"
    if theirs:
        reason = f"the baseline: {what} in {theirs} of {len(references)} launches"
        if not mine and theirs == len(references) and len({s.block for s in references}) > 1:
            return {"verdict": "better", "reason": f"{reason}, here in none"}
        return {"verdict": "not comparable", "reason": reason}
    reason = f"{what} in {mine} of {len(launches)} launches"
    if mine == len(launches) and len({s.block for s in launches}) > 1:
        return {"verdict": "worse", "reason": reason}
    return {"verdict": "inconclusive", "reason": reason}
