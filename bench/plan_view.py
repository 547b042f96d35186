"""The plan as a person reads it: what will run, what can't and why, how long, how much memory, what it can see."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.config import Config
from bench.plan import SUPPORTED, LaunchEstimate, Plan, TaskPlan
from bench.progress import minutes
from bench.until import in_words
from harness.accuracy.task import Task
from harness.traffic.load import Load

_LARGEST_TOLD_PCT = 300
"""A smallest effect beyond that says only that too few blocks are planned."""


def print_plan(console: Console, plan: Plan, config: Config) -> None:
    """Print the plan."""
    scenario = config.scenario

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(f"{plan.scenario}: {scenario.question}" if scenario.question else plan.scenario)
    launches = sum(len(plan.launches(block, config.seed)) for block in range(plan.blocks))
    cells = sum(not p.check_only for b in range(plan.blocks) for p in plan.launches(b, config.seed)) * len(plan.loads)
    budget = f" of {scenario.budget_minutes:g} min" if scenario.budget_minutes else ""
    size = f"about {minutes(plan.seconds())}{budget} · about {plan.disk_bytes() / 1e6:,.0f} MB on disk"
    say(f"{plan.blocks} {'block' if plan.blocks == 1 else 'blocks'} · {launches} launches · {cells} cells · {size}")
    if scenario.until.asked:
        say(f"precision    {in_words(scenario.until, scenario.blocks, scenario.budget_minutes)}")
    console.print(_deployments(plan, config))
    unsupported: dict[tuple[str, str, str | None], list[str]] = {}
    for entry in plan.support:
        if entry.state != SUPPORTED:
            unsupported.setdefault((entry.backend, entry.model, entry.reason), []).append(entry.strategy)
    for (backend, model, reason), strategies in unsupported.items():
        say(f"unsupported  {backend} · {model} · {', '.join(strategies)}: {reason}")
    for text in plan.dropped:
        say(f"dropped      {text}")
    for text in plan.notes:
        say(f"note         {text}")
    for name, load in plan.loads.items():
        say(f"load         {name}: {_load(load, plan.traffic[name], _bytes_per_token(plan, config))}")
    for name, task in plan.tasks.items():
        say(f"accuracy     {name}: {_task(task, plan.task_plans[name])}")
    for lacking in plan.unsupported_tasks:
        say(f"unsupported  {lacking.backend} · {lacking.task}: {lacking.reason}")
    say(_smallest_effect(plan))


def _bytes_per_token(plan: Plan, config: Config) -> list[float]:
    """Of the models under test in 16 bit, smallest first."""
    models = {deployment.model for deployment in plan.deployments}
    return sorted({config.model[name].shape.kv_bytes_per_token(16) for name in models} - {0.0})


def _load(load: Load, asked: Mapping[str, Any], bytes_per_token: Sequence[float]) -> str:
    """What a load asks, and how much a cache could do for it; its statistics are those before it was trimmed."""
    distinct = asked["distinct_kv_tokens"]
    sizes = " to ".join(
        mebibytes(distinct * each) for each in dict.fromkeys([*bytes_per_token[:1], *bytes_per_token[-1:]])
    )
    prompt, output = asked["prompt_tokens"], asked["output_tokens"]
    parts = [
        f"{load.requests} requests, {load.summary()}, mean {prompt['mean']:,.0f} in / {output['mean']:,.0f} out",
        f"at most {prompt['max']:,} / {output['max']:,}",
        f"{asked['turns_mean']:.1f} turns a session",
        f"{asked['reuse_possible_pct']:.0f} % reusable",
        f"{distinct:,} distinct tokens" + (f" ({sizes} of KV in 16 bit)" if sizes else ""),
    ]
    parts += [f"{change.replace('_', ' ')} {count}" for change, count in asked["changes"].items()]
    if load.search is not None:
        parts.insert(0, f"search for the highest {load.search.over} that meets {load.search.sla}")
    return " · ".join(parts)


def _task(task: Task, sized: TaskPlan) -> str:
    """What a task asks, and what it can show."""
    margin = f"{task.margin_pp:g} pp" if task.margin_pp is not None else f"{task.margin_relative_pct:g} % of the score"
    parts = [f"{sized.questions:,} questions in {sized.documents:,} documents over all blocks", f"margin {margin}"]
    if task.under_load:
        parts.append(f"asked under load {task.under_load}")
    if sized.questions_needed is not None:
        parts.append(f"{sized.questions_needed:,} questions would show no loss beyond it")
    if sized.smallest_loss_pp is not None:
        parts.append(f"smallest loss visible {sized.smallest_loss_pp:.0f} pp (if a tenth of the answers change)")
    return " · ".join(parts)


def _deployments(plan: Plan, config: Config) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("backend", "model", "strategy", "launches"):
        table.add_column(name, no_wrap=True)
    for name in ("a launch", "weights", "KV bytes/token", "KV pool", "capacity", "working set ÷ pool"):
        table.add_column(name, justify="right", no_wrap=True)
    for deployment in plan.deployments:
        estimate = plan.estimates[deployment.id]
        check_only = deployment.id in plan.check_only
        launches = 1 if check_only else plan.blocks * (2 if deployment == plan.baseline else 1)
        label = (
            f"{launches} (A, A′)"
            if deployment == plan.baseline
            else f"{launches} (check only)"
            if check_only
            else str(launches)
        )
        table.add_row(
            deployment.backend,
            deployment.model,
            config.strategy[deployment.strategy].title or deployment.strategy,
            label,
            minutes(estimate.total_s),
            mebibytes(estimate.weight_bytes),
            f"{estimate.kv_bytes_per_token:,.0f}",
            "engine's own" if estimate.pool_bytes is None else mebibytes(estimate.pool_bytes),
            "engine's own" if estimate.capacity_tokens is None else f"{estimate.capacity_tokens:,} tok",
            _working_set(estimate),
        )
    return table


def _working_set(estimate: LaunchEstimate) -> str:
    """How many pools the KV fills that is wanted at once: bytes per token × length × concurrency."""
    ratio = estimate.working_set_over_pool
    return f"{'not known' if ratio is None else f'{ratio:.2f}'} ({mebibytes(estimate.working_set_bytes)})"


def _smallest_effect(plan: Plan) -> str:
    effect = plan.smallest_effect
    throughput, latency = effect.get("throughput"), effect.get("latency")
    if throughput is None or latency is None:
        why = "one block gives no verdict" if plan.blocks < 2 else "no engine has anything to compare with its baseline"
        return f"verdicts     none within an engine: {why}"
    noise = f"{100 * plan.noise.throughput:.0f} % and {100 * plan.noise.latency:.0f} %"
    source = (
        f"noise measured: {noise}"
        if plan.noise.measured
        else f"noise assumed: {noise}, not measured on this machine yet"
    )
    seen = f"throughput {_percent(throughput)}, TTFT P90 {_percent(latency)}"
    return f"verdicts     smallest effect visible: {seen} ({source})"


def _percent(effect: float) -> str:
    return f"{effect:.0f} %" if effect <= _LARGEST_TOLD_PCT else f"> {_LARGEST_TOLD_PCT} %"


def mebibytes(count: float) -> str:
    """Bytes as MiB or GiB."""
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.1f} GiB"
