"""Every metric against a value worked out by hand; the numbers stand in the tests."""

import math

import pytest

from bench.analysis.measure import CellMeasures, measure
from bench.analysis.metrics import (
    Requests,
    is_latency,
    itl_limits,
    launch_statistics,
    meets,
    request_rates,
    steady_statistics,
)
from bench.analysis.planned import ALL, Group
from bench.analysis.records import Records
from tests.bench.run_folder import request, table, table_version_1

S = 1000.0


def cell(*rows: dict, open_loop: bool = False, limits: dict | None = None, old: bool = False) -> CellMeasures:  # type: ignore[type-arg]
    """Measure some rows; `old`: as version 1 of the records holds them."""
    source = table_version_1(rows) if old else table(rows)
    return measure(Records.open(source), {ALL: Group(open_loop)}, itl_limits(limits or {}))


def of(*rows: dict, open_loop: bool = False, limits: dict | None = None, old: bool = False) -> Requests:  # type: ignore[type-arg]
    return cell(*rows, open_loop=open_loop, limits=limits, old=old).window


@pytest.mark.parametrize("old", [False, True])
def test_latencies_of_one_request(old: bool) -> None:
    """Sent at 1,000; tokens at 1,300, 1,350 and 1,450; the connection ends at 1,460."""
    found = of(request(sent_ms=1000, events_ms=[1300, 1350, 1450], ended_ms=1460), old=old)
    assert found.ttft_ms.tolist() == [300]
    assert found.itl.listed().tolist() == [50, 100]
    assert found.tpot_ms.tolist() == [75], "150 ms over two tokens"
    assert found.e2e_ms.tolist() == [450], "the end is the last token, not the usage event after it"
    assert found.normalised_latency_ms.tolist() == [150], "450 ms over three tokens"


def test_open_loop_counts_from_the_schedule_and_closed_loop_from_the_send() -> None:
    row = request(scheduled_ms=1000, sent_ms=1200, events_ms=[1500])
    assert of(row, open_loop=True).ttft_ms.tolist() == [500]
    assert of(row, open_loop=True).normalised_latency_ms.tolist() == [500]
    assert of(row, open_loop=False).ttft_ms.tolist() == [300]
    assert of(row, open_loop=True).send_lag_ms.tolist() == [200]


def test_the_mean_normalised_latency_is_of_requests_and_not_of_tokens() -> None:
    """300 ms ÷ 3 tokens and 500 ms ÷ 1 token: (100 + 500) ÷ 2, and not 800 ÷ 4."""
    rows = [request(0, events_ms=[100, 200, 300]), request(1, events_ms=[500])]
    assert launch_statistics(of(*rows), {})["normalised_latency_mean_ms"] == 300
    failed = request(2, error="timeout", events_ms=[100])
    assert launch_statistics(of(*rows, failed), {})["normalised_latency_mean_ms"] == math.inf


@pytest.mark.parametrize("old", [False, True])
def test_an_event_of_several_tokens_spreads_its_gap_and_is_flagged(old: bool) -> None:
    found = of(request(sent_ms=0, events_ms=[100, 190], tokens=[1, 3]), old=old)
    assert found.itl.listed().tolist() == [30, 30, 30]
    assert found.tpot_ms.tolist() == [30], "three tokens follow the first in 90 ms"
    assert found.packed_tokens.tolist() == [3]
    values = launch_statistics(found, {})
    assert values["packed_tokens_share"] == 0.75, "three of four"
    assert values["normalised_latency_p50_ms"] == 47.5, "190 ÷ 4"


def test_rows_with_and_without_counts_of_tokens_are_read_together() -> None:
    found = of(request(0, events_ms=[100, 150]), request(1, events_ms=[100, 220], tokens=[2, 4]))
    assert sorted(found.itl.listed().tolist()) == [30, 30, 30, 30, 50]
    assert found.output_tokens.tolist() == [2, 6]
    assert found.packed_tokens.tolist() == [0, 6]


def test_buffered_output_has_no_pace() -> None:
    found = of(request(0, buffered=True, events_ms=[900, 900.001, 900.002]), request(1))
    assert found.buffered.tolist() == [True, False]
    assert found.itl.listed().tolist() == [50, 50] and found.latency("tpot_ms").tolist() == [50]
    assert found.ttft_ms.tolist() == [900, 100]
    assert launch_statistics(found, {})["buffered_tokens_share"] == 0.5, "three tokens of six"


def test_records_without_the_column_of_buffered_output_are_read() -> None:
    rows = table_version_1([request(0)]).drop_columns(["buffered"])
    assert not measure(Records.open(rows), {ALL: Group(False)}).window.buffered.any()


def test_an_event_without_a_token_is_no_token() -> None:
    found = of(request(sent_ms=0, events_ms=[100, 120, 160], tokens=[1, 0, 1]), request(1, events_ms=[10, 20]))
    assert found.itl.listed().tolist() == [10, 60]


def test_gaps_never_span_two_requests() -> None:
    found = of(request(0, events_ms=[100, 110]), request(1, sent_ms=50, events_ms=[5000, 5020]))
    assert found.itl.listed().tolist() == [10, 20]


def test_a_failure_is_infinite_and_takes_no_part_in_itl() -> None:
    found = of(request(0), request(1, error="timeout", events_ms=[100, 900], ended_ms=60_000))
    assert found.ttft_ms.tolist() == [100, math.inf]
    assert found.tpot_ms[1] == found.e2e_ms[1] == found.normalised_latency_ms[1] == math.inf
    assert found.itl.listed().tolist() == [50, 50]
    assert found.failures() == {"timeout": 1}


def test_an_answer_without_output_is_a_failure() -> None:
    found = of(request(0, events_ms=[], ended_ms=50))
    assert found.failures() == {"no output": 1} and found.ttft_ms.tolist() == [math.inf]


def test_a_request_that_was_never_sent_is_a_failure_and_moves_no_window() -> None:
    rows = [request(0), request(1, sent_ms=None, events_ms=[], error="not_sent", ended_ms=9000)]
    found = of(*rows)
    assert found.failures() == {"not_sent": 1} and found.ttft_ms.tolist() == [100, math.inf]
    assert launch_statistics(found, {})["duration_s"] == 9, "from the first send to when the client was found dead"


def test_only_the_window_counts() -> None:
    assert len(of(request(0, phase="warmup"), request(1))) == 1


def test_throughput_and_concurrency_of_a_launch() -> None:
    """Two requests of 100 prompt and 3 output tokens, 0–2 s and 1–4 s: 4 s in all."""
    rows = [
        request(0, sent_ms=0, events_ms=[500, 1000, 2000]),
        request(1, sent_ms=1000, events_ms=[1500, 3000, 4000]),
    ]
    values = launch_statistics(of(*rows), {})
    assert values["duration_s"] == 4
    assert values["output_tokens_per_s"] == 1.5, "6 ÷ 4"
    assert values["input_tokens_per_s"] == 50 and values["total_tokens_per_s"] == 51.5
    assert values["request_rate_attained_rps"] == 0.5
    assert values["mean_concurrency"] == 1.25, "(2 + 3) ÷ 4"
    assert values["cached_prompt_share"] == 0


def test_steady_throughput_is_of_what_arrived_between_the_first_and_the_last_arrival() -> None:
    """Arrivals at 0, 1 and 2 s: a window of 2 s. Tokens at 0.5, 1, 1.5, 2, 2 and 2.5 s, 3, 4 s: five of eight inside.

    A warm-up request that ends at 0.4 s gives one more. First tokens inside: 0.5, 1.5 s of the window's (100 prompt
    tokens each), not the third's at 2.5 s, and not the warm-up's, which lies before. Ends inside: 0.4 and 2 s.
    """
    found = cell(
        request(9, phase="warmup", sent_ms=-1000, events_ms=[-500, 400]),
        request(0, sent_ms=0, events_ms=[500, 1000, 2000]),
        request(1, sent_ms=1000, events_ms=[1500, 2000, 3000]),
        request(2, sent_ms=2000, events_ms=[2500, 4000]),
    )
    assert found.steady is not None and found.steady.seconds == 2
    assert found.everything.steady_tokens.tolist() == [1, 3, 2, 0]
    values = steady_statistics(found.everything, found.steady)
    assert values["steady_output_tokens_per_s"] == 3, "6 ÷ 2"
    assert values["steady_input_tokens_per_s"] == 100, "200 ÷ 2"
    assert values["steady_total_tokens_per_s"] == 103
    assert values["steady_request_rate_rps"] == 1, "2 ÷ 2"


def test_a_failed_request_gives_no_throughput() -> None:
    found = cell(
        request(0, sent_ms=0, events_ms=[500, 1000]),
        request(1, sent_ms=0, events_ms=[500], error="reset"),
        request(2, sent_ms=2000, events_ms=[3000]),
    )
    assert found.steady is not None
    assert steady_statistics(found.everything, found.steady)["steady_output_tokens_per_s"] == 1, "2 ÷ 2"


def test_one_arrival_makes_no_steady_window() -> None:
    found = cell(request(0))
    assert found.steady is not None and steady_statistics(found.everything, found.steady) == {}


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    """TTFT 100, 100, 700, ∞; TPOT 10, 90, 10, ∞; limits 500 and 50: one request of four, in 2 s."""
    rows = [
        request(0, events_ms=[100, 110]),
        request(1, events_ms=[100, 190]),
        request(2, events_ms=[700, 710], ended_ms=2000),
        request(3, events_ms=[], error="timeout", ended_ms=50),
    ]
    values = launch_statistics(of(*rows), {"chat": {"title": "Chat", "ttft_p90_ms": 500.0, "tpot_p90_ms": 50.0}})
    assert values["goodput_rps.chat"] == 0.5
    assert values["goodput_share.chat"] == 0.25


def test_a_request_of_one_token_has_no_tpot_to_keep() -> None:
    assert meets(of(request(0, events_ms=[100])), {"tpot_p90_ms": 1.0}).tolist() == [True]


def test_a_limit_on_the_normalised_latency() -> None:
    found = of(request(0, events_ms=[100, 200]), request(1, events_ms=[100, 202]))
    assert meets(found, {"normalised_latency_p90_ms": 100.0}).tolist() == [True, False]


@pytest.mark.parametrize("old", [False, True])
def test_an_itl_limit_looks_at_each_requests_own_percentile(old: bool) -> None:
    """Ten gaps each: P90 is the ninth. Nine of 10 ms and one of 300: within 50. Eight of 10 and two of 300: not."""
    limits = {"itl_p90_ms": 50.0}
    calm = request(0, events_ms=[100 + 10 * k for k in range(10)] + [490])
    stalls = request(1, events_ms=[100 + 10 * k for k in range(9)] + [480, 780])
    short = request(2, events_ms=[100])
    assert meets(of(calm, stalls, short, limits=limits, old=old), limits).tolist() == [True, False, True]


def test_an_itl_limit_is_kept_at_exactly_its_value_and_counts_tokens() -> None:
    """Four tokens in 200.4 ms are 50.1 ms each; the other gap's single token is within."""
    limits = {"itl_p50_ms": 50.0}
    exact = request(0, events_ms=[100, 150])
    packed = request(1, events_ms=[100, 110, 310.4], tokens=[1, 1, 4])
    assert meets(of(exact, packed, limits=limits), limits).tolist() == [True, False]


def test_rates_asked_and_sent() -> None:
    """Five arrivals a second apart, sent 1.25 s apart: asked 1/s, sent 0.8/s."""
    rows = [
        request(i, scheduled_ms=1000 * i, sent_ms=1250 * i, events_ms=[1250 * i + 100], session_id=f"{i}")
        for i in range(5)
    ]
    values = request_rates(of(*rows, open_loop=True))
    assert values == {
        "request_rate_asked_rps": 1.0,
        "request_rate_sent_rps": 0.8,
        "attained_over_requested_rate": pytest.approx(0.8),
    }


def test_a_request_that_the_client_never_came_to_was_asked_and_one_refused_is_left_out() -> None:
    """Four sent on time, one never sent, one that found no connection: 4 of 5."""
    rows = [request(i, scheduled_ms=1000 * i, sent_ms=1000 * i, events_ms=[1000 * i + 100]) for i in range(4)]
    lost = request(4, scheduled_ms=4000, sent_ms=None, events_ms=[], error="not_sent", ended_ms=9000)
    refused = request(5, scheduled_ms=5000, sent_ms=None, events_ms=[], error="connect", ended_ms=5001)
    assert request_rates(of(*rows, lost, refused, open_loop=True))["attained_over_requested_rate"] == 0.8


def test_later_turns_are_no_arrivals() -> None:
    rows = [request(0, scheduled_ms=0), request(1, scheduled_ms=700, sent_ms=700, events_ms=[800], turn=1)]
    assert request_rates(of(*rows, open_loop=True)) == {}


def test_drift_is_the_slope_within_requests() -> None:
    """Gaps 10, 12, 14: a slope of 2 ms a token. Gaps 30, 30, 30: none, however slow. Each weighs 2: 1 ms a token.

    Scores are 4 − 1 × 2 = 2 and 0 − 1 × 2 = −2, so the error is √(8 × 2/1) ÷ 4 = 1, and t at one degree is 12.706.
    """
    rising = request(0, events_ms=[100, 110, 122, 136])
    slow = request(1, events_ms=[100, 130, 160, 190])
    values = launch_statistics(of(rising, slow), {})
    assert values["itl_drift_ms_per_1k_tokens"] == pytest.approx(1000)
    assert values["itl_drift_low_ms_per_1k_tokens"] == pytest.approx(1000 - 12706.2, abs=0.1)
    assert values["itl_drift_high_ms_per_1k_tokens"] == pytest.approx(1000 + 12706.2, abs=0.1)


def test_drift_spreads_chunks_over_their_tokens() -> None:
    """Tokens at 10, 10, 40, 40 ms about 25, at 1 … 4 about 2.5: 60 ÷ 5 = 12 ms a token."""
    packed = request(0, events_ms=[100, 120, 200], tokens=[1, 2, 2])
    values = launch_statistics(of(packed), {})
    assert values["itl_drift_ms_per_1k_tokens"] == pytest.approx(12_000)
    assert "itl_drift_low_ms_per_1k_tokens" not in values, "one request has no interval"


def test_drift_needs_two_gaps() -> None:
    assert "itl_drift_ms_per_1k_tokens" not in launch_statistics(of(request(0, events_ms=[100, 110])), {})


def test_stalls_are_gaps_of_ten_medians() -> None:
    """Gaps 10, 10, 10, 100 and 101: the median is 10, and only 101 is above ten of them: 1 in 5, 101 of 231 ms."""
    values = launch_statistics(of(request(0, events_ms=[100, 110, 120, 130, 230, 331])), {})
    assert values["stalled_tokens_share"] == 0.2
    assert values["stalled_time_share"] == pytest.approx(101 / 231)


def test_latencies_are_told_from_rates() -> None:
    assert is_latency("normalised_latency_mean_ms") and not is_latency("steady_output_tokens_per_s")
