"""Conversations in ShareGPT's shape."""

from typing import Any

import pytest

from harness.errors import ConfigError
from harness.traffic.segments import Fresh, Session, Shared
from harness.traffic.statistics import statistics
from harness.traffic.workloads import Drawn, draw, workload_of
from harness.traffic.workloads.sharegpt import MEAN_TOLERANCE, MODES

CONTEXT = 4096
several_seeds = pytest.mark.parametrize("seed", range(8))


def drawn(seed: int = 0, requests: int = 24, context_tokens: int = CONTEXT, **keys: Any) -> Drawn:
    values = {"input_tokens_mean": 900, "output_tokens_mean": 40, **keys}

    def none() -> Any:
        raise AssertionError("lengths need no tokenizer")

    return draw(workload_of(values), requests=requests, context_tokens=context_tokens, seed=seed, tokenizer=none)


def mean_prompt(sessions: list[Session]) -> float:
    return statistics({"": sessions}).prompt_tokens.mean


@several_seeds
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("requests", [2, 12, 300])
def test_the_mean_prompt_is_the_one_asked(mode: str, seed: int, requests: int) -> None:
    assert mean_prompt(drawn(seed, requests, mode=mode)) == pytest.approx(900, rel=MEAN_TOLERANCE, abs=1)


@several_seeds
@pytest.mark.parametrize("fixed", [True, False])
def test_the_bounds_hold_and_a_shared_prefix_comes_first(seed: int, fixed: bool) -> None:
    for session in drawn(seed, input_tokens_max=2000, output_tokens_fixed=fixed, shared_prefix_tokens=100):
        assert session.turns[0].new[0] == Shared("prefix", 100)
        assert all(turn.prompt_tokens <= 2000 for turn in session.turns)
        assert all(isinstance(turn.new[0], Fresh) for turn in session.turns[1:])


def test_draws_differ_between_seeds_and_grow_over_turns() -> None:
    assert drawn(1) != drawn(2)
    longest = max(drawn(1), key=lambda session: len(session.turns))
    prompts = [turn.prompt_tokens for turn in longest.turns]
    assert len(prompts) == 4 and prompts == sorted(set(prompts))


def test_turns_are_those_of_the_source() -> None:
    counts = [len(session.turns) for session in drawn(requests=5000)]
    # 20.4 % of sessions have one turn, 52.3 % four or more (`turns_pmf` of the data file).
    assert counts.count(1) / len(counts) == pytest.approx(0.204, abs=0.02)
    assert counts.count(4) / len(counts) == pytest.approx(0.523, abs=0.03)


@pytest.mark.parametrize("mode", ["first-turns", "single-turns"])
def test_single_requests_are_sessions_of_one_turn(mode: str) -> None:
    assert {len(session.turns) for session in drawn(requests=100, mode=mode)} == {1}


@pytest.mark.parametrize(
    ("mode", "prompts", "outputs"),
    [("first-turns", (317, 74, 1005), (471, 471, 871)), ("single-turns", (2340, 1730, 5696), (439, 415, 834))],
)
def test_unscaled_lengths_are_the_source_s(
    mode: str, prompts: tuple[int, int, int], outputs: tuple[int, int, int]
) -> None:
    sessions = drawn(requests=3000, mode=mode, input_tokens_mean=None, output_tokens_mean=None, context_tokens=10_000)
    found = statistics({"": sessions})
    for spread, (mean, p50, p90) in ((found.prompt_tokens, prompts), (found.output_tokens, outputs)):
        # Between the levels of the quantile tables the source is denser at the short end than a straight line.
        assert (spread.mean, spread.p50, spread.p90) == pytest.approx((mean, p50, p90), rel=0.06)


def last_share(input_tokens_max: int) -> float:
    """The last turn's part of a session's user tokens, on average."""
    long = [s for s in drawn(requests=2000, input_tokens_max=input_tokens_max) if len(s.turns) == 4]
    return sum(s.turns[-1].new_tokens / sum(turn.new_tokens for turn in s.turns) for s in long) / len(long)


def test_a_session_that_is_too_long_is_shrunk_as_a_whole() -> None:
    assert last_share(input_tokens_max=1500) == pytest.approx(last_share(input_tokens_max=4000), abs=0.02)


def test_fixed_outputs_are_all_equal() -> None:
    assert {turn.output_tokens for session in drawn() for turn in session.turns} == {40}


@pytest.mark.parametrize("mode", MODES)
def test_outputs_that_vary_have_the_mean_asked(mode: str) -> None:
    sessions = drawn(output_tokens_fixed=False, mode=mode)
    outputs = [turn.output_tokens for session in sessions for turn in session.turns]
    assert len(set(outputs)) > 5
    assert sum(outputs) / len(outputs) == pytest.approx(40, abs=1)


def test_later_turns_think_and_first_ones_don_t() -> None:
    sessions = drawn(requests=400, think_s={"kind": "mooncake", "scale": 0.01})
    assert {session.turns[0].think_s for session in sessions} == {None}
    pauses = sorted(turn.think_s or 0 for session in sessions for turn in session.turns[1:])
    assert pauses[len(pauses) // 2] == pytest.approx(1.23, rel=0.02)
    assert {turn.think_s for session in drawn(think_s=3) for turn in session.turns[1:]} == {3.0}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"input_tokens_mean": 50, "output_tokens_mean": 500},
            r"^workload\.input_tokens_mean: 50 can't be met.*nearest",
        ),
        ({"context_tokens": 512}, r"^workload\.input_tokens_mean: 900 .*context_tokens \(512\)"),
        ({"turns_max": 0}, r"^workload\.turns_max: 0 must be >= 1"),
        ({"mode": "first"}, r"^workload\.mode: 'first' is unknown\. Did you mean 'first-turns'\?"),
        ({"think_s": -1}, r"^workload\.think_s: -1 must be seconds >= 0"),
        ({"shared_prefix_tokens": -1}, r"^workload\.shared_prefix_tokens: -1 must be >= 0"),
        ({"output_tokens_mean": "many"}, r"^workload\.output_tokens_mean: 'many' must be a whole number or null"),
    ],
)
def test_what_can_not_be_met_is_named_with_its_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drawn(**keys)
