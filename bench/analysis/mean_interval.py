"""The 95 % interval of a mean, by Student's t: over values, or over the clusters that they come from."""

import math
from collections.abc import Hashable, Sequence
from statistics import fmean, stdev

from scipy import stats

CONFIDENCE = 0.95
CLUSTERS_MIN = 6
"""With fewer clusters their own spread is too poorly known: the values then count as independent."""


def t_half_width(standard_error: float, degrees_of_freedom: int) -> float:
    """Half the width of the interval of an estimate with this standard error."""
    return float(stats.t.ppf(0.5 + CONFIDENCE / 2, degrees_of_freedom)) * standard_error


def mean_interval(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[float | None, float | None]:
    """Low and high end of the mean's interval; (None, None) for a single value.

    With `CLUSTERS_MIN` clusters or more the standard error is cluster-robust (Liang and Zeger, 1986; corrected by
    G ÷ (G − 1)), with G − 1 degrees of freedom. With fewer, each value counts as a cluster of its own.
    """
    if len(values) < 2:
        return None, None
    mean = fmean(values)
    names = set(clusters)
    if len(names) < CLUSTERS_MIN:
        error, freedom = stdev(values) / math.sqrt(len(values)), len(values) - 1
    else:
        sums = dict.fromkeys(names, 0.0)
        for value, cluster in zip(values, clusters, strict=True):
            sums[cluster] += value - mean
        correction = len(names) / (len(names) - 1)
        error, freedom = math.sqrt(correction * sum(s * s for s in sums.values())) / len(values), len(names) - 1
    half = t_half_width(error, freedom)
    return mean - half, mean + half
