"""What a scenario sets for a GPU, a CPU and high precision, brought to what was selected and to the model's context."""

import re

from omegaconf import DictConfig

from bench.config import GROUPS, Config
from harness.errors import ConfigError
from harness.models import known_shape

CONTEXT_KEY = "scenario.settings.context_tokens"
_LENGTH = re.compile(
    r"scenario\.settings\.context_tokens|load\..+\.workload\.input_tokens_(mean|max)|accuracy\..+\.context_tokens"
)
"""Keys that count tokens of context; outputs keep their length."""


def key_of(override: str) -> str:
    """The key that an override sets, or the group that it chooses."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0]


def presets(composed: DictConfig, scenario: str, on_gpu: bool) -> list[str]:
    """The scenario's presets that apply here; raises `ConfigError` where high precision means nothing."""
    high = composed.precision == "high"
    if high and not composed.scenario.on_high_precision:
        raise ConfigError(
            f"precision=high: scenario '{scenario}' doesn't say what that is "
            f"(on_high_precision in scenarios/scenario/{scenario}.yaml is empty); choose another scenario, or set its "
            "keys yourself, e.g. scenario.blocks=8"
        )
    machine = composed.scenario.on_gpu if on_gpu else composed.scenario.on_cpu
    return [*machine, *(composed.scenario.on_high_precision if high else ())]


def choices_of(preset: list[str], user: list[str]) -> list[str]:
    """Presets that select (`load=[short-chat]`), less those of groups for which the user has chosen."""
    chosen = {key_of(text) for text in user}
    return [text for text in preset if key_of(text) in GROUPS and key_of(text) not in chosen]


def values_of(preset: list[str], composed: DictConfig) -> list[str]:
    """Presets that set a value (`load.short-chat.requests=368`), less those of files that aren't selected."""
    kept = []
    for text in preset:
        group, _, rest = key_of(text).partition(".")
        name = rest.partition(".")[0]
        if group not in GROUPS or (rest and name in composed[group]):
            kept.append(text)
    return kept


def fitted_to_context(preset: list[str], config: Config) -> list[str]:
    """The presets with all lengths scaled down by one factor, so that their context is one that every model takes.

    A preset names the longest context of the scenario (128K); a model of 40K gets the same load in its own proportion.
    A shorter context of the user's shrinks the preset lengths too.
    """
    wish = next((int(text.partition("=")[2]) for text in reversed(preset) if key_of(text) == CONTEXT_KEY), None)
    if wish is None:
        return preset
    limits = [known_shape(name, spec).context_tokens for name, spec in config.model.items()]
    fits = min([wish, config.scenario.settings.context_tokens, *(limit for limit in limits if limit)])
    return preset if fits == wish else [_scaled(text, fits, wish) for text in preset]


def _scaled(text: str, fits: int, wish: int) -> str:
    key, _, value = text.partition("=")
    if not _LENGTH.fullmatch(key_of(text)):
        return text
    return f"{key}={re.sub(r'[0-9]+', lambda found: str(int(found[0]) * fits // wish), value)}"
