"""Statistics that have no logarithm, and values that come in steps: what is said of them."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.analysis import analyse
from bench.analysis.comparisons import comparisons
from bench.analysis.result import Analysis, Comparison, DeploymentResult
from tests.bench.run_folder import LaunchSpec, build, request, steady
from tests.bench.runs import BASE, FP8, LLAMA, Q8, five

Found = Mapping[str, float | list[float | None] | None]
"""Deployment → the highest value its search met: in every launch, or block by block; None: it met none."""


def searched(root: Path, found: Found, over: str = "rate_rps", precision_pct: float = 10.0) -> Analysis:
    """The run of `five` whose load searches."""
    the_plan, launches = five()
    search: dict[str, Any] = {"over": over, "precision_pct": precision_pct, "sla": "chat"}
    the_plan["loads"]["chat"]["search"] = search
    run = build(root, the_plan, launches)
    for path in sorted(run.glob("blocks/*/*/cells/chat/cell.json")):
        values = found.get(path.parts[-4].removesuffix("+A2"), 2.0)
        highest = values[int(path.parts[-5])] if isinstance(values, list) else values
        state = "none met" if highest is None else "found"
        probes = [{"value": 1.0}, {"value": 3.0}]
        cell = json.loads(path.read_text())
        cell["search"] = {**search, "state": state, "highest": highest, "interval": [highest, 3.0], "probes": probes}
        path.write_text(json.dumps(cell))
    return analyse(run)


def of(analysis: Analysis, deployment: str, metric: str, against: str = "engine") -> Comparison:
    return next(c for c in analysis.compared(deployment, against) if c.metric == metric)


def test_a_search_that_met_nothing_is_worse_and_has_no_number(tmp_path: Path) -> None:
    found = of(searched(tmp_path, {FP8: None}), FP8, "saturation_rate_rps")
    assert (found.verdict, found.effect_pct, found.low_pct) == ("worse", None, None)
    assert found.reason == "no value that was tried met the service level in 3 of 3 launches"


def test_a_search_that_met_nothing_in_one_block_is_inconclusive(tmp_path: Path) -> None:
    found = of(searched(tmp_path, {FP8: [2.0, None, 2.0]}), FP8, "saturation_rate_rps")
    assert found.verdict == "inconclusive" and found.reason.endswith("in 1 of 3 launches")


def test_a_search_that_only_the_baseline_never_met_is_better(tmp_path: Path) -> None:
    found = of(searched(tmp_path, {BASE: None}), FP8, "saturation_rate_rps")
    assert found.verdict == "better" and found.reason.endswith("in 6 of 6 launches, here in none")


@pytest.mark.parametrize("baseline", [[2.0, None, None], None])
def test_a_baseline_that_met_nothing_holds_nothing_that_did_neither(
    baseline: list[float | None] | None, tmp_path: Path
) -> None:
    found = of(searched(tmp_path, {BASE: baseline, FP8: None}), FP8, "saturation_rate_rps")
    assert found.verdict == "not comparable" and found.reason.startswith("the baseline: ")


def test_equal_steps_of_a_search_are_no_certainty(tmp_path: Path) -> None:
    """Every search came to the same value: what lies between two steps stays unknown."""
    coarse = of(searched(tmp_path / "coarse", {}, precision_pct=10.0), FP8, "saturation_rate_rps")
    assert coarse.verdict == "inconclusive" and coarse.effect_pct == 0
    assert coarse.residual_pct == pytest.approx(100 * math.expm1(math.log(1.1) / math.sqrt(12)))
    fine = of(searched(tmp_path / "fine", {}, precision_pct=1.0), FP8, "saturation_rate_rps")
    assert fine.verdict == "equivalent" and fine.high_pct is not None and fine.high_pct > 0


def test_whole_numbers_are_steps_too(tmp_path: Path) -> None:
    """Of eight sessions one more is 12.5 %, whatever precision was asked."""
    values = dict.fromkeys((BASE, FP8, LLAMA, Q8), 8.0)
    found = of(searched(tmp_path, values, "concurrency", precision_pct=1.0), FP8, "saturation_concurrency")
    assert found.residual_pct == pytest.approx(100 * math.expm1(math.log(9 / 8) / math.sqrt(12)))
    assert found.verdict == "inconclusive"


def test_a_search_still_finds_a_difference_of_several_steps(tmp_path: Path) -> None:
    found = of(searched(tmp_path, {FP8: [3.0, 3.0, 3.1]}, precision_pct=5.0), FP8, "saturation_rate_rps")
    assert found.verdict == "better" and found.role == "primary"


def failing(launches: dict[tuple[int, str, int], LaunchSpec], deployment: str, blocks: range) -> None:
    """A quarter of the requests fails, so that the P90 is infinite."""
    for (block, name, _), launch in launches.items():
        if name == deployment and block in blocks:
            launch.rows = steady(ttft_ms=50)
            launch.rows[3:6] = [request(900 + i, error="http", events_ms=[], ended_ms=60) for i in range(3)]


@pytest.mark.parametrize(
    ("deployment", "blocks", "verdict"),
    [(FP8, 3, "worse"), (FP8, 2, "inconclusive"), (BASE, 3, "better"), (BASE, 2, "not comparable")],
)
def test_infinite_latencies_decide_where_all_of_one_side_are(
    deployment: str, blocks: int, verdict: str, tmp_path: Path
) -> None:
    the_plan, launches = five()
    failing(launches, deployment, range(blocks))
    found = of(analyse(build(tmp_path, the_plan, launches)), FP8, "ttft_p90_ms")
    assert found.verdict == verdict and "ttft_p90_ms is infinite" in found.reason
    assert (found.effect_pct, found.launches) == (None, 0)


def test_infinite_latencies_of_both_sides_say_nothing(tmp_path: Path) -> None:
    the_plan, launches = five()
    for deployment in (BASE, FP8):
        failing(launches, deployment, range(3))
    assert of(analyse(build(tmp_path, the_plan, launches)), FP8, "ttft_p90_ms").verdict == "not comparable"


@pytest.mark.parametrize(
    ("zero", "blocks", "verdict"),
    [(FP8, 3, "worse"), (FP8, 1, "inconclusive"), (BASE, 3, "better"), (BASE, 1, "not comparable")],
)
def test_a_rate_of_zero_has_no_logarithm(zero: str, blocks: int, verdict: str, tmp_path: Path) -> None:
    the_plan, launches = five()
    deployments = analyse(build(tmp_path, the_plan, launches)).deployments
    altered = [without_tokens(d, blocks) if d.id == zero else d for d in deployments]
    found = next(
        c
        for c in comparisons(the_plan, 3, altered)
        if (c.deployment, c.against, c.metric) == (FP8, "engine", "output_tokens_per_s")
    )
    assert found.verdict == verdict and "output_tokens_per_s is zero" in found.reason


def without_tokens(one: DeploymentResult, blocks: int) -> DeploymentResult:
    """The deployment as if nothing had come in the first blocks."""
    cell = one.cells["chat"]
    launches = tuple(
        replace(x, values={**x.values, "output_tokens_per_s": 0.0}) if x.block < blocks else x for x in cell.launches
    )
    return replace(one, cells={"chat": replace(cell, launches=launches)})
