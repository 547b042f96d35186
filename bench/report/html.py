"""The page: one self-contained HTML file, readable offline and on paper. What the run lacks is left out."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from bench.analysis.distribution import P99_SAMPLES
from bench.analysis.metrics import LATENCIES, is_latency, limit_name, sla_limits
from bench.analysis.planned import is_closed, throughput_metric
from bench.analysis.result import VERDICTS, Analysis, DeploymentResult, shortened
from bench.report import form, quality, traffic
from bench.report.charts import Axis, Point, scatter
from bench.report.conclusion import conclusion
from bench.report.terminal import own_baseline, tail_percent

HERE = Path(__file__).parent
Row = dict[str, str]

METHODS = (
    "A block holds one launch of every deployment in random order, the common baseline twice (A and A′). Only complete "
    "blocks are analysed.",
    "Differences are tested across launches: one statistic a launch (A and A′ averaged), log(statistic) ~ deployment + "
    "block, the residual pooled within an engine; intervals are 95 % (97.5 % where precision added blocks) and hold "
    "together over an engine's deployments (Dunnett).",
    "Against a common baseline of another engine the log ratios are paired by block (t interval, Bonferroni). "
    "Latencies of a closed loop are not ranked across engines.",
    "Output tok/s and the TTFT tail are primary; every other comparison is exploratory and not adjusted.",
    "Equivalent: the whole interval lies within the margin. Better or worse: it excludes no difference. "
    "Else inconclusive.",
    "Accuracy: each question is paired with itself on the baseline; an interval that respects shared documents where "
    "there are any, else Tango's score interval; non-inferiority at the stated margin, Holm over a deployment's tasks.",
)


def page(analysis: Analysis) -> str:
    """The whole page as text."""
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.tests["word"] = lambda value: value in VERDICTS
    environment.filters["slug"] = _slug
    environment.filters["tight"] = _tight
    plan = analysis.plan
    return environment.get_template("page.html.j2").render(
        analysis=analysis,
        title=analysis.title,
        css=Markup((HERE / "page.css").read_text()),
        question=plan.get("question"),
        facts=_facts(analysis),
        conclusion=[sentence.replace("`", "") for sentence in conclusion(analysis)],
        loads=[_load(analysis, load) for load in plan.get("loads") or {}],
        p99_samples=P99_SAMPLES,
        slas=list(_slas(analysis)),
        tenants=list(traffic.tenants(analysis)),
        latency=list(_latency(analysis)),
        clients=list(traffic.clients(analysis)),
        memory=[_memory(d) for d in analysis.deployments if d.memory.kv_dtype],
        accuracy=list(quality.accuracy(analysis)),
        accuracy_methods=list(quality.accuracy_methods(analysis)),
        grid_cells=list(quality.by_length_and_depth(analysis)),
        flip_floors=list(quality.flip_floors(analysis)),
        texts=list(quality.texts(analysis)),
        output_checks=list(quality.output_checks(analysis)),
        fidelity=list(quality.fidelity(analysis)),
        greedy=list(quality.greedy(analysis)),
        not_ranked=list(_not_ranked(analysis)),
        support=[_support(row) for row in plan.get("support") or ()],
        plan_rows=list(_plan_rows(analysis)),
        predictions=list(_predictions(analysis)),
        dropped=[*(plan.get("dropped") or ()), *(plan.get("notes") or ())],
        methods=METHODS,
        extension=form.extension(plan.get("extension")),
        noise=[_noise(analysis, n) for n in analysis.noise],
        comparisons=[_comparison(analysis, c) for c in analysis.comparisons],
        confounders=list(_confounders(analysis)),
        environment=list(_environment(analysis)),
        packages=_packages(analysis),
        commands=list(_commands(analysis)),
    )


def _slug(text: str) -> str:
    return re.sub(r"[^a-z]+", "-", text.lower()).strip("-")


def _tight(text: object) -> str:
    """No line break between a number and its unit."""
    return re.sub(r"(?<=[\dK∞]) (?=(?:MiB|GiB|tok|ms|s|%|pp)(?:\W|$))", "\u00a0", str(text))


def _facts(analysis: Analysis) -> list[str]:
    hardware = analysis.manifest.get("hardware") or {}
    gpus = [gpu.get("name") for gpu in hardware.get("gpus") or ()]
    machine = [hardware.get("cpu"), f"{hardware['cores']} cores" if hardware.get("cores") else None]
    machine += [form.memory_size(hardware["memory_bytes"]) if hardware.get("memory_bytes") else None, *gpus]
    models = ", ".join(dict.fromkeys(d.model for d in analysis.deployments))
    return [
        text
        for text in (
            models,
            f"{analysis.blocks} of {analysis.blocks_planned} blocks",
            f"status: {analysis.status}",
            f"started {analysis.created}" if analysis.created else "",
            ", ".join(str(part) for part in machine if part),
        )
        if text
    ]


@dataclass(frozen=True)
class _Cell:
    value: str
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Part:
    text: str
    slug: str


def _load(analysis: Analysis, load: str) -> dict[str, Any]:
    """Everything of one load: the main table and its charts."""
    facts = analysis.plan["loads"][load]
    tail = tail_percent(analysis, load)
    tasks = list(analysis.plan.get("accuracy") or {})
    columns = ["engine, strategy", "KV bytes/token", "capacity", "most requests held"]
    columns += [form.metric_name(throughput_metric(analysis.plan["loads"][load])), f"TTFT P{tail}"]
    columns += [*map(form.accuracy_name, tasks), "verdict (against the same engine's 16-bit)"]
    charts = [c for c in (_speed_chart(analysis, load, tail), *(_loss_chart(analysis, t) for t in tasks)) if c]
    return {
        "title": str(facts.get("title") or load),
        "description": _describe(facts, (analysis.plan.get("traffic") or {}).get(load) or {}),
        "columns": columns,
        "rows": [_main_row(analysis, d, load, tail, tasks) for d in analysis.deployments],
        "charts": charts,
    }


def _describe(facts: Mapping[str, Any], traffic: Mapping[str, Any]) -> str:
    arrival, work = facts.get("arrival") or {}, facts.get("workload") or {}
    how = f"{arrival['concurrency']} sessions at a time" if arrival.get("concurrency") else ""
    how = how or (f"{arrival.get('kind')} arrivals, {arrival['rate_rps']:g}/s" if arrival.get("rate_rps") else "")
    how = how or (f"tenants {', '.join(facts['tenants'])}" if facts.get("tenants") else "")
    how = how or (f"{arrival['kind']} arrivals" if arrival.get("kind") else "")
    lengths = ""
    if traffic:
        mean_in, mean_out = traffic["prompt_tokens"]["mean"], traffic["output_tokens"]["mean"]
        lengths = f"mean {mean_in:,.0f} tokens in, {mean_out:,.0f} out"
    elif work.get("input_tokens_mean"):
        lengths = f"mean {work['input_tokens_mean']} tokens in, {work.get('output_tokens_mean')} out"
    requests = f"{facts['requests']} requests a launch" if facts.get("requests") else ""
    state = f"{facts['cache_state']} prefix cache" if facts.get("cache_state") else ""
    text = " · ".join(part for part in (requests, how, lengths, state) if part)
    return f"{text}. Small print: against the engine's own 16-bit baseline (own) and the common baseline (common)."


def _main_row(analysis: Analysis, one: DeploymentResult, load: str, tail: int, tasks: list[str]) -> dict[str, Any]:
    cell = one.cells.get(load)
    base = own_baseline(analysis, one)
    common = next((d for d in analysis.deployments if d.common_baseline), None)
    metric = throughput_metric(analysis.plan["loads"][load])
    throughput = cell.means.get(metric) if cell else None
    quantile = next((q for q in cell.quantiles.get("ttft_ms", ()) if q.percent == tail), None) if cell else None
    held = one.memory.max_concurrency.get(load)
    cells = [
        _ratio_cell(one, base, common, form.number, "kv_bytes_per_token"),
        _ratio_cell(one, base, common, form.tokens, "capacity_tokens"),
        _Cell(form.number(held, 2) if held is not None else _absent(one)),
        _Cell(
            form.number(throughput) if throughput is not None else _absent(one),
            _effects(analysis, one, load, metric),
        ),
        _Cell(
            form.milliseconds(quantile.value) if quantile else _absent(one),
            _effects(analysis, one, load, f"ttft_p{tail}_ms"),
        ),
        *(_accuracy_cell(analysis, one, task) for task in tasks),
    ]
    return {
        "engine": shortened(one.backend_title),
        "strategy": shortened(one.strategy_title),
        "baseline": one.engine_baseline,
        "off": one.state != "measured",
        "cells": cells,
        "says": _says(analysis, one, load),
    }


def _absent(one: DeploymentResult) -> str:
    return "–" if one.state == "unsupported" else "not measured"


def _ratio_cell(
    one: DeploymentResult, base: DeploymentResult | None, common: DeploymentResult | None, write: Any, name: str
) -> _Cell:
    value = getattr(one.memory, name)
    if value is None:
        return _Cell(_absent(one))
    references = [(base, "own")] if base is common else [(base, "own"), (common, "common")]
    more = [
        f"{label} {form.times(value, getattr(d.memory, name))}"
        for d, label in references
        if d is not None and d.id != one.id and getattr(d.memory, name)
    ]
    return _Cell(write(value), tuple(more))


def _effects(analysis: Analysis, one: DeploymentResult, load: str, metric: str) -> tuple[str, ...]:
    if one.state in ("unsupported", "failed") or one.check_only:
        return ()
    if one.state != "measured":
        return ("not ranked",)
    lines = []
    for against, label in (("engine", "own"), ("common", "common")):
        found = [c for c in analysis.compared(one.id, against) if (c.load, c.metric) == (load, metric)]
        if found and not (against == "common" and own_baseline_is_common(analysis, one)):
            lines.append(f"{label} {form.effect(found[0])}")
    return tuple(lines)


def own_baseline_is_common(analysis: Analysis, one: DeploymentResult) -> bool:
    """Whether both baselines are the same deployment, so that one column says all."""
    base = own_baseline(analysis, one)
    return base is not None and base.common_baseline


def _accuracy_cell(analysis: Analysis, one: DeploymentResult, task: str) -> _Cell:
    score = one.accuracy.get(task)
    if score is None or score.score is None:
        return _Cell(_absent(one))
    more = []
    for against, label in (("engine", "own"), ("common", "common")):
        found = [c for c in analysis.accuracy if (c.deployment, c.task, c.against) == (one.id, task, against)]
        if found and not (against == "common" and own_baseline_is_common(analysis, one)):
            more.append(f"{label} {form.accuracy_effect(found[0])}")
    return _Cell(form.share(score.score), (*more, f"n = {score.n}"))


def _says(analysis: Analysis, one: DeploymentResult, load: str) -> list[_Part]:
    line = form.verdict_line(analysis, one, load)
    if one.engine_baseline and one.state == "measured":
        name = "common baseline" if one.common_baseline else "this engine's baseline"
        return [_Part(name, "base"), *([_Part(line, "base" if one.check_only else "bad")] if line else [])]
    if one.state == "unsupported":
        return [_Part(line, "base")]
    if one.state != "measured" or (one.cells.get(load) and one.cells[load].state != "measured"):
        return [_Part(line, "bad")]
    return [_Part(part, _tone(part)) for part in line.split("; ")]


def _tone(part: str) -> str:
    if part.endswith("requests failed"):
        return "bad"
    for word in ("better", "worse"):
        if part.startswith(f"{word}:") or part.endswith(f" {word}"):
            return word
    if part.startswith("equivalent") or " equivalent" in part or "not worse within" in part:
        return "equivalent"
    return "unsure" if part.startswith(("inconclusive", "not ", "no verdict")) or "in" in part.split() else "base"


def _speed_chart(analysis: Analysis, load: str, tail: int) -> dict[str, Any] | None:
    """Throughput against the TTFT tail, of ranked deployments only."""
    points, left_out = [], []
    for d in analysis.deployments:
        cell = d.cells.get(load)
        q = next((q for q in cell.quantiles.get("ttft_ms", ()) if q.percent == tail), None) if cell else None
        speed = cell.means.get("output_tokens_per_s") if cell else None
        if d.ranked and cell and cell.state == "measured" and q and speed is not None:
            detail = f"{form.number(speed)} tok/s, TTFT P{tail} {form.milliseconds(q.value)}"
            points.append(Point(q.value / 1000, speed, d.strategy_title, d.backend_title, detail, d.engine_baseline))
        elif d.state not in ("unsupported", "measured"):
            left_out.append(f"{d.label} ({d.state})")
    limits = [
        limit for sla in (analysis.plan.get("sla") or {}).values() for m, _, limit in sla_limits(sla) if m == "ttft_ms"
    ]
    svg = scatter(
        points,
        Axis(f"TTFT P{tail}, s", more_is_better=False),
        Axis("output tokens/s", more_is_better=True),
        f"Throughput against TTFT P{tail} under {load}",
        limit_x=min(limits) / 1000 if limits else None,
    )
    closed = is_closed(analysis.plan["loads"][load])
    notes = (
        ["Closed loop: compare latencies within an engine only."]
        if closed and len({p.group for p in points}) > 1
        else []
    )
    notes += [f"Not shown: {', '.join(left_out)}."] if left_out else []
    return {"title": f"Throughput against TTFT P{tail}", "svg": svg, "note": " ".join(notes)} if svg else None


def _loss_chart(analysis: Analysis, task: str) -> dict[str, Any] | None:
    """KV bytes a token against the score of a task."""
    points = []
    for d in analysis.deployments:
        score, kv_bytes = d.accuracy.get(task), d.memory.kv_bytes_per_token
        if score is not None and score.score is not None and kv_bytes is not None:
            detail = f"{kv_bytes:,.0f} bytes a token, {form.share(score.score)} of {score.n}"
            points.append(
                Point(kv_bytes, 100 * score.score, d.strategy_title, d.backend_title, detail, d.engine_baseline)
            )
    name = form.accuracy_name(task)
    svg = scatter(
        points,
        Axis("KV bytes a token", more_is_better=False),
        Axis(f"{name}, %", more_is_better=True, most=100),
        f"KV bytes a token against {name}",
    )
    return {"title": f"KV bytes a token against {name}", "svg": svg, "note": ""} if svg else None


def _slas(analysis: Analysis) -> Iterable[Row]:
    """What each deployment does for each SLA: kept in every launch, and requests that kept every limit."""
    for name, sla in (analysis.plan.get("sla") or {}).items():
        limits = [
            f"{form.metric_name(limit_name(metric, p))} ≤ {form.milliseconds(limit)}"
            for metric, p, limit in sla_limits(sla)
        ]
        for d in analysis.deployments:
            for load, cell in d.cells.items():
                if name in cell.sla_met:
                    yield {
                        "deployment": d.label,
                        "load": load,
                        "SLA": name,
                        "limits": ", ".join(limits),
                        "kept in every launch": "yes" if cell.sla_met[name] else "no",
                        "goodput, requests/s": form.number(cell.means.get(f"goodput_rps.{name}")),
                        "requests that kept every limit": form.share(cell.means.get(f"goodput_share.{name}")),
                    }


def _latency(analysis: Analysis) -> Iterable[Row]:
    several = len(analysis.plan.get("loads") or {}) > 1
    for d in analysis.deployments:
        for load, cell in d.cells.items():
            for metric in LATENCIES:
                found = {q.percent: q for q in cell.quantiles.get(metric, ())}
                if not found:
                    continue
                n = next(iter(found.values())).n
                few = f"not measured (n < {P99_SAMPLES})"
                row = {"deployment": d.label, **({"load": load} if several else {})}
                row |= {"metric": form.METRIC_NAMES[metric.removesuffix("_ms")], "n": f"{n:,}"}
                row |= {f"P{p}": form.quantile(found[p]) if p in found else few for p in (50, 90, 99)}
                yield row | {"failed requests": f"{cell.failed_requests} of {cell.requests}"}


def _memory(d: DeploymentResult) -> Row:
    m = d.memory
    return {
        "deployment": d.label,
        "stored as": str(m.kv_dtype),
        "KV bytes/token": form.number(m.kv_bytes_per_token, 5),
        "pool": form.memory_size(m.pool_bytes),
        "capacity": form.tokens(m.capacity_tokens),
        "peak in use": form.NOT_MEASURED
        if m.peak_kv_cache_usage is None
        else f"{form.share(m.peak_kv_cache_usage)} ({form.tokens(m.peak_kv_tokens)})",
        "working set ÷ pool": ", ".join(f"{v:.2f}" for v in m.working_set_over_pool.values()) or form.NOT_MEASURED,
        "preemptions": f"{m.preemptions:,.0f}" if m.preemptions is not None else form.NOT_MEASURED,
        "process memory (PSS)": form.memory_size(m.peak_pss_bytes),
        "GPU memory": form.memory_size(m.peak_gpu_memory_bytes),
    }


def _not_ranked(analysis: Analysis) -> Iterable[Row]:
    for d in analysis.deployments:
        if d.state not in ("measured", "unsupported"):
            yield {"what": d.label, "state": d.state, "why": str(d.reason)}
        for load, cell in d.cells.items():
            if d.state == "measured" and cell.state != "measured":
                yield {"what": f"{d.label} under {load}", "state": cell.state, "why": str(cell.reason)}
            if cell.errors:
                kinds = ", ".join(f"{kind} ({count})" for kind, count in cell.errors.items())
                share = f"{cell.failed_requests} of {cell.requests} requests failed"
                yield {"what": f"{d.label} under {load}", "state": share, "why": kinds}
            for note in cell.notes:
                yield {"what": f"{d.label} under {load}", "state": "note", "why": note}
    for launch in analysis.launches:
        if launch.state != "measured" and launch.reason:
            yield {"what": f"block {launch.block}, {launch.launch}", "state": launch.state, "why": launch.reason}
        for error in launch.errors:
            yield {"what": f"block {launch.block}, {launch.launch}", "state": "error", "why": error}
    for name in analysis.interrupted:
        yield {"what": f"block {name}", "state": "interrupted", "why": "cut short: kept in the folder, not analysed"}
    for problem in analysis.problems:
        yield {"what": "file", "state": "unreadable", "why": problem}


def _support(row: Mapping[str, Any]) -> Row:
    names = ("backend", "model", "strategy")
    return {name: str(row[name]) for name in names if name in row} | {
        "state": str(row["state"]),
        "reason": str(row.get("reason") or "–"),
    }


def _plan_rows(analysis: Analysis) -> Iterable[Row]:
    plan = analysis.plan
    yield {"": "blocks", "planned": str(analysis.blocks_planned), "actual": str(analysis.blocks)}
    actual = sum(analysis.seconds_by_block.values())
    if plan.get("seconds"):
        yield {"": "minutes", "planned": form.number(plan["seconds"] / 60), "actual": form.number(actual / 60)}
    seen: dict[str, float] = {}
    for c in analysis.comparisons:
        if c.role == "primary" and c.against == "engine" and c.smallest_effect_pct is not None:
            kind = "latency" if is_latency(c.metric) else "throughput"
            seen[kind] = max(seen.get(kind, 0.0), c.smallest_effect_pct)
    for kind, value in (plan.get("smallest_effect") or {}).items():
        planned = "no verdict" if value is None else form.smallest_effect(float(value))
        found = form.smallest_effect(seen[kind]) if kind in seen else "no verdict"
        yield {"": f"smallest effect visible, {kind} (80 % power)", "planned": planned, "actual": found}


def _predictions(analysis: Analysis) -> Iterable[Row]:
    for d in analysis.deployments:
        estimate = (analysis.plan.get("estimates") or {}).get(d.id) or {}
        if d.memory.kv_bytes_per_token is None or not estimate:
            continue
        spent = [sum(launch.seconds.values()) for launch in analysis.launches if launch.deployment == d.id]
        yield {
            "deployment": d.label,
            "KV bytes/token predicted": form.number(estimate.get("kv_bytes_per_token"), 5),
            "KV bytes/token": form.number(d.memory.kv_bytes_per_token, 5),
            "capacity predicted": form.tokens(estimate.get("capacity_tokens")),
            "capacity": form.tokens(d.memory.capacity_tokens),
            "seconds a launch predicted": form.number(estimate.get("total_s")),
            "seconds a launch": form.number(sum(spent) / len(spent)) if spent else form.NOT_MEASURED,
        }


def _noise(analysis: Analysis, n: Any) -> Row:
    return {
        "deployment": analysis.deployment(n.deployment).label,
        "load": n.load,
        "metric": form.metric_name(n.metric),
        "SD of one launch": f"{form.number(n.sd_pct, 2)} %",
        "pairs": str(n.pairs),
    }


def _comparison(analysis: Analysis, c: Any) -> Row:
    return {
        "deployment": analysis.deployment(c.deployment).label,
        "load": c.load,
        "metric": form.metric_name(c.metric),
        "against": "own 16-bit" if c.against == "engine" else "common",
        "role": c.role,
        "effect": form.effect(c) if c.effect_pct is not None else "–",
        "verdict": c.verdict,
        "why": c.reason,
        "launches": f"{c.launches} and {c.baseline_launches}" if c.launches else "–",
        "method": c.method or "–",
    }


def _confounders(analysis: Analysis) -> Iterable[Row]:
    """By engine where all of its deployments agree, else by deployment."""
    seen: dict[tuple[str, str, str], None] = {}
    engines = {d.id: shortened(d.backend_title) for d in analysis.deployments}
    values: dict[tuple[str, str], set[str]] = {}
    for launch in analysis.launches:
        for name, text in launch.confounders.items():
            values.setdefault((engines.get(launch.deployment, ""), name), set()).add(text)
    for launch in analysis.launches:
        engine = engines.get(launch.deployment, "")
        for name, text in launch.confounders.items():
            agree = len(values[engine, name]) == 1
            seen[engine if agree else launch.deployment, name, text] = None
    for where, name, text in seen:
        yield {"engine or deployment": where, "setting": name, "value": text}


def _environment(analysis: Analysis) -> Iterable[Row]:
    manifest = analysis.manifest
    flat = {
        "hardware": manifest.get("hardware"),
        "software": {k: v for k, v in (manifest.get("software") or {}).items() if k != "packages"},
        "git": manifest.get("git"),
        "engine": manifest.get("engines"),
        "model": manifest.get("models"),
        "identity": manifest.get("identity"),
        "data": manifest.get("data"),
        "seed": manifest.get("seed"),
    }
    for name, value in flat.items():
        for key, item in _leaves(name, value):
            yield {"what": key, "value": item}
    schedules = {f"block {x.block}, {load}": sha for x in analysis.launches for load, sha in x.schedule_sha256.items()}
    for where, sha in schedules.items():
        yield {"what": f"schedule, {where}", "value": sha}


def _leaves(name: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name} · {key}", item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(name, item)
    elif value is not None:
        yield name, str(value)


def _packages(analysis: Analysis) -> list[Row]:
    packages = (analysis.manifest.get("software") or {}).get("packages") or {}
    return [{"package": str(name), "version": str(version)} for name, version in packages.items()]


def _commands(analysis: Analysis) -> Iterable[Row]:
    """The exact command line of each deployment's first launch; those of other blocks differ in the port."""
    seen: set[str] = set()
    for launch in analysis.launches:
        if launch.deployment in seen or not launch.argv:
            continue
        seen.add(launch.deployment)
        variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in launch.env.items())
        line = f"{variables} {shlex.join(launch.argv)}".strip()
        yield {"name": launch.deployment, "line": line, "evidence": "\n".join(launch.evidence)}
