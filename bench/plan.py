"""Scenario → blocks → launches → cells: what will run, what can't and why, how long it takes, what it can see.

The plan is computed before anything is launched, from the configuration alone; it is what `make plan` prints and what
`plan.json` keeps.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf

from bench.analysis.compare import smallest_effect
from bench.calibration import Calibration, Noise
from bench.config import Config, Scenario, choices
from bench.plan_load import LoadSize, load_size
from bench.plan_memory import Memory, fitted, weight_bytes
from harness.accuracy.task import Task, check_task, kind_of
from harness.backends import backend_class
from harness.backends.interface import Backend
from harness.errors import ConfigError, Unsupported
from harness.files import read_json
from harness.model import ModelShape
from harness.models import ModelSpec, known_shape
from harness.settings import Settings
from harness.telemetry.hardware import memory_limit_bytes
from harness.traffic.load import Load

T = TypeVar("T")

MIN_REQUESTS = 8
STOP_S = 1.0
LOG_BYTES = 1_000_000
"""An engine's log and a launch's other records."""
TASK_START_S = 3.0
"""Start of the lm-eval process and loading of its task."""
CHECK_TOKENS, CHECK_POSITIONS = 4096, 24
"""Size of the output check, for the time estimate."""
BLOCK_TOKENS = 128
"""The KV pool is a multiple of this, so that a block-based engine loses nothing to rounding; one block more than the
longest sequence needs is the engine's own."""
SUPPORTED, UNSUPPORTED = "supported", "unsupported"


@dataclass(frozen=True)
class Deployment:
    """A candidate: backend × model × strategy."""

    backend: str
    model: str
    strategy: str

    @property
    def id(self) -> str:
        return f"{self.backend}+{self.model}+{self.strategy}"


@dataclass(frozen=True)
class PlannedLaunch:
    """One server process of a block; `replica` 2 is the baseline's second launch (A′)."""

    deployment: Deployment
    replica: int = 1
    check_only: bool = False

    @property
    def name(self) -> str:
        return self.deployment.id + ("+A2" if self.replica == 2 else "")


@dataclass(frozen=True)
class SupportEntry:
    """Whether a backend can carry out a strategy on a model, and why not."""

    backend: str
    model: str
    strategy: str
    state: str
    reason: str | None = None


@dataclass(frozen=True)
class LaunchEstimate:
    """Predicted seconds a phase, and memory, of one launch of a deployment.

    Attributes
    ----------
    seconds : dict
        Of each phase, with the factors that this host's earlier launches taught.
    counted_s : dict
        Of the phases that have such a factor, the seconds without it.
    """

    deployment: str
    seconds: dict[str, float]
    counted_s: dict[str, float]
    kv_bytes_per_token: float
    capacity_tokens: int | None
    pool_bytes: int | None
    weight_bytes: int
    working_set_tokens: int
    working_set_bytes: float

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def working_set_over_pool(self) -> float | None:
        """Tokens wanted at once ÷ tokens that the pool holds; None where the engine chooses the pool."""
        return self.working_set_tokens / self.capacity_tokens if self.capacity_tokens else None


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    Attributes
    ----------
    traffic : dict
        Statistics of each load's window, as asked (`harness/traffic/statistics.py`).
    load_bytes : int
        Estimated bytes of all loads' records in one launch.
    settings : dict
        Per model that fits the machine, KV budget and device count filled in.
    """

    scenario: str
    baseline: Deployment
    deployments: tuple[Deployment, ...]
    check_only: frozenset[str]
    blocks: int
    loads: dict[str, Load]
    traffic: dict[str, dict[str, Any]]
    load_bytes: int
    tasks: dict[str, Task]
    settings: dict[str, Settings]
    support: tuple[SupportEntry, ...]
    estimates: dict[str, LaunchEstimate]
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    smallest_effect: dict[str, float | None] = field(default_factory=dict)
    noise: Noise = field(default_factory=Noise)

    def launches(self, block: int, seed: int) -> list[PlannedLaunch]:
        """The block's launches in their seeded random order; checks only in the first block."""
        planned = [PlannedLaunch(self.baseline, replica=2)]
        for deployment in self.deployments:
            once = deployment.id in self.check_only
            if not once or block == 0:
                planned.append(PlannedLaunch(deployment, check_only=once))
        random.Random(f"order-{seed}-{block}").shuffle(planned)
        return planned

    def engine_baseline(self, deployment: Deployment, strategies: Mapping[str, Any]) -> Deployment | None:
        """The 16-bit deployment of the same engine and model."""
        for other in self.deployments:
            same = (other.backend, other.model) == (deployment.backend, deployment.model)
            if same and strategies[other.strategy].is_16bit_baseline:
                return other
        return None

    def disk_bytes(self) -> int:
        """Estimated bytes of the whole run's records: logs, schedules, raw streams."""
        launches = [p for block in range(self.blocks) for p in self.launches(block, 0)]
        return sum(LOG_BYTES + (0 if launch.check_only else self.load_bytes) for launch in launches)

    def seconds(self) -> float:
        """Estimated seconds of the whole run."""
        return sum(self.estimates[p.deployment.id].total_s for b in range(self.blocks) for p in self.launches(b, 0))


def make_plan(
    config: Config, calibration: Calibration, gpu_memory_bytes: list[int], host_memory_bytes: int | None = None
) -> Plan:
    """Validate every combination and lay out the run; raises `ConfigError` naming what is wrong and what is allowed."""
    _need_axes(config)
    shaped = {name: replace(spec, shape=known_shape(name, spec)) for name, spec in config.model.items()}
    config = replace(config, model=shaped)
    scenario = config.scenario
    backends = {name: backend_class(name)(options) for name, options in config.backend.items()}
    for name, task in config.accuracy.items():
        check_task(name, task, scenario.settings.context_tokens)
    baseline_strategy = _baseline_strategy(config)
    memory = Memory(tuple(gpu_memory_bytes), host_memory_bytes or memory_limit_bytes())
    context_tokens = scenario.settings.context_tokens
    _need_context(config, context_tokens)
    sizes = {name: load_size(name, load, context_tokens) for name, load in config.load.items()}
    settings, too_large = _settings_by_model(config, sizes, memory)
    support = _support(config, backends, settings, too_large)
    deployments = tuple(Deployment(e.backend, e.model, e.strategy) for e in support if e.state == SUPPORTED)
    _need_each_strategy(config, support)
    _need_baselines(support, baseline_strategy)
    baseline = _baseline(config, deployments, support, baseline_strategy)

    def estimate(loads: Mapping[str, Load], d: Deployment) -> LaunchEstimate:
        of_loads = [(load, sizes[name]) for name, load in loads.items()]
        on_gpu = bool(gpu_memory_bytes)
        return _estimate(d, config, backends[d.backend], settings[d.model], of_loads, calibration, on_gpu)

    estimates = {d.id: estimate(config.load, d) for d in deployments}
    check_only = _named(scenario.check_only, deployments, "check_only")
    if baseline.id in check_only:
        raise ConfigError("scenario.check_only: the baseline can't be check-only")
    plan = Plan(
        scenario=config.scenario_name,
        baseline=baseline,
        deployments=deployments,
        check_only=check_only,
        blocks=scenario.blocks,
        loads=dict(config.load),
        traffic={name: size.statistics for name, size in sizes.items()},
        load_bytes=_load_bytes(config.load, sizes),
        tasks=dict(config.accuracy),
        settings=settings,
        support=support,
        estimates=_check_only_estimates(estimates, check_only),
        noise=calibration.noise,
    )
    plan = _within_budget(plan, scenario, config, estimate)
    return replace(
        plan,
        load_bytes=_load_bytes(plan.loads, sizes),
        notes=(*plan.notes, *_pool_notes(plan)),
        smallest_effect=_smallest_effect(plan, config, calibration),
    )


def _load_bytes(loads: Mapping[str, Load], sizes: Mapping[str, LoadSize]) -> int:
    return math.ceil(sum(sizes[name].disk_bytes(load) for name, load in loads.items()))


def _need_axes(config: Config) -> None:
    for axis in ("backend", "model", "strategy", "load"):
        if not getattr(config, axis):
            raise ConfigError(f"{axis}: nothing is selected; write {axis}=[name,…]")


def _baseline(
    config: Config, deployments: tuple[Deployment, ...], support: tuple[SupportEntry, ...], strategy: str
) -> Deployment:
    """The common baseline: on the wanted backend, else on the first one that can run it."""
    wanted = config.scenario.baseline.backend
    if wanted is not None and wanted not in config.backend:
        raise ConfigError(f"scenario.baseline.backend={wanted} isn't selected; allowed: {', '.join(config.backend)}")
    for deployment in deployments:
        if deployment.strategy == strategy and wanted in (None, deployment.backend):
            return deployment
    reasons = [f"{e.model}: {e.reason}" for e in support if (e.backend, e.strategy) == (wanted, strategy)]
    raise ConfigError(f"scenario.baseline.backend={wanted} can't run the 16-bit baseline. {'; '.join(reasons)}")


def _baseline_strategy(config: Config) -> str:
    plain = [name for name, strategy in config.strategy.items() if strategy.is_16bit_baseline]
    if not plain:
        names = ",".join(["baseline", *config.strategy])
        raise ConfigError(
            f"strategy: a 16-bit baseline is missing, and every effect is held against one; write strategy=[{names}]"
        )
    wanted = config.scenario.baseline.strategy
    if wanted is not None and wanted not in plain:
        raise ConfigError(
            f"scenario.baseline.strategy={wanted} is no selected 16-bit strategy; allowed: {', '.join(plain)}"
        )
    return wanted or plain[0]


def _need_context(config: Config, context_tokens: int) -> None:
    """Every model must take the context that the scenario asks for."""
    for name, spec in config.model.items():
        if spec.shape.context_tokens and context_tokens > spec.shape.context_tokens:
            raise ConfigError(
                f"scenario.settings.context_tokens={context_tokens} is longer than the context of {name}: "
                f"{spec.shape.context_tokens} (scenarios/model/{name}.yaml)"
            )


def _settings_by_model(
    config: Config, sizes: Mapping[str, LoadSize], memory: Memory
) -> tuple[dict[str, Settings], dict[str, str]]:
    """The scenario's settings for each model that fits the machine; of each other one, the reason why it doesn't."""
    settings, too_large = {}, {}
    for name, spec in config.model.items():
        try:
            settings[name] = _settings(config, name, spec.shape, sizes, memory)
        except Unsupported as error:
            too_large[name] = str(error)
    if not settings:
        raise ConfigError(f"no selected model fits this machine. {'; '.join(too_large.values())}")
    return settings, too_large


def _settings(config: Config, model: str, shape: ModelShape, sizes: Mapping[str, LoadSize], memory: Memory) -> Settings:
    """The scenario's settings for one model, its KV budget and device count filled in."""
    settings = config.scenario.settings
    least = BLOCK_TOKENS * (math.ceil(settings.context_tokens / BLOCK_TOKENS) + 1)
    wanted = None
    if config.scenario.working_set_over_pool is not None:
        working_set = max(sizes[name].working_set_tokens(load) for name, load in config.load.items())
        blocks = math.floor(working_set / config.scenario.working_set_over_pool / BLOCK_TOKENS)
        wanted = math.ceil(max(least, blocks * BLOCK_TOKENS) * shape.kv_bytes_per_token(16))
    return fitted(model, shape, settings, wanted, math.ceil(least * shape.kv_bytes_per_token(16)), memory)


def _support(
    config: Config, backends: Mapping[str, Backend], settings: Mapping[str, Settings], too_large: Mapping[str, str]
) -> tuple[SupportEntry, ...]:
    entries = []
    for backend_name, backend in backends.items():
        for model_name, spec in config.model.items():
            for strategy_name, strategy in config.strategy.items():
                state, reason = SUPPORTED, None
                try:
                    if model_name in too_large:
                        raise Unsupported(too_large[model_name])
                    _need_files(backend, model_name, spec)
                    backend.check(strategy, spec.shape, settings[model_name])
                except Unsupported as error:
                    state, reason = UNSUPPORTED, str(error)
                entries.append(SupportEntry(backend_name, model_name, strategy_name, state, reason))
    return tuple(entries)


def _need_files(backend: Backend, name: str, spec: ModelSpec) -> None:
    """Raise `Unsupported` where the engine loads a kind of file that the model doesn't come with."""
    if backend.needs_gguf and spec.source in ("path", "hub") and not spec.gguf:
        raise Unsupported(
            f"{backend.title} loads GGUF files, and {name} comes without one; name a 16-bit GGUF of the same weights: "
            f"model.{name}.gguf=<file>"
        )


def _need_each_strategy(config: Config, support: tuple[SupportEntry, ...]) -> None:
    for name in config.strategy:
        mine = [entry for entry in support if entry.strategy == name]
        if all(entry.state != SUPPORTED for entry in mine):
            reasons = "; ".join(f"{entry.backend}: {entry.reason}" for entry in mine)
            raise ConfigError(
                f"strategy '{name}' (scenarios/strategy/{name}.yaml): no selected backend can do it. {reasons}"
            )


def _need_baselines(support: tuple[SupportEntry, ...], strategy: str) -> None:
    """An engine that can do something on a model must do its 16-bit baseline there, else there's no effect to tell."""
    able = {(entry.backend, entry.model) for entry in support if entry.state == SUPPORTED}
    for entry in support:
        if entry.strategy == strategy and entry.state != SUPPORTED and (entry.backend, entry.model) in able:
            raise ConfigError(
                f"backend '{entry.backend}' can't run its own 16-bit baseline on {entry.model}: {entry.reason}"
            )


def _named(names: list[str], deployments: tuple[Deployment, ...], key: str) -> frozenset[str]:
    """Deployment ids matching ``backend/strategy`` names; a name whose parts aren't selected matches none."""
    chosen = set()
    for name in names:
        backend, _, strategy = name.partition("/")
        for group, part in (("backend", backend), ("strategy", strategy)):
            if strategy and part not in choices(group):
                raise ConfigError(f"scenario.{key}: '{name}': no {group} '{part}'; known: {', '.join(choices(group))}")
        if not strategy:
            raise ConfigError(f"scenario.{key}: '{name}' must be written backend/strategy")
        chosen |= {d.id for d in deployments if (d.backend, d.strategy) == (backend, strategy)}
    return frozenset(chosen)


def _estimate(
    deployment: Deployment,
    config: Config,
    backend: Backend,
    settings: Settings,
    loads: Sequence[tuple[Load, LoadSize]],
    calibration: Calibration,
    on_gpu: bool,
) -> LaunchEstimate:
    spec, strategy = config.model[deployment.model], config.strategy[deployment.strategy]
    speed = calibration.engine(deployment.backend, deployment.strategy, on_gpu)
    slower = max(spec.shape.parameters, 1) / speed.reference_parameters / (settings.tensor_parallel if on_gpu else 1)
    prefill, decode = speed.prefill_tokens_per_s / slower, speed.decode_tokens_per_s / slower
    load_s = sum(size.seconds(load, prefill, decode, speed.request_s) for load, size in loads)
    accuracy_s = 0.0
    for task in config.accuracy.values():
        asked = kind_of(task).size(task)
        prompt_tokens = asked.distinct_prompt_tokens if strategy.prefix_reuse else asked.prompt_tokens
        accuracy_s += TASK_START_S + prompt_tokens / prefill
        accuracy_s += asked.output_tokens / decode + asked.questions * speed.request_s
    capacity = backend.capacity_tokens(strategy, spec.shape, settings)
    bytes_per_token = spec.shape.kv_bytes_per_token(backend.kv_bits_per_value(strategy))
    working_set = max(size.working_set_tokens(load) for load, size in loads)
    check_s = min(CHECK_TOKENS, settings.context_tokens) / prefill + CHECK_POSITIONS * 2 * speed.request_s
    counted_s = {"output_check": check_s, "load": load_s, "accuracy": accuracy_s}
    learned_s = {phase: speed.factor(phase) * seconds for phase, seconds in counted_s.items()}
    return LaunchEstimate(
        deployment=deployment.id,
        seconds={"start": speed.start_seconds(), **learned_s, "stop": STOP_S},
        counted_s=counted_s,
        kv_bytes_per_token=bytes_per_token,
        capacity_tokens=capacity,
        pool_bytes=None if capacity is None else math.ceil(capacity * bytes_per_token),
        weight_bytes=weight_bytes(spec.shape),
        working_set_tokens=working_set,
        working_set_bytes=working_set * bytes_per_token,
    )


def _check_only_estimates(
    estimates: dict[str, LaunchEstimate], check_only: frozenset[str]
) -> dict[str, LaunchEstimate]:
    none = {"load": 0.0, "accuracy": 0.0}
    return {
        name: replace(e, seconds=e.seconds | none, counted_s=e.counted_s | none) if name in check_only else e
        for name, e in estimates.items()
    }


def _within_budget(
    plan: Plan, scenario: Scenario, config: Config, estimate: Callable[[Mapping[str, Load], Deployment], LaunchEstimate]
) -> Plan:
    """Trim optional deployments (first to a check, then away), then requests; never A/A′, never the blocks."""
    if scenario.budget_minutes is None:
        return plan
    budget_s, asked = 60 * scenario.budget_minutes, plan
    for name in scenario.optional:
        cut = _along_with(_named([name], plan.deployments, "optional"), plan, config) - plan.check_only
        if plan.seconds() > budget_s and cut:
            check_only = plan.check_only | cut
            plan = replace(plan, check_only=check_only, estimates=_check_only_estimates(plan.estimates, check_only))
    for name in scenario.optional:
        gone = _along_with(_named([name], plan.deployments, "optional"), plan, config)
        if plan.seconds() > budget_s and gone:
            plan = replace(plan, deployments=tuple(d for d in plan.deployments if d.id not in gone))
    while plan.seconds() > budget_s:
        loads = {name: _fewer_requests(load) for name, load in plan.loads.items()}
        if all(load.requests == plan.loads[name].requests for name, load in loads.items()):
            break
        fresh = {d.id: estimate(loads, d) for d in plan.deployments}
        plan = replace(plan, loads=loads, estimates={**plan.estimates, **_check_only_estimates(fresh, plan.check_only)})
    notes = plan.notes
    if plan.seconds() > budget_s:
        minutes = plan.seconds() / 60
        notes = (
            *notes,
            f"the least that this scenario can be cut to takes about {minutes:.0f} minutes, over its budget "
            f"of {scenario.budget_minutes:g}",
        )
    return replace(plan, dropped=tuple(_dropped(asked, plan, scenario.budget_minutes)), notes=notes)


def _dropped(asked: Plan, plan: Plan, budget_minutes: float) -> Iterator[str]:
    """Everything that `plan` has less of than what was asked for."""
    for deployment in asked.deployments:
        if deployment not in plan.deployments:
            yield f"{deployment.id}: dropped to stay within {budget_minutes:g} minutes"
        elif deployment.id in plan.check_only - asked.check_only:
            yield f"{deployment.id}: cut to a check without load, to stay within {budget_minutes:g} minutes"
    for name, load in plan.loads.items():
        if load.requests < asked.loads[name].requests:
            yield f"load {name}: {asked.loads[name].requests} requests trimmed to {load.requests}"


def _along_with(chosen: frozenset[str], plan: Plan, config: Config) -> frozenset[str]:
    """`chosen`, and what is compared with them: an engine's strategies go the way of its 16-bit baseline.

    The common baseline is never among them.
    """
    chosen -= {plan.baseline.id}
    own = {d.id: plan.engine_baseline(d, config.strategy) for d in plan.deployments}
    along = {name for name, baseline in own.items() if baseline is not None and baseline.id in chosen}
    return (chosen | along) - {plan.baseline.id}


def _fewer_requests(load: Load) -> Load:
    """A tenth less, for tenants in proportion: the first of a trace, the beginning of a profile."""
    if load.requests <= MIN_REQUESTS:
        return load
    fewer = load.with_requests(max(MIN_REQUESTS, math.floor(load.requests * 0.9)))
    return fewer if fewer.requests < load.requests else load


def _pool_notes(plan: Plan) -> list[str]:
    """Where the common baseline's pool holds all that is wanted at once: a larger pool can then show no gain."""
    notes = []
    for d in plan.deployments:
        ratio = plan.estimates[d.id].working_set_over_pool
        is_baseline = (d.backend, d.strategy) == (plan.baseline.backend, plan.baseline.strategy)
        if is_baseline and ratio is not None and ratio < 1:
            notes.append(
                f"{d.id}: working set ÷ pool is {ratio:.2f}; the pool doesn't bind, so only a strategy's overhead is "
                "visible, not what the room that it saves is worth"
            )
    return notes


def _smallest_effect(plan: Plan, config: Config, calibration: Calibration) -> dict[str, float | None]:
    """Smallest true difference, in per cent, seen with 80 % power on every engine; None: no verdict possible."""
    families = [
        [2 if d == plan.baseline else 1 for d in family] for family in _families(plan, config) if len(family) > 1
    ]
    noise = calibration.noise
    result: dict[str, float | None] = {}
    for name, sd in (("throughput", noise.throughput), ("latency", noise.latency)):
        worst = max((smallest_effect(plan.blocks, family, sd) for family in families), default=math.inf)
        result[name] = round(100 * worst, 1) if math.isfinite(worst) else None
    return result


def _families(plan: Plan, config: Config) -> list[list[Deployment]]:
    """What is compared within one engine and model: its 16-bit baseline first, checks left out."""
    groups: dict[tuple[str, str], list[Deployment]] = {}
    for d in plan.deployments:
        if d.id not in plan.check_only:
            groups.setdefault((d.backend, d.model), []).append(d)
    return [sorted(g, key=lambda d: not config.strategy[d.strategy].is_16bit_baseline) for g in groups.values()]


def plan_record(plan: Plan, config: Config, backends: Mapping[str, Backend]) -> dict[str, Any]:
    """`plan.json`: the plan as data, for the analysis and the report."""
    scenario = config.scenario
    return {
        "schema_version": 1,
        "scenario": plan.scenario,
        "title": scenario.title,
        "question": scenario.question,
        "precision": config.precision,
        "baseline": {
            "backend": plan.baseline.backend,
            "model": plan.baseline.model,
            "strategy": plan.baseline.strategy,
        },
        "deployments": [
            {
                "id": d.id,
                **asdict(d),
                "strategy_title": config.strategy[d.strategy].title or d.strategy,
                "backend_title": backends[d.backend].title,
                "engine_baseline": config.strategy[d.strategy].is_16bit_baseline,
                "common_baseline": d == plan.baseline,
                "check_only": d.id in plan.check_only,
            }
            for d in plan.deployments
        ],
        "blocks": plan.blocks,
        "loads": {name: asdict(load) for name, load in plan.loads.items()},
        "traffic": plan.traffic,
        "load_bytes": plan.load_bytes,
        "accuracy": {name: asdict(task) for name, task in plan.tasks.items()},
        "sla": {name: asdict(sla) for name, sla in config.sla.items()},
        "margin": asdict(scenario.margin),
        "output_check": asdict(scenario.output_check),
        "support": [asdict(entry) for entry in plan.support],
        "dropped": list(plan.dropped),
        "notes": list(plan.notes),
        "smallest_effect": plan.smallest_effect,
        "noise": asdict(plan.noise),
        "estimates": {name: {**asdict(e), "total_s": e.total_s} for name, e in plan.estimates.items()},
        "seconds": plan.seconds(),
        "settings": {name: asdict(settings) for name, settings in plan.settings.items()},
        "kv_budget_bytes": {name: settings.kv_budget_bytes for name, settings in plan.settings.items()},
    }


def read_plan(run: Path) -> Plan:
    """The plan that a run's folder holds: a resumed or remote block carries out exactly that one."""
    record = read_json(run / "plan.json")
    deployments = {d["id"]: Deployment(d["backend"], d["model"], d["strategy"]) for d in record["deployments"]}
    baseline = record["baseline"]
    return Plan(
        scenario=record["scenario"],
        baseline=Deployment(baseline["backend"], baseline["model"], baseline["strategy"]),
        deployments=tuple(deployments.values()),
        check_only=frozenset(d["id"] for d in record["deployments"] if d["check_only"]),
        blocks=record["blocks"],
        loads={name: _from_record(Load, value) for name, value in record["loads"].items()},
        traffic=record["traffic"],
        load_bytes=record["load_bytes"],
        tasks={name: _from_record(Task, value) for name, value in record["accuracy"].items()},
        settings={name: Settings(**value) for name, value in record["settings"].items()},
        support=tuple(SupportEntry(**entry) for entry in record["support"]),
        estimates={
            name: LaunchEstimate(**{key: value for key, value in e.items() if key != "total_s"})
            for name, e in record["estimates"].items()
        },
        dropped=tuple(record["dropped"]),
        notes=tuple(record["notes"]),
        smallest_effect=record["smallest_effect"],
        noise=Noise(**record["noise"]),
    )


def _from_record(kind: type[T], value: dict[str, Any]) -> T:
    made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), value))
    assert isinstance(made, kind)
    return made
