"""What the plan knows of a load before anything is launched: lengths, time, working set, for every kind."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.budget import MIN_REQUESTS
from bench.calibration import Calibration, EngineSpeed, Noise
from bench.config import SCENARIOS, Config, choices, compose_config, typed
from bench.overrides import normalise
from bench.plan import Plan
from bench.plan_load import LoadSize, load_size
from bench.plan_view import print_plan
from bench.planner import make_plan
from harness.errors import ConfigError
from harness.traffic.load import Load, Tenant
from harness.traffic.search import Search

SYNTHETIC = {"kind": "synthetic", "input_tokens_mean": 100, "output_tokens_mean": 20}
CLOSED = {"kind": "closed", "concurrency": 4}


def size_of(load: Load, context_tokens: int = 4096) -> LoadSize:
    return load_size("mine", load, context_tokens)


def plan_of(*overrides: str, known: Calibration | None = None) -> tuple[Plan, Config]:
    named = ["scenario=smoke", "scenario_name=smoke", "model=[smollm2-135m]", "accuracy=[]", "sla=[batch,chat]"]
    config = typed(compose_config([*named, *normalise(list(overrides))]))
    return make_plan(config, known or Calibration({}, Noise()), []), config


LOADS = [name for name in choices("load") if "path: ???" not in (SCENARIOS / "load" / f"{name}.yaml").read_text()]
"""Those that are complete without a file of the user's."""


@pytest.mark.parametrize("name", LOADS)
def test_every_load_can_be_planned_and_shown(name: str) -> None:
    plan, config = plan_of(f"load={name}", "scenario.settings.context_tokens=8192", "scenario.budget_minutes=null")
    assert plan.estimates[plan.baseline.id].seconds["load"] > 0
    assert plan.estimates[plan.baseline.id].working_set_tokens > 0
    console = Console(width=300, no_color=True)
    with console.capture() as capture:
        print_plan(console, plan, config)
    [line] = [line for line in capture.get().splitlines() if line.startswith("load ")]
    assert name in line and f"{plan.loads[name].requests} requests" in line and "% reusable" in line
    json.dumps(plan.traffic)


def test_what_a_closed_loop_takes() -> None:
    load = Load(workload=SYNTHETIC, arrival=CLOSED, requests=10, warmup_requests=2)
    assert size_of(load).seconds(load, 1000.0, 100.0, 0.5) == pytest.approx(12 * (0.1 + 0.2 + 0.5))
    assert size_of(load).working_set_tokens(load) == 4 * 120
    assert size_of(load).working_set_tokens(load.with_requests(3)) == 3 * 120


@pytest.mark.parametrize(
    ("arrival", "seconds", "in_flight"),
    [
        ({"kind": "poisson", "rate_rps": 0.5}, 24.0, 5),
        ({"kind": "gamma", "rate_rps": 0.5, "cv": 3.0}, 24.0, 5),
        ({"kind": "ramp", "from_rps": 0.5, "to_rps": 1.5, "duration_s": 10.0}, 2 / 0.5 + 10.0, 10),
        ({"kind": "stages", "stages": [{"rate_rps": 1.0, "duration_s": 5.0}, {"rate_rps": 0.5, "duration_s": 1.0}]},
         2 / 1.0 + 5.0 + 5 / 0.5, 10),
        ({"kind": "sine", "rate_rps": 1.0, "amplitude_rps": 0.0, "period_s": 5.0}, 12.0, 10),
    ],
)  # fmt: skip
def test_an_open_loop_takes_as_long_as_its_arrivals(arrival: dict[str, Any], seconds: float, in_flight: int) -> None:
    load = Load(workload=SYNTHETIC, arrival=arrival, requests=10, warmup_requests=2)
    assert size_of(load).seconds(load, 1e9, 1e9, 0.0) == pytest.approx(seconds)
    assert size_of(load).working_set_tokens(load) == in_flight * 120


def test_thinking_takes_time_too() -> None:
    workload = {"kind": "sharegpt", "input_tokens_mean": 100, "output_tokens_mean": 8, "turns_max": 4}
    load = Load(workload=workload, arrival=CLOSED, requests=40, warmup_requests=0)
    slow = replace(load, think_time_s=10.0)
    later_turns = 40 - size_of(load).statistics["sessions"]
    assert size_of(slow).seconds(slow, 1e9, 1e9, 0.0) == pytest.approx(later_turns * 10 / 4)


def test_tenants_add_up() -> None:
    tenants = {
        "a": Tenant(workload=SYNTHETIC, arrival=CLOSED, requests=10),
        "b": Tenant(workload=SYNTHETIC, arrival={"kind": "poisson", "rate_rps": 0.2}, requests=5),
    }
    load = Load(tenants=tenants, warmup_requests=0)
    assert size_of(load).working_set_tokens(load) == (4 + 2) * 120
    assert size_of(load).seconds(load, 1e9, 1e9, 0.0) == pytest.approx(25.0)
    assert size_of(load).seconds(load, 10.0, 1e9, 0.0) == pytest.approx(15 * 10)


def test_a_search_is_as_many_cells_as_it_has_probes() -> None:
    record = {"over": "concurrency", "sla": "chat", "low": 1.0}
    plain = Load(workload=SYNTHETIC, arrival=CLOSED)
    plan, _ = plan_of("load=short-chat-cpu", "scenario.settings.context_tokens=1024", "scenario.budget_minutes=null")
    searched, _ = plan_of(
        "load=short-chat-cpu", "scenario.settings.context_tokens=1024", "scenario.budget_minutes=null",
        f"load.short-chat-cpu.search={{{', '.join(f'{key}: {value}' for key, value in record.items())}}}",
    )  # fmt: skip
    search = searched.loads["short-chat-cpu"].search
    assert search is not None and plain.search is None
    one, many = (each.estimates[each.baseline.id].counted_s["load"] for each in (plan, searched))
    assert many == pytest.approx(search.probes_expected * one)


@pytest.mark.parametrize(("low", "probe_s", "seconds"), [(1.0, 60.0, 60), (4.0, 60.0, 60), (0.1, 60.0, 100)])
def test_a_probe_is_as_long_as_the_search_says(low: float, probe_s: float, seconds: float) -> None:
    search = Search(sla="chat", low=low, probe_s=probe_s)
    load = Load(
        workload=SYNTHETIC, arrival={"kind": "poisson", "rate_rps": 1}, requests=10, warmup_requests=0, search=search
    )
    expected = search.probes_expected * seconds
    assert size_of(load).seconds(load, 1e9, 1e9, 0.0) == pytest.approx(expected, rel=0.02)


def test_lengths_that_do_not_fit_are_named_with_their_tenant() -> None:
    tenants = {"a": Tenant(workload=SYNTHETIC, arrival=CLOSED, requests=1)}
    for load, where in ((Load(workload=SYNTHETIC, arrival=CLOSED), ""), (Load(tenants=tenants), r"tenants\.a\.")):
        with pytest.raises(
            ConfigError, match=rf"{where}workload: input_tokens_mean=100 \+ output_tokens_mean=20 tokens"
        ):
            size_of(load, 119)


def test_a_file_is_read_by_the_plan_and_its_faults_are_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\nnonsense,1,2\n")
    workload = f"load.sharegpt-smoke.workload={{kind: trace, format: azure, path: '{trace}'}}"
    with pytest.raises(ConfigError) as caught:
        plan_of("load=sharegpt-smoke", workload)
    assert "trace.csv" in str(caught.value) and "3" in str(caught.value)


def slow_host() -> Calibration:
    speed = EngineSpeed(start_s=35.0, prefill_tokens_per_s=300, decode_tokens_per_s=15, request_s=0.5)
    names = [f"{b}+{s}" for b in ("vllm", "llama-cpp") for s in choices("strategy")]
    return Calibration(dict.fromkeys(names, speed), Noise())


@pytest.mark.parametrize("name", ["chat-and-batch", "short-chat-ramp", "short-chat-bursty"])
def test_the_budget_trims_requests_of_every_load(name: str) -> None:
    overrides = [f"load={name}", "scenario.settings.context_tokens=8192"]
    asked, _ = plan_of(*overrides, "scenario.budget_minutes=null", known=slow_host())
    plan, _ = plan_of(*overrides, "scenario.budget_minutes=1", known=slow_host())
    assert plan.loads[name].requests == MIN_REQUESTS < asked.loads[name].requests
    assert any(
        f"load {name}: {asked.loads[name].requests} requests trimmed to {MIN_REQUESTS}" in t for t in plan.dropped
    )
    assert set(plan.loads[name].tenants) == set(asked.loads[name].tenants)


def test_tenants_are_not_trimmed_away() -> None:
    """Nine tenants of whom each keeps a request: fewer than that can't be, and the plan ends all the same."""
    tenants = {f"t{i}": Tenant(workload=SYNTHETIC, arrival=CLOSED, requests=10) for i in range(9)}
    load = Load(tenants=tenants, warmup_requests=0)
    assert load.with_requests(MIN_REQUESTS).requests == 9
    _, config = plan_of()
    config.load = {"many": load}
    config.scenario.budget_minutes = 0.1
    plan = make_plan(config, slow_host(), [])
    assert plan.loads["many"].requests == 9
    assert any("over its budget" in note for note in plan.notes)


def test_text_of_a_file_is_counted_roughly_before_there_is_a_tokenizer(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "word " * 100}, {"from": "gpt", "value": "word " * 50}]
    path = tmp_path / "talks.json"
    path.write_text(json.dumps([{"id": str(i), "conversations": said} for i in range(80)]))
    workload = {"kind": "sharegpt-file", "path": str(path)}
    load = Load(workload=workload, arrival=CLOSED, requests=40, warmup_requests=0)
    [size] = size_of(load).streams.values()
    assert (size.prompt_tokens, size.output_tokens, size.literal_tokens) == (500 / 4, 63, 500 / 4)
    many = replace(load, requests=1000)
    assert size_of(many).streams[""].prompt_tokens == 500 / 4, "how many it really holds, its tokenizer will say"
