"""Puts an analysis together: the state and figures of each deployment, then what they say of each other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.analysis import output_check
from bench.analysis.accuracy import accuracy_comparisons, task_score
from bench.analysis.cells import cell_result, with_length_notes
from bench.analysis.comparisons import comparisons, noise_floors
from bench.analysis.determinism import determinism
from bench.analysis.fidelity import fidelity
from bench.analysis.flips import flip_floors
from bench.analysis.load import LaunchRecord, RunRecord, load_run
from bench.analysis.memory import memory
from bench.analysis.result import (
    Analysis,
    CellResult,
    DeploymentResult,
    FidelityResult,
    LaunchFacts,
    OutputCheckResult,
    to_json,
)
from bench.analysis.state import deployment_state
from bench.analysis.texts import text_agreements
from harness.files import write_json

SCHEMA_VERSION = 1
"""Of `analysis.json`."""

Planned = Mapping[str, Any]


def analyse(run_dir: Path) -> Analysis:
    """Everything that can be said about the run in `run_dir`; raises `KVMarkError` where it holds none."""
    run = load_run(run_dir)
    plan = run.plan
    deployments = _deployments(run)
    tasks = tuple(plan.get("accuracy") or ())
    by_deployment = {d.id: [launch for launch in run.launches if launch.deployment == d.id] for d in deployments}
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
        comparisons=tuple(comparisons(plan, len(run.blocks), deployments)),
        accuracy=tuple(accuracy_comparisons(run, deployments)),
        noise=tuple(noise_floors(deployments)),
        launches=tuple(_launch_facts(launch) for launch in run.launches),
        seconds_by_block=_seconds_by_block(run),
        plan=dict(plan),
        manifest=dict(run.manifest),
        problems=run.problems,
        flip_floors=tuple(flip_floors(by_deployment, tasks)),
        texts=tuple(text_agreements(tasks, deployments, by_deployment)),
    )


def save(analysis: Analysis, run_dir: Path) -> Path:
    """Write `analysis.json` into the run's folder."""
    path = run_dir / "analysis.json"
    write_json(path, to_json(analysis))
    return path


def _deployments(run: RunRecord) -> tuple[DeploymentResult, ...]:
    planned = [*(run.plan.get("deployments") or ()), *_unsupported(run.plan)]
    launches = {one["id"]: [x for x in run.launches if x.deployment == one["id"]] for one in planned}
    common = next((launches[one["id"]] for one in planned if one.get("common_baseline")), [])
    tolerances = run.plan.get("output_check") or {}
    results = []
    for one in planned:
        base = _baseline_of(one, planned)
        references = launches[base["id"]] if base else []
        limits = output_check.band(references, tolerances)
        check = output_check.check(launches[one["id"]], references, limits)
        state, reason = deployment_state(
            dict(one), launches[one["id"]], check, blocks=len(run.blocks), loads=run.plan.get("loads") or ()
        )
        if state == "measured" and one.get("engine_baseline"):
            fault = output_check.baseline_fault(launches[one["id"]], common, limits)
            state, reason = ("output broken", fault) if fault else (state, reason)
        loads = () if one.get("unsupported") else run.plan.get("loads") or ()
        cells = {load: cell_result(run.plan, load, launches[one["id"]]) for load in loads}
        if state == "measured" and not one.get("check_only") and cells:
            state, reason = _state_of_cells(cells, reason)
        found = _deployment(run, one, launches[one["id"]], verdict=(state, reason), cells=cells, check=check)
        results.append(replace(found, fidelity=_fidelity(launches[one["id"]], references, one, base)))
    return with_length_notes(results)


def _deployment(
    run: RunRecord,
    one: Planned,
    launches: Sequence[LaunchRecord],
    *,
    verdict: tuple[str, str | None],
    cells: dict[str, CellResult],
    check: OutputCheckResult | None,
) -> DeploymentResult:
    lengths = {
        load: cell.means["prompt_tokens_mean"] + cell.means["output_tokens_mean"]
        for load, cell in cells.items()
        if "output_tokens_mean" in cell.means
    }
    takes_load = not one.get("check_only") and not one.get("unsupported")
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
        state=verdict[0],
        reason=verdict[1],
        launches=len(launches),
        failed_launches=sum(launch.state == "failed" for launch in launches),
        memory=memory(launches, lengths),
        cells=cells if takes_load else {},
        accuracy={task: task_score(launches, task) for task in run.plan.get("accuracy") or () if takes_load},
        output_check=check,
        determinism=determinism(launches),
    )


def _fidelity(
    launches: Sequence[LaunchRecord], references: Sequence[LaunchRecord], one: Planned, base: Planned | None
) -> FidelityResult | None:
    if base is None:
        return None
    return fidelity(launches, references, baseline_id=base["id"], is_baseline=bool(one.get("engine_baseline")))


def _state_of_cells(cells: Mapping[str, CellResult], reason: str | None) -> tuple[str, str | None]:
    """A deployment is as good as its best cell; a worse one keeps its own reason."""
    order = ("measured", "client-bound", "failed")
    best = min(cells.values(), key=lambda cell: order.index(cell.state))
    return (best.state, best.reason) if best.state != "measured" else ("measured", reason)


def _unsupported(plan: Planned) -> Iterable[Planned]:
    """Combinations that an engine can't do: rows of their own, so that nothing disappears."""
    known = list(plan.get("deployments") or ())
    for row in plan.get("support") or ():
        if row["state"] != "unsupported":
            continue
        model = row.get("model") or (known[0]["model"] if known else "")
        titles = {
            title: next((one[title] for one in known if one[key] == row[key] and one.get(title)), row[key])
            for key, title in (("backend", "backend_title"), ("strategy", "strategy_title"))
        }
        yield {
            "id": f"{row['backend']}+{model}+{row['strategy']}",
            "backend": row["backend"],
            "model": model,
            "strategy": row["strategy"],
            "unsupported": row.get("reason") or "the engine has no such switch",
            **titles,
        }


def _baseline_of(one: Planned, planned: Iterable[Planned]) -> Planned | None:
    """The same engine's (and model's) 16-bit deployment."""
    same = [p for p in planned if (p["backend"], p["model"]) == (one["backend"], one["model"])]
    return next((p for p in same if p.get("engine_baseline")), None)


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
