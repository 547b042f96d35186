"""Percentiles, and that counting values changes none of them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.analysis.distribution import Distribution, GapCounts, pooled, quantile, quantiles, tail_percent


def test_a_percentile_is_an_order_statistic_with_its_interval() -> None:
    found = quantile(np.arange(1.0, 37.0), 90)
    assert found.value == 33, "ceil(0.9 × 36)"
    assert (found.low, found.high) == (29, 36)


def test_too_few_values_leave_the_tail_unbounded_above() -> None:
    assert quantile(np.arange(1.0, 36.0), 90).high is None
    assert quantile(np.arange(1.0, 13.0), 50).high is not None


@pytest.mark.parametrize(("n", "percent"), [(367, 90), (368, 99)])
def test_p99_needs_368_values(n: int, percent: int) -> None:
    assert tail_percent(n) == percent
    assert quantiles(np.arange(float(n)))[-1].percent == percent
    assert (quantile(np.arange(float(n)), 99).high is None) == (percent == 90)


def test_percentiles_among_failures_are_infinite_not_undefined() -> None:
    values = np.array([1.0] * 8 + [math.inf] * 2)
    assert quantile(values, 50).value == 1.0
    assert quantile(values, 90).value == math.inf


def test_nothing_has_no_percentile() -> None:
    assert quantiles(np.empty(0)) == quantiles(Distribution.together([])) == ()


@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=400), st.sampled_from([50, 90, 99]))
def test_counting_gaps_changes_no_percentile(gaps_us: list[int], percent: int) -> None:
    counts = GapCounts()
    for part in np.array_split(np.array(gaps_us, dtype=np.uint32), 3):
        counts.add(part, None)
    plain = np.array(gaps_us) * 1000 / 1e6
    found = counts.distribution(1000)
    assert quantile(found, percent) == quantile(plain, percent)
    assert found.listed().tolist() == sorted(plain.tolist())


@given(st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 9)), min_size=1, max_size=100))
def test_counting_gaps_spreads_them_over_the_tokens_of_an_event(events: list[tuple[int, int]]) -> None:
    counts = GapCounts()
    for part in (events[::2], events[1::2]):
        if part:
            counts.add(np.array([gap for gap, _ in part]), np.array([tokens for _, tokens in part]))
    expected = sorted(gap * 1000 / 1e6 / tokens for gap, tokens in events for _ in range(tokens))
    assert counts.distribution(1000).listed().tolist() == expected


def test_large_gaps_are_counted_together_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.analysis.distribution._PENDING", 3)
    counts = GapCounts()
    for _ in range(5):
        counts.add(np.array([2_000_000, 3_000_000], dtype=np.uint32), None)
    assert counts.distribution(1000).counts.tolist() == [5, 5]


def test_launches_are_pooled_whichever_way_they_are_held() -> None:
    one, two = np.array([3.0, 1.0]), np.array([2.0])
    assert sorted(np.asarray(pooled([one, two]))) == [1, 2, 3]
    together = pooled([Distribution.of(one), Distribution.of(np.array([1.0]))])
    assert isinstance(together, Distribution)
    assert together.values.tolist() == [1, 3] and together.counts.tolist() == [2, 1]
