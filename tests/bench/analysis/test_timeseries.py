"""A launch second by second, against what a few requests come to by hand."""

import math

import pytest

from bench.analysis.measure import measure
from bench.analysis.planned import ALL, Group
from bench.analysis.records import Records
from bench.analysis.result import Series
from tests.bench.run_folder import request, table, table_version_1

ROWS = (
    request(9, phase="warmup", sent_ms=-1500, events_ms=[-1000, 100, 500], ended_ms=500),
    request(0, sent_ms=0, events_ms=[300, 400, 1100], ended_ms=1250),
    request(1, sent_ms=800, events_ms=[1500], ended_ms=2500, error="timeout"),
    request(2, sent_ms=900, events_ms=[1600, 1640, 1700, 2100], ended_ms=2100),
)
"""A warm-up request that runs into the window, two successes and a time-out; the window begins at 0."""


@pytest.mark.parametrize("source", [table(ROWS), table_version_1(ROWS)])
def test_a_launch_second_by_second(source: object) -> None:
    series = measure(Records.open(source), {ALL: Group(False)}).series  # type: ignore[arg-type]
    assert series.width_s == 1
    assert series.arrivals == series.sends == (3, 0, 0)
    assert series.completions == (1, 1, 1), "the warm-up's, at 0.5 s, too"
    assert series.failures == (0, 0, 1)
    assert series.output_tokens_per_s == (4, 5, 1), "the failed one's token at 1.5 s is among them"
    assert series.running == (1.8, 2.25, 0.6), "0.5 + 1 + 0.2 + 0.1; 0.25 + 1 + 1; 0.5 + 0.1"
    assert series.ttft_p50_ms == (700, None, None), "300, 700 and ∞"
    # Gaps that end in each second: 1,100, 400 and 100; 700, 40 and 60; 400. To 0.4 %.
    assert series.itl_p50_ms == (
        pytest.approx(400, rel=0.004),
        pytest.approx(60, rel=0.004),
        pytest.approx(400, rel=0.004),
    )


def test_a_second_in_which_most_fail_has_an_infinite_median() -> None:
    rows = [request(0), *(request(i, error="connect", events_ms=[], ended_ms=5) for i in (1, 2))]
    assert measure(Records.open(table(rows)), {ALL: Group(False)}).series.ttft_p50_ms == (math.inf,)


def test_chunks_count_with_all_their_tokens() -> None:
    """Twelve tokens of 10 ms and one of 100: the median is 10, where by events it would be 100 or 40."""
    rows = [request(0, events_ms=[100, 200, 240, 320], tokens=[1, 1, 4, 8])]
    series = measure(Records.open(table(rows)), {ALL: Group(False)}).series
    assert series.output_tokens_per_s == (14,)
    assert series.itl_p50_ms[0] == pytest.approx(10, rel=0.004)


def test_a_cell_of_many_hours_has_wider_bins() -> None:
    rows = [request(i, sent_ms=i * 3_600_000, events_ms=[i * 3_600_000 + 10]) for i in range(6)]
    series = measure(Records.open(table(rows)), {ALL: Group(False)}).series
    assert series.width_s == 6, "five hours and a moment in at most 3,600 bins"
    assert sum(series.arrivals) == 6 and len(series.arrivals) <= 3601


def test_records_without_any_time_have_an_empty_series() -> None:
    rows = [request(0, sent_ms=None, events_ms=[], error="not_sent", ended_ms=9000)]
    series = measure(Records.open(table(rows)), {ALL: Group(False)}).series
    assert isinstance(series, Series) and sum(series.arrivals) == 0


def test_two_tokens_at_the_same_instant() -> None:
    rows = [request(0, events_ms=[100, 100, 100])]
    assert measure(Records.open(table(rows)), {ALL: Group(False)}).series.itl_p50_ms[0] == pytest.approx(
        0.001, rel=0.01
    )
