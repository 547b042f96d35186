"""The configuration, typed: the Hydra schema of every group under `scenarios/`.

A scenario selects the axes (`backend`, `model`, `strategy`, `load`) as lists; each selected file lands under
`<group>.<name>` of one composed configuration, so that all deployments of a block are in one job.
"""

import difflib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from harness.accuracy.fidelity_options import FidelityOptions
from harness.accuracy.task import Task
from harness.backends.interface import BackendOptions
from harness.errors import ConfigError
from harness.models import ModelSpec
from harness.settings import Settings
from harness.strategy import Strategy
from harness.traffic.client_options import ClientOptions
from harness.traffic.load import Load

SCENARIOS = Path(__file__).resolve().parent.parent / "scenarios"
AXES = ("backend", "model", "strategy", "load")
"""Groups that span the matrix; each is a list inside the job and never swept."""
GROUPS = (*AXES, "accuracy", "sla")
PRECISIONS = ("normal", "high")
CONFIG_FILE = "config.yaml"
"""Of a run's folder: the resolved configuration, from which its blocks are measured."""


@dataclass
class Baseline:
    """The common baseline; null takes the first selected backend, and the selected 16-bit strategy."""

    backend: str | None = None
    strategy: str | None = None


@dataclass
class Margin:
    """Differences smaller than this count as equal, in per cent."""

    throughput_pct: float = 5.0
    latency_pct: float = 10.0


@dataclass
class OutputCheck:
    """Floors of the output check's band (rule 2); the band from A/A′ widens them.

    Attributes
    ----------
    nll_increase_nats : float
        A mean negative log-likelihood this far above the 16-bit launch's is broken output.
    top1_agreement_min : float
        Share of positions at which the most probable token must be the 16-bit launch's.
    """

    nll_increase_nats: float = 0.3
    top1_agreement_min: float = 0.5


@dataclass
class Until:
    """Adds blocks until every primary interval is narrow enough, or the time or `blocks_max` is used up.

    Attributes
    ----------
    throughput_pct, latency_pct : float or None
        Largest half-width of a primary comparison's interval, in per cent; null: that metric isn't waited for.
    blocks_max : int
        Most blocks in all.
    """

    throughput_pct: float | None = None
    latency_pct: float | None = None
    blocks_max: int = 12

    @property
    def asked(self) -> bool:
        """Whether blocks are added at all."""
        return self.throughput_pct is not None or self.latency_pct is not None

    def __post_init__(self) -> None:
        for key in ("throughput_pct", "latency_pct"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"until.{key}: {value} must be > 0, or null")
        if self.blocks_max < 2:
            raise ConfigError(f"until.blocks_max: {self.blocks_max} must be >= 2")


@dataclass
class Scenario:
    """What to compare, how often, and within what limits.

    Attributes
    ----------
    title, question : str
        Heading, and what the scenario asks.
    baseline : Baseline
        The common baseline deployment, launched twice a block (A and A′).
    blocks : int
        Repeats of all deployments; verdicts need 2, and say something from 3 on.
    budget_minutes : float or None
        The plan trims optional deployments, then requests, to stay within it.
    working_set_over_pool : float or None
        Sets `settings.kv_budget_bytes` where that is null: working set of the baseline ÷ this.
    settings : Settings
        Engine settings, equal for all deployments.
    client : ClientOptions
        How the load client runs, equal for all deployments.
    check_only : list of str
        ``backend/strategy``: launched once for proof of effect and output check, without load.
    optional : list of str
        ``backend/strategy``: what the plan may drop, first named first dropped.
    until : Until
        Blocks beyond `blocks`, by the precision reached.
    fidelity : FidelityOptions
        Sizes of forced decode, greedy continuations and repeats.
    on_gpu, on_cpu, on_high_precision : list of str
        Overrides applied where a GPU is present, where none is, and with ``precision=high``; the user's own come after.
    """

    title: str = ""
    question: str = ""
    baseline: Baseline = field(default_factory=Baseline)
    blocks: int = 3
    budget_minutes: float | None = None
    working_set_over_pool: float | None = 1.5
    settings: Settings = field(default_factory=Settings)
    client: ClientOptions = field(default_factory=ClientOptions)
    check_only: list[str] = field(default_factory=list)
    optional: list[str] = field(default_factory=list)
    margin: Margin = field(default_factory=Margin)
    until: Until = field(default_factory=Until)
    fidelity: FidelityOptions = field(default_factory=FidelityOptions)
    output_check: OutputCheck = field(default_factory=OutputCheck)
    on_gpu: list[str] = field(default_factory=list)
    on_cpu: list[str] = field(default_factory=list)
    on_high_precision: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise ConfigError(f"blocks: {self.blocks} must be >= 1")
        if self.until.asked and self.until.blocks_max < self.blocks:
            raise ConfigError(f"until.blocks_max: {self.until.blocks_max} must be >= blocks ({self.blocks})")
        for key in ("budget_minutes", "working_set_over_pool"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{key}: {value} must be > 0, or null for none")


@dataclass
class Sla:
    """A service level: upper limits at the 90th percentile, in milliseconds; null sets none."""

    title: str = ""
    ttft_p90_ms: float | None = None
    itl_p90_ms: float | None = None
    tpot_p90_ms: float | None = None
    e2e_p90_ms: float | None = None
    normalised_latency_p90_ms: float | None = None


@dataclass
class Config:
    """One composed configuration."""

    scenario: Scenario = field(default_factory=Scenario)
    backend: dict[str, BackendOptions] = field(default_factory=dict)
    model: dict[str, ModelSpec] = field(default_factory=dict)
    strategy: dict[str, Strategy] = field(default_factory=dict)
    load: dict[str, Load] = field(default_factory=dict)
    accuracy: dict[str, Task] = field(default_factory=dict)
    sla: dict[str, Sla] = field(default_factory=dict)
    scenario_name: str = ""
    precision: str = "normal"
    seed: int = 1
    results_dir: str = "results"
    reports_dir: str = "reports"
    run_dir: str | None = None
    block: int | None = None


def register_schema() -> None:
    """Make the schema known to Hydra under the name that `scenarios/config.yaml` starts from."""
    ConfigStore.instance().store(name="schema", node=Config)


def compose_config(overrides: list[str]) -> DictConfig:
    """Compose `scenarios/config.yaml` with overrides; raises `ConfigError` naming file and key."""
    register_schema()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(SCENARIOS), version_base="1.3"):
            return compose("config", overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error)) from error
    except YAMLError as error:
        raise ConfigError(f"a file is not YAML: {error}") from error


def typed(config: DictConfig) -> Config:
    """The composed configuration as dataclasses, every value checked; raises `ConfigError` naming file and key."""
    result = Config()
    if unknown := {str(key) for key in config} - {spec.name for spec in fields(Config)}:
        raise ConfigError(f"key {', '.join(sorted(unknown))} is unknown. Allowed at the top: {', '.join(_top_keys())}")
    for spec in fields(Config):
        node = config[spec.name]
        if spec.name in GROUPS:
            setattr(result, spec.name, {str(k): _object(node[k], f"{spec.name}/{k}.yaml") for k in node})
        elif spec.name == "scenario":
            result.scenario = _object(node, f"scenario/{config.scenario_name}.yaml")
        else:
            setattr(result, spec.name, node)
    if result.precision not in PRECISIONS:
        raise ConfigError(f"precision: '{result.precision}' is unknown; allowed: {', '.join(PRECISIONS)}")
    _need_slas(result)
    _need_loads(result)
    return result


def config_yaml(config: Config) -> str:
    """The configuration as text that `read_config` brings back equal."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def read_config(run: Path) -> Config:
    """The configuration that a run's folder holds; raises `ConfigError` where this version can't carry it out."""
    path = run / CONFIG_FILE
    try:
        stored = OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.load(path))
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path} was written by another version of KVMark, or changed: {_explain(error)}") from error
    assert isinstance(stored, DictConfig)
    return typed(stored)


def _need_slas(config: Config) -> None:
    """Every service level that a load names must be among those selected."""
    for name, load in config.load.items():
        named = {f"tenants.{stream.tenant}.sla": stream.sla for stream in load.streams if stream.sla is not None}
        if load.search is not None:
            named["search.sla"] = load.search.sla
        for key, sla in named.items():
            if sla in config.sla:
                continue
            where = f"scenarios/load/{name}.yaml: {key}: '{sla}'"
            if sla not in choices("sla"):
                raise ConfigError(f"{where} is unknown. Allowed: {', '.join(choices('sla'))}")
            selected = ",".join([*config.sla, sla])
            raise ConfigError(f"{where} isn't selected; write sla=[{selected}]")


def _need_loads(config: Config) -> None:
    """Every load that a task is to be asked under must be among those selected."""
    for name, task in config.accuracy.items():
        load = task.under_load
        if load is None or load in config.load:
            continue
        where = f"scenarios/accuracy/{name}.yaml: under_load: '{load}'"
        if load not in choices("load"):
            raise ConfigError(f"{where} is unknown. Allowed: {', '.join(choices('load'))}")
        raise ConfigError(f"{where} isn't selected; write load=[{','.join([*config.load, load])}]")


def _object(node: DictConfig, file: str) -> Any:
    try:
        return OmegaConf.to_object(node)
    except ConfigError as error:
        raise ConfigError(f"scenarios/{file}: {error}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"scenarios/{file}: {_explain(error)}") from error


def choices(group: str) -> list[str]:
    """Names that `scenarios/<group>/` offers."""
    return sorted(path.stem for path in (SCENARIOS / group).glob("*.yaml"))


def _explain(error: Exception) -> str:
    """Hydra's and OmegaConf's messages, shortened to what was wrong, where, and what is allowed."""
    text = str(error).strip()
    if error.__cause__ is not None:
        text += "\n" + str(error.__cause__).strip()
    for pattern, explain in _EXPLANATIONS:
        if found := re.search(pattern, text, re.DOTALL):
            return explain(text, found)
    return str(error).strip()


def _no_file(text: str, found: re.Match[str]) -> str:
    group, _, name = found["file"].rpartition("/")
    known = choices(group)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"{group}: '{name}' is unknown (no scenarios/{group}/{name}.yaml).{hint} Allowed: {', '.join(known)}"


def _no_key(text: str, found: re.Match[str]) -> str:
    key = full[1] if (full := re.search(r"full_key: (\S+)", text)) else found["key"]
    where = f"scenarios/{file[1]}.yaml: " if (file := re.search(r"In '([^']+)'", text)) else ""
    allowed = _allowed_keys(found["schema"])
    near = difflib.get_close_matches(found["key"], allowed, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"{where}key '{key}' is unknown.{hint} Allowed: {', '.join(allowed)}"


def _bad_value(text: str, found: re.Match[str]) -> str:
    key = full[1] if (full := re.search(r"full_key: (\S+)", text)) else "?"
    where = f"scenarios/{file[1]}.yaml: " if (file := re.search(r"In '([^']+)'", text)) else ""
    return f"{where}{key}: {found['what']}"


def _missing(text: str, found: re.Match[str]) -> str:
    return f"{found['key']}: must be set"


def _no_group(text: str, found: re.Match[str]) -> str:
    return f"key '{found['key']}' is unknown. Allowed at the top: {', '.join(_top_keys())}"


def _top_keys() -> list[str]:
    return [name for name in _allowed_keys("Config") if name not in ("run_dir", "block", "scenario_name")]


_EXPLANATIONS: tuple[tuple[str, Callable[[str, re.Match[str]], str]], ...] = (
    (r"Could not (?:load|find) '(?P<file>[\w./-]+/[^']*)'", _no_file),
    (r"Key '(?P<key>[^']+)' (?:is )?not in '(?P<schema>\w+)'", _no_key),
    (r"Could not override '(?P<key>[^']+)'\.\s*(?:No match|Key)", _no_group),
    (r"Missing mandatory value:.*full_key: (?P<key>\S+)", _missing),
    (r"(?P<what>(?:Value|Cannot convert|Invalid (?:type|value))[^\n]*)", _bad_value),
)


def _allowed_keys(schema: str) -> list[str]:
    known: dict[str, Any] = {}

    def walk(cls: Any) -> None:
        if is_dataclass(cls) and cls.__name__ not in known:  # type: ignore[union-attr]
            known[cls.__name__] = cls  # type: ignore[union-attr]
            for spec in fields(cls):
                for inner in (spec.type, *getattr(spec.type, "__args__", ())):
                    walk(inner)

    walk(Config)
    return [spec.name for spec in fields(known[schema])] if schema in known else []
