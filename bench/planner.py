"""Scenario → plan: what will run, what can't and why, how long it takes, what it can see; or what is wrong with it."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from bench.analysis.power import ALPHA, ALPHA_UNTIL, smallest_effect
from bench.analysis.sample_size import ONE_SIDED, questions_needed, smallest_loss
from bench.budget import named, within_budget
from bench.calibration import Calibration
from bench.config import Config
from bench.estimate import check_only_estimates, estimate
from bench.plan import (
    SUPPORTED,
    UNSUPPORTED,
    Deployment,
    LaunchEstimate,
    Plan,
    SupportEntry,
    TaskPlan,
    UnsupportedTask,
)
from bench.plan_load import LoadSize, load_size
from bench.plan_memory import Memory, fitted
from harness.accuracy.task import Task, check_task, kind_of, unsupported_on
from harness.backends import backend_class
from harness.backends.interface import Backend
from harness.errors import ConfigError, Unsupported
from harness.model import ModelShape
from harness.models import ModelSpec, known_shape
from harness.settings import Settings
from harness.telemetry.hardware import memory_limit_bytes
from harness.traffic.load import Load

BLOCK_TOKENS = 128
"""The KV pool is a multiple of this, so that a block-based engine loses nothing to rounding; one block more than the
longest sequence needs is the engine's own."""


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

    def estimated(loads: Mapping[str, Load], d: Deployment) -> LaunchEstimate:
        of_loads = [(load, sizes[name]) for name, load in loads.items()]
        on_gpu = bool(gpu_memory_bytes)
        return estimate(d, config, backends[d.backend], settings[d.model], of_loads, calibration, on_gpu)

    estimates = {d.id: estimated(config.load, d) for d in deployments}
    check_only = named(scenario.check_only, deployments, "check_only")
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
        unsupported_tasks=tuple(_unsupported_tasks(config, backends)),
        task_plans={
            name: _task_plan(task, scenario.blocks, len(config.accuracy)) for name, task in config.accuracy.items()
        },
        estimates=check_only_estimates(estimates, check_only),
        noise=calibration.noise,
    )
    plan = within_budget(plan, scenario, config, estimated)
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


def _unsupported_tasks(config: Config, backends: Mapping[str, Backend]) -> Iterator[UnsupportedTask]:
    for name, task in config.accuracy.items():
        for backend_name, backend in backends.items():
            if reason := unsupported_on(task, backend):
                yield UnsupportedTask(backend_name, name, reason)


def _task_plan(task: Task, blocks: int, tasks: int) -> TaskPlan:
    """What a task can show among so many: Holm asks the most of the first one that is to speak."""
    alpha = ONE_SIDED / tasks
    size = kind_of(task).size(task)
    each = max(1, round(size.questions / max(1, size.documents)))
    needed = None
    if task.margin_pp is not None and task.margin_pp < 100:
        needed = questions_needed(task.margin_pp / 100, alpha=alpha, questions_per_document=each)
    # Where a data set is used up, blocks ask the same again, which says nothing more.
    asked = min(blocks * size.questions, size.data_set_questions or blocks * size.questions)
    documents = min(blocks * size.documents, size.data_set_documents or blocks * size.documents)
    loss = smallest_loss(asked, alpha=alpha, questions_per_document=each) if blocks > 1 else math.inf
    return TaskPlan(
        asked,
        documents,
        needed,
        round(100 * loss, 1) if math.isfinite(loss) else None,
    )


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
    sizes = [size for size in _compared(plan) if size > 1]
    alpha = ALPHA_UNTIL if config.scenario.until.asked else ALPHA
    noise = calibration.noise
    result: dict[str, float | None] = {}
    for name, sd in (("throughput", noise.throughput), ("latency", noise.latency)):
        seen = (smallest_effect(plan.blocks, size, sd, families=len(plan.loads), alpha=alpha) for size in sizes)
        worst = max(seen, default=math.inf)
        result[name] = round(100 * worst, 1) if math.isfinite(worst) else None
    return result


def _compared(plan: Plan) -> list[int]:
    """Number of deployments of each engine and model that take the load, its baseline among them."""
    return list(Counter((d.backend, d.model) for d in plan.deployments if d.id not in plan.check_only).values())
