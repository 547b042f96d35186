"""From a user's overrides to the configuration that is carried out: presets, the chosen model, keys without a name."""

from omegaconf import DictConfig, OmegaConf

from bench.config import Config, compose_config, typed
from bench.overrides import name_the_backend, name_the_tasks, normalise, scenario_name, split_nameless
from bench.presets import choices_of, fitted_to_context, key_of, presets, values_of
from harness.models import ModelSpec, choose_auto
from harness.telemetry import gpus


def resolve(arguments: list[str]) -> tuple[list[str], Config]:
    """The final overrides and the configuration that they compose to; raises `ConfigError`.

    `model=auto` becomes the chosen model; what the scenario sets for a GPU or for high precision comes before the
    user's own overrides, which win.
    """
    user = normalise(arguments)
    later, user = split_nameless(user, "backend")
    of_all_tasks, first = split_nameless(user, "accuracy")
    scenario = scenario_name(user)
    named = [*first, f"scenario_name={scenario}"]
    devices = gpus()
    preset = presets(compose_config([text for text in named if _says_presets(text)]), scenario, bool(devices))
    selected = [*choices_of(preset, named), *named]
    composed = compose_config(selected)
    later = name_the_backend(later, [str(name) for name in composed.backend])
    kinds = {str(name): str(task.kind) for name, task in composed.accuracy.items()}
    selected = [*name_the_tasks(of_all_tasks, kinds), *selected]  # a task's own key, which comes later, wins
    if "auto" in composed.model:
        chosen = _choose_model(composed, [gpu["memory_bytes"] for gpu in devices])
        models = ",".join(dict.fromkeys(chosen if name == "auto" else str(name) for name in composed.model))
        later = [*later, f"model=[{models}]"]
    preset = values_of(preset, composed)
    config = typed(compose_config([*preset, *selected, *later]))
    fitting = fitted_to_context(preset, config)
    overrides = [*fitting, *selected, *later]
    return overrides, config if fitting == preset else typed(compose_config(overrides))


def _says_presets(override: str) -> bool:
    key = key_of(override)
    return key in ("scenario", "precision") or key.startswith("scenario.on_")


def _choose_model(composed: DictConfig, gpu_memory_bytes: list[int]) -> str:
    auto: ModelSpec = OmegaConf.to_object(composed.model.auto)  # type: ignore[assignment]
    spread = 1 << max(0, len(gpu_memory_bytes).bit_length() - 1)  # a server spreads over a power of two
    return choose_auto({"auto": auto}, gpu_memory_bytes, spread)
