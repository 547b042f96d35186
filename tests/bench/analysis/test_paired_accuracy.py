"""Paired accuracy: intervals by hand, non-inferiority, and silence near chance."""

from pathlib import Path

import numpy as np
import pytest
from scipy import optimize

from bench.analysis.accuracy import Scores, compare_task, near_chance, paired_interval, tango
from bench.analysis.assemble import analyse
from bench.analysis.result import AccuracyComparison
from tests.bench.run_folder import build
from tests.bench.runs import BASE, FP8, five, spec


def answers(rights: list[int], per_document: int = 1, blocks: int = 3) -> Scores:
    return {(i % blocks, f"q{i}"): (float(right), f"d{i // per_document}") for i, right in enumerate(rights)}


def compare(candidate: Scores, baseline: Scores, margin_pp: float = 10, chance: float = 0.0):  # type: ignore[no-untyped-def]
    return compare_task(
        candidate, baseline, task="t", ids=("c", "b"), against="engine", margin_pp=margin_pp, chance=chance
    )


def test_tango_without_discordant_pairs_has_a_closed_form() -> None:
    z2, n = 1.959963984540054**2, 48
    assert tango(0, 0, n) == (pytest.approx(-z2 / (n + z2)), pytest.approx(z2 / (n + z2)))


def test_tango_bound_solves_the_score_equation_under_the_restricted_likelihood() -> None:
    gained, lost, n = 4, 9, 60
    for delta in tango(gained, lost, n):

        def loss(q: float, delta: float = delta) -> float:
            # q: probability that only the baseline is right; q + delta: that only the candidate is
            inside = (q, q + delta, 1 - 2 * q - delta)
            if min(inside) <= 0:
                return 1e9
            return -(lost * np.log(inside[0]) + gained * np.log(inside[1]) + (n - gained - lost) * np.log(inside[2]))

        bounds = (max(1e-9, -delta + 1e-9), (1 - delta) / 2 - 1e-9)
        q = optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
        score = (gained - lost - n * delta) / np.sqrt(n * (2 * q + delta - delta**2))
        assert abs(score) == pytest.approx(1.96, abs=0.001)


def test_tango_is_symmetric_and_stays_within_one() -> None:
    low, high = tango(3, 7, 40)
    assert tango(7, 3, 40) == (pytest.approx(-high), pytest.approx(-low))
    assert tango(5, 0, 5)[1] == 1.0 and tango(0, 5, 5)[0] == -1.0


def test_the_wider_interval_is_taken() -> None:
    mine, theirs = np.ones(40), np.ones(40)
    mine[:10] = 0
    clustered = paired_interval(mine, theirs, np.arange(40) // 10)
    assert clustered.method.startswith("cluster t over 4"), "all losses lie in one document"
    assert paired_interval(theirs, theirs, np.arange(40) // 10).method.startswith("Tango")


def test_an_equal_candidate_with_enough_questions_is_equivalent() -> None:
    same = answers([1] * 50 + [0] * 10)
    found = compare(same, same)
    assert (found.verdict, found.non_inferior, found.lost, found.gained) == ("equivalent", True, 0, 0)


def test_too_few_questions_are_inconclusive() -> None:
    same = answers([1] * 14 + [0] * 2)
    found = compare(same, same)
    assert (found.verdict, found.non_inferior) == ("inconclusive", False)


def test_a_collapse_is_worse() -> None:
    found = compare(answers([0] * 60), answers([1] * 50 + [0] * 10))
    assert found.verdict == "worse" and found.lost == 50
    assert found.difference_pp == pytest.approx(-100 * 50 / 60)


def test_near_chance_says_nothing() -> None:
    weak = answers([1] * 16 + [0] * 44)
    assert compare(weak, weak, chance=0.25).verdict == "not informative"
    assert compare(answers([0] * 60), answers([0] * 60)).verdict == "not informative"
    assert near_chance(np.array([1.0] * 6 + [0.0] * 4), 0.45, 0.1) is not None, "6 of 10 is not above 45 %"
    assert near_chance(np.array([1.0] * 50 + [0.0] * 10), 0.25, 0.1) is None


def test_one_block_gives_no_verdict() -> None:
    found = compare(answers([1] * 60, blocks=1), answers([1] * 60, blocks=1))
    assert (found.verdict, found.reason) == ("inconclusive", "no verdict: one block")
    assert not found.non_inferior


def test_only_questions_that_both_answered_are_paired() -> None:
    mine, theirs = answers([1] * 60), answers([1] * 60)
    for key in list(mine)[:20]:
        del mine[key]
    assert compare(mine, theirs).n == 40
    assert compare({}, theirs).verdict == "not comparable"


def fp8_against_its_baseline(tmp_path: Path, **other_items: str) -> AccuracyComparison:
    """A run whose fp8 launches asked, in block 1, what `other_items` says."""
    the_plan, launches = five()
    launches[1, FP8, 1] = spec(1, **other_items)
    found = analyse(build(tmp_path, the_plan, launches)).accuracy
    return next(one for one in found if (one.deployment, one.baseline, one.against) == (FP8, BASE, "engine"))


def test_other_questions_under_the_same_names_are_never_paired(tmp_path: Path) -> None:
    sound = fp8_against_its_baseline(tmp_path / "same")
    assert sound.n == 48 and sound.verdict != "not comparable"
    spoiled = fp8_against_its_baseline(tmp_path / "other", items_sha256="e" * 64)
    assert (spoiled.verdict, spoiled.n, spoiled.difference_pp) == ("not comparable", 0, None)
    assert spoiled.reason == "the questions differ from the baseline's in block 1 (items_sha256)"


def test_questions_asked_in_another_way_say_so(tmp_path: Path) -> None:
    other = fp8_against_its_baseline(tmp_path, items_sha256="e" * 64, mode="loglikelihood")
    assert other.verdict == "not comparable"
    assert other.reason.endswith("in block 1 (asked by loglikelihood, the baseline by generation)")


def test_chance_is_that_of_all_blocks(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block, chance in enumerate((0.25, 0.5, 0.75)):
        launches[block, BASE, 1] = spec(block, chance=chance)
    assert analyse(build(tmp_path, the_plan, launches)).deployment(BASE).accuracy["retrieval"].chance == 0.5
