"""The interval of a mean covers what it says, over values and over clusters."""

import math
from itertools import chain

import numpy as np
import pytest

from bench.analysis.mean_interval import CLUSTERS_MIN, mean_interval


def test_independent_values_by_hand() -> None:
    # mean 2, standard error 1/√3, t(0.975, 2) = 4.30265
    low, high = mean_interval([1.0, 2.0, 3.0], [0, 1, 2])
    assert (low, high) == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-4)


def test_equal_values_have_no_width_and_one_value_has_no_interval() -> None:
    assert mean_interval([0.5] * 10, [0] * 10) == (0.5, 0.5)
    assert mean_interval([0.5], [0]) == (None, None)
    assert mean_interval([], []) == (None, None)


def test_values_of_one_cluster_that_are_all_equal_count_as_one() -> None:
    values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    one_each = mean_interval(values, range(6))
    four_each = mean_interval(list(chain(*[[v] * 4 for v in values])), list(chain(*[[c] * 4 for c in range(6)])))
    assert four_each == pytest.approx(one_each)
    assert mean_interval(values * 4, [0] * 24) != pytest.approx(one_each)  # too few clusters: each value is its own


@pytest.mark.parametrize("clusters", [CLUSTERS_MIN, 30])
def test_clustered_means_are_covered(clusters: int) -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        shared = random.normal(0, 1, clusters)
        values = [shared[c] + e for c in range(clusters) for e in random.normal(0, 0.5, 8)]
        low, high = mean_interval(values, [c for c in range(clusters) for _ in range(8)])
        assert low is not None and high is not None
        covered += low <= 0.0 <= high
    assert 930 <= covered <= 970
