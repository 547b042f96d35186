"""Error rates, the critical value that several comparisons share, and the smallest difference that is found."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

ALPHA = 0.05
ALPHA_UNTIL = ALPHA / 2
"""Error rate where blocks are added until the intervals are narrow. A run that stops when its residual happens to be
small has too narrow intervals: at `ALPHA`, 3 to 12 blocks and the least favourable width, 9.2 % of the intervals miss;
at this rate 5.1 % (one compared deployment; less with several). Repeated by the test of simulated truth.
"""
POWER = 0.8
"""A smallest visible effect is one that is found with this probability."""

_STRATA = 400
_LARGEST_LOG = 50.0


def dunnett(covariance: NDArray[np.float64], freedom: int, alpha: float) -> float:
    """Two-sided critical value for contrasts of this covariance shape: all hold together with 1 − `alpha`."""
    scale = np.sqrt(np.diag(covariance))
    correlation = np.round(covariance / np.outer(scale, scale), 6)
    return _dunnett(tuple(map(tuple, correlation.tolist())), freedom, alpha)


@lru_cache(maxsize=256)
def _dunnett(correlation: tuple[tuple[float, ...], ...], freedom: int, alpha: float) -> float:
    count = len(correlation)
    alone, bonferroni = (float(stats.t.ppf(1 - a / 2, freedom)) for a in (alpha, alpha / count))
    if count == 1:
        return alone
    together = stats.multivariate_t(loc=np.zeros(count), shape=np.array(correlation), df=freedom, allow_singular=True)

    def excess(critical: float) -> float:
        box = np.full(count, critical)
        inside = together.cdf(box, lower_limit=-box, random_state=np.random.default_rng(0))
        return float(inside) - (1 - alpha)

    if excess(alone) >= 0 or excess(bonferroni) <= 0:  # numerical noise at the ends; Bonferroni is never too narrow
        return bonferroni
    return float(optimize.brentq(excess, alone, bonferroni, xtol=1e-3))


def smallest_effect(blocks: int, deployments: int, sd: float, *, families: int = 1, alpha: float = ALPHA) -> float:
    """The relative difference that a plan finds with 80 % probability; infinite where it gives no verdict.

    Parameters
    ----------
    blocks : int
        Blocks planned.
    deployments : int
        Of one engine, its baseline included.
    sd : float
        Relative SD of one deployment's statistic in one block (`Estimate.residual_sd`), e.g. 0.04; from an earlier run.
    families, alpha
        As in `within_engine`.
    """
    others = deployments - 1
    freedom = others * (blocks - 1)
    if others < 1 or freedom < 1:
        return math.inf
    shape = (np.ones((others, others)) + np.eye(others)) / blocks
    return detectable(sd * math.sqrt(2 / blocks), freedom, dunnett(shape, freedom, alpha / families))


def detectable(standard_error: float, freedom: int, critical: float) -> float:
    """The relative increase that a t test of this standard error and critical value finds with `POWER`."""
    return math.expm1(min(_shift(freedom, critical) * standard_error, _LARGEST_LOG))


@lru_cache(maxsize=256)
def _shift(freedom: int, critical: float) -> float:
    """The difference, in true standard errors, that is found with `POWER`.

    Noncentral t as a mean over the residual's chi: scipy's own `nct` gives NaN at few degrees of freedom.
    """
    bar = critical * np.sqrt(stats.chi2.ppf((np.arange(_STRATA) + 0.5) / _STRATA, freedom) / freedom)

    def shortfall(shift: float) -> float:
        return float(np.mean(stats.norm.sf(bar - shift) + stats.norm.cdf(-bar - shift))) - POWER

    return float(optimize.brentq(shortfall, 0.0, float(bar[-1]) + 10))
