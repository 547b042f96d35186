"""Answers of known servers, a thousand times: what the paired intervals, margins and verdicts come to.

Every bound is one that a method in use fails: the cluster-robust t interval, Tango's interval without the documents,
p-values without the adjustment over tasks. Those are computed beside it and must be seen to fail.
"""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from bench.analysis.accuracy_verdict import Margin, compare_task, judged, near_chance
from bench.analysis.paired import Paired, paired, quantile
from bench.analysis.pairing import Scores
from bench.analysis.result import AccuracyComparison
from bench.analysis.sample_size import questions_needed, smallest_loss

DRAWS = 1000
BOTH, LOST, GAINED, NEITHER = range(4)

Array = NDArray[np.float64]


def answers(rng: np.random.Generator, documents: int, questions: int, shares: Sequence[float], icc: float) -> Array:
    """Outcome of each question (documents × questions) of one draw: each document has shares of its own.

    Dirichlet shares with concentration (1 − icc) ÷ icc: any score of the outcomes has that intraclass correlation.
    """
    p = np.array(shares)
    if icc == 0:
        return rng.choice(4, size=(documents, questions), p=p)
    own = np.zeros((documents, 4))
    own[:, p > 0] = rng.standard_gamma(p[p > 0] * (1 - icc) / icc, size=(documents, int((p > 0).sum())))
    total = own.sum(1, keepdims=True)
    own = np.where(total > 0, own / np.where(total > 0, total, 1), p)
    return (rng.random((documents, questions, 1)) > own.cumsum(1)[:, None, :-1]).sum(-1)


def draws(
    documents: int,
    questions: int,
    *,
    discordance: float,
    loss: float,
    icc: float,
    baseline: float = 0.8,
    runs: int = DRAWS,
) -> Iterator[tuple[Array, Array, Array]]:
    """Scores of candidate and baseline, and documents; `loss` is the true one."""
    lost, gained = (discordance + loss) / 2, (discordance - loss) / 2
    shares = (baseline - lost, lost, gained, 1 - baseline - gained)
    rng = np.random.default_rng([documents, questions, round(1000 * discordance), round(1000 * loss)])
    for _ in range(runs):
        found = answers(rng, documents, questions, shares, icc).ravel()
        mine, theirs = np.isin(found, (BOTH, GAINED)), np.isin(found, (BOTH, LOST))
        yield mine.astype(float), theirs.astype(float), np.repeat(np.arange(documents), questions)


def covered(pairs: Paired, loss: float) -> tuple[bool, bool]:
    """Whether the 95 % interval holds the true loss, and whether a margin of that size would be passed."""
    statistic = pairs.difference_statistic(-loss)
    return abs(statistic) <= pairs.quantile, statistic > pairs.quantile


def cluster_t(mine: Array, theirs: Array, documents: Array, loss: float) -> bool:
    """Whether the usual interval, mean ± t × cluster-robust standard error, holds the true loss."""
    sums = np.bincount(documents, mine - theirs) - np.bincount(documents) * (mine - theirs).mean()
    count = len(sums)
    error = np.sqrt((sums**2).sum() * count / (count - 1)) / len(mine)
    return bool(abs((mine - theirs).mean() + loss) <= stats.t.ppf(0.975, count - 1) * error + 1e-12)


CASES = [(0.02, 0.0), (0.3, 0.0), (0.1, 0.05), (0.1, 0.1), (0.3, 0.1)]
"""(discordance, loss); a loss changes at least as many answers."""


@pytest.mark.parametrize("documents", [6, 10, 30])
def test_intervals_cover_where_questions_share_documents(documents: int) -> None:
    usual, unclustered = [], []
    for icc in (0.0, 0.2, 0.5):
        for discordance, loss in CASES:
            inside, passed, t_inside, plain_inside = 0, 0, 0, 0
            for mine, theirs, groups in draws(documents, 8, discordance=discordance, loss=loss, icc=icc):
                pairs = paired(mine, theirs, groups)
                found = covered(pairs, loss)
                inside, passed = inside + found[0], passed + found[1]
                if loss == 0.1:
                    plain_inside += covered(replace(pairs, documents=pairs.n, design_effect=1.0), loss)[0]
                    t_inside += cluster_t(mine, theirs, groups, loss)
            case = (documents, icc, discordance, loss)
            # Three standard errors of the simulation below 93 %; above 2.5 %.
            assert inside >= 0.91 * DRAWS, (case, inside)
            one_sided = 0.04 if icc <= 0.2 else 0.065
            assert passed <= one_sided * DRAWS, (case, passed)
            if loss == 0.1 and icc == 0.5:
                usual.append(t_inside)
                unclustered.append(plain_inside)
    assert max(unclustered) < 0.75 * DRAWS, "Tango's interval that ignores documents is seen to fail"
    assert min(usual) < 0.91 * DRAWS, "and so is the cluster-robust t interval"


@pytest.mark.parametrize("questions", [60, 200])
def test_intervals_cover_where_questions_share_nothing(questions: int) -> None:
    for discordance, loss in CASES:
        found = [covered(paired(*one), loss) for one in draws(questions, 1, discordance=discordance, loss=loss, icc=0)]
        inside, passed = np.mean(found, axis=0)
        assert inside >= 0.93, (questions, discordance, loss, inside)
        assert passed <= 0.04, (questions, discordance, loss, passed)


@pytest.mark.parametrize(("documents", "questions", "icc"), [(150, 1, 0.0), (10, 8, 0.2), (30, 8, 0.2)])
def test_a_relative_margin_holds_at_its_edge(documents: int, questions: int, icc: float) -> None:
    for baseline in (0.5, 0.9):
        for relative in (0.1, 0.2):
            loss = relative * baseline
            passed = inside = 0
            for one in draws(documents, questions, discordance=loss + 0.05, loss=loss, icc=icc, baseline=baseline):
                statistic = (pairs := paired(*one)).ratio_statistic(1 - relative)
                passed += statistic > pairs.quantile
                inside += abs(statistic) <= pairs.quantile
            assert passed <= 0.04 * DRAWS, (documents, baseline, relative, passed)
            assert inside >= 0.92 * DRAWS, (documents, baseline, relative, inside)


@pytest.mark.parametrize(("documents", "questions"), [(6, 8), (30, 8), (100, 1)])
def test_graded_scores_are_covered(documents: int, questions: int) -> None:
    """Four parts a question, of which a document loses its own share and never gains one."""
    rng = np.random.default_rng(documents)
    groups = np.repeat(np.arange(documents), questions)
    loss, inside, t_inside = 0.05, 0, 0
    for _ in range(DRAWS):
        share = rng.beta(loss * 4, (1 - loss) * 4, documents) if questions > 1 else np.full(documents, loss)
        mine = 1 - rng.binomial(4, share[groups]) / 4
        theirs = np.ones(len(groups))
        inside += covered(paired(mine, theirs, groups), loss)[0]
        t_inside += cluster_t(mine, theirs, groups, loss)
    assert inside >= 0.92 * DRAWS, inside
    if questions > 1:
        assert t_inside < 0.91 * DRAWS, "the cluster-robust t interval is seen to fail"


@pytest.mark.parametrize(("questions_per_document", "icc"), [(1, 0.0), (8, 0.2), (8, 0.0), (4, 0.5)])
def test_the_sample_size_has_the_power_that_it_says(questions_per_document: int, icc: float) -> None:
    for discordance, margin in ((0.1, 0.1), (0.3, 0.1), (0.1, 0.05)):
        needed = questions_needed(margin, discordance, questions_per_document=questions_per_document, icc=icc)
        documents = needed // questions_per_document
        assert needed == documents * questions_per_document
        found = draws(documents, questions_per_document, discordance=discordance, loss=0.0, icc=icc, runs=200)
        passed = np.mean([paired(*one).loss_p(margin, relative=False) < 0.025 for one in found])
        assert 0.7 <= passed <= 0.96, (discordance, margin, needed, passed)


@pytest.mark.parametrize(("questions_per_document", "icc"), [(1, 0.0), (8, 0.2)])
def test_the_smallest_loss_is_found_as_often_as_said(questions_per_document: int, icc: float) -> None:
    for documents, discordance in ((40, 0.1), (100, 0.1), (100, 0.3)):
        questions = documents * questions_per_document
        loss = smallest_loss(questions, discordance, questions_per_document=questions_per_document, icc=icc)
        differing = max(loss, discordance)
        found = draws(
            documents, questions_per_document, discordance=differing, loss=loss, icc=icc, baseline=0.85, runs=200
        )
        worse = np.mean([paired(*one).difference_p < 0.05 for one in found])
        assert 0.7 <= worse <= 0.99, (documents, discordance, loss, worse)


@pytest.fixture
def quick_collection() -> Iterator[None]:
    """Statsmodels' `multipletests` collects garbage at every call: what is there already needn't be looked at."""
    gc.freeze()
    yield
    gc.unfreeze()


def scores(values: Array) -> Scores:
    return {(i % 3, f"q{i}"): (float(value), f"q{i}") for i, value in enumerate(values)}


@pytest.mark.usefixtures("quick_collection")
def test_four_equal_tasks_raise_no_more_false_alarms_than_one() -> None:
    rng = np.random.default_rng(3)
    alarms = unadjusted = 0
    runs, n = 200, 60
    for _ in range(runs):
        family = []
        for task in range(4):
            found = answers(rng, n, 1, (0.65, 0.15, 0.15, 0.05), 0).ravel()
            mine, theirs = np.isin(found, (BOTH, GAINED)), np.isin(found, (BOTH, LOST))
            row = AccuracyComparison(f"t{task}", "c", "b", "engine", 10.0, "", "")
            family.append(compare_task(row, scores(mine), scores(theirs), Margin(10.0), 0.0))
        rows = judged(family)
        alarms += any(row.verdict in ("worse", "better") for row in rows)
        unadjusted += any(row.difference_p is not None and row.difference_p < 0.05 for row in rows)
    assert alarms <= 0.05 * runs + 3 * np.sqrt(0.05 * 0.95 * runs)
    assert unadjusted > 0.12 * runs, "without the adjustment it would be nearly one run in five"


@pytest.mark.usefixtures("quick_collection")
def test_a_loss_of_the_margin_in_all_tasks_passes_none_of_them() -> None:
    rng = np.random.default_rng(8)
    passed = unadjusted = 0
    runs, n = 200, 150
    for _ in range(runs):
        family = []
        for task in range(4):
            found = answers(rng, n, 1, (0.7, 0.15, 0.05, 0.1), 0).ravel()
            mine, theirs = np.isin(found, (BOTH, GAINED)), np.isin(found, (BOTH, LOST))
            row = AccuracyComparison(f"t{task}", "c", "b", "engine", 10.0, "", "")
            family.append(compare_task(row, scores(mine), scores(theirs), Margin(10.0), 0.0))
        rows = judged(family)
        passed += any(row.non_inferior for row in rows)
        unadjusted += any(row.non_inferiority_p is not None and row.non_inferiority_p < 0.025 for row in rows)
    assert passed <= 0.025 * runs + 3 * np.sqrt(0.025 * 0.975 * runs)
    assert unadjusted > 0.045 * runs, "four tries at 2.5 %"


@pytest.mark.parametrize(("documents", "questions"), [(100, 1), (6, 8), (20, 8)])
def test_a_guessing_baseline_is_seldom_taken_for_one_that_knows(documents: int, questions: int) -> None:
    rng = np.random.default_rng(5)
    groups = np.repeat(np.arange(documents), questions)
    informative = 0
    for _ in range(DRAWS):
        share = rng.beta(0.25 * 4, 0.75 * 4, documents) if questions > 1 else np.full(documents, 0.25)
        right = (rng.random(len(groups)) < share[groups]).astype(float)
        informative += near_chance(right, groups, 0.25, Margin(1.0)) is None
    assert informative <= 0.045 * DRAWS, informative


def test_quantiles_are_those_of_the_tables() -> None:
    assert quantile(None) == pytest.approx(1.95996, abs=1e-5)
    assert quantile(6) == pytest.approx(2.57058, abs=1e-5)
