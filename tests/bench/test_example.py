"""The committed example, a frozen run of schema version 1: its numbers can still be computed, and are the same."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.analysis import analyse
from bench.analysis.result import to_json
from bench.report import write

EXAMPLE = Path(__file__).resolve().parents[2] / "results" / "example"


def same(a: Any, b: Any) -> bool:
    """Equal values, floats to nine digits."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    return bool(a == b)


def test_the_example_is_of_the_version_that_it_stands_for() -> None:
    assert json.loads((EXAMPLE / "manifest.json").read_text())["schema_version"] == 1


@pytest.mark.parametrize("part", ["deployments", "comparisons", "accuracy", "noise"])
def test_the_numbers_of_the_example_are_found_again(part: str) -> None:
    stored = json.loads((EXAMPLE / "analysis.json").read_text())[part]
    found = json.loads(json.dumps(to_json(analyse(EXAMPLE))))[part]
    assert stored
    assert same(found, stored)


def test_the_page_of_the_example_is_rebuilt_with_no_engine(tmp_path: Path) -> None:
    analysis = analyse(EXAMPLE)
    copy = tmp_path / "copy"
    copy.mkdir()
    (page,) = write(analysis, copy, tmp_path / "reports")
    text = page.read_text()
    for deployment in analysis.deployments:
        assert deployment.strategy_title in text
    assert any((copy / "tables").glob("*.csv"))
