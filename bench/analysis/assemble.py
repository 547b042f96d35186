"""Puts an analysis together: metrics of each cell, states, comparisons, accuracy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.analysis import accuracy as paired
from bench.analysis import output_check
from bench.analysis.compare import (
    Estimate,
    across_engines,
    judge,
    margins,
    percent,
    spread_between_replicas,
    within_engine,
)
from bench.analysis.load import LaunchRecord, RunRecord, load_run
from bench.analysis.memory import memory
from bench.analysis.metrics import (
    LATENCIES,
    Requests,
    launch_statistics,
    quantiles,
    sla_limits,
    tail_percent,
    window_requests,
)
from bench.analysis.result import (
    AccuracyComparison,
    Analysis,
    CellResult,
    Comparison,
    DeploymentResult,
    LaunchFacts,
    LaunchStatistics,
    NoiseFloor,
    to_json,
)
from bench.analysis.state import LEAST_ATTAINED, cell_state, deployment_state
from harness.files import write_json

SCHEMA_VERSION = 1
THROUGHPUT = "output_tokens_per_s"
EXPLORATORY = (
    "ttft_p50_ms",
    "itl_p50_ms",
    "itl_p90_ms",
    "tpot_p50_ms",
    "tpot_p90_ms",
    "e2e_p50_ms",
    "e2e_p90_ms",
    "request_rate_attained_rps",
)
"""Compared as well, without adjustment; a finding among them is a hint."""

OUTPUT_LENGTH_TOLERANCE = 0.01
"""Output lengths that differ more than this between deployments are reported."""

Planned = Mapping[str, Any]


def analyse(run_dir: Path) -> Analysis:
    """Everything that can be said about the run in `run_dir`; raises `KVMarkError` where it holds none."""
    run = load_run(run_dir)
    plan = run.plan
    deployments = _deployments(run)
    return Analysis(
        schema_version=SCHEMA_VERSION,
        scenario=str(plan.get("scenario") or run_dir.parent.name),
        title=str(plan.get("title") or plan.get("scenario") or run_dir.parent.name),
        run=str(run.manifest.get("run") or run_dir.name),
        status=str(run.manifest.get("status") or "unknown"),
        created=run.manifest.get("created"),
        finished=run.manifest.get("finished"),
        precision=str(plan.get("precision") or "normal"),
        blocks=len(run.blocks),
        blocks_planned=int(plan.get("blocks") or len(run.blocks)),
        interrupted=run.interrupted,
        deployments=deployments,
        comparisons=tuple(_comparisons(run, deployments)),
        accuracy=tuple(_accuracy(run, deployments)),
        noise=tuple(_noise(deployments)),
        launches=tuple(_launch_facts(launch) for launch in run.launches),
        seconds_by_block=_seconds_by_block(run),
        plan=dict(plan),
        manifest=dict(run.manifest),
        problems=run.problems,
    )


def save(analysis: Analysis, run_dir: Path) -> Path:
    """Write `analysis.json` into the run's folder."""
    path = run_dir / "analysis.json"
    write_json(path, to_json(analysis))
    return path


def _deployments(run: RunRecord) -> tuple[DeploymentResult, ...]:
    planned = list(run.plan.get("deployments") or ())
    launches = {one["id"]: [x for x in run.launches if x.deployment == one["id"]] for one in planned}
    common = next((launches[one["id"]] for one in planned if one.get("common_baseline")), [])
    tolerances = run.plan.get("output_check") or {}
    results = []
    for one in planned:
        base = _baseline_of(one, planned)
        references = launches[base["id"]] if base else []
        limits = output_check.band(references, tolerances)
        check = output_check.check(launches[one["id"]], references, limits)
        unsupported = _unsupported(run.plan, one)
        state, reason = deployment_state(dict(one), launches[one["id"]], check, unsupported, len(run.blocks))
        if state == "measured" and one.get("engine_baseline"):
            fault = output_check.baseline_fault(launches[one["id"]], common, limits)
            state, reason = ("output broken", fault) if fault else (state, reason)
        cells = {load: _cell(run.plan, load, launches[one["id"]]) for load in run.plan.get("loads") or {}}
        if state == "measured" and not one.get("check_only") and cells:
            state, reason = _state_of_cells(cells, reason)
        results.append(_deployment(run, one, launches[one["id"]], state, reason, cells, check))
    return _with_length_notes(results)


def _deployment(
    run: RunRecord,
    one: Planned,
    launches: Sequence[LaunchRecord],
    state: str,
    reason: str | None,
    cells: dict[str, CellResult],
    check: Any,
) -> DeploymentResult:
    lengths = {
        load: cell.means["prompt_tokens_mean"] + cell.means["output_tokens_mean"]
        for load, cell in cells.items()
        if "output_tokens_mean" in cell.means
    }
    if one.get("check_only"):
        cells = {}
    return DeploymentResult(
        id=one["id"],
        backend=one["backend"],
        model=one["model"],
        strategy=one["strategy"],
        backend_title=one.get("backend_title") or one["backend"],
        strategy_title=one.get("strategy_title") or one["strategy"],
        engine_baseline=bool(one.get("engine_baseline")),
        common_baseline=bool(one.get("common_baseline")),
        check_only=bool(one.get("check_only")),
        state=state,
        reason=reason,
        launches=len(launches),
        failed_launches=sum(launch.state == "failed" for launch in launches),
        memory=memory(launches, lengths),
        cells=cells,
        accuracy={
            task: paired.task_score(launches, task)
            for task in run.plan.get("accuracy") or {}
            if not one.get("check_only")
        },
        output_check=check,
    )


def _state_of_cells(cells: Mapping[str, CellResult], reason: str | None) -> tuple[str, str | None]:
    """A deployment is as good as its best cell; a worse one keeps its own reason."""
    order = ("measured", "client-bound", "failed")
    best = min(cells.values(), key=lambda cell: order.index(cell.state))
    return (best.state, best.reason) if best.state != "measured" else ("measured", reason)


def _unsupported(plan: Planned, one: Planned) -> str | None:
    for row in plan.get("support") or ():
        if (row["backend"], row["strategy"]) == (one["backend"], one["strategy"]) and row["state"] == "unsupported":
            return str(row.get("reason") or "the engine has no such switch")
    return None


def _baseline_of(one: Planned, planned: Iterable[Planned]) -> Planned | None:
    """The same engine's (and model's) 16-bit deployment."""
    same = [p for p in planned if (p["backend"], p["model"]) == (one["backend"], one["model"])]
    return next((p for p in same if p.get("engine_baseline")), None)


@dataclass(frozen=True)
class _Measured:
    block: int
    replica: int
    requests: Requests


def _cell(plan: Planned, load: str, launches: Sequence[LaunchRecord]) -> CellResult:
    """One deployment under one load, over its launches."""
    slas = plan.get("sla") or {}
    open_loop = plan["loads"][load]["arrival"]["kind"] != "closed"
    good: list[_Measured] = []
    faults: list[tuple[str, str]] = []
    seen: list[Requests] = []
    for launch in launches:
        cell = launch.cells.get(load)
        if cell is None:
            if launch.state == "measured":
                faults.append(("failed", "the cell was not recorded"))
            continue
        requests = None if cell.requests is None else window_requests(cell.requests, open_loop=open_loop)
        if requests is not None:
            seen.append(requests)
        state, reason = cell_state(cell, requests)
        if state == "failed":
            faults.append((state, f"block {launch.block}: {reason}"))
        elif requests is not None:
            if state == "client-bound":
                faults.append((state, f"block {launch.block}: {reason}"))
            good.append(_Measured(launch.block, launch.replica, requests))
    if not seen and not faults:
        return CellResult(load, "failed", "no cell of it was measured")
    statistics = tuple(LaunchStatistics(m.block, m.replica, launch_statistics(m.requests, slas)) for m in good)
    worst = next((f for f in faults if f[0] == "failed"), faults[0] if faults else ("measured", None))
    errors: dict[str, int] = {}
    for requests in seen:
        for kind, count in requests.failures().items():
            errors[kind] = errors.get(kind, 0) + count
    return CellResult(
        load=load,
        state=worst[0],
        reason=worst[1],
        requests=sum(map(len, seen)),
        failed_requests=sum(errors.values()),
        errors=errors,
        launches=statistics,
        quantiles={metric: quantiles(_pooled(good, metric)) for metric in LATENCIES} if good else {},
        means=_means(statistics),
        sla_met={name: met for name, limits in slas.items() if (met := _sla_met(statistics, limits)) is not None},
        notes=tuple(_notes(good, statistics, launches, load)),
    )


def _pooled(good: Sequence[_Measured], metric: str) -> Any:
    return np.concatenate([m.requests.latency(metric) for m in good])


def _means(statistics: Sequence[LaunchStatistics]) -> dict[str, float]:
    """Mean over launches of what every launch has and is finite in; latencies are pooled instead."""
    if not statistics:
        return {}
    shared = set.intersection(*(set(s.values) for s in statistics))
    means = {name: float(np.mean([s.values[name] for s in statistics])) for name in sorted(shared)}
    return {name: value for name, value in means.items() if math.isfinite(value) and not _is_latency(name)}


def _is_latency(name: str) -> bool:
    return name.startswith(("ttft_", "itl_", "tpot_", "e2e_"))


def _sla_met(statistics: Sequence[LaunchStatistics], limits: Mapping[str, Any]) -> bool | None:
    """Whether every launch keeps every limit; None where nothing is limited or measured."""
    wanted = [(f"{metric.removesuffix('_ms')}_p{p}_ms", limit) for metric, p, limit in sla_limits(limits)]
    if not wanted or not statistics:
        return None
    return all(s.values.get(name, math.inf) <= limit for s in statistics for name, limit in wanted)


def _notes(
    good: Sequence[_Measured], statistics: Sequence[LaunchStatistics], launches: Sequence[LaunchRecord], load: str
) -> Iterable[str]:
    tokens = sum(int(m.requests.output_tokens.sum()) for m in good)
    if packed := sum(m.requests.packed for m in good):
        yield f"{packed / max(tokens, 1):.0%} of tokens arrived several at once: their ITL is spread over the event"
    if estimated := sum(m.requests.estimated for m in good):
        yield f"{estimated} requests: tokens an event estimated from the usage total"
    ratios = [s.values["attained_over_requested_rate"] for s in statistics if "attained_over_requested_rate" in s.values]
    if ratios and min(ratios) < LEAST_ATTAINED:
        yield f"the requested rate was not attained: {min(ratios):.0%} of it"
    pool = [c.facts.get("working_set_over_pool") for launch in launches if (c := launch.cells.get(load))]
    known = [float(ratio) for ratio in pool if ratio is not None]
    if known and max(known) < 1:
        yield f"the pool does not bind (working set ÷ pool {max(known):.2f}): only overhead shows"
    for cell in (launch.cells.get(load) for launch in launches):
        if cell and (cell.facts.get("cache") or {}).get("reset") is None and cell.facts.get("state") == "measured":
            yield "no evidence of the cache reset before the load"
            return


def _with_length_notes(results: Sequence[DeploymentResult]) -> tuple[DeploymentResult, ...]:
    """Adds a note where output lengths differ from the common baseline's: then the work was not the same."""
    base = next((r for r in results if r.common_baseline), None)
    if base is None:
        return tuple(results)
    for result in results:
        for load, cell in list(result.cells.items()):
            reference = base.cells.get(load)
            mine, theirs = cell.means.get("output_tokens_mean"), reference and reference.means.get("output_tokens_mean")
            if mine and theirs and abs(mine / theirs - 1) > OUTPUT_LENGTH_TOLERANCE:
                note = f"mean output {mine:.1f} tokens, the common baseline's {theirs:.1f}"
                result.cells[load] = _noted(cell, note)
    return tuple(results)


def _noted(cell: CellResult, note: str) -> CellResult:
    return CellResult(**{**cell.__dict__, "notes": (*cell.notes, note)})


def _comparisons(run: RunRecord, deployments: Sequence[DeploymentResult]) -> Iterable[Comparison]:
    """Each deployment against its engine's baseline and against the common one, for every load."""
    loads = run.plan.get("loads") or {}
    limits = margins(run.plan.get("margin") or {})
    common = next((d for d in deployments if d.common_baseline), None)
    for load, facts in loads.items():
        closed = facts["arrival"]["kind"] == "closed"
        tail = f"ttft_p{_tail(deployments, load)}_ms"
        for metric in (THROUGHPUT, tail, *(m for m in EXPLORATORY if m != tail)):
            role = "primary" if metric in (THROUGHPUT, tail) else "exploratory"
            margin = limits["throughput" if metric in (THROUGHPUT, "request_rate_attained_rps") else "latency"]
            view = _View(load, metric, role, margin, closed, len(loads), len(run.blocks))
            own: dict[str, Comparison] = {}
            for base in (d for d in deployments if d.engine_baseline):
                family = [d for d in deployments if (d.backend, d.model) == (base.backend, base.model)]
                for comparison in _against_engine(view, base, family):
                    own[comparison.deployment] = comparison
                    yield comparison
            if common is not None:
                yield from _against_common(view, common, deployments, own)


@dataclass(frozen=True)
class _View:
    """One metric under one load: how it is compared."""

    load: str
    metric: str
    role: str
    margin: float
    closed: bool
    loads: int
    blocks: int


def _tail(deployments: Sequence[DeploymentResult], load: str) -> int:
    """The tail percentile that every launch supports."""
    counts = [
        int(s.values["requests"])
        for d in deployments
        if (cell := d.cells.get(load))
        for s in cell.launches
        if "requests" in s.values
    ]
    return tail_percent(min(counts, default=0))


def _against_engine(view: _View, base: DeploymentResult, family: Sequence[DeploymentResult]) -> Iterable[Comparison]:
    others = [d for d in family if d.id != base.id and not d.check_only]
    values = _values([base, *others], view)
    adjust = view.role == "primary"
    estimates = within_engine(values, base.id, families=view.loads, adjust=adjust) if len(values) else {}
    method = "log(statistic) ~ deployment + block, pooled residual, t interval, "
    method += f"Dunnett over {len(estimates)}" if adjust else "not adjusted"
    for other in others:
        obstacle = _obstacle(view, other, base)
        yield _comparison(view, other, base, "engine", estimates.get(other.id), obstacle, values, method)


def _against_common(
    view: _View, common: DeploymentResult, deployments: Sequence[DeploymentResult], own: Mapping[str, Comparison]
) -> Iterable[Comparison]:
    """The second column: of the common baseline's own engine the same numbers, of other engines paired by block."""
    others = [d for d in deployments if d.id != common.id and not d.check_only]
    foreign = [d for d in others if (d.backend, d.model) != (common.backend, common.model)]
    ranked = [d for d in foreign if _obstacle(view, d, common) is None]
    for other in others:
        if other not in foreign:
            if other.id in own:
                yield Comparison(**{**own[other.id].__dict__, "against": "common"})
            continue
        obstacle = _obstacle(view, other, common)
        if obstacle is None and other.model != common.model:
            obstacle = "another model"
        if obstacle is None and view.closed and view.metric != THROUGHPUT and _is_latency(view.metric):
            obstacle = "closed loop: a faster server gets more load, so that latencies are not ranked across engines"
        values = _values([common, other], view)
        count = max(1, len(ranked)) * view.loads if view.role == "primary" else 1
        estimate = across_engines(values, other.id, common.id, comparisons=count) if len(values) else None
        method = f"log ratio paired by block, t interval, Bonferroni over {count}"
        yield _comparison(view, other, common, "common", estimate, obstacle, values, method)


def _values(deployments: Sequence[DeploymentResult], view: _View) -> pd.DataFrame:
    """The launches' statistics as a frame; only of deployments that are ranked, and only finite ones."""
    rows = [
        (d.id, s.block, s.replica, s.values[view.metric])
        for d in deployments
        if d.ranked and (cell := d.cells.get(view.load)) and cell.state == "measured"
        for s in cell.launches
        if math.isfinite(s.values.get(view.metric, math.nan)) and s.values[view.metric] > 0
    ]
    return pd.DataFrame(rows, columns=["deployment", "block", "replica", "value"])


def _obstacle(view: _View, other: DeploymentResult, base: DeploymentResult) -> str | None:
    """Why two deployments can't be compared at all in this cell."""
    for who, one in (("", other), ("the baseline: ", base)):
        if one.state != "measured":
            return f"{who}{one.state}"
        cell = one.cells.get(view.load)
        if cell is None or cell.state != "measured":
            return f"{who}{cell.state if cell else 'not measured'}: {cell.reason if cell else 'no cell'}"
        if not any(view.metric in s.values for s in cell.launches):
            return f"{who}{view.metric} is not measured"
    return None


def _comparison(
    view: _View,
    other: DeploymentResult,
    base: DeploymentResult,
    against: str,
    estimate: Estimate | None,
    obstacle: str | None,
    values: pd.DataFrame,
    method: str,
) -> Comparison:
    common = {
        "metric": view.metric,
        "load": view.load,
        "deployment": other.id,
        "baseline": base.id,
        "against": against,
        "role": view.role,
    }
    if obstacle is not None:
        return Comparison(**common, verdict="not comparable", reason=obstacle)
    unbounded = {one.id: _unbounded(one, view) for one in (other, base)}
    if any(unbounded.values()):
        return Comparison(**common, **_failure_verdict(view, other, base, unbounded))
    counts = values["deployment"].value_counts()
    launches = {"launches": int(counts.get(other.id, 0)), "baseline_launches": int(counts.get(base.id, 0))}
    if estimate is None:
        ratio = _plain_ratio(values, other.id, base.id)
        reason = "no verdict: one block" if view.blocks < 2 else "too few launches for an interval"
        effect = None if ratio is None else percent(ratio)
        return Comparison(**common, **launches, verdict="inconclusive", reason=reason, effect_pct=effect, method="none")
    verdict, reason = judge(estimate, view.metric, view.margin)
    return Comparison(
        **common,
        **launches,
        verdict=verdict,
        reason=reason,
        effect_pct=percent(estimate.log_ratio),
        low_pct=percent(estimate.low),
        high_pct=percent(estimate.high),
        degrees_of_freedom=estimate.degrees_of_freedom,
        residual_pct=percent(estimate.residual_sd),
        smallest_effect_pct=100 * estimate.smallest_effect(),
        equivalence_p=estimate.equivalence_p(view.margin),
        method=method,
    )


def _unbounded(one: DeploymentResult, view: _View) -> int:
    """Launches in which the statistic is infinite: the percentile falls among failed requests."""
    return sum(math.isinf(s.values.get(view.metric, 0.0)) for s in one.cells[view.load].launches)


def _failure_verdict(
    view: _View, other: DeploymentResult, base: DeploymentResult, unbounded: Mapping[str, int]
) -> dict[str, str]:
    mine, theirs = unbounded[other.id], unbounded[base.id]
    total = len(other.cells[view.load].launches)
    reason = f"so many requests failed that {view.metric} is infinite in {mine} of {total} launches"
    if theirs:
        return {"verdict": "not comparable", "reason": f"the baseline: {view.metric} is infinite in {theirs} launches"}
    if mine == total and view.blocks > 1:
        return {"verdict": "worse", "reason": reason}
    return {"verdict": "inconclusive", "reason": reason}


def _plain_ratio(values: pd.DataFrame, candidate: str, baseline: str) -> float | None:
    means = np.log(values.set_index("deployment")["value"]).groupby(level=0).mean()
    if candidate not in means or baseline not in means:
        return None
    return float(means[candidate] - means[baseline])


def _accuracy(run: RunRecord, deployments: Sequence[DeploymentResult]) -> Iterable[AccuracyComparison]:
    """Every task of every deployment against its engine's 16-bit baseline, and against the common one."""
    launches = {d.id: [x for x in run.launches if x.deployment == d.id] for d in deployments}
    common = next((d for d in deployments if d.common_baseline), None)
    for task, facts in (run.plan.get("accuracy") or {}).items():
        margin = float(facts.get("margin_pp") or 0.0)
        for one in (d for d in deployments if not d.check_only):
            base = next(
                (d for d in deployments if d.engine_baseline and (d.backend, d.model) == (one.backend, one.model)), None
            )
            for against, reference in (("engine", base), ("common", common)):
                if reference is None or reference.id == one.id:
                    continue
                obstacle = _accuracy_obstacle(one, reference, task)
                if obstacle is not None:
                    yield AccuracyComparison(
                        task, one.id, reference.id, against, margin, verdict="not comparable", reason=obstacle
                    )
                    continue
                yield paired.compare_task(
                    paired.scores(launches[one.id], task),
                    paired.scores(launches[reference.id], task),
                    task=task,
                    ids=(one.id, reference.id),
                    against=against,
                    margin_pp=margin,
                    chance=reference.accuracy[task].chance or 0.0,
                )


def _accuracy_obstacle(one: DeploymentResult, reference: DeploymentResult, task: str) -> str | None:
    if one.model != reference.model:
        return "another model"
    for who, d in (("", one), ("the baseline: ", reference)):
        if d.state in ("unsupported", "not in effect"):
            return f"{who}{d.state}"
        if (score := d.accuracy[task]).score is None:
            return f"{who}{score.state}: {score.reason}"
    return None


def _noise(deployments: Sequence[DeploymentResult]) -> Iterable[NoiseFloor]:
    """A against A′ wherever a deployment was launched twice a block."""
    for d in deployments:
        for load, cell in d.cells.items():
            tail = f"ttft_p{_tail([d], load)}_ms"
            for metric in (THROUGHPUT, tail):
                view = _View(load, metric, "primary", 0.0, False, 1, 2)
                values = _values([d], view)
                found = spread_between_replicas(values) if len(values) else None
                if found is not None:
                    yield NoiseFloor(d.id, load, metric, percent(found[0]), found[1])


def _launch_facts(launch: LaunchRecord) -> LaunchFacts:
    facts, command = launch.facts, launch.facts.get("command") or {}
    return LaunchFacts(
        block=launch.block,
        launch=launch.name,
        deployment=launch.deployment,
        replica=launch.replica,
        state=launch.state,
        reason=facts.get("reason"),
        argv=tuple(map(str, command.get("argv") or ())),
        env={str(key): str(value) for key, value in (command.get("env") or {}).items()},
        engine_version=(facts.get("engine") or {}).get("version"),
        settings=dict(facts.get("settings") or {}),
        confounders={str(k): str(v) for k, v in (facts.get("confounders") or {}).items()},
        seconds={str(k): float(v) for k, v in (facts.get("seconds") or {}).items() if v is not None},
        evidence=tuple(launch.effect.get("evidence") or ()),
        mismatches=tuple(launch.effect.get("mismatches") or ()),
        errors=tuple(map(str, facts.get("errors") or ())),
        schedule_sha256={
            name: str(cell.facts["schedule_sha256"])
            for name, cell in launch.cells.items()
            if cell.facts.get("schedule_sha256")
        },
    )


def _seconds_by_block(run: RunRecord) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for launch in run.launches:
        spent = sum(float(v) for v in (launch.facts.get("seconds") or {}).values() if v is not None)
        seconds[str(launch.block)] = seconds.get(str(launch.block), 0.0) + spent
    return seconds
