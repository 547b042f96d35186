"""The comparison computes what it says it does; that it holds what it claims: `test_simulated_truth.py`."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bench.analysis.compare import across_engines, judge, spread_between_replicas, within_engine
from bench.analysis.power import dunnett, smallest_effect


def launches(
    rng: np.random.Generator, blocks: int, effects: dict[str, float], sd: float, block_sd: float = 0.2
) -> pd.DataFrame:
    """One row a launch; the baseline twice a block; blocks differ a lot, launches by `sd`."""
    rows = []
    for block in range(blocks):
        shift = rng.normal(0, block_sd)
        for name, effect in {"a-base": 0.0, **effects}.items():
            for replica in (1, 2) if name == "a-base" else (1,):
                rows.append((name, block, replica, math.exp(4 + shift + effect + rng.normal(0, sd))))
    return pd.DataFrame(rows, columns=["deployment", "block", "replica", "value"])


def test_a_plan_of_one_block_sees_nothing() -> None:
    assert smallest_effect(1, 2, 0.05) == math.inf
    assert smallest_effect(3, 1, 0.05) == math.inf
    assert smallest_effect(5, 2, 0.05) < smallest_effect(3, 2, 0.05) < smallest_effect(3, 2, 0.1)


def test_a_plan_of_several_loads_sees_less_than_one_of_one_load() -> None:
    assert smallest_effect(3, 4, 0.05, families=2) > smallest_effect(3, 4, 0.05)


def test_a_plan_sees_what_a_comparison_sees_at_the_same_residual() -> None:
    for compared in (1, 3):
        effects = dict.fromkeys("xyz"[:compared], 0.1)
        found = within_engine(launches(np.random.default_rng(2), 4, effects, 0.05), "a-base", families=2)
        planned = smallest_effect(4, 1 + compared, found["x"].residual_sd, families=2)
        assert found["x"].smallest_effect() == pytest.approx(planned, rel=1e-3)


def test_estimate_by_hand() -> None:
    values = pd.DataFrame(
        [("b", 0, 90), ("b", 0, 160), ("x", 0, 180), ("b", 1, 200), ("b", 1, 200), ("x", 1, 300)],
        columns=["deployment", "block", "value"],
    )
    found = within_engine(values, "b")["x"]
    # A and A′ of block 0 count as their geometric mean, 120: the ratios are 1.5 twice.
    assert math.exp(found.log_ratio) == pytest.approx(1.5)
    assert found.residual_sd == pytest.approx(0)
    assert found.degrees_of_freedom == (2 - 1) * (2 - 1)
    assert (found.launches, found.baseline_launches) == (2, 4)


def test_one_compared_deployment_is_the_paired_t_interval_over_blocks() -> None:
    values = launches(np.random.default_rng(5), 4, {"x": 0.2}, 0.03)
    within, paired = within_engine(values, "a-base")["x"], across_engines(values, "x", "a-base")
    assert paired is not None
    assert (within.low, within.high) == pytest.approx((paired.low, paired.high))


def test_alike_launches_of_one_block_do_not_narrow_an_interval() -> None:
    """A and A′ carry the same traffic: that they agree says nothing of how a lead differs from traffic to traffic."""
    rng, leads = np.random.default_rng(4), (0.1, 0.3, 0.5)
    rows = [("x", block, 100 * math.exp(lead)) for block, lead in enumerate(leads)]
    rows += [("b", block, 100 * math.exp(rng.normal(0, 1e-4))) for block in range(3) for _ in range(2)]
    found = within_engine(pd.DataFrame(rows, columns=["deployment", "block", "value"]), "b")["x"]
    expected = stats.ttest_1samp(leads, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-3)


def test_one_block_gives_no_estimate() -> None:
    rng = np.random.default_rng(0)
    assert within_engine(launches(rng, 1, {"x": 0.1}, 0.01), "a-base") == {}
    assert across_engines(launches(rng, 1, {"x": 0.1}, 0.01), "x", "a-base") is None


def test_across_engines_is_the_paired_t_interval() -> None:
    values = launches(np.random.default_rng(5), 4, {"x": 0.2}, 0.03)
    logs = values.assign(value=np.log(values["value"])).pivot_table(index="block", columns="deployment", values="value")
    expected = stats.ttest_rel(logs["x"], logs["a-base"]).confidence_interval(0.95)
    found = across_engines(values, "x", "a-base")
    assert found is not None
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_dunnett_lies_between_one_comparison_and_bonferroni() -> None:
    shape = np.full((3, 3), 0.5) + np.diag([0.5] * 3)
    alone, bonferroni = stats.t.ppf(0.975, 10), stats.t.ppf(1 - 0.025 / 3, 10)
    assert alone < dunnett(shape, 10, 0.05) < bonferroni
    assert dunnett(shape, 10, 0.05) == pytest.approx(2.76, abs=0.03), "Dunnett's table, 3 treatments, 10 df"
    assert dunnett(np.eye(1), 10, 0.05) == pytest.approx(alone)


@pytest.mark.parametrize(
    ("effect", "sd", "metric", "verdict"),
    [
        (0.40, 0.01, "output_tokens_per_s", "better"),
        (-0.40, 0.01, "output_tokens_per_s", "worse"),
        (-0.40, 0.01, "ttft_p90_ms", "better"),
        (0.0, 0.002, "output_tokens_per_s", "equivalent"),
        (0.0, 0.30, "output_tokens_per_s", "inconclusive"),
    ],
)
def test_verdicts(effect: float, sd: float, metric: str, verdict: str) -> None:
    estimate = within_engine(launches(np.random.default_rng(11), 4, {"x": effect}, sd), "a-base")["x"]
    word, reason = judge(estimate, metric, 0.05)
    assert word == verdict and reason
    assert (estimate.equivalence_p(0.05) < 0.025) == (verdict == "equivalent")


def test_a_visible_difference_smaller_than_the_margin_is_equivalent_and_the_reason_says_both() -> None:
    estimate = within_engine(launches(np.random.default_rng(11), 4, {"x": -0.02}, 0.001), "a-base")["x"]
    assert judge(estimate, "output_tokens_per_s", 0.05) == (
        "equivalent",
        "the whole 95 % interval lies within ± 5 %; a difference is seen, and smaller than that",
    )


def test_noise_floor_from_a_against_a_prime() -> None:
    values = pd.DataFrame([(0, 1, 100.0), (0, 2, 110.0)], columns=["block", "replica", "value"])
    assert spread_between_replicas(values) == (pytest.approx(math.log(1.1) / math.sqrt(2)), 1)
    assert spread_between_replicas(values[values["replica"] == 1]) is None
