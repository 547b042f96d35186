"""Synthetic lengths, shared prefixes, questions on documents: what each kind promises of its own."""

from collections import Counter
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.traffic.segments import Fresh, Session, Shared, Turn
from harness.traffic.statistics import statistics
from harness.traffic.workloads import Drawn, draw, workload_of


def drawn(requests: int = 240, seed: int = 1, context_tokens: int = 8192, **keys: Any) -> Drawn:
    def none() -> Any:
        raise AssertionError("lengths need no tokenizer")

    return draw(workload_of(keys), requests=requests, context_tokens=context_tokens, seed=seed, tokenizer=none)


def documents(sessions: list[Session]) -> list[str]:
    return [str(session.turns[0].new[0].key).split("-")[1] for session in sessions]  # type: ignore[union-attr]


def quotes(sessions: list[Session]) -> list[float]:
    """Where each question's quote lies in its document, as a part of it."""
    found = []
    for session in sessions:
        *document, quote, _ = session.turns[0].new
        assert quote in document
        found.append(document.index(quote) / sum(part.count == quote.count for part in document))
    return found


def test_synthetic_lengths_without_a_distribution_are_those_asked() -> None:
    one = Session((Turn(900, 40, (Fresh(900),)),))
    assert drawn(3, kind="synthetic", input_tokens_mean=900, output_tokens_mean=40) == [one] * 3


def test_synthetic_lengths_follow_their_distributions_after_a_shared_prefix() -> None:
    sessions = drawn(
        kind="synthetic",
        input_tokens={"kind": "uniform", "min_tokens": 200, "max_tokens": 1000},
        output_tokens={"kind": "lognormal", "median_tokens": 50, "sigma": 1.0},
        shared_prefix_tokens=100,
    )
    found = statistics({"": sessions})
    assert found.prompt_tokens.mean == pytest.approx(600, abs=5)
    assert found.output_tokens.p50 == pytest.approx(50, abs=2)
    assert {session.turns[0].new[0] for session in sessions} == {Shared("prefix", 100)}


def test_prefixes_are_equally_popular_or_zipf() -> None:
    def popularity(**keys: Any) -> list[int]:
        sessions = drawn(1100, kind="shared-prefix", prefixes=3, **keys)
        counts = Counter(session.turns[0].new[0] for session in sessions)
        return [count for _, count in sorted(counts.items(), key=lambda item: item[0].key)]  # type: ignore[union-attr]

    assert popularity() == pytest.approx([367, 367, 367], abs=1)
    assert popularity(popularity="zipf") == pytest.approx([600, 300, 200], abs=1)


@pytest.mark.parametrize(("order", "distance"), [("round-robin", 8), ("grouped", 1)])
def test_the_order_is_the_distance_of_reuse(order: str, distance: int) -> None:
    asked = documents(drawn(64, kind="document-qa", documents=8, questions_per_document=4, order=order))
    again = [i - max(j for j in range(i) if asked[j] == one) for i, one in enumerate(asked) if one in asked[:i]]
    assert set(again) == {distance} and len(again) == 64 - 16  # two rounds of eight documents


def test_a_shuffled_order_asks_every_document_as_often() -> None:
    asked = documents(drawn(32, kind="document-qa", documents=8, questions_per_document=4, order="shuffled"))
    assert set(Counter(asked).values()) == {4} and asked != sorted(asked)


@pytest.mark.parametrize("length", [2048, {"kind": "uniform", "min_tokens": 1500, "max_tokens": 3000}])
def test_the_twin_differs_only_in_where_the_quote_lies(length: Any) -> None:
    keys = {"kind": "document-qa", "document_tokens": length, "question_tokens": 20}
    start, far, mixed = (drawn(reach=reach, **keys) for reach in ("start", "far", "mixed"))
    lengths = [[(t.prompt_tokens, t.output_tokens, [p.count for p in t.new]) for (t,) in (s.turns for s in load)]
               for load in (start, far, mixed)]  # fmt: skip
    assert lengths[0] == lengths[1] == lengths[2]
    assert documents(start) == documents(far) == documents(mixed)
    assert [s.turns[0].new[:-2] for s in start] == [s.turns[0].new[:-2] for s in far]
    assert max(quotes(start)) < 1 / 8 <= min(quotes(far)) + 0.02
    assert max(quotes(far)) > 0.95
    assert sum(where < 1 / 8 for where in quotes(mixed)) == pytest.approx(len(mixed) // 2, abs=4)


def test_a_document_is_computed_once_in_an_infinite_cache() -> None:
    sessions = drawn(32, kind="document-qa", documents=8, questions_per_document=4, document_tokens=2048)
    # 24 of 32 questions find their 2,048 tokens; 64 of each prompt are new, unless two questions quote the same.
    assert statistics({"": sessions}).reuse_possible_pct == pytest.approx(100 * 24 * 2048 / (32 * 2112), abs=0.3)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"kind": "synthetic", "input_tokens_mean": 9000},
            r"^workload\.input_tokens_mean: up to 9000 tokens, 64 of the other lengths beside",
        ),
        ({"kind": "synthetic", "input_tokens": {"kind": "zipf"}}, r"^workload\.input_tokens\.exponent: is missing"),
        (
            {"kind": "synthetic", "shared_prefix_tokens": 1024},
            r"^workload\.input_tokens_mean: 1024 must be > shared_pre",
        ),
        ({"kind": "synthetic", "input_tokens_max": 99}, r"^workload\.input_tokens_mean: up to 1024 .*input_tokens_max"),
        ({"kind": "shared-prefix", "prefixes": 0}, r"^workload\.prefixes: 0 must be >= 1"),
        (
            {"kind": "shared-prefix", "popularity": "zip"},
            r"^workload\.popularity: 'zip' is unknown\. Did you mean 'zipf'",
        ),
        (
            {"kind": "shared-prefix", "prefix_tokens": 8100},
            r"^workload\.prefix_tokens: up to 8100 tokens, 128 of the other lengths",
        ),
        (
            {"kind": "document-qa", "reach": "near"},
            r"^workload\.reach: 'near' is unknown\..* Allowed: start, far, mixed",
        ),
        ({"kind": "document-qa", "quote_tokens": 999}, r"^workload\.quote_tokens: 999 must be at most 1/16 of the sho"),
        ({"kind": "document-qa", "document_tokens": 9000}, r"^workload\.document_tokens: up to 9000 tokens, 96 of"),
    ],
)
def test_what_can_not_be_met_is_named_with_its_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drawn(**keys)
