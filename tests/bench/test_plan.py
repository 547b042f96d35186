"""The plan: every combination judged before anything is launched, the budget kept, A/A′ and blocks never given up."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import calibration, resolve
from bench.budget import MIN_REQUESTS
from bench.calibration import Calibration, EngineSpeed, Noise
from bench.config import Config, choices, compose_config, typed
from bench.overrides import normalise
from bench.plan import Plan, plan_record, read_plan
from bench.plan_memory import Memory, devices_needed
from bench.plan_view import print_plan
from bench.planner import make_plan
from harness.backends import backend_class
from harness.backends.vllm import Vllm
from harness.errors import ConfigError
from harness.files import write_json
from harness.model import ModelShape
from harness.settings import Settings

UNMEASURED = Calibration({}, Noise())
TINY_MODEL = "smollm2-135m"


def config_of(*overrides: str, scenario: str = "long-context") -> Config:
    """A composed configuration on the embedded model."""
    named = [f"scenario={scenario}", f"scenario_name={scenario}", f"model=[{TINY_MODEL}]"]
    return typed(compose_config([*named, *normalise(list(overrides))]))


def plan_of(*overrides: str, scenario: str = "long-context", known: Calibration = UNMEASURED) -> Plan:
    return make_plan(config_of(*overrides, scenario=scenario), known, [])


@pytest.mark.parametrize("scenario", choices("scenario"))
def test_every_scenario_can_be_planned_without_a_gpu(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "gpus", lambda: [])
    plan = make_plan(resolve.resolve([f"scenario={scenario}"])[1], UNMEASURED, [])
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
        (
            ["scenario.settings.context_tokens=6050", "load.sharegpt-long.workload.output_tokens_mean=500"],
            ["output_tokens_mean=500"],
        ),
        (["load=[]"], ["load", "nothing is selected"]),
        (["scenario.settings.kv_budget_bytes=1000"], ["kv_budget_bytes"]),
        (["scenario.check_only=[kv-int8]"], ["check_only", "backend/strategy"]),
        (["scenario.check_only=[vllm/kv-int9]"], ["check_only", "kv-int9", "kv-int8"]),
        (["scenario.optional=[foo/baseline]"], ["optional", "foo", "llama-cpp"]),
        (["scenario.baseline.backend=sglang"], ["baseline.backend", "sglang"]),
        (["scenario.baseline.strategy=kv-fp8"], ["baseline.strategy", "kv-fp8"]),
        (["scenario.settings.max_num_seqs=0"], ["max_num_seqs", ">= 1"]),
        (["scenario.settings.kv_budget_bytes=-1"], ["kv_budget_bytes", ">= 1"]),
        (["scenario.budget_minutes=-1"], ["budget_minutes"]),
        (["scenario.working_set_over_pool=nan"], ["working_set_over_pool"]),
        (["backend.vllm.start_timeout_s=-3"], ["start_timeout_s"]),
        (["backend.vllm.port=70000"], ["port", "65535"]),
        (["+foo=1"], ["foo", "unknown"]),
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
    free = plan_of("scenario.budget_minutes=null", known=slow_host())
    tight = plan_of(f"scenario.budget_minutes={free.seconds() / 60 * 0.8}", known=slow_host())
    assert tight.deployments == free.deployments
    assert tight.check_only > free.check_only
    assert tight.loads == free.loads
    tightest = plan_of("scenario.budget_minutes=5", known=slow_host())
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
        known=slow_host(),
    )
    assert plan.baseline in plan.deployments
    assert plan.blocks == config_of().scenario.blocks
    assert all(sum(p.deployment == plan.baseline for p in plan.launches(b, 1)) == 2 for b in range(plan.blocks))


def test_an_engine_that_loses_its_16_bit_baseline_loses_all() -> None:
    plan = plan_of("scenario.budget_minutes=1", "scenario.optional=[llama-cpp/baseline]", known=slow_host())
    assert "llama-cpp" not in {d.backend for d in plan.deployments}
    assert len(plan.dropped) >= 2


def test_a_measured_host_changes_the_estimate() -> None:
    fast, slow = plan_of(), plan_of("scenario.budget_minutes=null", known=slow_host(start_s=200))
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


def test_all_that_goes_with_a_cut_baseline_is_said() -> None:
    free = plan_of("scenario.budget_minutes=null", known=slow_host())
    for minutes in (0.8 * free.seconds() / 60, 1):
        cut = plan_of(f"scenario.budget_minutes={minutes}", "scenario.optional=[llama-cpp/baseline]", known=slow_host())
        lost = {d.id for d in free.deployments} - {d.id for d in cut.deployments}
        lost |= cut.check_only - free.check_only
        assert lost == {f"llama-cpp+{TINY_MODEL}+{strategy}" for strategy in ("baseline", "kv-int8")}
        assert {text.split(":")[0] for text in cut.dropped if not text.startswith("load")} == lost


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A hardware hash whose calibration is kept in a folder of this test."""
    monkeypatch.setenv("KVMARK_CACHE", str(tmp_path))
    return "0" * 64


def test_what_a_host_taught_settles_on_what_it_takes(kept: str) -> None:
    for _ in range(6):
        plan = plan_of("scenario.budget_minutes=null", known=calibration.load(kept))
        estimate = plan.estimates[plan.baseline.id]
        measured = {phase: 2 * counted for phase, counted in estimate.counted_s.items()}
        calibration.learn_launch(kept, "vllm", "baseline", {"start": 9.0, **measured}, estimate.counted_s)
    known = calibration.load(kept)
    learned = [known.engine("vllm", "baseline").factor(phase) for phase in calibration.PHASES]
    assert learned == pytest.approx([2] * len(calibration.PHASES))
    seconds = plan_of("scenario.budget_minutes=null", known=known).estimates[plan.baseline.id].seconds
    assert {phase: seconds[phase] for phase in measured} == pytest.approx(measured)


def printed(plan: Plan, config: Config) -> str:
    console = Console(width=180, no_color=True)
    with console.capture() as capture:
        print_plan(console, plan, config)
    return capture.get()


def test_the_plan_says_whether_the_noise_is_assumed_or_measured(kept: str) -> None:
    config = config_of()
    text = printed(make_plan(config, calibration.load(kept), []), config)
    assert "noise assumed: 10 % and 12 %, not measured on this machine yet" in text
    calibration.learn_noise(kept, None, None)
    assert not calibration.load(kept).noise.measured
    calibration.learn_noise(kept, 0.01, 0.02)
    plan = make_plan(config, calibration.load(kept), [])
    text = printed(plan, config)
    assert "noise measured: 1 % and 2 %" in text
    assert "assumed" not in text
    assert (plan.smallest_effect["throughput"] or 0) < (plan_of().smallest_effect["throughput"] or 0)


def test_the_plan_shows_the_working_set_beside_weights_and_pool() -> None:
    config = config_of()
    plan = make_plan(config, UNMEASURED, [])
    text = printed(plan, config)
    assert plan.estimates[plan.baseline.id].working_set_bytes == 4 * 3048 * 23040
    assert "1.51 (268 MiB)" in text
    assert max(len(line) for line in text.splitlines() if line.startswith(("backend", "vllm", "llama-cpp"))) < 150


def test_a_pool_that_does_not_bind_is_said() -> None:
    words = "the pool doesn't bind"
    assert not any(words in text for text in plan_of().notes)
    loose = plan_of("scenario.working_set_over_pool=0.5")
    assert any(words in text and loose.baseline.id in text for text in loose.notes)


def test_weights_and_pool_must_fit_the_memory() -> None:
    for host_gib, overrides in ((0.3, []), (1, ["scenario.settings.kv_budget_bytes=1000000000"])):
        with pytest.raises(ConfigError, match=r"0\.3 GiB for its 16-bit weights and 0\.\d GiB of KV pool.*change"):
            make_plan(config_of(*overrides), UNMEASURED, [], host_memory_bytes=int(host_gib * 2**30))


def test_an_engine_without_its_kind_of_file_is_unsupported_and_the_others_go_on() -> None:
    plan = plan_of("model=qwen3-0-6b", "backend=llama-cpp,vllm")
    assert {e.state for e in plan.support if e.backend == "llama-cpp"} == {"unsupported"}
    assert all("model.qwen3-0-6b.gguf=" in (e.reason or "") for e in plan.support if e.backend == "llama-cpp")
    assert plan.baseline.backend == "vllm"
    with_file = plan_of("model=qwen3-0-6b", "backend=llama-cpp,vllm", "model.qwen3-0-6b.gguf=/models/f16.gguf")
    assert with_file.baseline.backend == "llama-cpp"
    with pytest.raises(ConfigError, match="GGUF"):
        plan_of("model=qwen3-0-6b", "scenario.baseline.backend=llama-cpp")


GIB = 2**30
GPU_MACHINES = {"139": [139], "4x79": [79] * 4, "8x79": [79] * 8, "3x79": [79] * 3, "22": [22], "8": [8], "4": [4]}


def plan_on_gpus(monkeypatch: pytest.MonkeyPatch, machine: str, *arguments: str) -> tuple[Config, Plan]:
    """Resolved and planned as `make plan` does, with devices that aren't there."""
    devices = [gib * GIB for gib in GPU_MACHINES[machine]]
    monkeypatch.setattr(resolve, "gpus", lambda: [{"name": "GPU", "memory_bytes": memory} for memory in devices])
    monkeypatch.setattr(Vllm, "on_gpu", True)
    _, config = resolve.resolve(list(arguments))
    return config, make_plan(config, UNMEASURED, devices)


@pytest.mark.parametrize("machine", ["139", "4x79", "8x79", "22"])
@pytest.mark.parametrize("scenario", choices("scenario"))
def test_every_scenario_can_be_planned_on_gpus(scenario: str, machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, plan = plan_on_gpus(monkeypatch, machine, f"scenario={scenario}")
    assert config.scenario.budget_minutes is None
    assert list(config.backend) == ["vllm"]
    for name, settings in plan.settings.items():
        shape = config.model[name].shape
        assert 1 <= settings.tensor_parallel <= len(GPU_MACHINES[machine])
        assert settings.kv_budget_bytes is not None
        memory = GPU_MACHINES[machine][0] * GIB * settings.tensor_parallel
        assert 2 * shape.parameters + settings.kv_budget_bytes < 0.9 * memory
        assert settings.context_tokens <= shape.context_tokens


@pytest.mark.parametrize(
    ("machine", "model", "context", "devices"),
    [
        ("4", "smollm2-135m", 8192, 1),
        ("8", "qwen3-0-6b", 40960, 1),
        ("22", "qwen3-4b", 40960, 1),
        ("139", "qwen3-32b", 40960, 1),
        ("3x79", "qwen3-32b", 40960, 2),
        ("4x79", "llama-3-1-70b", 131072, 4),
        ("8x79", "qwen3-235b-a22b", 40960, 8),
    ],
)
def test_long_context_on_a_gpu_is_as_long_as_the_model_takes(
    machine: str, model: str, context: int, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, plan = plan_on_gpus(monkeypatch, machine, "scenario=long-context")
    assert list(config.model) == [model]
    assert plan.settings[model].context_tokens == context
    assert plan.settings[model].tensor_parallel == devices
    longest = config.load["sharegpt-long"].workload["input_tokens_max"]
    assert 0.9 * context < longest + 256 <= context
    assert 0.9 * context < (config.accuracy["retrieval-6k"].context_tokens or 0) < context
    assert plan.estimates[plan.baseline.id].working_set_over_pool is not None


def test_a_shorter_context_of_the_users_shrinks_what_was_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = plan_on_gpus(monkeypatch, "139", "scenario=long-context", "scenario.settings.context_tokens=32768")
    assert config.scenario.settings.context_tokens == 32768
    assert config.load["sharegpt-long"].workload["input_tokens_max"] == 30000
    with pytest.raises(ConfigError, match="longer than the context of qwen3-32b: 40960"):
        plan_on_gpus(monkeypatch, "139", "scenario=long-context", "scenario.settings.context_tokens=65536")


def test_a_model_that_no_device_holds_is_unsupported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = plan_on_gpus(monkeypatch, "22", "scenario=odcc")
    assert {d.model for d in plan.deployments} == {"llama-2-7b"}
    reasons = {e.model: e.reason or "" for e in plan.support if e.state == "unsupported"}
    assert set(reasons) == {"llama-2-13b", "llama-3-1-70b", "qwen3-235b-a22b"}
    assert all("1 GPU of 22.0 GiB leaves 18.7 GiB" in reason and "change" in reason for reason in reasons.values())
    with pytest.raises(ConfigError, match=r"llama-2-7b needs 12\.6 GiB for its 16-bit weights"):
        plan_on_gpus(monkeypatch, "8", "scenario=odcc")


@pytest.mark.parametrize(
    ("parameters", "pool_gib", "gpus_gib", "devices"),
    [
        (135_000_000, 1, [], 1),
        (8_000_000_000, 20, [80], 1),
        (8_000_000_000, 60, [80] * 2, 2),
        (70_000_000_000, 20, [80] * 8, 4),
        (405_000_000_000, 20, [80] * 16, 16),
        (70_000_000_000, 20, [80] * 3, 2),
    ],
)
def test_devices_are_as_few_as_hold_weights_and_pool(
    parameters: int, pool_gib: int, gpus_gib: list[int], devices: int
) -> None:
    memory = Memory(tuple(gib * GIB for gib in gpus_gib), 8 * GIB)
    assert devices_needed(ModelShape(parameters=parameters), pool_gib * GIB, Settings(), memory) == devices


def test_devices_share_the_heads_evenly() -> None:
    shape = ModelShape(parameters=30_000_000_000, heads=9)
    assert devices_needed(shape, GIB, Settings(), Memory((40 * GIB,) * 4, 8 * GIB)) == 1


def test_more_devices_than_there_are_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"tensor_parallel=4, and this machine has 1 GPU of 22\.0 GiB"):
        plan_on_gpus(monkeypatch, "22", "scenario=smoke", "scenario.settings.tensor_parallel=4")


def test_the_plan_says_how_many_questions_a_margin_needs_and_which_engine_can_not_ask() -> None:
    asked = ["accuracy=[retrieval-6k,boolq]", "accuracy.boolq.mode=loglikelihood", "accuracy.boolq.data_dir=/nowhere"]
    with pytest.raises(ConfigError, match=r"accuracy\.boolq\.data_dir"):
        plan_of(*asked)
    plan = plan_of("accuracy=[retrieval-6k]", "scenario.budget_minutes=null")
    sized = plan.task_plans["retrieval-6k"]
    assert (sized.questions, sized.documents) == (3 * 2 * 8, 3 * 2)
    assert sized.questions_needed is not None and sized.questions_needed > sized.questions
    many = plan_of("accuracy=[retrieval-6k]", "accuracy.retrieval-6k.documents=60", "scenario.budget_minutes=null")
    assert many.task_plans["retrieval-6k"].smallest_loss_pp < 10 < sized.smallest_loss_pp  # type: ignore[operator]
    two = plan_of("accuracy=[retrieval-6k,multi-needle]", "scenario.budget_minutes=null").task_plans["retrieval-6k"]
    assert two.questions_needed is not None and two.questions_needed > sized.questions_needed, "Holm asks more of two"
    assert two.smallest_loss_pp is None or two.smallest_loss_pp > sized.smallest_loss_pp  # type: ignore[operator]


def test_a_task_that_needs_echo_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "boolq_val.jsonl").write_text('{"passage": "P.", "question": "q", "label": 1}\n')
    plan = plan_of("accuracy=[boolq]", "accuracy.boolq.mode=loglikelihood", f"accuracy.boolq.data_dir={tmp_path}")
    ((backend, task, reason),) = [(one.backend, one.task, one.reason) for one in plan.unsupported_tasks]
    assert (backend, task) == ("llama-cpp", "boolq") and "echo" in reason


def test_blocks_that_ask_the_same_again_count_once(tmp_path: Path) -> None:
    lines = [f'{{"passage": "P {i}.", "question": "q", "label": 1}}' for i in range(7)]
    (tmp_path / "boolq_val.jsonl").write_text("\n".join(lines))
    plan = plan_of("accuracy=[boolq]", "accuracy.boolq.limit=5", f"accuracy.boolq.data_dir={tmp_path}")
    assert plan.blocks == 3 and (plan.task_plans["boolq"].questions, plan.task_plans["boolq"].documents) == (7, 7)
