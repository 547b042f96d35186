"""Whether late tokens come slower than early ones: the slope of the inter-token latency along the generation."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from bench.analysis.distribution import Floats

PER_TOKENS = 1000
"""A slope is told per so many tokens."""

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Drift:
    """Change of the ITL in ms over 1,000 tokens of one generation, with its 95 % interval.

    Attributes
    ----------
    slope, low, high : float
        Infinite bounds: a single request.
    requests : int
        Those of three tokens or more: fewer have no slope.
    """

    slope: float
    low: float
    high: float
    requests: int


def drift(xy: Floats, xx: Floats) -> Drift | None:
    """Ordinary least squares of ITL on the token's position, each request about its own means; clustered by request.

    Parameters
    ----------
    xy, xx : array of float
        For each request the sum of (position − mean) × (ITL − mean), and of (position − mean)².

    Notes
    -----
    A long request may be slow throughout and a short one fast: that says nothing of late tokens, so every request is
    compared with itself (a fixed effect a request). The interval is the cluster-robust sandwich with a t quantile at
    one degree of freedom less than there are requests (Cameron and Miller, 2015, J. Hum. Resour. 50:317).
    """
    has = xx > 0
    xy, xx = xy[has], xx[has]
    count, total = len(xx), float(xx.sum())
    if not count:
        return None
    slope = float(xy.sum()) / total
    if count < 2:
        return Drift(PER_TOKENS * slope, -math.inf, math.inf, count)
    scores = xy - slope * xx
    error = math.sqrt(float(scores @ scores) * count / (count - 1)) / total
    half = float(stats.t.ppf(0.5 + CONFIDENCE / 2, count - 1)) * error
    return Drift(PER_TOKENS * slope, PER_TOKENS * (slope - half), PER_TOKENS * (slope + half), count)


def sums_of_positions(tokens: Floats) -> Floats:
    """Sum of (position − mean)² over 1 … n."""
    return np.asarray(tokens * (tokens * tokens - 1) / 12)
