import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.accuracy.fidelity import compare, distribution, kl_divergence, mean_nll, token_nlls


def record(rows: list[tuple[list[int], list[float | None]]], forced: list[int], vocab: int = 100) -> dict[str, Any]:
    return {
        "text_sha256": "t",
        "vocab": vocab,
        "positions": [10 * (i + 1) for i in range(len(rows))],
        "next_token_ids": forced,
        "top_token_ids": [ids for ids, _ in rows],
        "top_logprobs": [values for _, values in rows],
        "echo": None,
        "error": None,
    }


HALF, QUARTER = math.log(0.5), math.log(0.25)


def test_nll_of_a_named_token_is_its_own() -> None:
    assert mean_nll(record([([7, 8], [HALF, QUARTER])], [8])) == pytest.approx(math.log(4))


def test_token_outside_the_top_k_gets_an_even_part_of_what_is_left() -> None:
    # 0.25 is left for the 98 other tokens.
    assert mean_nll(record([([7, 8], [HALF, QUARTER])], [50])) == pytest.approx(-math.log(0.25 / 98))


def test_nothing_left_by_rounding_is_not_infinite() -> None:
    assert token_nlls(record([([7], [0.0])], [50]))[0] == pytest.approx(-math.log(1e-9 / 99))


def test_positions_without_numbers_are_left_out_and_counted() -> None:
    sound = record([([7, 8], [HALF, QUARTER]), ([7, 8], [HALF, QUARTER])], [7, 7])
    holes = record([([], []), ([7, 8], [HALF, QUARTER])], [7, 7])
    nulls = record([([7, 8], [None, QUARTER]), ([7, 8], [HALF, QUARTER])], [7, 7])
    for faulty in (holes, nulls):
        found = compare(faulty, sound)
        assert (found.positions, found.unusable, found.nll_delta, found.kl) == (1, 1, 0.0, 0.0)
    assert mean_nll(record([([], [])], [7])) is None


def test_agreement_counts_the_most_probable_token() -> None:
    a = record([([7, 8], [HALF, QUARTER])] * 4, [7] * 4)
    b = record([([7, 8], [HALF, QUARTER])] * 3 + [([8, 7], [HALF, QUARTER])], [7] * 4)
    assert compare(b, a).top1_agreement == 0.75


def test_later_positions_can_be_looked_at_alone() -> None:
    a = record([([7, 8], [HALF, QUARTER])] * 4, [7] * 4)
    b = record([([7, 8], [HALF, QUARTER])] * 3 + [([8, 7], [HALF, QUARTER])], [7] * 4)
    assert compare(b, a, from_position=40).top1_agreement == 0.0


def test_records_of_different_texts_are_not_compared() -> None:
    a = record([([7], [HALF])], [7])
    with pytest.raises(ValueError, match="text_sha256"):
        compare({**a, "text_sha256": "other"}, a)


def test_kl_by_hand() -> None:
    # Both name tokens 1 and 2; the third bin holds the remaining quarter.
    p, q = {1: 0.5, 2: 0.25}, {1: 0.25, 2: 0.5}
    assert kl_divergence(p, q, vocab=100) == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2))


tops = st.dictionaries(st.integers(0, 99), st.floats(1e-6, 1.0), min_size=1, max_size=8).map(
    lambda found: {token: value / (sum(found.values()) * 1.01) for token, value in found.items()}
)


@given(tops, tops)
def test_kl_is_zero_to_itself_and_never_negative(p: dict[int, float], q: dict[int, float]) -> None:
    assert kl_divergence(p, p, vocab=100) == pytest.approx(0.0, abs=1e-9)
    assert math.isfinite(kl_divergence(p, q, vocab=100)) and kl_divergence(p, q, vocab=100) >= 0.0


def test_distribution_of_broken_numbers_is_none() -> None:
    assert distribution(record([([7], [float("nan")])], [7]), 0) is None
    assert distribution(record([([7, 8], [HALF])], [7]), 0) is None
