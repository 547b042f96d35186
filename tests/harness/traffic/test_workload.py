"""Lengths of sessions, for every kind of workload."""

from dataclasses import replace

import pytest

from harness.errors import ConfigError
from harness.traffic.load import Arrival, Load, Workload
from harness.traffic.workload import (
    MEAN_TOLERANCE,
    WORKLOADS,
    Session,
    Turn,
    mean_prompt_tokens,
    sessions,
    warmup_sessions,
    window_sessions,
    working_set_tokens,
)

CONTEXT = 4096
every_kind = pytest.mark.parametrize("kind", sorted(WORKLOADS))
several_seeds = pytest.mark.parametrize("seed", range(8))


def draw(
    kind: str, seed: int = 0, requests: int = 24, context_tokens: int = CONTEXT, **lengths: object
) -> list[Session]:
    what = replace(Workload(kind=kind, input_tokens_mean=900, output_tokens_mean=40), **lengths)  # type: ignore[arg-type]
    return sessions(what, requests=requests, context_tokens=context_tokens, seed=seed)


@every_kind
@pytest.mark.parametrize("requests", [1, 2, 7, 24, 300])
def test_turns_are_exactly_the_requests_asked(kind: str, requests: int) -> None:
    assert sum(len(session.turns) for session in draw(kind, requests=requests)) == requests


@every_kind
@several_seeds
@pytest.mark.parametrize("requests", [2, 12, 300])
def test_the_mean_prompt_is_the_one_asked(kind: str, seed: int, requests: int) -> None:
    mean = mean_prompt_tokens(draw(kind, seed, requests))
    assert mean == pytest.approx(900, rel=MEAN_TOLERANCE, abs=1)


@every_kind
@several_seeds
@pytest.mark.parametrize("fixed", [True, False])
def test_every_turn_fits_and_continues_the_one_before(kind: str, seed: int, fixed: bool) -> None:
    drawn = draw(kind, seed, input_tokens_max=2000, output_tokens_fixed=fixed, shared_prefix_tokens=100)
    for session in drawn:
        context = 100
        for turn in session.turns:
            assert turn.new_tokens >= 1 and turn.output_tokens >= 1
            assert turn.prompt_tokens == context + turn.new_tokens
            assert turn.prompt_tokens <= 2000
            assert turn.prompt_tokens + turn.output_tokens <= CONTEXT
            context = turn.prompt_tokens + turn.output_tokens


@every_kind
def test_equal_seeds_draw_equal_sessions(kind: str) -> None:
    assert draw(kind, 5) == draw(kind, 5)


@every_kind
def test_fixed_outputs_are_all_equal(kind: str) -> None:
    assert {turn.output_tokens for session in draw(kind) for turn in session.turns} == {40}


@every_kind
def test_a_mean_beyond_the_context_is_named_with_its_key(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"workload\.input_tokens_mean: 900 .*context_tokens \(512\)"):
        draw(kind, context_tokens=512)


def test_sharegpt_draws_differ_between_seeds_and_grow_over_turns() -> None:
    assert draw("sharegpt", 1) != draw("sharegpt", 2)
    longest = max(draw("sharegpt", 1), key=lambda session: len(session.turns))
    prompts = [turn.prompt_tokens for turn in longest.turns]
    assert len(prompts) == 4 and prompts == sorted(set(prompts))


def test_sharegpt_has_the_turns_of_the_source() -> None:
    counts = [len(session.turns) for session in draw("sharegpt", requests=5000, turns_max=4)]
    # 20.4 % of sessions have one turn, 52.3 % four or more (`turns_pmf` of the data file).
    assert counts.count(1) / len(counts) == pytest.approx(0.204, abs=0.01)
    assert counts.count(4) / len(counts) == pytest.approx(0.523, abs=0.01)


def last_share(input_tokens_max: int) -> float:
    """The last turn's part of a session's user tokens, on average."""
    long = [s for s in draw("sharegpt", requests=2000, input_tokens_max=input_tokens_max) if len(s.turns) == 4]
    return sum(s.turns[-1].new_tokens / sum(turn.new_tokens for turn in s.turns) for s in long) / len(long)


def test_a_session_that_is_too_long_is_shrunk_as_a_whole() -> None:
    assert last_share(input_tokens_max=1500) == pytest.approx(last_share(input_tokens_max=4000), abs=0.02)


def test_sharegpt_outputs_that_vary_have_the_mean_asked() -> None:
    outputs = [turn.output_tokens for session in draw("sharegpt", output_tokens_fixed=False) for turn in session.turns]
    assert len(set(outputs)) > 5
    assert sum(outputs) / len(outputs) == pytest.approx(40, abs=1)


def test_sharegpt_that_can_not_shrink_to_the_mean_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nearest mean"):
        draw("sharegpt", input_tokens_mean=50, output_tokens_mean=500)


def test_synthetic_lengths_are_those_asked() -> None:
    assert draw("synthetic", requests=3) == [Session((Turn(900, 900, 40),))] * 3


def test_warm_up_and_window_are_drawn_apart() -> None:
    load = Load("", Workload(input_tokens_mean=900), Arrival(concurrency=2), requests=12, warmup_requests=12)
    assert window_sessions(load, CONTEXT, 1) != warmup_sessions(load, CONTEXT, 1)


def session(*turns: tuple[int, int]) -> Session:
    return Session(tuple(Turn(prompt, prompt, output) for prompt, output in turns))


def test_working_set_of_a_closed_loop_by_hand() -> None:
    drawn = [session((100, 10), (200, 10)), session((50, 5)), session((300, 20)), session((40, 5))]
    # Two places: first session (210, two steps) beside 55 then 320; then 45 beside none of these: 210 + 320.
    assert working_set_tokens(drawn, Arrival("closed", concurrency=2), [None] * 4, 0, 10) == 530
    # A shared prefix of 30 is in each context but held once.
    assert working_set_tokens(drawn, Arrival("closed", concurrency=2), [None] * 4, 30, 10) == 180 + 290 + 30


def test_working_set_of_an_open_loop_by_hand() -> None:
    drawn = [session((100, 0)), session((200, 0)), session((400, 0))]
    due = [0, 4_000_000_000, 12_000_000_000]
    assert working_set_tokens(drawn, Arrival("constant", rate_rps=1), due, 0, request_s=10) == 600
    assert working_set_tokens(drawn, Arrival("constant", rate_rps=1), due, 0, request_s=5) == 400


@pytest.mark.parametrize(
    ("load", "key"),
    [
        ({"workload": Workload(kind="sharegtp")}, r"workload\.kind: 'sharegtp' .* allowed: sharegpt, synthetic"),
        ({"arrival": Arrival(kind="burst")}, r"arrival\.kind: 'burst' is unknown; allowed: closed, constant, poisson"),
        ({"arrival": Arrival("closed")}, r"arrival\.concurrency"),
        ({"arrival": Arrival("poisson")}, r"arrival\.rate_rps"),
        ({"arrival": Arrival(concurrency=1), "timeout_s": 0}, "timeout_s"),
        ({"arrival": Arrival(concurrency=1), "requests": 0}, "requests"),
    ],
)
def test_a_wrong_load_is_named_with_its_key(load: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        Load(**load)  # type: ignore[arg-type]
