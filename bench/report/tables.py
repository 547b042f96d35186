"""The tables of a run as data frames: CSV for machines, Markdown for people. Columns: `docs/metrics.md`.

A cell that was not measured says so and why; it is never zero and never empty.
"""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from bench.analysis.distribution import P99_SAMPLES
from bench.analysis.metrics import LATENCIES
from bench.analysis.result import AccuracyComparison, Analysis, CellResult, Comparison, DeploymentResult
from bench.report import form, quality
from bench.report.traffic import client_rows, pace_rows, second_rows, tenant_rows
from harness.files import write_bytes

Row = dict[str, Any]

_ACCURACY_NUMBERS = (
    "n",
    "documents",
    "margin_pp",
    "margin_relative_pct",
    "difference_pp",
    "low_pp",
    "high_pp",
    "relative_pct",
    "relative_low_pct",
    "relative_high_pct",
    "lost",
    "gained",
    "flip_floor_pct",
    "non_inferiority_p",
    "non_inferiority_p_holm",
    "difference_p",
    "difference_p_holm",
    "tasks",
    "mcnemar_p",
    "smallest_loss_pp",
)

SERIES = "timeseries"
"""The table of seconds: for machines only, it has no Markdown."""


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """Every table by name; those without rows are left out."""
    found = {
        "deployments": [_deployment(d) for d in analysis.deployments],
        "memory": [_memory(analysis, d) for d in analysis.deployments],
        "concurrency": [row for d in analysis.deployments for row in _concurrency(analysis, d)],
        "throughput": [row for d in analysis.deployments for row in _throughput(analysis, d)],
        "latency": [row for d in analysis.deployments for row in _latency(analysis, d)],
        "accuracy": [row for d in analysis.deployments for row in _accuracy(analysis, d)],
        "comparisons": [_comparison(c) for c in analysis.comparisons],
        "noise_floor": [dict(vars(n)) for n in analysis.noise],
    }
    found |= quality.tables(analysis)
    more = {"client": client_rows, "pace": pace_rows, "tenants": tenant_rows, SERIES: second_rows}
    for name, rows_of in more.items():
        found[name] = [{**_who(d), **row} for d in analysis.deployments for row in rows_of(d)]
    return {name: pd.DataFrame(rows) for name, rows in found.items() if rows}


def write_tables(analysis: Analysis, run_dir: Path) -> list[Path]:
    """Write `tables/*.csv`, and `tables/*.md` of those that are for people too."""
    written = []
    for name, frame in tables(analysis).items():
        texts = {".csv": frame.to_csv(index=False)}
        if name != SERIES:
            texts[".md"] = _markdown(frame)
        for suffix, text in texts.items():
            path = run_dir / "tables" / f"{name}{suffix}"
            write_bytes(path, text.encode())
            written.append(path)
    return written


def _markdown(frame: pd.DataFrame) -> str:
    escaped = frame.map(lambda value: _cell(value).replace("|", "\\|").replace("\n", " "))
    return str(escaped.to_markdown(index=False, disable_numparse=True)) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "inf" if math.isinf(value) else f"{value:.6g}"
    return str(value)


def _who(one: DeploymentResult) -> Row:
    return {"deployment": one.id, "backend": one.backend, "model": one.model, "strategy": one.strategy}


def _why_not(one: DeploymentResult, fallback: str = "the engine gives no reading") -> str:
    """The text that stands where a number would."""
    if one.state in ("unsupported", "failed"):
        return f"not measured: {one.state}: {one.reason}"
    return f"not measured: {fallback}"


def _deployment(one: DeploymentResult) -> Row:
    check = one.output_check
    return {
        **_who(one),
        "state": one.state,
        "reason": one.reason or "",
        "launches": one.launches,
        "failed_launches": one.failed_launches,
        "output_nll": check.nll if check and check.nll is not None else _why_not(one, "no output check"),
        "top1_agreement": check.top1_agreement
        if check and check.top1_agreement is not None
        else _why_not(one, "no output check"),
    }


def _baselines(analysis: Analysis, one: DeploymentResult) -> list[tuple[str, DeploymentResult | None]]:
    own = next(
        (d for d in analysis.deployments if d.engine_baseline and (d.backend, d.model) == (one.backend, one.model)),
        None,
    )
    return [("engine_16bit", own), ("common", next((d for d in analysis.deployments if d.common_baseline), None))]


def _with_ratios(
    analysis: Analysis, one: DeploymentResult, name: str, read: Callable[[DeploymentResult], float | None]
) -> Row:
    """A quantity, and its ratio to both baselines."""
    value = read(one)
    row: Row = {name: _why_not(one) if value is None else value}
    for label, base in _baselines(analysis, one):
        reference = read(base) if base else None
        known = value is not None and reference
        row[f"{name}_over_{label}"] = round(value / reference, 4) if known else "not measured"  # type: ignore[operator]
    return row


def _memory(analysis: Analysis, one: DeploymentResult) -> Row:
    m = one.memory
    return {
        **_who(one),
        "kv_dtype": m.kv_dtype or _why_not(one),
        **_with_ratios(analysis, one, "kv_bytes_per_token", lambda d: d.memory.kv_bytes_per_token),
        **_with_ratios(analysis, one, "capacity_tokens", lambda d: d.memory.capacity_tokens),
        "pool_bytes": _why_not(one) if m.pool_bytes is None else m.pool_bytes,
        "peak_kv_cache_usage": _why_not(one) if m.peak_kv_cache_usage is None else m.peak_kv_cache_usage,
        "peak_kv_tokens": _why_not(one) if m.peak_kv_tokens is None else round(m.peak_kv_tokens),
        "preemptions": _why_not(one) if m.preemptions is None else m.preemptions,
        **_with_ratios(analysis, one, "peak_pss_bytes", lambda d: d.memory.peak_pss_bytes),
        "peak_gpu_memory_bytes": "not measured: no GPU reading"
        if m.peak_gpu_memory_bytes is None
        else m.peak_gpu_memory_bytes,
    }


def _concurrency(analysis: Analysis, one: DeploymentResult) -> Iterable[Row]:
    for load in one.cells:
        ratio = one.memory.working_set_over_pool.get(load)
        yield {
            **_who(one),
            "load": load,
            "working_set_over_pool": _why_not(one) if ratio is None else ratio,
            **_with_ratios(
                analysis,
                one,
                "max_concurrency",
                lambda d, load=load: d.memory.max_concurrency.get(load),  # type: ignore[misc]
            ),
        }


def _throughput(analysis: Analysis, one: DeploymentResult) -> Iterable[Row]:
    for load, cell in one.cells.items():
        names = ("output_tokens_per_s", "input_tokens_per_s", "total_tokens_per_s", "request_rate_attained_rps")
        steady = ("steady_output_tokens_per_s", "steady_input_tokens_per_s", "steady_total_tokens_per_s")
        no_schedule = "not measured: no schedule"
        goodput = sorted(name for name in cell.means if name.startswith("goodput_"))
        yield {
            **_who(one),
            "load": load,
            "state": cell.state if one.state == "measured" else one.state,
            "requests": cell.requests,
            "failed_requests": cell.failed_requests,
            **{name: cell.means.get(name, _missing(one, cell)) for name in (*names, "mean_concurrency", *steady)},
            **{
                name: cell.means.get(name, no_schedule if cell.launches else _missing(one, cell))
                for name in ("request_rate_asked_rps", "request_rate_sent_rps", "attained_over_requested_rate")
            },
            **{name: cell.means[name] for name in goodput},
            **_verdicts(analysis, one, load, "output_tokens_per_s"),
            "notes": "; ".join(cell.notes),
        }


def _latency(analysis: Analysis, one: DeploymentResult) -> Iterable[Row]:
    for load, cell in one.cells.items():
        for metric in LATENCIES:
            found = {q.percent: q for q in cell.quantiles.get(metric, ())}
            n = next((q.n for q in found.values()), 0)
            row: Row = {**_who(one), "load": load, "metric": metric, "n": n, "failed_requests": cell.failed_requests}
            for percent in (50, 90, 99):
                q, few = found.get(percent), f"not measured: n = {n} < {P99_SAMPLES}"
                row[f"p{percent}"] = q.value if q else (few if n else _missing(one, cell))
                row[f"p{percent}_low"] = q.low if q and q.low is not None else "not bounded"
                row[f"p{percent}_high"] = q.high if q and q.high is not None else "not bounded"
            short = metric.removesuffix("_ms")
            for percent in (50, 90, 99):
                verdicts = _verdicts(analysis, one, load, f"{short}_p{percent}_ms")
                row |= {f"p{percent}_{key}": value for key, value in verdicts.items()}
            yield row


def _missing(one: DeploymentResult, cell: CellResult) -> str:
    return f"not measured: {cell.reason or one.reason or 'no launch of it was measured'}"


def _verdicts(analysis: Analysis, one: DeploymentResult, load: str, metric: str) -> Row:
    """Effect, interval, verdict and reason against both baselines."""
    row: Row = {}
    for label, against, is_base in (
        ("vs_engine_16bit", "engine", one.engine_baseline),
        ("vs_common", "common", one.common_baseline),
    ):
        keys = (one.id, against, load, metric)
        c = next((c for c in analysis.comparisons if (c.deployment, c.against, c.load, c.metric) == keys), None)
        row[label] = "baseline" if is_base else form.effect(c) if c else "not compared"
        row[f"{label}_verdict"] = "baseline" if is_base else f"{c.verdict}: {c.reason}" if c else "not compared"
    return row


def _accuracy(analysis: Analysis, one: DeploymentResult) -> Iterable[Row]:
    for task, score in one.accuracy.items():
        row: Row = {
            **_who(one),
            "task": task,
            "metric": score.metric,
            "n": score.n,
            "score": f"not measured: {score.reason}" if score.score is None else score.score,
            "chance": "not stated" if score.chance is None else score.chance,
        }
        for label, against, is_base in (
            ("vs_engine_16bit", "engine", one.engine_baseline),
            ("vs_common", "common", one.common_baseline),
        ):
            keys = (one.id, against, task)
            c = next((c for c in analysis.accuracy if (c.deployment, c.against, c.task) == keys), None)
            row |= {f"{label}_{key}": value for key, value in _accuracy_cells(c, is_base).items()}
        yield row


def _accuracy_cells(c: AccuracyComparison | None, is_base: bool) -> Row:
    if is_base or c is None:
        text = "baseline" if is_base else "not compared"
        return dict.fromkeys((*_ACCURACY_NUMBERS, "method", "verdict"), text)
    known = c.difference_pp is not None
    numbers = {key: getattr(c, key) if known else None for key in _ACCURACY_NUMBERS}
    return {
        **{key: "not measured" if value is None else value for key, value in numbers.items()},
        "method": c.method or "none",
        "verdict": f"{c.verdict}: {c.reason}",
    }


def _comparison(c: Comparison) -> Row:
    return {key: "not measured" if value is None else value for key, value in vars(c).items()}
