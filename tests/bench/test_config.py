"""Every composition is typed; what is wrong in a file or an override is named with file, key and what is allowed."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from bench import config as bench_config
from bench import resolve
from bench.analysis.metrics import sla_limits
from bench.config import GROUPS, SCENARIOS, choices, compose_config, config_yaml, read_config, typed
from bench.overrides import normalise, quoted
from harness.errors import ConfigError
from harness.traffic.load import Load

USERS_FILES = {
    "sharegpt-file": json.dumps(
        [{"conversations": [{"from": "human", "value": "How long is it?"}, {"from": "gpt", "value": "A metre."}]}]
    ),
    "trace-azure": "arrival_s,context_tokens,generated_tokens\n" + "".join(f"{s},50,9\n" for s in range(80)),
    "trace-mooncake": "".join(
        json.dumps({"timestamp": 1000 * s, "input_length": 600, "output_length": 9, "hash_ids": [s, s + 1]}) + "\n"
        for s in range(80)
    ),
}
"""What loads that come without a file are given in its place."""


@pytest.fixture
def copied_scenarios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `scenarios/` that a test may damage."""
    folder = tmp_path / "scenarios"
    shutil.copytree(SCENARIOS, folder)
    monkeypatch.setattr(bench_config, "SCENARIOS", folder)
    return folder


@pytest.mark.parametrize("scenario", choices("scenario"))
def test_every_scenario_composes_and_is_typed(scenario: str) -> None:
    config = typed(compose_config([f"scenario={scenario}", f"scenario_name={scenario}"]))
    assert config.scenario.blocks >= 1
    for axis in ("backend", "model", "strategy", "load"):
        assert getattr(config, axis), f"{scenario} selects no {axis}"


@pytest.mark.parametrize("group", GROUPS)
def test_every_file_of_every_group_composes_under_its_own_name(group: str) -> None:
    for name in choices(group):
        overrides = [f"{group}=[{name}]"]
        if group == "load":
            overrides.append("sla=[batch,chat]")  # a load may name those that its tenants are promised
            if "path: ???" in (SCENARIOS / group / f"{name}.yaml").read_text():
                with pytest.raises(ConfigError, match=rf"load/{name}\.yaml.*workload\.path.*must be set"):
                    typed(compose_config(overrides))
                continue
        selected = getattr(typed(compose_config(overrides)), group)
        assert list(selected) == [name]


@pytest.mark.parametrize("precision", ["normal", "high"])
@pytest.mark.parametrize("devices", [[], [{"name": "GPU", "memory_bytes": 80 * 2**30}]])
@pytest.mark.parametrize("scenario", choices("scenario"))
def test_presets_compose_with_every_scenario(
    scenario: str, devices: list[dict[str, object]], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "gpus", lambda: devices)
    if (scenario, precision) == ("smoke", "high"):
        with pytest.raises(ConfigError, match=r"precision=high.*smoke.*on_high_precision"):
            resolve.resolve([f"scenario={scenario}", f"precision={precision}"])
        return
    _, config = resolve.resolve([f"scenario={scenario}", f"precision={precision}"])
    if precision == "high":
        assert config.scenario.blocks >= 8
        assert all(load.requests >= 368 for load in config.load.values()), "P99 needs as many"


@pytest.mark.parametrize("devices", [[], [{"name": "GPU", "memory_bytes": 80 * 2**30}]])
def test_presets_of_what_is_not_selected_are_dropped(
    devices: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "gpus", lambda: devices)
    _, config = resolve.resolve(["scenario=long-context", "precision=high", "accuracy=[]", "load=short-chat-cpu"])
    assert config.accuracy == {}
    assert list(config.load) == ["short-chat-cpu"]
    assert config.scenario.blocks == 8


def test_the_users_words_win_over_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "gpus", lambda: [{"name": "GPU", "memory_bytes": 80 * 2**30}])
    arguments = ["backend=vllm,llama-cpp", "model=smollm2-135m", "load.sharegpt-long.requests=7"]
    _, config = resolve.resolve(["scenario=long-context", *arguments])
    assert list(config.backend) == ["vllm", "llama-cpp"]
    assert config.load["sharegpt-long"].requests == 7
    _, config = resolve.resolve(["scenario=high-throughput", "load.short-chat.requests=9"])
    assert config.load["short-chat"].requests == 9, "a key of a load that only the preset selects"


def test_an_unknown_choice_names_the_group_and_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"strategy: 'kv-fp9'.*Did you mean 'kv-fp8'.*Allowed: .*baseline"):
        compose_config(["strategy=[kv-fp9]"])


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("scenario.bloks=2", ["bloks", "blocks"]),
        ("nonsense=2", ["nonsense", "results_dir"]),
        ("scenario.blocks=many", ["scenario.blocks", "many"]),
        ("scenario.settings.context_token=2", ["context_token", "context_tokens"]),
    ],
)
def test_a_wrong_override_names_the_key_and_what_is_allowed(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_config([override])
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("group", [g for g in GROUPS if g != "backend"])
def test_a_wrong_key_in_a_file_names_the_file_and_the_key(group: str, copied_scenarios: Path) -> None:
    name = next(n for n in choices(group) if n != "auto")
    with open(copied_scenarios / group / f"{name}.yaml", "a") as file:
        file.write("\nno_such_key: 1\n")
    with pytest.raises(ConfigError) as caught:
        compose_config([f"{group}=[{name}]"])
    assert f"scenarios/{group}/{name}.yaml" in str(caught.value)
    assert "no_such_key" in str(caught.value)


def test_a_wrong_value_in_a_file_names_the_file_the_value_and_what_is_allowed(copied_scenarios: Path) -> None:
    (copied_scenarios / "strategy" / "mine.yaml").write_text("# @package strategy.mine\nkv_dtype: int7\n")
    with pytest.raises(ConfigError, match=r"scenarios/strategy/mine\.yaml: kv_dtype: 'int7'.*16bit"):
        typed(compose_config(["strategy=[mine]"]))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["sla=[chat]"], ["chat-and-batch.yaml", "tenants.batch.sla", "'batch'", "sla=[chat,batch]"]),
        (
            ["sla=[chat,batch]", "load.chat-and-batch.tenants.chat.sla=fast"],
            ["tenants.chat.sla", "fast", "batch, chat"],
        ),
    ],
)
def test_a_service_level_that_a_load_names_must_be_selected(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        typed(compose_config(["load=[chat-and-batch]", *overrides]))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ("short-chat-ramp", ["isn't selected", "load=[short-chat,short-chat-ramp]"]),
        ("nothing", ["is unknown", "sharegpt-long"]),
    ],
)
def test_a_load_that_questions_are_asked_under_must_be_selected(load: str, words: list[str]) -> None:
    task = ["load=[short-chat]", "accuracy=[retrieval-smoke]", "accuracy.retrieval-smoke.under_load"]
    assert typed(compose_config([*task[:2], f"{task[2]}=short-chat"])).accuracy["retrieval-smoke"].under_load
    with pytest.raises(ConfigError) as caught:
        typed(compose_config([*task[:2], f"{task[2]}={load}"]))
    for word in ("scenarios/accuracy/retrieval-smoke.yaml: under_load", f"'{load}'", *words):
        assert word in str(caught.value)


def load_with(*overrides: str) -> Load:
    """The long conversations, overridden as by a user."""
    config = typed(compose_config(normalise(["load=sharegpt-long", *overrides])))
    return config.load["sharegpt-long"]


def test_any_key_of_a_kind_can_be_overridden() -> None:
    load = load_with(
        "load.sharegpt-long.workload.input_tokens_mean=500",
        "load.sharegpt-long.workload.output_tokens_fixed=false",  # a key that the file doesn't have
        "load.sharegpt-long.think_time_s={kind: exponential, mean_s: 2}",
    )
    assert (load.workload["input_tokens_mean"], load.workload["output_tokens_fixed"]) == (500, False)
    assert load.workload["input_tokens_max"] == 6000


@pytest.mark.parametrize(
    "overrides",
    [
        [
            "load.sharegpt-long.arrival.kind=gamma",
            "load.sharegpt-long.arrival.rate_rps=2",
            "load.sharegpt-long.arrival.cv=3",
        ],
        ["load.sharegpt-long.arrival={kind: gamma, rate_rps: 2, cv: 3}"],
    ],
)
def test_another_kind_of_arrival_leaves_the_keys_of_the_file_behind(overrides: list[str]) -> None:
    assert load_with(*overrides).arrival == {"kind": "gamma", "rate_rps": 2.0, "cv": 3.0, "burstiness": None}


def test_another_kind_of_workload_leaves_the_keys_of_the_file_behind() -> None:
    load = load_with("load.sharegpt-long.workload.kind=synthetic")
    assert load.workload["kind"] == "synthetic"
    assert load.workload["input_tokens_mean"] == 3000, "a key that both have stays"


@pytest.mark.parametrize("metric", ["ttft", "itl", "tpot", "e2e", "normalised_latency"])
def test_a_service_level_may_limit_every_latency(metric: str) -> None:
    composed = compose_config(["scenario=smoke", "scenario_name=smoke", "sla=[chat]", f"sla.chat.{metric}_p90_ms=5"])
    assert (metric + "_ms", 90, 5.0) in sla_limits(asdict(typed(composed).sla["chat"]))


def test_a_search_can_be_asked_for_on_the_command_line() -> None:
    key = "load.sharegpt-long.search"
    load = load_with("sla=chat", f"{key}.over=concurrency", f"{key}.sla=chat")
    assert load.search is not None and load.search.repeats == 3
    assert load_with("sla=chat", f"{key}={{over: concurrency, sla: chat}}") == load
    assert load_with().search is None
    with pytest.raises(ConfigError, match=r"search.*overr.*Did you mean 'over'"):
        load_with(f"{key}.overr=concurrency")


def test_a_tenants_arrival_can_be_of_another_kind_too() -> None:
    key = "load.chat-and-batch.tenants.batch.arrival"
    overrides = normalise(["load=chat-and-batch", "sla=batch,chat", f"{key}.kind=constant", f"{key}.rate_rps=1"])
    load = typed(compose_config(overrides)).load["chat-and-batch"]
    assert load.tenants["batch"].arrival == {"kind": "constant", "rate_rps": 1.0}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "load.sharegpt-long.workload.input_token_mean=500",
            ["sharegpt-long.yaml", "Did you mean 'input_tokens_mean'"],
        ),
        ("load.sharegpt-long.arrival.concurrenzy=5", ["sharegpt-long.yaml", "arrival", "Did you mean 'concurrency'"]),
        ("load.sharegpt-long.arrival.rate_rps=5", ["sharegpt-long.yaml", "arrival", "'rate_rps'", "concurrency"]),
        ("load.sharegpt-long.arrival.kind=gama", ["sharegpt-long.yaml", "arrival.kind", "Did you mean 'gamma'"]),
        ("load.sharegpt-long.reqests=5", ["reqests", "Did you mean 'requests'"]),
        ("load.sharegpt-lung.workload.turns_max=5", ["sharegpt-lung"]),
    ],
)
def test_a_wrong_key_of_a_load_names_file_key_and_what_is_allowed(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_with(override)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("scenario.client.transport=fast", ["scenario/smoke.yaml", "client.transport: 'fast'", "auto, pure, compiled"]),
        ("scenario.client.processes=0", ["scenario/smoke.yaml", "client.processes: 0 must be between 1 and"]),
        ("scenario.client.proceses=2", ["client.proceses", "Did you mean 'processes'"]),
        ("scenario.client.cores=4", ["client.cores"]),
    ],
)
def test_how_the_client_runs_is_checked_before_anything_starts(override: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        typed(compose_config(["scenario=smoke", "scenario_name=smoke", override]))
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_no_yaml_is_an_error_not_a_crash(copied_scenarios: Path) -> None:
    (copied_scenarios / "strategy" / "mine.yaml").write_text("# @package strategy.mine\nkv_dtype: [int7\n")
    with pytest.raises(ConfigError, match=r"strategy/mine"):
        compose_config(["strategy=[mine]"])


def stored(config: bench_config.Config, run: Path) -> bench_config.Config:
    """The configuration after it lay in a run's folder."""
    (run / "config.yaml").write_text(config_yaml(config))
    return read_config(run)


@pytest.mark.parametrize("devices", [[], [{"name": "GPU", "memory_bytes": 80 * 2**30}]])
@pytest.mark.parametrize("scenario", choices("scenario"))
def test_every_scenario_comes_back_from_a_runs_folder_as_it_was(
    scenario: str, devices: list[dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "gpus", lambda: devices)
    _, config = resolve.resolve([f"scenario={scenario}"])
    assert stored(config, tmp_path) == config


@pytest.mark.parametrize("group", GROUPS)
def test_every_file_comes_back_from_a_runs_folder_as_it_was(group: str, tmp_path: Path) -> None:
    for name in choices(group):
        overrides = [f"{group}=[{name}]", *(["sla=[batch,chat]"] if group == "load" else [])]
        if "path: ???" in (SCENARIOS / group / f"{name}.yaml").read_text():
            file = tmp_path / "a user's file"
            file.write_text(USERS_FILES[name] if group == "load" else "")
            overrides.append(f"{group}.{name}.{'workload.' if group == 'load' else ''}path={quoted(str(file))}")
        config = typed(compose_config(overrides))
        again = stored(config, tmp_path)
        assert again == config
        assert [load.streams for load in again.load.values()] == [load.streams for load in config.load.values()]


@pytest.mark.parametrize("value", ["1:30", "yes", "1e3", "0x10", "null", "~", "007", "2020-01-01", "", " a: b # c"])
def test_a_text_that_looks_like_another_type_stays_that_text(value: str, tmp_path: Path) -> None:
    _, config = resolve.resolve(["scenario=smoke", "backend=llama-cpp", f"backend.env.A='{value}'"])
    assert stored(config, tmp_path).backend["llama-cpp"].env == {"A": value}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scenario: {bloks: 2}", ["config.yaml", "another version", "bloks", "blocks"]),
        ("scenario: [", ["config.yaml is damaged"]),
        (None, ["config.yaml can't be read"]),
    ],
)
def test_a_stored_configuration_that_cannot_be_carried_out_is_named(
    text: str | None, words: list[str], tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config(tmp_path)
    for word in words:
        assert word in str(caught.value)
