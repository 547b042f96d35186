"""What every kind of workload keeps to, whatever it draws."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest
from tokenizers import Tokenizer

from harness.errors import ConfigError
from harness.model import Model
from harness.traffic.segments import Resolver, Session
from harness.traffic.statistics import CHANGES, statistics
from harness.traffic.text import Corpus, corpus, load_tokenizer
from harness.traffic.workloads import Drawn, draw, workload_of, workloads

CONTEXT = 8192


@pytest.fixture(scope="module")
def tokenizer(model: Model) -> Callable[[], Tokenizer]:
    loaded = load_tokenizer(model.path)
    return lambda: loaded


@pytest.fixture(scope="module")
def text(model: Model) -> Corpus:
    return corpus(model.path)


@pytest.fixture
def drawn(example: dict[str, Any], tokenizer: Callable[[], Tokenizer]) -> Callable[..., Drawn]:
    def drawn(requests: int = 60, seed: int = 1, context_tokens: int = CONTEXT, phase: str = "window") -> Drawn:
        return draw(
            workload_of(example),
            requests=requests,
            context_tokens=context_tokens,
            seed=seed,
            phase=phase,
            tokenizer=tokenizer,
        )

    return drawn


def texts(sessions: list[Session], corpus: Corpus) -> list[list[list[int]]]:
    """Token ids by session and turn, of what the user adds."""
    resolver = Resolver(corpus.readers(seed=1)[1])
    return [[list(corpus.ids(turn)) for turn in resolver.session(session)] for session in sessions]


@pytest.mark.parametrize("requests", [1, 2, 7, 60, 300])
def test_turns_are_exactly_the_requests_asked(drawn: Callable[..., Drawn], requests: int) -> None:
    assert sum(len(session.turns) for session in drawn(requests)) == requests


def test_no_requests_are_no_sessions(drawn: Callable[..., Drawn]) -> None:
    assert drawn(requests=0) == []


@pytest.mark.parametrize("context_tokens", [8192, 16384])
def test_every_turn_fits_the_context_and_continues_the_one_before(
    drawn: Callable[..., Drawn], context_tokens: int
) -> None:
    for session in drawn(200, context_tokens=context_tokens):
        context = 0
        for turn in session.turns:
            assert turn.output_tokens >= 1 and turn.new_tokens >= 1
            assert all(part.count >= 1 for part in turn.new)
            assert turn.prompt_tokens == context + turn.new_tokens
            context = turn.prompt_tokens + turn.output_tokens
            assert context <= context_tokens
        assert session.turns[0].think_s is None


def test_equal_seeds_draw_equal_sessions_with_equal_text(drawn: Callable[..., Drawn], text: Corpus) -> None:
    assert drawn(seed=5) == drawn(seed=5)
    assert texts(drawn(seed=5), text) == texts(drawn(seed=5), text)


def test_prompts_are_exactly_as_long_as_planned(drawn: Callable[..., Drawn], text: Corpus) -> None:
    sessions = drawn()
    for session, turns in zip(sessions, texts(sessions, text), strict=True):
        assert [len(ids) for ids in turns] == [turn.new_tokens for turn in session.turns]


def test_no_two_requests_have_the_same_prompt(drawn: Callable[..., Drawn], text: Corpus) -> None:
    firsts = [tuple(turns[0]) for turns in texts(drawn(), text)]
    assert len(set(firsts)) == len(firsts)


def test_what_prompts_have_in_common_is_what_the_statistics_say(drawn: Callable[..., Drawn], text: Corpus) -> None:
    sessions, block = drawn(), 16
    seen: set[tuple[int, ...]] = set()
    served = total = 0
    for session, turns in zip(sessions, texts(sessions, text), strict=True):
        context: list[int] = []
        for turn, new in zip(session.turns, turns, strict=True):
            context += new
            blocks = range(block, turn.prompt_tokens, block)
            served += block * next((i for i, end in enumerate(blocks) if tuple(context[:end]) not in seen), len(blocks))
            total += turn.prompt_tokens
            # What is generated: nobody else's, and the last token of it is computed by nobody.
            context += [-1 - id(turn) - i for i in range(turn.output_tokens)]
            seen.update(tuple(context[:end]) for end in range(block, len(context), block))
    assert statistics({"": sessions}, block_tokens=block).reuse_possible_pct == pytest.approx(100 * served / total)


def test_warm_up_is_drawn_apart(drawn: Callable[..., Drawn], kind: str) -> None:
    if kind == "sharegpt-file":  # real text: the same conversation must not be asked in both
        window, warmup = ({turn.new for s in drawn(80, phase=p) for turn in s.turns} for p in ("window", "warmup"))
        assert not window & warmup
    assert sum(len(session.turns) for session in drawn(7, phase="warmup")) == 7


def test_changes_are_named(drawn: Callable[..., Drawn]) -> None:
    assert set(drawn(200).changes) <= set(CHANGES)


def test_the_record_is_yaml_that_reads_back(example: dict[str, Any]) -> None:
    workload = workload_of(example)
    assert workload_of(workload.record()) == workload


def test_every_key_has_its_unit_and_a_line_in_the_docstring(kind: str) -> None:
    parameters = workloads()[kind].parameters
    for spec in fields(parameters):
        assert spec.name in (parameters.__doc__ or ""), spec.name
        required = spec.default is MISSING and spec.default_factory is MISSING
        assert not required or spec.name == "path"


def test_unknown_keys_are_named_with_the_nearest(example: dict[str, Any], kind: str) -> None:
    near = fields(workloads()[kind].parameters)[0].name
    with pytest.raises(ConfigError, match=rf"^workload: key '{near}x' is unknown\. Did you mean '{near}'\? Allowed: "):
        workload_of({**example, f"{near}x": 1})


def test_a_context_that_is_too_short_is_named(drawn: Callable[..., Drawn], kind: str) -> None:
    if kind == "trace":
        pytest.skip("a trace is cut to fit")
    with pytest.raises(ConfigError, match=r"^workload\.\w+: "):
        drawn(context_tokens=8)


def test_an_unknown_kind_is_named_with_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"^workload\.kind: 'sharegtp' is unknown\. Did you mean 'sharegpt'\? Allowed: "
    ):
        workload_of({"kind": "sharegtp"})


def test_no_kind_is_sharegpt() -> None:
    assert workload_of({}).kind.name == "sharegpt"
