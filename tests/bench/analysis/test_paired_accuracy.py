"""Paired accuracy: intervals by hand, margins of both kinds, and verdicts adjusted over tasks."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import optimize, stats

from bench.analysis.accuracy_verdict import Margin, compare_task, judged, near_chance
from bench.analysis.paired import Paired, intraclass_correlation, mcnemar_p, paired, score_low
from bench.analysis.pairing import Scores
from bench.analysis.result import AccuracyComparison


def answers(rights: Sequence[float], per_document: int = 1, blocks: int = 3) -> Scores:
    return {(i % blocks, f"q{i}"): (float(right), f"d{i // per_document}") for i, right in enumerate(rights)}


def tasks(*pairs: tuple[Scores, Scores], margin: Margin | None = None, chance: float = 0.0) -> list[AccuracyComparison]:
    """Several tasks of one deployment; each pair is the candidate's and the baseline's answers."""
    stated = margin or Margin()
    relative = stated.relative_pct
    rows = [
        AccuracyComparison(f"t{i}", "c", "b", "engine", math.nan, "", "", margin_relative_pct=relative)
        for i in range(len(pairs))
    ]
    return judged([compare_task(row, *pair, stated, chance) for row, pair in zip(rows, pairs, strict=True)])


def compare(
    candidate: Scores, baseline: Scores, margin: Margin | None = None, chance: float = 0.0
) -> AccuracyComparison:
    return tasks((candidate, baseline), margin=margin, chance=chance)[0]


def independent(n: int, both: int, lost: int, gained: int) -> Paired:
    return Paired(n, both, lost, gained, documents=n)


def test_tango_without_discordant_pairs_has_a_closed_form() -> None:
    z2, n = 1.959963984540054**2, 48
    found = independent(n, 40, 0, 0).difference
    assert (found.low, found.high) == (pytest.approx(-z2 / (n + z2)), pytest.approx(z2 / (n + z2)))


def restricted(n: int, both: int, lost: int, gained: int, ratio: float, delta: float) -> tuple[float, float]:
    """Maximum-likelihood shares (both right, only the baseline) where candidate = ratio × baseline + delta, by search.

    Softmax keeps all four shares positive; the constraint is met by a penalty that grows.
    """
    counts = np.array([both, lost, gained, n - both - lost - gained])

    def shares(at: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(at) / np.exp(at).sum())

    def violated(at: np.ndarray) -> float:
        p = shares(at)
        return float(p[0] + p[2] - ratio * (p[0] + p[1]) - delta)

    found = optimize.minimize(
        lambda at: -(counts * np.log(shares(at))).sum(),
        np.log(counts + 1.0),
        constraints={"type": "eq", "fun": violated},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    p = shares(found.x)
    return float(p[0]), float(p[1])


@pytest.mark.parametrize("counts", [(60, 40, 9, 4), (50, 30, 6, 3), (40, 20, 2, 5)])
def test_bounds_of_difference_and_ratio_solve_their_score_equations(counts: tuple[int, int, int, int]) -> None:
    n, both, lost, gained = counts
    pairs = independent(*counts)
    for delta in (pairs.difference.low, pairs.difference.high):
        _, only_baseline = restricted(*counts, ratio=1.0, delta=delta)
        variance = n * (2 * only_baseline + delta - delta**2)
        assert abs(gained - lost - n * delta) / math.sqrt(variance) == pytest.approx(1.96, abs=0.002)
    assert pairs.ratio is not None
    for ratio in (pairs.ratio.low, pairs.ratio.high):
        right, only_baseline = restricted(*counts, ratio=ratio, delta=0.0)
        only_candidate = (ratio - 1) * right + ratio * only_baseline
        variance = n * (right * (1 - ratio) ** 2 + only_candidate + ratio**2 * only_baseline)
        statistic = (both + gained - ratio * (both + lost)) / math.sqrt(variance)
        assert abs(statistic) == pytest.approx(1.96, abs=0.002)


def test_intervals_turn_with_the_sides_and_stay_within_their_bounds() -> None:
    found, turned = independent(40, 20, 7, 3).difference, independent(40, 20, 3, 7).difference
    assert (turned.low, turned.high) == (pytest.approx(-found.high), pytest.approx(-found.low))
    assert independent(5, 0, 0, 5).difference.high == 1.0 and independent(5, 0, 5, 0).difference.low == -1.0
    assert independent(5, 0, 5, 0).ratio.low == 0.0, "nothing is left"  # type: ignore[union-attr]
    assert independent(5, 0, 0, 5).ratio is None, "the baseline has nothing that could be kept"


def test_p_values_agree_with_the_intervals() -> None:
    documents = np.arange(120) // 4
    rng = np.random.default_rng(4)
    for _ in range(50):
        mine, theirs = (rng.random((2, 120)) < 0.8).astype(float)
        pairs = paired(mine, theirs, documents)
        for margin in (0.02, 0.1, 0.2):
            assert (pairs.loss_p(margin, relative=False) < 0.025) == (pairs.difference.low > -margin)
            assert pairs.ratio is not None
            assert (pairs.loss_p(margin, relative=True) < 0.025) == (pairs.ratio.low > 1 - margin)
        assert (pairs.difference_p < 0.05) == (not pairs.difference.low <= 0 <= pairs.difference.high)


def test_questions_that_share_a_document_count_less() -> None:
    theirs = np.ones(80)
    mine = np.ones(80)
    mine[:8] = 0
    alone = paired(mine, theirs, np.arange(80))
    together = paired(mine, theirs, np.arange(80) // 8)
    assert not alone.clustered and alone.design_effect == 1
    assert together.documents == 10 and together.design_effect > 4, "all losses lie in one document"
    assert together.difference.low < alone.difference.low and together.difference.high > alone.difference.high


def test_no_difference_in_a_few_documents_still_bounds_no_small_loss() -> None:
    same = np.ones(48)
    spread = paired(same, same, np.arange(48) // 8).difference
    assert spread.low < -0.15, "a cluster t interval would have no width at all"
    assert paired(same, same, np.zeros(48)).difference.low == -math.inf, "one document bounds nothing"


def test_intraclass_correlation_is_that_of_the_analysis_of_variance() -> None:
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(400), 5)
    values = np.sqrt(0.3) * rng.standard_normal(400)[groups] + np.sqrt(0.7) * rng.standard_normal(2000)
    assert intraclass_correlation(values, groups) == pytest.approx(0.3, abs=0.05)
    assert intraclass_correlation(np.ones(2000), groups) == 0
    assert intraclass_correlation(values, np.arange(2000)) == 0


def test_mcnemar_is_exact() -> None:
    assert mcnemar_p(9, 4) == pytest.approx(stats.binomtest(9, 13).pvalue)
    assert mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(5, 5) == 1.0


def test_graded_scores_are_bounded_too() -> None:
    rng = np.random.default_rng(2)
    theirs = rng.integers(2, 5, 120) / 4
    mine = np.clip(theirs + rng.choice([0, 0, 0, 0.25, -0.25], 120), 0, 1)
    found = compare(answers(list(mine), per_document=4), answers(list(theirs), per_document=4))
    assert found.difference_pp == pytest.approx(100 * float((mine - theirs).mean()))
    assert "graded" in found.method
    assert found.lost == int((mine < theirs).sum()), "a part lost is a flip"
    whole = compare(answers([1, 0] * 60), answers([1, 1] * 60))
    half = compare(answers([1, 0.5] * 60), answers([1, 1] * 60))
    assert half.high_pp - half.low_pp < whole.high_pp - whole.low_pp  # type: ignore[operator]
    same = compare(answers([0.5] * 30), answers([0.5] * 30))
    assert same.low_pp is not None and same.low_pp < -5, "thirty equal halves exclude no loss of 5 points"


def test_an_equal_candidate_with_enough_questions_is_equivalent() -> None:
    same = answers([1] * 50 + [0] * 10)
    found = compare(same, same)
    assert (found.verdict, found.non_inferior, found.lost, found.gained) == ("equivalent", True, 0, 0)
    assert found.reason == "loss and gain are below 10 pp"


def test_a_loss_that_is_seen_and_smaller_than_the_margin_is_equivalent_and_the_reason_says_both() -> None:
    found = compare(answers([0] * 12 + [1] * 588), answers([1] * 600), Margin(5.0))
    assert found.verdict == "equivalent" and found.high_pp is not None and found.high_pp < 0
    assert found.reason == "loss and gain are below 5 pp; a loss is seen, and smaller than that"


def test_too_few_questions_are_inconclusive() -> None:
    same = answers([1] * 14 + [0] * 2)
    found = compare(same, same)
    assert (found.verdict, found.non_inferior) == ("inconclusive", False)
    assert found.smallest_loss_pp is not None and found.smallest_loss_pp > 30


def test_a_collapse_is_worse() -> None:
    found = compare(answers([0] * 60), answers([1] * 50 + [0] * 10))
    assert found.verdict == "worse" and found.lost == 50
    assert found.difference_pp == pytest.approx(-100 * 50 / 60)
    assert found.relative_pct == -100
    assert compare(answers([1] * 60), answers([1] * 20 + [0] * 40)).verdict == "better"


def test_a_relative_margin_is_a_share_of_the_baselines_score() -> None:
    """A tenth of 40 % is 4 points: a margin of 10 pp forgives what one of 10 % doesn't."""
    baseline = answers([1] * 240 + [0] * 360)
    candidate = answers([1] * 215 + [0] * 25 + [1] * 5 + [0] * 355)
    absolute = compare(candidate, baseline, Margin(10))
    relative = compare(candidate, baseline, Margin(None, 10))
    assert absolute.verdict == "equivalent" and absolute.margin == "10 pp"
    assert not relative.non_inferior and relative.margin_pp == pytest.approx(4)
    assert relative.margin == "10 % of the baseline's score (4.0 pp)" and "Tang" in relative.method
    assert relative.relative_low_pct is not None and relative.relative_low_pct < -10
    near = compare(answers([1] * 590 + [0] * 10), answers([1] * 595 + [0] * 5), Margin(None, 10))
    assert near.verdict == "equivalent" and near.reason.startswith("loss and gain are below 10 % of the baseline's")


def test_a_relative_margin_counts_the_doubt_about_the_baselines_own_score() -> None:
    """Equal answers: the points that a tenth is were estimated too, on few right answers badly."""
    few = compare(answers([1] * 30 + [0] * 570), answers([1] * 30 + [0] * 570), Margin(None, 10))
    assert few.low_pp is not None and few.low_pp > -few.margin_pp * 3
    assert few.non_inferiority_p is not None and few.non_inferiority_p > 0.025
    many = compare(answers([1] * 570 + [0] * 30), answers([1] * 570 + [0] * 30), Margin(None, 10))
    assert many.non_inferior


def test_near_chance_says_nothing() -> None:
    weak = answers([1] * 16 + [0] * 44)
    assert compare(weak, weak, chance=0.25).verdict == "not informative"
    assert compare(answers([0] * 60), answers([0] * 60)).verdict == "not informative"
    alone = np.arange(60)
    assert near_chance(np.array([1.0] * 6 + [0.0] * 4), alone[:10], 0.45, Margin()) is not None
    right = np.array([1.0] * 40 + [0.0] * 20)
    assert near_chance(right, alone, 0.5, Margin()) is None
    assert near_chance(right, alone // 10, 0.5, Margin()) is not None, "six documents, four of them known"


def test_a_scores_bound_is_clopper_pearsons_and_wider_with_documents() -> None:
    right = np.array([1.0] * 8 + [0.0] * 2)
    assert score_low(right, np.arange(10)) == pytest.approx(stats.beta.ppf(0.025, 8, 3))
    assert score_low(np.tile(right, 6), np.repeat(np.arange(6), 10)) < score_low(np.tile(right, 6), np.arange(60))


def test_one_block_gives_no_verdict() -> None:
    found = compare(answers([1] * 60, blocks=1), answers([1] * 60, blocks=1))
    assert (found.verdict, found.reason) == ("inconclusive", "no verdict: one block")
    assert not found.non_inferior


def test_only_questions_that_both_answered_are_paired() -> None:
    mine, theirs = answers([1] * 60), answers([1] * 60)
    for key in list(mine)[:20]:
        del mine[key]
    found = compare(mine, theirs)
    assert found.n == 40 and found.reason.endswith("20 questions that only one side answered are left out")
    assert compare({}, theirs).verdict == "not comparable"
    one = answers([1], blocks=1)
    assert compare(one, one).reason == "1 questions were answered by both"


def test_claims_are_adjusted_over_the_tasks() -> None:
    same = answers([1] * 50 + [0] * 10)
    lost = answers([0] * 6 + [1] * 44 + [0] * 10)
    alone = compare(lost, same)
    assert alone.verdict == "worse"
    several = tasks((lost, same), (same, same), (same, same), (same, same))
    assert several[0].verdict == "inconclusive" and several[0].tasks == 4
    assert several[0].reason.startswith("the interval excludes no difference, but not after Holm's adjustment over 4")
    assert several[0].difference_p_holm == pytest.approx(4 * alone.difference_p)  # type: ignore[operator]
    assert (several[0].low_pp, several[0].high_pp) == (alone.low_pp, alone.high_pp)


def test_non_inferiority_is_adjusted_over_the_tasks() -> None:
    barely = answers([1] * 36)
    alone = compare(barely, barely)
    assert alone.verdict == "equivalent"
    short = answers([1] * 20)
    found = tasks((barely, barely), (short, short))[0]
    assert (found.verdict, found.non_inferior) == ("inconclusive", False)
    assert found.reason.startswith("a loss of 10 pp is excluded by this task alone, but not after Holm's")


def test_tasks_that_say_nothing_don_t_weaken_the_others() -> None:
    barely, guessing = answers([1] * 36), answers([0] * 36)
    found = tasks((barely, barely), (guessing, guessing), ({}, {}))
    assert [one.verdict for one in found] == ["equivalent", "not informative", "not comparable"]
    assert found[0].tasks == 1
