"""Distributions of lengths and of think times."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.traffic.lengths import LENGTHS, Fixed, Length, closed_at, fitted, length_of, mean_tokens, stratified
from harness.traffic.think import THINKS, think_of

EXAMPLES: dict[str, dict[str, Any]] = {
    "fixed": {"tokens": 100},
    "uniform": {"min_tokens": 50, "max_tokens": 150},
    "normal": {"mean_tokens": 100, "sd_tokens": 30, "max_tokens": 200},
    "lognormal": {"median_tokens": 100, "sigma": 0.8, "min_tokens": 10, "max_tokens": 1000},
    "zipf": {"exponent": 1.2, "max_tokens": 500},
    "empirical": {"levels_pct": [0, 50, 100], "tokens": [10, 100, 1000]},
}
THINK_EXAMPLES: dict[str, dict[str, Any]] = {
    "exponential": {"mean_s": 2.0},
    "lognormal": {"median_s": 2.0, "sigma": 1.0},
    "mooncake": {"scale": 0.1},
}
every_kind = pytest.mark.parametrize("kind", sorted(LENGTHS))
every_think = pytest.mark.parametrize("kind", sorted(THINKS))
levels = st.floats(0, 1, exclude_max=True)


def example(kind: str) -> Length:
    return length_of({"kind": kind, **EXAMPLES[kind]}, "x")


@every_kind
@given(low=levels, high=levels)
def test_a_length_never_falls_as_the_level_rises_and_stays_in_its_bounds(kind: str, low: float, high: float) -> None:
    what = example(kind)
    low, high = sorted((low, high))
    assert 1 <= what.at(0.0) <= what.at(low) <= what.at(high) <= what.longest


@every_think
@given(low=levels, high=levels)
def test_a_think_time_never_falls_as_the_level_rises(kind: str, low: float, high: float) -> None:
    what = think_of({"kind": kind, **THINK_EXAMPLES[kind]}, "x")
    low, high = sorted((low, high))
    assert 0 <= what.at(low) <= what.at(high) < math.inf


def test_uniform_gives_every_length_equally_often() -> None:
    drawn = stratified(random.Random(1), 101 * 20, example("uniform").at)
    assert {drawn.count(tokens) for tokens in range(50, 151)} <= {19, 20, 21}


def test_normal_and_lognormal_have_their_mean_and_median() -> None:
    assert mean_tokens(length_of({"kind": "normal", "mean_tokens": 500, "sd_tokens": 50}, "x")) == pytest.approx(
        500, abs=1
    )
    lognormal = length_of({"kind": "lognormal", "median_tokens": 200, "sigma": 0.5}, "x")
    assert lognormal.at(0.5) == 200
    assert mean_tokens(lognormal) == pytest.approx(200 * math.exp(0.125), rel=0.01)


def test_bounds_condition_and_do_not_pile_up() -> None:
    drawn = stratified(
        random.Random(1), 4000, length_of({"kind": "normal", **EXAMPLES["normal"], "max_tokens": 100}, "x").at
    )
    assert max(drawn) == 100
    # Half a normal distribution: its last whole token holds about 0.5 * density * 2 of it, not half of it.
    assert drawn.count(100) / len(drawn) == pytest.approx(0.0264, abs=0.002)


def test_zipf_by_hand() -> None:
    drawn = stratified(random.Random(1), 1100, length_of({"kind": "zipf", "exponent": 1, "max_tokens": 3}, "x").at)
    assert [drawn.count(tokens) for tokens in (1, 2, 3)] == pytest.approx([600, 300, 200], abs=1)


def test_empirical_is_linear_between_its_levels() -> None:
    what = example("empirical")
    assert [what.at(level) for level in (0, 0.25, 0.5, 0.75)] == [10, 55, 100, 550]


def test_a_number_is_a_length() -> None:
    assert length_of(7, "x") == Fixed(7)


def test_an_open_end_is_closed_by_the_room_and_a_closed_one_must_fit() -> None:
    assert (
        closed_at(length_of({"kind": "lognormal", "median_tokens": 100, "sigma": 3}, "x"), 300, "x", "").longest == 300
    )
    with pytest.raises(ConfigError, match=r"^x: up to 150 tokens don't fit the room"):
        closed_at(example("uniform"), 100, "x", "the room")
    with pytest.raises(ConfigError, match=r"^x\.min_tokens: almost nothing .*; max_tokens is what the room leaves"):
        closed_at(length_of({"kind": "normal", "mean_tokens": 9000, "sd_tokens": 10}, "x"), 100, "x", "the room")


def test_lengths_fit_together_and_open_ends_share_what_is_left() -> None:
    open_end = length_of({"kind": "lognormal", "median_tokens": 100, "sigma": 1}, "x")
    found = fitted({"a": open_end, "b": Fixed(200), "c": open_end}, 1000, "the room")
    assert [what.longest for what in found] == [400, 200, 400]
    with pytest.raises(ConfigError, match=r"^b: up to 200 tokens, 7 of the other lengths beside, don't fit the room"):
        fitted({"a": Fixed(7), "b": Fixed(200)}, 206, "the room")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, r"^x: 0 must be >= 1"),
        (True, r"^x: True must be a number of tokens, or a mapping with kind: fixed, uniform"),
        (10**9, r"^x: 1000000000 must be"),
        ({"kind": "norml"}, r"^x\.kind: 'norml' is unknown\. Did you mean 'normal'\?"),
        ({"kind": "uniform", "min_tokens": 5, "max_tokens": 4}, r"^x\.max_tokens: 4 must be >= min_tokens \(5\)"),
        ({"kind": "uniform", "min_tokens": 5}, r"^x\.max_tokens: is missing"),
        ({"kind": "normal", "mean_tokens": 5, "sd_tokens": 0}, r"^x\.sd_tokens: 0.0 must be > 0"),
        ({"kind": "zipf", "exponent": -1, "max_tokens": 4}, r"^x\.exponent: -1.0 must be > 0"),
        ({"kind": "empirical", "levels_pct": [0, 100], "tokens": [5, 4]}, r"^x\.tokens: .* must not fall"),
        ({"kind": "empirical", "levels_pct": [1, 100], "tokens": [4, 5]}, r"^x\.levels_pct: .* from 0 to 100"),
        ({"kind": "empirical", "levels_pct": [0, 100], "tokens": "ab"}, r"^x\.tokens: 'ab' must be a list of numbers"),
    ],
)
def test_bad_lengths_name_their_key(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        length_of(value, "x")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, r"^x: -1 must be seconds >= 0"),
        ("soon", r"^x: 'soon' must be"),
        ({"kind": "exponential", "mean_s": 0}, r"^x\.mean_s: 0.0 must be > 0"),
        ({"kind": "mooncake", "scales": 1}, r"^x: key 'scales' is unknown\. Did you mean 'scale'\?"),
    ],
)
def test_bad_think_times_name_their_key(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        think_of(value, "x")
