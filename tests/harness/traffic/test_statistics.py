"""What sessions are like, against hand-made examples and against a count over whole texts."""

from hypothesis import given
from hypothesis import strategies as st

from harness.traffic.segments import Fresh, Literal, Part, Session, Shared, Turn
from harness.traffic.statistics import Spread, spread, statistics


def session(*turns: tuple[tuple[Part, ...], int]) -> Session:
    """A session of (parts, output) turns."""
    out: list[Turn] = []
    context = 0
    for parts, output in turns:
        prompt = context + sum(part.count for part in parts)
        out.append(Turn(prompt, output, parts))
        context = prompt + output
    return Session(tuple(out))


def test_a_hand_made_example() -> None:
    sessions = [
        session(((Shared("system", 20), Fresh(12)), 10), ((Fresh(8),), 6)),  # prompts of 32 and 50, a context of 56
        session(((Shared("system", 20), Fresh(30)), 5)),  # 50 and 55
    ]
    found = statistics({"": sessions}, changes={"cut": 1}, kv_bytes_per_token=100.5, block_tokens=16)
    assert (found.sessions, found.requests, found.turns_mean, found.turns_max) == (2, 3, 1.5, 2)
    assert found.prompt_tokens == Spread(44.0, 50, 50, 50, 50)
    assert found.output_tokens == Spread(7.0, 6, 10, 10, 10)
    assert (found.prompt_tokens_total, found.output_tokens_total) == (132, 21)
    # Turn two finds 41 computed tokens (the last of 42 isn't): 32 in whole blocks. The second session: 16 of 20.
    assert found.reuse_possible_pct == 100 * (32 + 16) / 132
    assert found.distinct_kv_tokens == 56 + 55 - 16
    assert found.distinct_kv_bytes == round(95 * 100.5)
    assert found.changes == {"cut": 1} and found.tenants == {}


def test_one_token_of_a_prompt_is_always_computed() -> None:
    found = statistics({"": [session(((Shared("k", 32),), 1))] * 2}, block_tokens=16)
    assert found.reuse_possible_pct == 100 * 16 / 64


def test_tenants_share_nothing_and_are_told_apart() -> None:
    mine = [session(((Shared("k", 32), Fresh(1)), 1))] * 2
    found = statistics({"a": mine, "b": mine[:1]}, block_tokens=16)
    assert found.requests == 3 and found.reuse_possible_pct == 100 * 32 / 99
    assert found.tenants["a"].reuse_possible_pct == 100 * 32 / 66
    assert found.tenants["b"].reuse_possible_pct == 0


def test_percentiles_by_hand() -> None:
    assert spread(list(range(1, 201))) == Spread(100.5, 100, 180, 198, 200)
    assert spread([7]) == Spread(7, 7, 7, 7, 7)


parts = st.one_of(
    st.builds(Fresh, st.integers(1, 9)),
    st.builds(Shared, st.sampled_from("ab"), st.integers(1, 9)),
    st.builds(Literal, st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)),
)
turns = st.tuples(st.lists(parts, min_size=1, max_size=4).map(tuple), st.integers(1, 9))


@given(st.lists(st.lists(turns, min_size=1, max_size=3).map(lambda all_: session(*all_)), min_size=1, max_size=8))
def test_reuse_and_distinct_kv_are_those_of_the_texts(sessions: list[Session]) -> None:
    block, fresh = 4, iter(range(10, 10**6))
    seen: set[tuple[object, ...]] = set()
    kept: set[tuple[object, ...]] = set()
    served = total = partly = 0
    for each in sessions:
        context: list[object] = []
        for turn in each.turns:
            for part in turn.new:
                if isinstance(part, Literal):
                    context += part.ids
                elif isinstance(part, Shared):
                    context += [(part.key, i) for i in range(part.count)]
                else:
                    context += [next(fresh) for _ in range(part.count)]
            ends = range(block, turn.prompt_tokens, block)
            served += block * next((i for i, end in enumerate(ends) if tuple(context[:end]) not in seen), len(ends))
            total += turn.prompt_tokens
            context += [next(fresh) for _ in range(turn.output_tokens)]
            seen.update(tuple(context[:end]) for end in range(block, len(context), block))
        kept.update(tuple(context[:end]) for end in range(block, len(context) + 1, block))
        partly += len(context) % block
    found = statistics({"": sessions}, block_tokens=block)
    assert found.reuse_possible_pct == 100 * served / total
    assert found.distinct_kv_tokens == block * len(kept) + partly
