"""A deployment's statistics, launch by launch and block by block."""

import math
from collections.abc import Iterable

import pandas as pd

from bench.analysis.obstacles import View
from bench.analysis.result import DeploymentResult


def launch_values(one: DeploymentResult, label: str, view: View, blocks: Iterable[int] | None = None) -> pd.DataFrame:
    """The finite statistics of some blocks (None: of all), a row a launch, under a label."""
    rows = [
        (label, x.block, x.replica, x.values[view.metric])
        for x in (one.cells[view.load].launches if view.load in one.cells else ())
        if (blocks is None or x.block in blocks)
        and math.isfinite(x.values.get(view.metric, math.nan))
        and x.values[view.metric] > 0
    ]
    return pd.DataFrame(rows, columns=["deployment", "block", "replica", "value"])


def by_block(values: pd.DataFrame) -> dict[int, float]:
    """Geometric mean of a block's launches (A and A′)."""
    found: dict[int, list[float]] = {}
    for block, value in zip(values["block"], values["value"], strict=True):
        found.setdefault(int(block), []).append(math.log(value))
    return {block: math.exp(sum(logs) / len(logs)) for block, logs in found.items()}
