"""Scores by length and depth: every scored item with a place counts once, in its own stretch."""

from bench.analysis.grid import length_by_depth
from bench.analysis.result import GridCell


def test_items_count_in_the_stretch_where_their_answer_lies() -> None:
    samples = [
        {"context_tokens": 1000, "depth": depth, "score": score}
        for depth, score in ((0.0, 1.0), (0.24, 0.0), (0.25, 1.0), (1.0, 0.5))
    ]
    samples += [{"context_tokens": 2000, "depth": 0.6, "score": 1.0}]
    assert length_by_depth(samples) == (
        GridCell(1000, 0.0, 0.25, 2, 0.5),
        GridCell(1000, 0.25, 0.5, 1, 1.0),
        GridCell(1000, 0.75, 1.0, 1, 0.5),
        GridCell(2000, 0.5, 0.75, 1, 1.0),
    )


def test_items_without_a_place_or_a_score_are_in_no_cell() -> None:
    samples = [
        {"context_tokens": None, "depth": 0.5, "score": 1.0},
        {"context_tokens": 1000, "depth": None, "score": 1.0},
        {"context_tokens": 1000, "depth": 0.5, "score": None},
    ]
    assert length_by_depth(samples) == ()
