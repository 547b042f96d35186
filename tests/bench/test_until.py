"""Blocks are added by the width of the intervals alone, and what was decided stands in the run's folder."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.analysis import analyse
from bench.analysis.result import Comparison
from bench.config import Config, Scenario, Until
from bench.plan import EXTENSION_FILE
from bench.until import block_seconds, extend, half_width_pct, in_words, look
from harness.errors import ConfigError
from tests.bench.run_folder import LaunchSpec, build, effect
from tests.bench.runs import BASE, FP8, five, spec

BLOCKS_MAX = 6


class Measured:
    """Stands for the measuring of a block: the blocks lie beside the run, each at its place once it is asked for."""

    def __init__(self, root: Path, *, blocks: int, until: Until, budget_minutes: float | None = None) -> None:
        the_plan, launches = noisy_run(BLOCKS_MAX)
        self.run = build(root, {**the_plan, "until": {"latency_pct": until.latency_pct}}, launches)
        self.aside, self.asked = self.run.parent / "aside", []
        self.aside.mkdir()
        for block in range(BLOCKS_MAX):
            path = self.run / "blocks" / str(block) / "block.json"
            times = {"started": "2026-11-29T13:00:00+00:00", "finished": "2026-11-29T13:05:00+00:00"}
            path.write_text(json.dumps(json.loads(path.read_text()) | times))
            if block >= blocks:
                path.parent.rename(self.aside / str(block))
        record = json.loads((self.run / "plan.json").read_text())
        (self.run / "plan.json").write_text(json.dumps({**record, "blocks": blocks}))
        self.config = Config(scenario=Scenario(blocks=blocks, until=until, budget_minutes=budget_minutes))

    def measure(self, block: int) -> None:
        self.asked.append(block)
        (self.aside / str(block)).rename(self.run / "blocks" / str(block))

    def extend(self) -> dict[str, Any]:
        extend(self.run, self.config, self.measure)
        record: dict[str, Any] = json.loads((self.run / EXTENSION_FILE).read_text())
        return record


def noisy_run(blocks: int) -> tuple[dict[str, Any], dict[tuple[int, str, int], LaunchSpec]]:
    """vLLM's fp8 has a lead of a third in the mean, by 10 % more or less from block to block."""
    the_plan, launches = five(blocks)
    for block in range(blocks):
        launches[block, FP8, 1] = spec(block, ttft_ms=260 * (1.1 if block % 2 else 0.9), effect=effect("fp8_e4m3", 0.5))
    return the_plan, launches


def test_blocks_are_added_until_the_interval_is_as_narrow_as_asked(tmp_path: Path) -> None:
    run = Measured(tmp_path, blocks=3, until=Until(latency_pct=30, blocks_max=BLOCKS_MAX))
    record = run.extend()
    assert run.asked == list(range(3, record["blocks"])) and run.asked
    *earlier, last = record["looks"]
    assert [one["blocks"] for one in record["looks"]] == list(range(3, record["blocks"] + 1))
    assert last["enough"] and not any(one["enough"] for one in earlier)
    assert max(last["half_widths_pct"].values()) <= 30 < max(earlier[-1]["half_widths_pct"].values())
    analysis = analyse(run.run)
    assert analysis.blocks == analysis.blocks_planned == record["blocks"]
    facts = analysis.plan["extension"]
    assert (facts["blocks_planned"], facts["blocks_added"], facts["enough"]) == (3, len(run.asked), True)
    assert "latency ±" in facts["why"] and "asked: ± 30 %" in facts["why"]
    primary = [c for c in analysis.compared(FP8, "engine") if c.metric.startswith("ttft")]
    assert "97.5 %" in primary[0].method and max(map(half_width_pct, primary)) <= 30


def test_the_most_blocks_allowed_end_it(tmp_path: Path) -> None:
    run = Measured(tmp_path, blocks=3, until=Until(latency_pct=0.01, blocks_max=5))
    record = run.extend()
    assert (run.asked, record["blocks"]) == ([3, 4], 5)
    assert not record["looks"][-1]["enough"] and "blocks_max" in record["looks"][-1]["why"]


@pytest.mark.parametrize(("minutes", "blocks"), [(21, 4), (19, 3), (26, 5)])
def test_the_time_ends_it_before_a_block_that_would_not_fit(minutes: float, blocks: int, tmp_path: Path) -> None:
    until = Until(latency_pct=0.01, blocks_max=BLOCKS_MAX)
    record = Measured(tmp_path, blocks=3, until=until, budget_minutes=minutes).extend()
    assert record["blocks"] == blocks, "a block takes five minutes"
    assert "budget_minutes" in record["looks"][-1]["why"]


def test_an_added_block_that_was_interrupted_is_measured_again_and_nothing_else(tmp_path: Path) -> None:
    run = Measured(tmp_path, blocks=3, until=Until(latency_pct=0.01, blocks_max=5))

    def interrupted(block: int) -> None:
        run.asked.append(block)
        if block == 4:
            raise KeyboardInterrupt
        (run.aside / str(block)).rename(run.run / "blocks" / str(block))

    with pytest.raises(KeyboardInterrupt):
        extend(run.run, run.config, interrupted)
    assert analyse(run.run).plan["extension"]["why"] == "interrupted"
    assert (analyse(run.run).blocks, analyse(run.run).blocks_planned) == (4, 5)
    run.asked.clear()
    record = run.extend()
    assert run.asked == [4]
    assert [one["blocks"] for one in record["looks"]] == [3, 4, 5]
    run.asked.clear()
    assert run.extend() == record and run.asked == [], "a finished one isn't extended"


def test_fewer_than_three_blocks_are_never_enough(tmp_path: Path) -> None:
    run = Measured(tmp_path, blocks=1, until=Until(latency_pct=1e6, blocks_max=BLOCKS_MAX))
    record = run.extend()
    assert record["blocks"] == 3 and record["looks"][-1]["enough"]
    assert record["looks"][0]["half_widths_pct"] and None in record["looks"][0]["half_widths_pct"].values()


def test_nothing_is_added_unasked(tmp_path: Path) -> None:
    run = Measured(tmp_path, blocks=3, until=Until())
    extend(run.run, run.config, run.measure)
    assert run.asked == [] and not (run.run / EXTENSION_FILE).exists()
    assert "extension" not in analyse(run.run).plan


def test_where_nothing_can_be_waited_for_it_ends_and_says_so(tmp_path: Path) -> None:
    the_plan, launches = five()
    for key, one in launches.items():
        if key[1] != BASE:
            one.state, one.reason, one.rows = "failed", "it broke", None
    found, another = look(analyse(build(tmp_path, the_plan, launches)), Until(latency_pct=5), None, [1.0] * 3)
    assert not another and not found.enough and "nothing" in found.why


def test_the_verdict_decides_nothing(tmp_path: Path) -> None:
    analysis = analyse(build(tmp_path, *noisy_run(4)))
    until = Until(throughput_pct=5, latency_pct=30)
    before = look(analysis, until, None, [1.0] * 4)

    def moved(c: Comparison) -> Comparison:
        """The same width around no difference."""
        if c.effect_pct is None or c.low_pct is None or c.high_pct is None:
            return c
        shift = 1 + c.effect_pct / 100
        low, high = (100 * ((1 + end / 100) / shift - 1) for end in (c.low_pct, c.high_pct))
        return replace(c, verdict="inconclusive", reason="moved", effect_pct=0.0, low_pct=low, high_pct=high)

    after = look(replace(analysis, comparisons=tuple(map(moved, analysis.comparisons))), until, None, [1.0] * 4)
    assert after[1] == before[1] and after[0].why == before[0].why
    assert after[0].half_widths_pct == pytest.approx(before[0].half_widths_pct)


def test_the_width_is_a_ratio() -> None:
    c = Comparison("m", "l", "x", "b", "engine", "primary", "better", "", low_pct=0.0, high_pct=21.0)
    assert half_width_pct(c) == pytest.approx(10.0), "1.1 ÷ 1.1 to 1.1 × 1.1"


def test_a_blocks_time_is_taken_from_its_record() -> None:
    times = {"started": "2026-11-29T13:00:00+01:00", "finished": "2026-11-29T12:02:00+00:00"}
    assert block_seconds(times) == 120


def test_the_plan_says_when_it_ends() -> None:
    until = Until(throughput_pct=5, latency_pct=10)
    assert in_words(until, 3, 30) == "3 blocks, more until throughput ± 5 % and TTFT tail ± 10 % or 12 blocks or 30 min"


def test_fewer_blocks_at_most_than_planned_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"until\.blocks_max: 2 must be >= blocks"):
        Scenario(blocks=3, until=Until(throughput_pct=5, blocks_max=2))
