"""What `make perf` writes and prints."""

import math

import pytest

from harness.perf.figure import Bar, Figure, missed, table

KEYS = {"name", "value", "unit", "peer", "peer_value", "ratio", "bar", "holds", "note"}


def test_a_bar_of_the_ratio() -> None:
    figure = Figure("cpu", 15.0, "µs", "vllm bench", 30.0, Bar("ratio", at_most=0.6))
    record = figure.record()
    assert set(record) == KEYS
    assert (record["ratio"], record["bar"], record["holds"]) == (0.5, "ratio <= 0.6", True)
    assert Figure("cpu", 20.0, "µs", "vllm bench", 30.0, Bar("ratio", at_most=0.6)).holds is False


@pytest.mark.parametrize(
    ("value", "holds"), [(97.9, False), (98, True), (102, True), (102.1, False), (math.nan, False)]
)
def test_a_bar_of_the_value(value: float, holds: bool) -> None:
    bar = Bar(at_least=98, at_most=102)
    assert str(bar) == "value >= 98 and value <= 102"
    assert Figure("rate", value, "%", bar=bar).holds is holds


def test_what_is_missing_is_said_and_never_holds() -> None:
    ours = Figure("a", None, "µs", bar=Bar(at_most=1), note="no compiler")
    theirs = Figure("b", 1.0, "µs", "peer", None, Bar("ratio", at_most=1), "can't be installed")
    free = Figure("c", 1.0, "µs")
    late = Figure("d", 2.0, "ms", bar=Bar(at_most=1))
    assert [ours.holds, theirs.holds, free.holds, late.holds] == [None, None, None, False]
    assert missed([ours, theirs, free, late]) == [ours, late]
    assert ours.record()["value"] is None and theirs.record()["ratio"] is None
    lines = table([ours, theirs, free, late]).splitlines()
    assert lines[1].endswith("value <= 1  ?") and lines[2].strip() == "no compiler"
    assert "can't be installed" in lines[4]
    assert lines[-1].endswith("NO")


def test_values_that_are_no_numbers_do_not_reach_the_file() -> None:
    assert Figure("a", math.inf, "µs", "p", math.nan).record()["value"] is None
