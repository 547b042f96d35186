"""What parts become: fresh text is nobody else's, shared text is the same, ids stay as they are."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.traffic.segments import Fresh, Literal, Part, Resolver, Session, Shared, Turn, cut, joined, segment_tokens
from harness.traffic.text import HEAD_TOKENS, corpus_of

TEXT = corpus_of([17 * i % 6007 for i in range(6000)])


def session(*turns: tuple[Part, ...], output_tokens: int = 5) -> Session:
    """A session of turns with the given parts."""
    out, context = [], 0
    for parts in turns:
        prompt = context + sum(part.count for part in parts)
        out.append(Turn(prompt, output_tokens, parts))
        context = prompt + output_tokens
    return Session(tuple(out))


def resolved(*sessions: Session, tenants: tuple[str, ...] = ("",)) -> list[list[list[int]]]:
    """Token ids by session and turn."""
    resolver = Resolver(TEXT.readers(seed=1)[1])
    pairs = zip(sessions, itertools.cycle(tenants))
    return [[list(TEXT.ids(turn)) for turn in resolver.session(each, tenant)] for each, tenant in pairs]


parts = st.one_of(
    st.builds(Fresh, st.integers(0, 300)),
    st.builds(Shared, st.sampled_from("ab"), st.integers(0, 300)),
    st.builds(Literal, st.lists(st.integers(0, 99), max_size=5).map(tuple)),
)


@given(st.lists(st.lists(st.lists(parts, min_size=1, max_size=4).map(tuple), min_size=1, max_size=3), max_size=6))
def test_every_turn_is_exactly_as_long_as_its_parts(sessions: list[list[tuple[Part, ...]]]) -> None:
    drawn = [session(*turns) for turns in sessions]
    for each, turns in zip(drawn, resolved(*drawn), strict=True):
        assert [len(ids) for ids in turns] == [turn.new_tokens for turn in each.turns]


def test_shared_text_is_the_same_and_a_shorter_use_is_its_beginning() -> None:
    [[a], [b], [c], [d]] = resolved(*(session((Shared("k", n),)) for n in (40, 20, 60, 60)))
    assert a[:20] == b and c[:40] == a and c == d


def test_other_keys_and_other_tenants_share_nothing() -> None:
    sessions = [session((Shared(key, 64), Fresh(20))) for key in ("a", "b")]
    texts = [turns[0] for turns in resolved(*sessions, *sessions, tenants=("x", "x", "y", "y"))]
    assert len({tuple(ids[:HEAD_TOKENS]) for ids in texts}) == 4


def test_fresh_text_after_a_shared_prefix_starts_differently_each_time() -> None:
    sessions = [session((Shared("system", 32), Fresh(50)))] * 9000  # more than the corpus has starts
    texts = [turns[0] for turns in resolved(*sessions)]
    assert len({tuple(ids[:32]) for ids in texts}) == 1
    assert len({tuple(ids[32 : 32 + HEAD_TOKENS]) for ids in texts}) == 9000


def test_blocks_of_a_trace_are_distinct_however_many_there_are() -> None:
    """A block of 16 tokens for each of many more hash ids than the corpus has starts."""
    sessions = [session(tuple(Shared(str(16 * i + k), 16) for k in range(16))) for i in range(2000)]
    blocks = {tuple(ids[k : k + 16]) for [ids] in resolved(*sessions) for k in range(0, 256, 16)}
    assert len(blocks) == 32_000


def test_literal_ids_stay_as_they_are() -> None:
    assert resolved(session((Literal((4, 5, 6)), Fresh(0)), (Literal((7,)),))) == [[[4, 5, 6], [7]]]


def test_a_session_whose_lengths_do_not_add_up_is_a_fault() -> None:
    wrong = Session((Turn(10, 5, (Fresh(10),)), Turn(14, 5, (Fresh(4),))))
    with pytest.raises(ValueError, match="14 tokens, 15 \\+ 4 planned"):
        resolved(wrong)


def test_neighbouring_slices_are_joined_and_segments_can_be_cut() -> None:
    assert joined([(0, 5), (5, 3), (9, 1), "1,2", (10, 2), (12, 1)]) == [(0, 8), (9, 1), "1,2", (10, 3)]
    assert cut(["1,2,3", (7, 4)], 5) == ["1,2,3", (7, 2)]
    assert cut(["1,2,3", (7, 4)], 2) == ["1,2"]
    assert sum(map(segment_tokens, cut([(0, 9)], 0))) == 0
