"""When sessions start, for every arrival process: in order, reproducible, at the rate asked, as irregular as asked."""

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from harness.errors import ConfigError
from harness.traffic.arrivals import Arrival, arrival_of, arrival_values, arrivals, due_ns
from harness.traffic.arrivals.steady import Steady
from harness.traffic.arrivals.varying import Varying

STAGES = [
    {"rate_rps": 2.0, "duration_s": 10.0},
    {"rate_rps": 0.0, "duration_s": 5.0},
    {"rate_rps": 8.0, "duration_s": 3},
]
EXAMPLES: dict[str, dict[str, Any]] = {
    "closed": {"concurrency": 3},
    "constant": {"rate_rps": 5.0},
    "poisson": {"rate_rps": 5.0},
    "gamma": {"rate_rps": 5.0, "cv": 2.0},
    "weibull": {"rate_rps": 5.0, "cv": 2.0},
    "ramp": {"from_rps": 1.0, "to_rps": 9.0, "duration_s": 100.0},
    "stages": {"stages": STAGES},
    "sine": {"rate_rps": 5.0, "amplitude_rps": 4.0, "period_s": 20.0},
    "trace": {"scale": 2.0},
}
"""One of each kind; a kind without an example fails the tests."""

STEADY = ("constant", "poisson", "gamma", "weibull")
VARYING = ("ramp", "stages", "sine")


def example(kind: str, **values: Any) -> Arrival:
    return arrival_of({"kind": kind, **EXAMPLES[kind], **values})


def window_s(process: Arrival, sessions: int, seed: int = 1, starts_s: list[float] | None = None) -> np.ndarray:
    """Due times of a window without warm-up, in seconds."""
    _, window = due_ns(process, 0, starts_s or [None] * sessions, seed)
    return np.array([at for at in window if at is not None]) / 1e9


def trace_times(sessions: int) -> list[float]:
    return [0.5 * i for i in range(sessions)]


@pytest.mark.parametrize("kind", arrivals())
@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_equal_seeds_give_equal_times_one_a_session_in_order(kind: str, warmup: int) -> None:
    starts: list[Any] = trace_times(50) if kind == "trace" else [None] * 50
    first = due_ns(example(kind), warmup, starts, 1)
    assert first == due_ns(example(kind), warmup, starts, 1)
    assert [len(times) for times in first] == [warmup, 50]
    times = [*first[0], *first[1]]
    if kind == "closed":
        assert set(times) == {None}
    else:
        assert times == sorted(times, key=lambda at: at or 0) and (times[0] or 0) >= 0
        assert all(isinstance(at, int) for at in times)


@pytest.mark.parametrize("kind", sorted(set(arrivals()) - {"closed", "constant", "trace"}))
def test_other_seeds_give_other_times(kind: str) -> None:
    assert window_s(example(kind), 20, seed=1).tolist() != window_s(example(kind), 20, seed=2).tolist()


@pytest.mark.parametrize("kind", STEADY)
@pytest.mark.parametrize("rate", [0.05, 5.0, 800.0])
def test_a_steady_process_attains_its_rate(kind: str, rate: float) -> None:
    times = window_s(example(kind, rate_rps=rate), 20_000)
    assert times[-1] == pytest.approx(20_000 / rate, rel=0.05)
    assert example(kind, rate_rps=rate).seconds(20_000) == 20_000 / rate


@pytest.mark.parametrize(
    ("values", "law"),
    [
        ({"kind": "poisson", "rate_rps": 4.0}, stats.expon(scale=0.25)),
        ({"kind": "gamma", "rate_rps": 4.0, "cv": 1.0}, stats.expon(scale=0.25)),
        ({"kind": "gamma", "rate_rps": 4.0, "cv": 3.0}, stats.gamma(1 / 9, scale=9 / 4)),
        ({"kind": "gamma", "rate_rps": 4.0, "burstiness": 0.5}, stats.gamma(0.5, scale=0.5)),
        ({"kind": "gamma", "rate_rps": 4.0, "burstiness": 16.0}, stats.gamma(16, scale=1 / 64)),
        ({"kind": "weibull", "rate_rps": 4.0, "shape": 0.5}, stats.weibull_min(0.5, scale=0.125)),
        ({"kind": "weibull", "rate_rps": 4.0, "cv": 1.0}, stats.expon(scale=0.25)),
    ],
)
def test_gaps_follow_the_law(values: dict[str, Any], law: Any) -> None:
    process = arrival_of(values)
    assert isinstance(process, Steady)
    gaps = np.fromiter(itertools.islice(process.gaps(random.Random(1)), 20_000), float) / process.rate_rps
    assert stats.kstest(gaps, law.cdf).pvalue > 0.01
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 0.03, "gaps don't depend on each other"


@pytest.mark.parametrize("kind", ["gamma", "weibull"])
@pytest.mark.parametrize("cv", [0.2, 0.5, 1.0, 2.0])
def test_gaps_vary_as_asked(kind: str, cv: float) -> None:
    gaps = np.diff(window_s(arrival_of({"kind": kind, "rate_rps": 1.0, "cv": cv}), 100_000))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_burstiness_is_the_shape_of_the_gamma() -> None:
    by_shape = window_s(arrival_of({"kind": "gamma", "rate_rps": 1.0, "burstiness": 0.25}), 100)
    assert by_shape == pytest.approx(window_s(arrival_of({"kind": "gamma", "rate_rps": 1.0, "cv": 2.0}), 100))


def test_constant_gaps_are_equal_and_the_first_is_at_once() -> None:
    assert due_ns(example("constant", rate_rps=4.0), 1, [None] * 3, 1) == ([0], [250_000_000, 500_000_000, 750_000_000])


rates = st.floats(0.01, 1000)
durations = st.floats(0.1, 1000)
varying = st.one_of(
    st.builds(dict, kind=st.just("ramp"), from_rps=st.one_of(st.just(0.0), rates), to_rps=rates, duration_s=durations),
    st.builds(
        lambda stages, last: {"kind": "stages", "stages": [*stages, last]},
        st.lists(st.builds(dict, rate_rps=st.one_of(st.just(0.0), rates), duration_s=durations), max_size=4),
        st.builds(dict, rate_rps=rates, duration_s=durations),
    ),
    st.builds(
        lambda rate, share, period: dict(kind="sine", rate_rps=rate, amplitude_rps=rate * share, period_s=period),  # noqa: C408
        rates, st.floats(0, 1), durations,
    ),
)  # fmt: skip


@given(varying, st.floats(0.01, 2000))
def test_a_count_is_reached_when_the_integral_of_the_rate_is(values: dict[str, Any], count: float) -> None:
    process = arrival_of(values)
    assert isinstance(process, Varying)
    end = process.when(count)
    cuts = [process.duration_s] if hasattr(process, "duration_s") else []
    if values["kind"] == "stages":
        cuts = list(itertools.accumulate(stage["duration_s"] for stage in values["stages"]))
    if values["kind"] == "sine":
        cuts = [values["period_s"] * i / 2 for i in range(1, min(2000, 1 + int(2 * end / values["period_s"])))]
        if len(cuts) > 1500:
            return  # too many swings for a quadrature
    edges = [0.0, *(cut for cut in cuts if cut < end), end]
    reached = sum(quad(process.rate_at, a, b)[0] for a, b in itertools.pairwise(edges))
    assert reached == pytest.approx(count, rel=1e-6, abs=1e-6)


@given(varying, st.integers(1, 500), st.sampled_from(["poisson", "even"]), st.integers(0, 5))
def test_times_of_a_varying_rate_never_fall(values: dict[str, Any], sessions: int, spacing: str, seed: int) -> None:
    process = arrival_of({**values, "spacing": spacing})
    times = list(itertools.islice(process.offsets_s(random.Random(seed)), sessions))
    assert all(0 <= a <= b < math.inf for a, b in itertools.pairwise([0.0, *times]))
    assert process.in_flight(sessions, 10.0) <= sessions


@pytest.mark.parametrize("kind", VARYING)
def test_a_varying_rate_is_a_poisson_process_in_stretched_time(kind: str) -> None:
    process = example(kind)
    assert isinstance(process, Varying)
    times = window_s(process, 5_000)
    counts = [quad(process.rate_at, a, b, limit=200)[0] for a, b in itertools.pairwise([0.0, *times.tolist()])]
    assert stats.kstest(counts, stats.expon.cdf).pvalue > 0.01


@pytest.mark.parametrize("kind", VARYING)
def test_even_spacing_leaves_nothing_to_chance(kind: str) -> None:
    process = example(kind, spacing="even")
    assert window_s(process, 100, seed=1).tolist() == window_s(process, 100, seed=2).tolist()


def test_a_ramp_holds_its_last_rate_for_what_is_left() -> None:
    times = window_s(arrival_of({"kind": "ramp", "from_rps": 0, "to_rps": 10, "duration_s": 2, "spacing": "even"}), 31)
    assert times[10] == pytest.approx(2.0)
    assert np.diff(times[10:]) == pytest.approx(0.1)
    assert times[5] == pytest.approx(2 * math.sqrt(0.5))


def test_stages_step_pause_and_hold_the_last_rate() -> None:
    times = window_s(arrival_of({"kind": "stages", "stages": STAGES, "spacing": "even"}), 60)
    assert np.diff(times[:20]) == pytest.approx(0.5)
    assert (times[19], times[20]) == (pytest.approx(9.5), pytest.approx(15.0)), "nobody comes in the pause"
    assert np.diff(times[20:]) == pytest.approx(0.125)


def test_a_sine_attains_its_mean_over_whole_periods() -> None:
    times = window_s(example("sine", spacing="even"), 1001)
    assert times[1000] == pytest.approx(200.0)
    assert sum(times < 10.0) > 2 * sum((times >= 10.0) & (times < 20.0)), "more in the first half of a swing"


def test_the_window_of_a_profile_begins_with_it_after_the_warm_up() -> None:
    warmup, window = due_ns(example("ramp", from_rps=2.0, spacing="even"), 4, [None] * 3, 1)
    assert warmup == [0, 500_000_000, 1_000_000_000, 1_500_000_000]
    assert window[0] == 2_000_000_000


def test_a_traces_times_are_its_own_scaled_from_the_first() -> None:
    assert window_s(example("trace", scale=2.0), 3, starts_s=[100.0, 101.0, 105.0]).tolist() == [0.0, 0.5, 2.5]
    assert window_s(example("trace", scale=0.5), 2, starts_s=[0.0, 1.0]).tolist() == [0.0, 2.0]


def test_a_trace_warms_up_at_its_own_mean_rate() -> None:
    warmup, window = due_ns(example("trace", scale=1.0), 2, trace_times(10), 1)
    assert np.diff([*warmup, window[0]]) / 1e9 == pytest.approx(4.5 / 10)


def test_a_trace_needs_times() -> None:
    with pytest.raises(ConfigError, match="needs a workload that knows when its sessions started"):
        due_ns(example("trace"), 0, [1.0, None], 1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kind": "poison", "rate_rps": 1.0}, ["arrival.kind", "poison", "Did you mean 'poisson'", "closed"]),
        ({"kind": "poisson"}, ["arrival.rate_rps", "missing"]),
        ({"kind": "poisson", "rate_rps": 0.0}, ["arrival.rate_rps", "> 0"]),
        ({"kind": "poisson", "rate_rps": "fast"}, ["arrival.rate_rps", "fast", "a number"]),
        ({"kind": "poisson", "rate_rps": 1.0, "concurrency": 4}, ["arrival", "concurrency", "rate_rps"]),
        ({"kind": "poisson", "rate_rps": None}, ["arrival.rate_rps", "a number"]),
        ({"kind": "closed"}, ["arrival.concurrency", "missing"]),
        ({"kind": "closed", "concurrency": 0}, ["arrival.concurrency", ">= 1"]),
        ({"kind": "closed", "concurrency": 1.5}, ["arrival.concurrency", "1.5", "whole number"]),
        ({"kind": "closed", "concurency": 4}, ["concurency", "Did you mean 'concurrency'"]),
        ({"kind": "gamma", "rate_rps": 1.0}, ["arrival.cv", "burstiness"]),
        ({"kind": "gamma", "rate_rps": 1.0, "cv": 1.0, "burstiness": 1.0}, ["arrival.cv", "burstiness"]),
        ({"kind": "gamma", "rate_rps": 1.0, "cv": 0.0}, ["arrival.cv", "0.01"]),
        ({"kind": "weibull", "rate_rps": 1.0, "shape": 50.0}, ["arrival.shape", "10"]),
        ({"kind": "ramp", "from_rps": -1.0, "to_rps": 2.0, "duration_s": 3.0}, ["arrival.from_rps", ">= 0"]),
        ({"kind": "ramp", "from_rps": 1.0, "to_rps": 0.0, "duration_s": 3.0}, ["arrival.to_rps", "> 0"]),
        ({"kind": "ramp", "from_rps": 1.0, "to_rps": 2.0, "duration_s": 0.0}, ["arrival.duration_s", "> 0"]),
        ({"kind": "stages", "stages": []}, ["arrival.stages", "rate_rps"]),
        ({"kind": "stages", "stages": [5]}, ["arrival.stages[0]", "rate_rps"]),
        ({"kind": "stages", "stages": [{"rate_rps": 1.0}]}, ["arrival.stages[0].duration_s", "missing"]),
        ({"kind": "stages", "stages": [{"rate": 1.0, "duration_s": 1.0}]}, ["arrival.stages[0]", "'rate_rps'"]),
        ({"kind": "stages", "stages": [{"rate_rps": 0.0, "duration_s": 1.0}]}, ["arrival.stages", "last rate_rps"]),
        ({"kind": "sine", "rate_rps": 1.0, "amplitude_rps": 2.0, "period_s": 1.0}, ["arrival.amplitude_rps", "2.0"]),
        ({"kind": "sine", "rate_rps": 1.0, "amplitude_rps": 1.0, "period_s": 0.0}, ["arrival.period_s"]),
        ({"kind": "ramp", "from_rps": 1.0, "to_rps": 2.0, "duration_s": 1.0, "spacing": "x"}, ["spacing", "even"]),
        ({"kind": "trace", "scale": 0.0}, ["arrival.scale", "> 0"]),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        arrival_of(values)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("kind", arrivals())
def test_a_process_survives_its_record_and_says_what_it_is(kind: str) -> None:
    process = example(kind)
    assert arrival_of(arrival_values(process)) == process
    assert process.summary()


def test_a_key_of_another_kind_may_stand_there_as_null() -> None:
    assert arrival_of({"kind": "poisson", "rate_rps": 2.0, "concurrency": None}) == example("poisson", rate_rps=2.0)


@pytest.mark.parametrize(
    ("kind", "values", "sessions", "seconds", "in_flight"),
    [
        ("closed", {"concurrency": 4}, 12, 0.0, 4),
        ("closed", {"concurrency": 4}, 2, 0.0, 2),
        ("poisson", {"rate_rps": 0.5}, 12, 24.0, 5),
        ("poisson", {"rate_rps": 0.01}, 12, 1200.0, 1),
        ("ramp", {"from_rps": 0.0, "to_rps": 2.0, "duration_s": 10.0}, 30, 20.0, 20),
        ("stages", {}, 30, 15 + 10 / 8, 30),
        ("sine", {"rate_rps": 1.0, "amplitude_rps": 1.0, "period_s": 10.0}, 100, 100.0, 20),
    ],
)
def test_what_a_plan_asks(kind: str, values: dict[str, Any], sessions: int, seconds: float, in_flight: float) -> None:
    process = example(kind, **values)
    assert process.seconds(sessions) == pytest.approx(seconds)
    assert process.in_flight(sessions, 10.0) == pytest.approx(in_flight)


def test_a_plan_knows_a_traces_peak() -> None:
    process = example("trace", scale=1.0).with_times([0.0, 100.0, 101.0, 102.0, 200.0])
    assert process.seconds(5) == 200.0
    assert process.seconds(50) == 2000.0, "on and on at the same rate"
    assert process.in_flight(5, 10.0) == 3


@pytest.mark.parametrize(("kind", "keys"), [("poisson", {"rate_rps": 1e-300}), ("trace", {"scale": 1e-300})])
def test_a_rate_at_which_nothing_would_ever_be_sent_is_refused(kind: str, keys: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"^arrival: session \d+ would start .* s after the first"):
        due_ns(example(kind, **keys), 0, trace_times(3), 1)
