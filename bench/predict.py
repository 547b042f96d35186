"""Where a second measurement of the same thing should lie: prediction intervals from the first one alone.

Of speeds the interval for the mean of m new blocks from n old ones on the log scale, with the residual pooled within
the engine (rule 13): s · t · √(1/n + 1/m) (Hahn & Meeker, 1991, Statistical Intervals, section 4.8). Of scores the
difference that answers which change by chance, as often as between the baseline's own launches, make.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from bench.analysis.compare import spread_between_replicas, within_engine

LEVEL = 0.95


@dataclass(frozen=True)
class Residual:
    """SD of a deployment in one block on the log scale, and what it rests on."""

    sd: float
    degrees_of_freedom: int
    method: str


@dataclass(frozen=True)
class Prediction:
    """A new log ratio to the old value, and half of the interval that it should lie in."""

    log_ratio: float
    half: float
    residual: Residual
    old_blocks: int
    new_blocks: int

    @property
    def holds(self) -> bool:
        """Whether it lies inside; equal numbers do, whatever rounding does to them."""
        return abs(self.log_ratio) <= self.half + 1e-9

    @property
    def width_pct(self) -> float:
        """How far the interval reaches up, in per cent."""
        return 100 * math.expm1(min(self.half, 50.0))


def residual(values: pd.DataFrame, step: float = 0.0) -> Residual | None:
    """From one engine's launches (`deployment`, `block`, `replica`, `value`); None where they leave no freedom.

    Of a baseline alone it is what A and A′ differ by, halved by their mean.
    """
    names = list(dict.fromkeys(values["deployment"]))
    if len(names) > 1:
        estimates = within_engine(values, names[0], adjust=False, step=step)
        if estimates:
            one = next(iter(estimates.values()))
            method = "log(statistic) ~ deployment + block, A and A′ averaged, residual pooled within the engine"
            return Residual(one.residual_sd, one.degrees_of_freedom, method)
        return None
    spread = spread_between_replicas(values) if names else None
    if spread is None:
        return None
    return Residual(max(spread[0], step / math.sqrt(12)) / math.sqrt(2), spread[1], "A against A′ of each block")


def predict(old: Mapping[int, float], new: Mapping[int, float], spread: Residual, sides: int = 1) -> Prediction | None:
    """The mean of the new blocks from that of the old ones; values by block, and blocks that both have are taken.

    Parameters
    ----------
    sides : int
        2 for a ratio of two deployments, each with the residual.
    """
    blocks = sorted(old.keys() & new.keys())
    if len(blocks) < 2:
        return None
    n = len(blocks)
    ratio = float(np.mean([math.log(new[block] / old[block]) for block in blocks]))
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, spread.degrees_of_freedom))
    return Prediction(ratio, quantile * spread.sd * math.sqrt(sides * (1 / n + 1 / n)), spread, n, n)


def flips_within(items: int, flips: int, pairs: int) -> int:
    """The largest net change in right answers that chance makes in 95 % of repetitions.

    Each of the items changes with the upper bound (Clopper-Pearson, 95 %) of the share that changed among the pairs,
    and is then right or wrong with the same probability.

    Parameters
    ----------
    items : int
        Asked in both runs.
    flips, pairs : int
        Of the same question to the baseline twice in a block, how many were scored otherwise.
    """
    share = float(proportion_confint(flips, pairs, alpha=1 - LEVEL, method="beta")[1])
    step = np.array([share / 2, 1 - share, share / 2])
    size = 1 << (2 * items + 1).bit_length()
    chances = np.fft.irfft(np.fft.rfft(step, size) ** items, size)[: 2 * items + 1]
    return _smallest_holding(chances, items)


def flips_balanced(flips: int) -> int:
    """The same where nothing is known but how many answers changed: each as likely for the better as for the worse."""
    chances = np.zeros(2 * flips + 1)
    chances[::2] = stats.binom.pmf(np.arange(flips + 1), flips, 0.5)
    return _smallest_holding(chances, flips)


def _smallest_holding(chances: np.ndarray[tuple[int], np.dtype[np.float64]], centre: int) -> int:
    """The least k such that −k to k hold the level; `chances` run from −centre to centre."""
    for k in range(centre + 1):
        if float(chances[centre - k : centre + k + 1].sum()) >= LEVEL - 1e-12:
            return k
    return centre
