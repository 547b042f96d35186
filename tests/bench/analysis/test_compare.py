"""The comparison holds what it claims, on data whose truth is known."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bench.analysis.compare import (
    across_engines,
    dunnett,
    judge,
    smallest_effect,
    spread_between_replicas,
    within_engine,
)


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


@pytest.mark.parametrize("blocks", [3, 5])
def test_intervals_hold_the_truth_together_as_often_as_they_say(blocks: int) -> None:
    rng, held, draws = np.random.default_rng(blocks), 0, 400
    effects = {"x": 0.1, "y": -0.3}
    for _ in range(draws):
        found = within_engine(launches(rng, blocks, effects, 0.04), "a-base")
        held += all(found[name].low <= truth <= found[name].high for name, truth in effects.items())
    assert 0.92 <= held / draws <= 0.98


def test_equal_deployments_raise_few_false_alarms() -> None:
    rng, alarms, draws = np.random.default_rng(7), 0, 400
    for _ in range(draws):
        found = within_engine(launches(rng, 3, {"x": 0.0, "y": 0.0}, 0.1), "a-base")
        alarms += any(judge(e, "output_tokens_per_s", 0.05)[0] in ("better", "worse") for e in found.values())
    assert alarms / draws < 0.08


def test_the_printed_smallest_effect_is_found_with_the_stated_power() -> None:
    sd, blocks = 0.05, 3
    effect = smallest_effect(blocks, [2, 1], sd)
    rng, found, draws = np.random.default_rng(3), 0, 400
    for _ in range(draws):
        estimate = within_engine(launches(rng, blocks, {"x": math.log1p(effect)}, sd), "a-base")["x"]
        found += estimate.low > 0
    assert found / draws >= 0.75


def test_a_plan_of_one_block_sees_nothing() -> None:
    assert smallest_effect(1, [2, 1], 0.05) == math.inf
    assert smallest_effect(3, [2], 0.05) == math.inf
    assert smallest_effect(5, [2, 1], 0.05) < smallest_effect(3, [2, 1], 0.05) < smallest_effect(3, [2, 1], 0.1)


def test_estimate_by_hand() -> None:
    values = pd.DataFrame(
        [("b", 0, 100), ("b", 0, 100), ("x", 0, 150), ("b", 1, 200), ("b", 1, 200), ("x", 1, 300)],
        columns=["deployment", "block", "value"],
    )
    found = within_engine(values, "b")["x"]
    assert math.exp(found.log_ratio) == pytest.approx(1.5)
    assert found.degrees_of_freedom == 6 - 3
    assert (found.launches, found.baseline_launches) == (2, 4)


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


def test_noise_floor_from_a_against_a_prime() -> None:
    values = pd.DataFrame([(0, 1, 100.0), (0, 2, 110.0)], columns=["block", "replica", "value"])
    assert spread_between_replicas(values) == (pytest.approx(math.log(1.1) / math.sqrt(2)), 1)
    assert spread_between_replicas(values[values["replica"] == 1]) is None
