"""Prediction intervals hold a second measurement as often as they say, on data whose truth is known."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest

from bench.launch_values import by_block
from bench.predict import flips_balanced, flips_within, predict, residual


def measured(
    rng: np.random.Generator, traffic: dict[int, float], sd: float, deployments: tuple[str, ...] = ("base", "x", "y")
) -> pd.DataFrame:
    """One row a launch: blocks differ by their traffic, deployments in a block by `sd`."""
    rows = [
        (name, block, 1, math.exp(4 + i + shift + rng.normal(0, sd)))
        for i, name in enumerate(deployments)
        for block, shift in traffic.items()
    ]
    return pd.DataFrame(rows, columns=["deployment", "block", "replica", "value"])


def of(values: pd.DataFrame, name: str) -> dict[int, float]:
    return by_block(values[values["deployment"] == name])


@pytest.mark.parametrize("sides", [1, 2])
def test_three_new_blocks_fall_into_the_interval_of_three_old_ones_in_95_of_100(sides: int) -> None:
    rng, draws, inside = np.random.default_rng(sides), 1000, 0
    for _ in range(draws):
        traffic = dict(enumerate(rng.normal(0, 0.3, 3)))
        old, new = measured(rng, traffic, 0.04), measured(rng, traffic, 0.04)
        before, after = of(old, "x"), of(new, "x")
        if sides == 2:
            before, after = ({b: of(v, "x")[b] / of(v, "base")[b] for b in traffic} for v in (old, new))
        spread = residual(old)
        assert spread is not None
        prediction = predict(before, after, spread, sides)
        assert prediction is not None
        inside += prediction.holds
    assert 0.93 <= inside / draws <= 0.97


def test_the_interval_by_hand() -> None:
    old = {0: 100.0, 1: 200.0, 2: 50.0}
    spread = residual(measured(np.random.default_rng(1), {0: 0.0, 1: 1.0, 2: 2.0}, 0.05))
    assert spread is not None
    assert spread.degrees_of_freedom == 9 - 3 - 2
    prediction = predict(old, {b: 1.1 * v for b, v in old.items()}, spread)
    assert prediction is not None
    assert prediction.log_ratio == pytest.approx(math.log(1.1))
    assert prediction.half == pytest.approx(2.776445 * spread.sd * math.sqrt(2 / 3), rel=1e-6)
    assert prediction.width_pct == pytest.approx(100 * math.expm1(prediction.half))


def test_blocks_that_only_one_run_has_are_left_out_and_one_is_not_enough() -> None:
    spread = residual(measured(np.random.default_rng(1), {0: 0.0, 1: 1.0}, 0.05))
    assert spread is not None
    prediction = predict({0: 1.0, 1: 1.0, 2: 1.0}, {1: 1.0, 2: 1.0, 3: 9.0}, spread)
    assert prediction is not None
    assert (prediction.old_blocks, prediction.log_ratio) == (2, 0.0)
    assert predict({0: 1.0}, {0: 1.0}, spread) is None


def test_a_baseline_alone_has_its_two_launches_to_tell_from() -> None:
    one = measured(np.random.default_rng(1), {0: 0.0, 1: 0.0}, 0.05, ("base",))
    assert residual(one) is None
    rows = [("base", 0, 1, 100.0), ("base", 0, 2, 110.0)]
    spread = residual(pd.DataFrame(rows, columns=["deployment", "block", "replica", "value"]))
    assert spread is not None
    assert spread.sd == pytest.approx(math.log(1.1) / 2), "of the mean of two"


@pytest.mark.parametrize(("items", "flips", "pairs"), [(6, 0, 48), (6, 3, 48), (7, 5, 20)])
def test_the_net_change_that_chance_makes_is_that_of_all_outcomes(items: int, flips: int, pairs: int) -> None:
    from statsmodels.stats.proportion import proportion_confint

    share = proportion_confint(flips, pairs, alpha=0.05, method="beta")[1]
    chances = {-1: share / 2, 0: 1 - share, 1: share / 2}
    total: dict[int, float] = {}
    for outcome in product((-1, 0, 1), repeat=items):
        net = abs(sum(outcome))
        total[net] = total.get(net, 0.0) + math.prod(chances[one] for one in outcome)
    most = flips_within(items, flips, pairs)
    assert sum(p for net, p in total.items() if net <= most) >= 0.95
    assert sum(p for net, p in total.items() if net < most) < 0.95


def test_changes_without_a_floor_are_for_the_better_as_often_as_for_the_worse() -> None:
    assert flips_balanced(0) == 0
    assert flips_balanced(5) == 5, "five to none has 6.3 %: still chance"
    assert flips_balanced(6) == 4, "six to none has 3.1 %"
