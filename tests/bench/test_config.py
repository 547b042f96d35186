"""Every composition is typed; what is wrong in a file or an override is named with file, key and what is allowed."""

import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from bench import app
from bench import config as bench_config
from bench.config import GROUPS, SCENARIOS, choices, compose_config, typed
from harness.errors import ConfigError


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
        selected = getattr(typed(compose_config([f"{group}=[{name}]"])), group)
        assert list(selected) == [name]


@pytest.mark.parametrize("precision", ["normal", "high"])
@pytest.mark.parametrize("devices", [[], [{"name": "GPU", "memory_bytes": 80 * 2**30}]])
@pytest.mark.parametrize("scenario", choices("scenario"))
def test_presets_compose_with_every_scenario(
    scenario: str, devices: list[dict[str, object]], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "gpus", lambda: devices)
    if (scenario, precision) == ("smoke", "high"):
        with pytest.raises(ConfigError, match=r"precision=high.*smoke.*on_high_precision"):
            app.resolve([f"scenario={scenario}", f"precision={precision}"])
        return
    _, config = app.resolve([f"scenario={scenario}", f"precision={precision}"])
    if precision == "high":
        assert config.scenario.blocks >= 8
        assert all(load.requests >= 368 for load in config.load.values()), "P99 needs as many"


@pytest.mark.parametrize("devices", [[], [{"name": "GPU", "memory_bytes": 80 * 2**30}]])
def test_presets_of_what_is_not_selected_are_dropped(
    devices: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "gpus", lambda: devices)
    _, config = app.resolve(["scenario=long-context", "precision=high", "accuracy=[]", "load=short-chat-cpu"])
    assert config.accuracy == {}
    assert list(config.load) == ["short-chat-cpu"]
    assert config.scenario.blocks == 8


def test_the_users_words_win_over_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "gpus", lambda: [{"name": "GPU", "memory_bytes": 80 * 2**30}])
    arguments = ["backend=vllm,llama-cpp", "model=smollm2-135m", "load.sharegpt-long.requests=7"]
    _, config = app.resolve(["scenario=long-context", *arguments])
    assert list(config.backend) == ["vllm", "llama-cpp"]
    assert config.load["sharegpt-long"].requests == 7
    _, config = app.resolve(["scenario=high-throughput", "load.short-chat.requests=9"])
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


def test_a_file_that_is_no_yaml_is_an_error_not_a_crash(copied_scenarios: Path) -> None:
    (copied_scenarios / "strategy" / "mine.yaml").write_text("# @package strategy.mine\nkv_dtype: [int7\n")
    with pytest.raises(ConfigError, match=r"strategy/mine"):
        compose_config(["strategy=[mine]"])


def test_a_composed_configuration_survives_its_own_yaml() -> None:
    config = typed(compose_config(["scenario=smoke", "scenario_name=smoke"]))
    text = OmegaConf.to_yaml(OmegaConf.structured(config))
    again = typed(OmegaConf.merge(OmegaConf.structured(bench_config.Config), OmegaConf.create(text)))  # type: ignore[arg-type]
    assert again == config
