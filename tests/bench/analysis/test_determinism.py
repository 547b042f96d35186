"""Shares of identical answers, counted by hand."""

from typing import Any

import pytest

from bench.analysis.determinism import determinism
from bench.analysis.load import LaunchRecord


def answer(*tokens: int, error: str | None = None, text: str | None = None) -> dict[str, Any]:
    return {"token_ids": None if error or text else list(tokens), "text": text, "error": error}


def launch(*prompts: tuple[list[Any], list[Any]], block: int = 0, replica: int = 1) -> LaunchRecord:
    rows = [{"prompt_sha256": f"p{i}", "alone": a, "beside_others": b} for i, (a, b) in enumerate(prompts)]
    record = {"tokens": 2, "repeats": 3, "beside": 7, "prompts": rows}
    facts = {"deployment": "x", "replica": replica, "state": "measured"}
    return LaunchRecord("x", block, facts, {}, {}, None, None, {"greedy": None, "determinism": record})


ONE, TWO = answer(1, 1), answer(1, 2)


def test_shares_by_hand() -> None:
    found = determinism([launch(([ONE, ONE, TWO], [ONE, TWO, TWO]), ([TWO, TWO, TWO], [TWO, TWO, TWO]))])
    assert found is not None
    assert found.identical_alone == pytest.approx(3 / 4)  # the first answer is not held against itself
    assert found.identical_under_load == pytest.approx(4 / 6)
    assert (found.launches, found.prompts, found.repeats, found.output_tokens, found.beside) == (1, 2, 3, 2, 7)


def test_launches_are_pooled() -> None:
    steady, unsteady = launch(([ONE] * 3, [ONE] * 3)), launch(([ONE, TWO, TWO], [TWO] * 3), replica=2)
    found = determinism([steady, unsteady])
    assert found is not None
    assert (found.launches, found.prompts) == (2, 1)
    assert (found.identical_alone, found.identical_under_load) == (0.5, 0.5)


def test_texts_are_compared_where_there_are_no_tokens() -> None:
    a, b = answer(text="a"), answer(text="b")
    found = determinism([launch(([a, a, b], [a, a, a]))])
    assert found is not None
    assert (found.identical_alone, found.identical_under_load) == (0.5, 1.0)


def test_failed_answers_count_nowhere() -> None:
    bad = answer(error="HTTP 500")
    found = determinism([launch(([ONE, bad, ONE], [bad, bad, TWO]))])
    assert found is not None
    assert (found.identical_alone, found.identical_under_load) == (1.0, 0.0)
    nothing = determinism([launch(([bad, ONE, ONE], [ONE] * 3))])
    assert nothing is not None
    assert (nothing.identical_alone, nothing.identical_under_load) == (None, None)


def test_no_record_no_result() -> None:
    other = LaunchRecord("x", 1, {"deployment": "x", "replica": 1, "state": "measured"}, {}, {}, None, None)
    assert determinism([other]) is None
    found = determinism([launch(([ONE] * 3, [ONE] * 3)), other])
    assert found is not None
    assert found.launches == 1
