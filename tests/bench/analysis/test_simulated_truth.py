"""What a verdict claims holds on data whose truth is known: 1,000 runs each, with real noise and with normal noise."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from bench.analysis.compare import across_engines, judge, within_engine
from bench.analysis.power import ALPHA_UNTIL, smallest_effect
from tests.bench.analysis.real_noise import Launches, real_noise

DRAWS = 1000
FALSE_ALARMS = 62
"""Most false alarms in 1,000 at a rate of 5 %, with 95 % confidence; the same for false equivalence."""
STANDARD_ERROR = math.sqrt(0.8 * 0.2 / DRAWS)
"""Of a power of 80 %, seen in 1,000 runs."""
NOISES = pytest.mark.parametrize("normal", [False, True], ids=["real", "normal"])
BLOCKS = pytest.mark.parametrize("blocks", [3, 5])
METRIC = "output_tokens_per_s"


def test_the_real_noise_is_that_of_leads_between_blocks_not_of_launches_within_one() -> None:
    noise = real_noise()
    assert np.std(noise.leads) > 5 * np.std(noise.launches) > 0


@NOISES
@BLOCKS
def test_equal_deployments_raise_few_false_alarms_and_intervals_hold_the_truth(blocks: int, normal: bool) -> None:
    runs = Launches(np.random.default_rng(blocks), blocks, {"x": 0.0, "y": 0.0, "z": 0.0}, normal=normal)
    seen: Counter[str] = Counter()
    for _ in range(DRAWS):
        values = runs.draw()
        together = within_engine(values, "base").values()
        seen["alarm"] += any(judge(e, METRIC, 1e-6)[0] in ("better", "worse") for e in together)
        seen["together"] += all(e.low <= 0 <= e.high for e in together)
        seen["alone"] += sum(e.low <= 0 <= e.high for e in within_engine(values, "base", adjust=False).values())
    assert seen["alarm"] <= FALSE_ALARMS
    assert 0.93 <= seen["together"] / DRAWS <= 0.97
    assert 0.93 <= seen["alone"] / (3 * DRAWS) <= 0.97


@NOISES
@BLOCKS
def test_the_planned_smallest_effect_is_found_and_a_difference_of_the_margin_is_not_called_none(
    blocks: int, normal: bool
) -> None:
    effect = smallest_effect(blocks, 4, real_noise().sd)
    margin = effect  # so wide that `equivalent` is within reach
    truths = {"x": math.log1p(effect), "y": math.log1p(margin), "z": -math.log1p(margin)}
    runs = Launches(np.random.default_rng(10 + blocks), blocks, truths, normal=normal)
    seen: Counter[str] = Counter()
    for _ in range(DRAWS):
        found = within_engine(runs.draw(), "base")
        seen["found"] += judge(found["x"], METRIC, 1e-6)[0] == "better"
        seen["above"] += judge(found["y"], METRIC, margin)[0] == "equivalent"
        seen["below"] += judge(found["z"], METRIC, margin)[0] == "equivalent"
    assert seen["found"] / DRAWS >= 0.8 - STANDARD_ERROR
    assert max(seen["above"], seen["below"]) <= FALSE_ALARMS


@NOISES
@BLOCKS
def test_across_engines_the_same_holds(blocks: int, normal: bool) -> None:
    runs = Launches(np.random.default_rng(20 + blocks), blocks, {"x": 0.0, "y": 0.0, "z": 0.0}, normal=normal)
    seen: Counter[str] = Counter()
    for _ in range(DRAWS):
        values = runs.draw()
        found = [across_engines(values, name, "base", comparisons=3) for name in "xyz"]
        seen["alarm"] += any(judge(e, METRIC, 1e-6)[0] in ("better", "worse") for e in found if e)
        alone = across_engines(values, "x", "base")
        assert alone is not None
        seen["alone"] += alone.low <= 0 <= alone.high
    assert seen["alarm"] <= FALSE_ALARMS
    assert 0.93 <= seen["alone"] / DRAWS <= 0.97


@NOISES
@pytest.mark.parametrize("asked_sd", [0.9, 1.3])
def test_blocks_added_until_an_interval_is_narrow_leave_it_true(asked_sd: float, normal: bool) -> None:
    """One compared deployment, and widths at which the smallness of a residual decides most often: the worst case."""
    asked = asked_sd * real_noise().sd
    runs = Launches(np.random.default_rng(30), 12, {"x": 0.0}, normal=normal)
    missed, blocks_used = 0, []
    for _ in range(DRAWS):
        values = runs.draw()
        for blocks in range(3, 13):
            found = within_engine(values[values["block"] < blocks], "base", alpha=ALPHA_UNTIL)["x"]
            if (found.high - found.low) / 2 <= asked:
                break
        blocks_used.append(blocks)
        missed += not found.low <= 0 <= found.high
    assert 4 < np.mean(blocks_used) < 12, "the width decided"
    assert missed <= FALSE_ALARMS


def test_a_percentile_bootstrap_over_requests_does_not_hold_what_it_claims() -> None:
    """Why it isn't used: it knows how requests differ, and not how launches do; of 95 % it covers 82 to 91."""
    rng, held, held_by_launch, draws, resamples = np.random.default_rng(40), 0, 0, 300, 200
    for _ in range(draws):
        launches = rng.normal(0, 0.04, (2, 3, 1))
        requests = launches + rng.normal(0, 0.5, (2, 3, 100))
        pooled = requests.reshape(2, -1)
        picks = rng.integers(0, pooled.shape[1], (2, resamples, pooled.shape[1]))
        means = np.stack([pooled[i][picks[i]].mean(axis=1) for i in range(2)])
        low, high = np.percentile(means[1] - means[0], [2.5, 97.5])
        held += low <= 0 <= high
        rows = [(name, b, math.exp(requests[i, b].mean())) for i, name in enumerate("bx") for b in range(3)]
        found = within_engine(pd.DataFrame(rows, columns=["deployment", "block", "value"]), "b")["x"]
        held_by_launch += found.low <= 0 <= found.high
    assert held / draws < 0.91
    assert held_by_launch / draws >= 0.93
