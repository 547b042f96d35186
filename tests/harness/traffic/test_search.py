"""The search for the highest load that meets an SLA, against servers whose true limit is known."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.traffic.search import CLIENT_BOUND, MET, MISSED, Probe, Saturation, Search, probing


def run(search: Search, answer) -> tuple[Saturation, list[Probe]]:
    """Play a search to its end against a function of the probe."""
    asked: list[Probe] = []
    steps = probing(search)
    probe = next(steps)
    while True:
        asked.append(probe)
        try:
            probe = steps.send(answer(probe))
        except StopIteration as stop:
            return stop.value, asked


def limit(true_limit: float):
    return lambda probe: MET if probe.value <= true_limit else MISSED


@given(
    true_limit=st.floats(0.05, 5000),
    low=st.floats(0.5, 100),
    precision=st.floats(2, 50),
    repeats=st.sampled_from([1, 3, 5]),
)
def test_the_interval_holds_the_true_limit_to_the_precision(true_limit, low, precision, repeats):
    search = Search(sla="chat", low=low, precision_pct=precision, repeats=repeats, probes_max=500)
    found, _ = run(search, limit(true_limit))
    if found.state == "found":
        assert found.low is not None and found.high is not None
        assert found.low <= true_limit < found.high
        assert found.high / found.low <= (1 + precision / 100) * 1.001
        assert found.highest == found.low
        assert len(found.runs[found.low]) == len(found.runs[found.high]) == repeats
    else:
        assert found.state == "none met" and found.highest is None and true_limit < low


@given(true_limit=st.integers(1, 3000), low=st.integers(1, 200))
def test_a_concurrency_is_found_to_the_last_one(true_limit, low):
    search = Search(over="concurrency", sla="chat", low=low, precision_pct=0.01, repeats=1, probes_max=100)
    found, asked = run(search, limit(true_limit))
    assert all(probe.value == int(probe.value) and probe.value >= 1 for probe in asked)
    if found.state == "found":
        assert (found.low, found.high) == (true_limit, true_limit + 1)
    else:
        assert found.state == "none met"


@given(seed=st.integers(0, 10_000), probes_max=st.integers(6, 40))
def test_a_noisy_server_ends_the_search_within_its_probes(seed, probes_max):
    rng = random.Random(seed)

    def noisy(probe: Probe) -> str:
        return MET if rng.random() < 1 / (1 + math.exp((probe.value - 20) / 4)) else MISSED

    found, asked = run(Search(sla="chat", low=4, probes_max=probes_max), noisy)
    assert len(asked) <= probes_max
    assert sum(map(len, found.runs.values())) == len(asked)  # every probe is in the result
    if found.low is not None and found.high is not None:
        assert found.low < found.high
    if found.highest is not None and found.high is not None:
        assert found.highest < found.high


def test_repeats_are_numbered_so_that_each_gets_traffic_of_its_own():
    _, asked = run(Search(sla="chat", low=1), limit(3))
    assert len(set(asked)) == len(asked)


def test_an_upper_limit_that_is_met_is_said_to_be_no_end():
    found, asked = run(Search(sla="chat", low=1, high=10), limit(1e9))
    assert (found.state, found.highest, found.high) == ("unbounded", 10, None)
    assert max(probe.value for probe in asked) == 10


def test_the_client_s_own_limit_ends_the_search_and_is_not_the_server_s():
    found, _ = run(Search(sla="chat", low=1), lambda probe: CLIENT_BOUND if probe.value > 5 else MET)
    assert (found.state, found.highest, found.high) == ("client-bound", 4, None)


def test_too_few_probes_are_said():
    found, _ = run(Search(sla="chat", low=1, precision_pct=1, probes_max=8), limit(37))
    assert found.state == "unfinished"


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("over", {"over": "tokens"}),
        ("sla", {"sla": ""}),
        ("low", {"low": 0}),
        ("high", {"low": 2, "high": 1}),
        ("repeats", {"repeats": 2}),
        ("precision_pct", {"precision_pct": 0}),
        ("probes_max", {"probes_max": 3}),
        ("probe_s", {"probe_s": 0}),
        ("whole number", {"over": "concurrency", "low": 1.5}),
    ],
)
def test_a_bad_key_is_named(key, values):
    with pytest.raises(ConfigError, match=key):
        Search(**{"sla": "chat", **values})
