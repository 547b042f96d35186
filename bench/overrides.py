"""A user's overrides, brought to the one form that the rest understands, before Hydra sees them.

An axis is a list inside the job. A comma sweep over one (`backend=vllm,llama-cpp`) would make Hydra run each value as a
job of its own and tear blocks apart, so it is folded into the list. `backend.KEY=…` without a backend's name is meant
for the only selected one, `accuracy.KEY=…` without a task's name for every selected task.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from bench.config import AXES, GROUPS, choices
from harness.accuracy.kinds import kinds as task_kinds
from harness.accuracy.task import Task
from harness.backends.interface import BackendOptions
from harness.errors import ConfigError
from harness.traffic import arrivals, workloads

DEFAULT_SCENARIO = "smoke"
OWN_KEYS = ("run_dir", "block", "scenario_name")
"""Keys that carry a run to its jobs; never a user's."""
_OF_A_KIND = re.compile(r"(?P<node>load\.[^.]+\.(tenants\.[^.]+\.)?(?P<part>workload|arrival))(?P<kind>\.kind)?")
_OF_A_DICTIONARY = re.compile(r"(backend\.[^.=]+\.env|accuracy\.[^.=]+\.chat_template_arguments)\.\w+")
_KINDS: dict[str, tuple[Callable[[], Mapping[str, Any]], Callable[[str], set[str]]]] = {
    "workload": (workloads.workloads, workloads.keys_of_others),
    "arrival": (arrivals.arrivals, arrivals.keys_of_others),
}
"""Kinds by name, and the keys that others have."""
_NAMELESS = {
    "backend": tuple(spec.name for spec in fields(BackendOptions)),
    "accuracy": tuple(spec.name for spec in fields(Task)),
}
"""Keys that may stand right behind the group."""


def normalise(arguments: list[str]) -> list[str]:
    """Overrides with comma sweeps over axes folded into lists; raises `ConfigError` for any other sweep."""
    try:
        parsed = OverridesParser.create().parse_overrides(arguments)
    except HydraException as error:
        raise ConfigError(f"can't read the override: {str(error).strip().splitlines()[0]}") from error
    folded = [_folded(override) for override in parsed]
    return [
        text for override, each in zip(parsed, folded, strict=True) for text in (each, *_left_behind(override, parsed))
    ]


def quoted(value: str) -> str:
    """A value that Hydra's grammar reads back as it is, whatever characters it has."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + (r"\'" if found[2] else ""), value)
    return f"'{escaped}'"


def scenario_name(overrides: list[str]) -> str:
    """The selected scenario's name."""
    return _last_value(overrides, "scenario") or DEFAULT_SCENARIO


def split_nameless(overrides: list[str], group: str) -> tuple[list[str], list[str]]:
    """Overrides of a group's key that name no member of it, and all others."""
    nameless = [text for text in overrides if _nameless(text, group)]
    return nameless, [text for text in overrides if text not in nameless]


def name_the_tasks(overrides: list[str], kinds: Mapping[str, str]) -> list[str]:
    """`accuracy.limit=…` → `accuracy.<name>.limit=…` for every selected task; a data folder only where there is data.

    `kinds` holds the kind of each selected task, by its name.
    """
    found = []
    for text in overrides:
        key = text.partition("=")[0].split(".")[1]
        meant = [name for name, kind in kinds.items() if key != "data_dir" or _has_files(kind)]
        if not meant:
            some = "task that reads a data set" if kinds else "accuracy task"
            raise ConfigError(f"'{text}': no {some} is selected; write accuracy=[name,…]")
        found += [text.replace("accuracy.", f"accuracy.{name}.", 1) for name in meant]
    return found


def _has_files(kind: str) -> bool:
    return kind in task_kinds() and bool(task_kinds()[kind].files)


def name_the_backend(overrides: list[str], backends: list[str]) -> list[str]:
    """`backend.python=…` → `backend.<name>.python=…`, where one backend is selected."""
    return [_with_backend(text, backends) for text in overrides]


def _folded(override: Override) -> str:
    text, key = str(override.input_line), override.key_or_group
    if key in OWN_KEYS:
        raise ConfigError(f"'{text}': {key} is set by KVMark itself; choose where results go with results_dir=")
    if _OF_A_DICTIONARY.fullmatch(key) and not text.startswith(("+", "~")):
        return f"+{text}"  # a variable is a new key of a dictionary
    if override.is_sweep_override() and not key.startswith("hydra"):
        if key not in GROUPS:
            raise ConfigError(
                f"'{text}': a sweep would tear blocks apart; only {', '.join(AXES)} take several values, as a list"
            )
        values = text.split("=", 1)[1]
        if "(" in values:
            raise ConfigError(f"'{text}': write the values as a list: {key}=[a,b]")
        return f"{key}=[{values}]"
    if key in GROUPS and override.package is None and isinstance(override.value(), str) and override.value():
        return f"{key}=[{override.value()}]"
    return text


def _left_behind(override: Override, all_overrides: Sequence[Override]) -> list[str]:
    """What a workload or arrival of another kind has no use for, of the keys that stand in the load's file: null."""
    found = _OF_A_KIND.fullmatch(override.key_or_group)
    if found is None or override.is_delete():
        return []
    value = override.value()
    kind = value if found["kind"] else value.get("kind") if isinstance(value, dict) else None
    known, keys_of_others = _KINDS[found["part"]]
    if kind not in known():
        return []
    node = found["node"]
    given = {each.key_or_group for each in all_overrides}
    if isinstance(value, dict):
        given |= {f"{node}.{key}" for key in value}
    return [f"{node}.{key}=null" for key in sorted(keys_of_others(str(kind))) if f"{node}.{key}" not in given]


def _nameless(text: str, group: str) -> bool:
    parts = text.lstrip("+~").partition("=")[0].split(".")
    return parts[0] == group and len(parts) > 1 and parts[1] in _NAMELESS[group]


def _with_backend(text: str, backends: list[str]) -> str:
    stripped = text.lstrip("+~")
    prefix, (key, _, value) = text[: len(text) - len(stripped)], stripped.partition("=")
    parts = key.split(".")
    rest = ".".join(parts[1:])
    if len(backends) != 1:
        names = ", ".join(f"backend.{name}.{rest}" for name in backends)
        raise ConfigError(f"'{text}': {len(backends)} backends are selected; name one: {names or choices('backend')}")
    if parts[1] == "env" and len(parts) > 2:
        prefix = prefix or "+"
    return f"{prefix}backend.{backends[0]}.{rest}={value}"


def _last_value(overrides: list[str], key: str) -> str | None:
    values = [text.partition("=")[2] for text in overrides if text.partition("=")[0] == key]
    return values[-1] if values else None
