"""Every metric against a value computed by hand."""

import math

import numpy as np
import pytest

from bench.analysis.metrics import launch_statistics, meets, quantile, quantiles, tail_percent, window_requests
from tests.bench.run_folder import request, table


def of(*rows: dict, open_loop: bool = False):  # type: ignore[type-arg]
    return window_requests(table(rows), open_loop=open_loop)


def test_latencies_of_one_request() -> None:
    found = of(request(sent_ms=1000, events_ms=[1300, 1350, 1450], ended_ms=1460))
    assert found.ttft_ms.tolist() == [300]
    assert found.itl_ms.tolist() == [50, 100]
    assert found.tpot_ms.tolist() == [75]
    assert found.e2e_ms.tolist() == [450], "the end is the last token, not the usage event after it"


def test_open_loop_counts_from_the_schedule_and_closed_loop_from_the_send() -> None:
    row = request(scheduled_ms=1000, sent_ms=1200, events_ms=[1500])
    assert of(row, open_loop=True).ttft_ms.tolist() == [500]
    assert of(row, open_loop=False).ttft_ms.tolist() == [300]
    assert of(row, open_loop=True).send_lag_ms.tolist() == [200]


def test_an_event_of_several_tokens_spreads_its_gap_and_is_flagged() -> None:
    found = of(request(sent_ms=0, events_ms=[100, 190], tokens=[1, 3]))
    assert found.itl_ms.tolist() == [30, 30, 30]
    assert found.tpot_ms.tolist() == [30], "three tokens follow the first in 90 ms"
    assert found.packed == 3


def test_buffered_output_has_no_pace() -> None:
    found = of(request(0, buffered=True, events_ms=[900, 900.001, 900.002]), request(1))
    assert found.buffered == 1
    assert found.itl_ms.tolist() == [50, 50] and found.latency("tpot_ms").tolist() == [50]
    assert found.ttft_ms.tolist() == [900, 100]


def test_records_without_the_column_of_buffered_output_are_read() -> None:
    rows = table([request(0)]).drop_columns(["buffered"])
    assert window_requests(rows, open_loop=False).buffered == 0


def test_an_event_without_a_token_is_no_token() -> None:
    found = of(request(sent_ms=0, events_ms=[100, 120, 160], tokens=[1, 0, 1]), request(1, events_ms=[10, 20]))
    assert found.itl_ms.tolist() == [60, 10]
    assert found.itl_request.tolist() == [0, 1]


def test_gaps_never_span_two_requests() -> None:
    found = of(request(0, events_ms=[100, 110]), request(1, sent_ms=50, events_ms=[5000, 5020]))
    assert found.itl_ms.tolist() == [10, 20]


def test_a_failure_is_infinite_and_takes_no_part_in_itl() -> None:
    found = of(request(0), request(1, error="timeout", events_ms=[100, 900], ended_ms=60_000))
    assert found.ttft_ms.tolist() == [100, math.inf]
    assert found.tpot_ms[1] == found.e2e_ms[1] == math.inf
    assert found.itl_ms.tolist() == [50, 50]
    assert found.failures() == {"timeout": 1}


def test_an_answer_without_output_is_a_failure() -> None:
    found = of(request(0, events_ms=[], ended_ms=50))
    assert not found.ok.any() and found.failures() == {"no output": 1}


def test_warm_up_is_left_out() -> None:
    assert len(of(request(0, phase="warmup"), request(1))) == 1


def test_a_single_token_has_no_time_per_output_token() -> None:
    found = of(request(0, events_ms=[100]), request(1))
    assert found.latency("tpot_ms").tolist() == [50]


def test_rates_over_the_window() -> None:
    rows = [
        request(0, sent_ms=0, events_ms=[100, 200], prompt_tokens=30),
        request(1, sent_ms=500, events_ms=[1000, 2000], prompt_tokens=50),
        request(2, sent_ms=600, events_ms=[900], error="connection", ended_ms=1000, prompt_tokens=70),
    ]
    values = launch_statistics(of(*rows), {})
    assert values["duration_s"] == 2.0
    assert values["output_tokens_per_s"] == 2.0, "4 tokens of the two successes in 2 s"
    assert values["input_tokens_per_s"] == 40.0
    assert values["total_tokens_per_s"] == 42.0
    assert values["request_rate_attained_rps"] == 1.0
    assert values["failed_share"] == pytest.approx(1 / 3)
    assert values["mean_concurrency"] == pytest.approx((0.2 + 1.5 + 0.4) / 2.0)
    assert values["output_tokens_mean"] == 2.0
    assert values["ttft_p50_ms"] == 500.0
    assert values["ttft_p90_ms"] == math.inf, "the third of three values is a failure"


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    rows = [
        request(0, sent_ms=0, events_ms=[100, 140, 180]),
        request(1, sent_ms=0, events_ms=[600, 640, 680]),
        request(2, sent_ms=0, events_ms=[100, 300, 500]),
        request(3, sent_ms=0, error="http", events_ms=[], ended_ms=2000),
    ]
    found = of(*rows)
    limits = {"title": "Chat", "ttft_p90_ms": 500.0, "tpot_p90_ms": 50.0, "e2e_p90_ms": None}
    assert meets(found, limits).tolist() == [True, False, False, False]
    values = launch_statistics(found, {"chat": limits})
    assert values["goodput_rps.chat"] == 0.5
    assert values["goodput_share.chat"] == 0.25


def test_an_itl_limit_looks_at_each_requests_own_percentile() -> None:
    calm = request(0, events_ms=[100 + 10 * k for k in range(11)])
    stall = request(1, events_ms=[100 + 10 * k for k in range(9)] + [400, 700])
    assert meets(of(calm, stall), {"itl_p90_ms": 50.0}).tolist() == [True, False]


def test_attained_rate_is_the_sent_spread_against_the_scheduled_one() -> None:
    rows = [request(i, scheduled_ms=1000 * i, sent_ms=1250 * i, events_ms=[1250 * i + 100]) for i in range(5)]
    assert launch_statistics(of(*rows, open_loop=True), {})["attained_over_requested_rate"] == pytest.approx(0.8)


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
