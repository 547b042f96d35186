"""The plan: every combination judged before anything is launched, the budget kept, A/A′ and blocks never given up."""

import json
from pathlib import Path

import pytest

from bench.calibration import Calibration, EngineSpeed, Noise
from bench.config import Config, choices, compose_config, typed
from bench.overrides import normalise
from bench.plan import MIN_REQUESTS, Plan, devices_needed, make_plan, plan_record, read_plan
from harness.backends import backend_class
from harness.errors import ConfigError
from harness.files import write_json
from harness.model import ModelShape

UNMEASURED = Calibration({}, Noise())
TINY_MODEL = "smollm2-135m"


def config_of(*overrides: str, scenario: str = "long-context") -> Config:
    """A composed configuration on the embedded model."""
    named = [f"scenario={scenario}", f"scenario_name={scenario}", f"model=[{TINY_MODEL}]"]
    return typed(compose_config([*named, *normalise(list(overrides))]))


def plan_of(*overrides: str, scenario: str = "long-context", calibration: Calibration = UNMEASURED) -> Plan:
    return make_plan(config_of(*overrides, scenario=scenario), calibration, [])


@pytest.mark.parametrize("scenario", choices("scenario"))
def test_every_scenario_can_be_planned_on_the_embedded_model(scenario: str) -> None:
    plan = plan_of(scenario=scenario)
    assert plan.deployments
    assert plan.seconds() > 0


def test_every_block_launches_every_deployment_once_and_the_baseline_twice() -> None:
    plan = plan_of("scenario.check_only=[]", "scenario.budget_minutes=null")
    orders = []
    for block in range(plan.blocks):
        names = [launch.name for launch in plan.launches(block, seed=1)]
        assert sorted(names) == sorted([*(d.id for d in plan.deployments), plan.baseline.id + "+A2"])
        assert names == [launch.name for launch in plan.launches(block, seed=1)], "the order is reproducible"
        orders.append(tuple(names))
    assert len(set(orders)) > 1, "the order differs between blocks"


def test_a_check_only_deployment_is_launched_in_the_first_block_alone() -> None:
    plan = plan_of("scenario.check_only=[vllm/kv-int8]", "scenario.budget_minutes=null")
    checked = [
        [launch.deployment.strategy for launch in plan.launches(block, 1) if launch.check_only]
        for block in range(plan.blocks)
    ]
    assert checked == [["kv-int8"], [], []]


def test_what_an_engine_cannot_do_is_in_the_support_table_with_its_reason() -> None:
    plan = plan_of("strategy=baseline,kv-fp8")
    entry = next(e for e in plan.support if (e.backend, e.strategy) == ("llama-cpp", "kv-fp8"))
    assert entry.state == "unsupported"
    assert "fp8" in (entry.reason or "")
    assert all((d.backend, d.strategy) != ("llama-cpp", "kv-fp8") for d in plan.deployments)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["backend=llama-cpp", "strategy=baseline,kv-fp8"], ["kv-fp8", "scenarios/strategy/kv-fp8.yaml", "llama.cpp"]),
        (["strategy=kv-fp8"], ["16-bit baseline", "strategy=[baseline,kv-fp8]"]),
        (["scenario.settings.context_tokens=9000"], ["9000", "8192", TINY_MODEL]),
        (["accuracy=[]", "scenario.settings.context_tokens=512"], ["scenarios/load/sharegpt-long.yaml", "512"]),
        (["scenario.settings.context_tokens=6050", "load.sharegpt-long.workload.output_tokens_mean=500"], ["6500"]),
        (["load=[]"], ["load", "nothing is selected"]),
        (["scenario.settings.kv_budget_bytes=1000"], ["kv_budget_bytes"]),
        (["scenario.check_only=[kv-int8]"], ["check_only", "backend/strategy"]),
        (["scenario.settings.swap_space_gib=4", "backend=vllm"], ["swap_space_gib"]),
    ],
)
def test_what_cannot_be_carried_out_is_named_before_anything_starts(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(*overrides)
    for word in words:
        assert word in str(caught.value)


def test_the_kv_budget_is_equal_in_bytes_and_binds() -> None:
    plan = plan_of()
    budget = plan.settings[TINY_MODEL].kv_budget_bytes
    assert budget is not None
    for deployment in plan.deployments:
        estimate = plan.estimates[deployment.id]
        assert estimate.capacity_tokens is not None
        assert estimate.capacity_tokens * estimate.kv_bytes_per_token <= budget
    baseline = plan.estimates[plan.baseline.id]
    assert baseline.capacity_tokens is not None
    assert 1.5 <= baseline.working_set_tokens / baseline.capacity_tokens < 1.6


def test_predicted_kv_bytes_are_layers_times_heads_times_dim_times_bits() -> None:
    plan = plan_of()
    assert plan.estimates[plan.baseline.id].kv_bytes_per_token == 2 * 30 * 3 * 64 * 16 / 8


def slow_host(start_s: float = 35.0) -> Calibration:
    speed = EngineSpeed(start_s=start_s, prefill_tokens_per_s=300, decode_tokens_per_s=15, request_s=0.5)
    names = [f"{b}+{s}" for b in ("vllm", "llama-cpp") for s in choices("strategy")]
    return Calibration(dict.fromkeys(names, speed), Noise())


def test_the_budget_cuts_optional_deployments_to_checks_then_drops_them_then_cuts_requests() -> None:
    free = plan_of("scenario.budget_minutes=null", calibration=slow_host())
    tight = plan_of(f"scenario.budget_minutes={free.seconds() / 60 * 0.8}", calibration=slow_host())
    assert tight.deployments == free.deployments
    assert tight.check_only > free.check_only
    assert tight.loads == free.loads
    tightest = plan_of("scenario.budget_minutes=5", calibration=slow_host())
    assert {d.backend for d in tightest.deployments} == {"vllm"}
    assert tightest.loads["sharegpt-long"].requests == MIN_REQUESTS
    assert any("trimmed to" in text for text in tightest.dropped)
    assert any("over its budget" in text for text in tightest.notes)


def test_a_budget_that_is_met_cuts_nothing() -> None:
    free = plan_of("scenario.budget_minutes=null")
    met = plan_of(f"scenario.budget_minutes={free.seconds() / 60 + 0.1}")
    assert met.dropped == ()
    assert met.check_only == free.check_only


def test_the_budget_never_takes_the_baseline_or_a_block() -> None:
    plan = plan_of(
        "scenario.budget_minutes=1",
        "scenario.optional=[vllm/baseline,vllm/kv-fp8,llama-cpp/baseline]",
        calibration=slow_host(),
    )
    assert plan.baseline in plan.deployments
    assert plan.blocks == config_of().scenario.blocks
    assert all(sum(p.deployment == plan.baseline for p in plan.launches(b, 1)) == 2 for b in range(plan.blocks))


def test_an_engine_that_loses_its_16_bit_baseline_loses_all() -> None:
    plan = plan_of("scenario.budget_minutes=1", "scenario.optional=[llama-cpp/baseline]", calibration=slow_host())
    assert "llama-cpp" not in {d.backend for d in plan.deployments}
    assert len(plan.dropped) >= 2


def test_a_measured_host_changes_the_estimate() -> None:
    fast, slow = plan_of(), plan_of("scenario.budget_minutes=null", calibration=slow_host(start_s=200))
    assert slow.estimates[slow.baseline.id].total_s > fast.estimates[fast.baseline.id].total_s


def test_one_block_promises_no_verdict_and_more_blocks_see_more() -> None:
    assert plan_of("scenario.blocks=1").smallest_effect == {"throughput": None, "latency": None}
    three, eight = plan_of("scenario.blocks=3"), plan_of("scenario.blocks=8", "scenario.budget_minutes=null")
    assert (eight.smallest_effect["throughput"] or 0) < (three.smallest_effect["throughput"] or 0)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    config = config_of()
    plan = make_plan(config, UNMEASURED, [])
    backends = {name: backend_class(name)(options) for name, options in config.backend.items()}
    write_json(tmp_path / "plan.json", plan_record(plan, config, backends))
    again = read_plan(tmp_path)
    assert again.launches(0, 7) == plan.launches(0, 7)
    assert again.loads == plan.loads
    assert again.tasks == plan.tasks
    assert again.settings == plan.settings
    assert again.estimates == plan.estimates
    assert json.loads((tmp_path / "plan.json").read_text())["seconds"] == pytest.approx(plan.seconds())


@pytest.mark.parametrize(
    ("parameters", "gpus_gib", "devices"),
    [
        (135_000_000, [], 1),
        (8_000_000_000, [80], 1),
        (70_000_000_000, [80] * 8, 4),
        (405_000_000_000, [80] * 16, 16),
    ],
)
def test_devices_are_as_few_as_hold_the_weights(parameters: int, gpus_gib: list[int], devices: int) -> None:
    assert devices_needed(ModelShape(parameters=parameters), [gib * 2**30 for gib in gpus_gib]) == devices
