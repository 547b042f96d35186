"""What is said of output and accuracy: tasks, output check, fidelity, determinism, flips and texts, as rows.

Rows for people (`form`'s words) go to the page; those for machines to the tables.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from bench.analysis.result import (
    AccuracyComparison,
    AccuracyScore,
    Analysis,
    DeploymentResult,
    FidelityBand,
    FidelityResult,
    OutputCheckResult,
)
from bench.report import form

Row = dict[str, str]


def accuracy(analysis: Analysis) -> Iterable[Row]:
    """Every task of every deployment, against the same engine's 16-bit baseline and, if another, the common one."""
    for d in analysis.deployments:
        for task, score in d.accuracy.items():
            for against, c in _compared(analysis, d, task):
                yield _accuracy(d, task, score, against, c)


def _compared(analysis: Analysis, one: DeploymentResult, task: str) -> Iterable[tuple[str, AccuracyComparison | None]]:
    found = {c.against: c for c in analysis.accuracy if (c.deployment, c.task) == (one.id, task)}
    own, common = found.get("engine"), found.get("common")
    yield "own 16-bit", own
    if common is not None and (own is None or own.baseline != common.baseline):
        yield "common", common


def _accuracy(
    one: DeploymentResult, task: str, score: AccuracyScore, against: str, c: AccuracyComparison | None
) -> Row:
    known = c is not None and c.difference_pp is not None
    floor = f", A/A′ {form.percent(c.flip_floor_pct)}" if c and c.flip_floor_pct is not None else ""
    return {
        "deployment": one.label,
        "task": form.accuracy_name(task),
        "score": form.share(score.score) if score.score is not None else f"not measured: {score.reason}",
        "n": str(c.n if c and known else score.n),
        "against": against,
        "difference": form.accuracy_interval(c) if c else "baseline" if one.engine_baseline else "not compared",
        "margin": c.margin if c else "–",
        "lost / gained": f"{c.lost} / {c.gained}{floor}" if c and known else "–",
        "verdict": c.verdict if c else "–",
        "why": c.reason if c else "–",
    }


def accuracy_methods(analysis: Analysis) -> Iterable[Row]:
    """How each task was asked, and each comparison tested."""
    for d in analysis.deployments:
        for task, score in d.accuracy.items():
            for against, c in _compared(analysis, d, task):
                yield {
                    "deployment": d.label,
                    "task": form.accuracy_name(task),
                    "exercises": ", ".join(score.exercises) or "not stated",
                    "against": against,
                    "p, loss of the margin": form.p_value(c.non_inferiority_p, c.non_inferiority_p_holm, c.tasks)
                    if c
                    else "–",
                    "p, no difference": form.p_value(c.difference_p, c.difference_p_holm, c.tasks) if c else "–",
                    "McNemar p": form.p_value(c.mcnemar_p) if c else "–",
                    "interval": (c.method if c else "") or "–",
                    "notes": "; ".join(score.notes) or "–",
                }


def by_length_and_depth(analysis: Analysis) -> Iterable[Row]:
    """Share of right answers by prompt length and depth, where a task has them."""
    for task in analysis.plan.get("accuracy") or {}:
        for d in analysis.deployments:
            score = d.accuracy.get(task)
            for cell in score.grid if score else ():
                yield {
                    "task": form.accuracy_name(task),
                    "deployment": d.label,
                    "prompt": form.tokens(cell.context_tokens),
                    "depth": f"{100 * cell.depth_low:.0f}–{100 * cell.depth_high:.0f} %",
                    "score": form.share(cell.score),
                    "n": str(cell.n),
                }


def output_checks(analysis: Analysis) -> Iterable[Row]:
    """The gate before ranking: forced decode against the 16-bit launches."""
    for d in analysis.deployments:
        if (check := d.output_check) is None:
            continue
        yield {
            "deployment": d.label,
            "result": "output broken" if check.broken else check.state,
            "NLL, nats": form.number(check.nll) if check.nll is not None else form.NOT_MEASURED,
            "16-bit NLL": form.number(check.baseline_nll) if check.baseline_nll is not None else form.NOT_MEASURED,
            "shift, 95 %": _shift(check),
            "most NLL above it": form.number(check.nll_band) if check.nll_band is not None else "–",
            "top-1 agreement": form.share(check.top1_agreement),
            "least agreement": form.share(check.top1_band) if check.top1_band is not None else "–",
            "KL, nats": form.number(check.kl) if check.kl is not None else form.NOT_MEASURED,
            "why": check.reason,
        }


def _shift(check: OutputCheckResult) -> str:
    if check.nll_shift_low is None or check.nll_shift_high is None:
        return "–"
    return (
        f"[{form.signed(check.nll_shift_low, 3)}, {form.signed(check.nll_shift_high, 3)}], {check.positions} positions"
    )


def fidelity(analysis: Analysis) -> Iterable[Row]:
    """Forced decode by stretches of the context; of a baseline it is A′ against A."""
    for d, found in _with_fidelity(analysis):
        for band in found.bands:
            yield {
                "deployment": d.label + (" (A′ against A)" if found.is_floor else ""),
                "context": _stretch(band),
                "positions": str(band.positions),
                "NLL, nats": form.number(band.nll) if band.nll is not None else form.NOT_MEASURED,
                "change": _change(band),
                "top-1 agreement": form.share(band.top1_agreement),
                "KL, nats": form.number(band.kl) if band.kl is not None else form.NOT_MEASURED,
                "read from the cache": {True: "yes", False: "no", None: "not known"}[found.cache_hits_verified]
                + (f": {found.cache_hits}" if found.cache_hits else ""),
            }


def greedy(analysis: Analysis) -> Iterable[Row]:
    """Greedy continuations against the baseline's, and the same request again and again."""
    for d in analysis.deployments:
        f, r = d.fidelity, d.determinism
        if (f is None or not f.greedy_prompts) and r is None:
            continue
        row = {"deployment": d.label}
        compared = f is not None and f.greedy_prompts > 0
        row["against"] = "A′ against A" if f and f.is_floor else "own 16-bit" if compared else "–"
        row["identical greedy outputs"] = (
            f"{form.share(f.identical_outputs)} of {f.greedy_prompts}" if f and compared else "–"
        )
        row["tokens before the first difference, median"] = (
            f"{form.number(f.divergence_tokens_median)} of {f.greedy_tokens}"
            if f and compared and f.divergence_tokens_median is not None
            else "–"
        )
        row["repeats identical, alone"] = form.share(r.identical_alone) if r else "–"
        row["repeats identical, beside others"] = (
            f"{form.share(r.identical_under_load)} (beside {r.beside})" if r else "–"
        )
        row["repeats"] = f"{r.prompts} requests × {r.repeats}, {r.output_tokens} tokens" if r else "–"
        yield row


def flip_floors(analysis: Analysis) -> Iterable[Row]:
    """What differs between two launches of the same 16-bit deployment, by block."""
    for f in analysis.flip_floors:
        yield {
            "deployment": analysis.deployment(f.deployment).label,
            "task": form.accuracy_name(f.task),
            "n": str(f.n),
            "flips": form.percent(f.flips_pct),
            "only A / only A′ right": f"{f.lost} / {f.gained}",
            "by block": ", ".join(form.percent(100 * share) for share in f.blocks.values()),
            "identical answers": form.share(f.identical) if f.identical is not None else "–",
        }


def texts(analysis: Analysis) -> Iterable[Row]:
    """Generated answers held against references and baselines."""
    names = {"references": "references", "engine": "own 16-bit", "common": "common baseline"}
    for t in analysis.texts:
        yield {
            "deployment": analysis.deployment(t.deployment).label,
            "task": form.accuracy_name(t.task),
            "against": names.get(t.against, t.against),
            "n": str(t.n),
            "BLEU-4": _with_interval(t.bleu4, t.bleu4_low, t.bleu4_high),
            "ROUGE-L": _with_interval(t.rouge_l, t.rouge_l_low, t.rouge_l_high),
            "identical": form.share(t.identical),
            "method": t.method,
        }


def tables(analysis: Analysis) -> dict[str, list[dict[str, Any]]]:
    """The same for machines, by table."""
    return {
        "accuracy_grid": [
            {"deployment": d.id, "task": task, **asdict(cell)}
            for d in analysis.deployments
            for task, score in d.accuracy.items()
            for cell in score.grid
        ],
        "fidelity": [
            {"deployment": d.id, "baseline": found.baseline, "is_floor": found.is_floor, **_known(asdict(band))}
            for d, found in _with_fidelity(analysis)
            for band in found.bands
        ],
        "greedy": [
            {
                "deployment": d.id,
                **_known({k: v for k, v in asdict(found).items() if k != "bands"}),
            }
            for d, found in _with_fidelity(analysis)
            if found.greedy_prompts
        ],
        "determinism": [
            {"deployment": d.id, **_known(asdict(d.determinism))} for d in analysis.deployments if d.determinism
        ],
        "flip_floor": [{**_known(asdict(f)), "blocks": str(f.blocks)} for f in analysis.flip_floors],
        "texts": [_known(asdict(t)) for t in analysis.texts],
    }


def _with_fidelity(analysis: Analysis) -> Iterable[tuple[DeploymentResult, FidelityResult]]:
    return ((d, d.fidelity) for d in analysis.deployments if d.fidelity is not None)


def _known(row: dict[str, Any]) -> dict[str, Any]:
    return {key: "not measured" if value is None else value for key, value in row.items()}


def _stretch(band: FidelityBand) -> str:
    return f"{band.name}, {band.first_position:,} to {band.last_position:,} tokens"


def _change(band: FidelityBand) -> str:
    if band.nll_delta is None:
        return form.NOT_MEASURED
    text = form.signed(band.nll_delta, 3)
    if band.nll_delta_low is None or band.nll_delta_high is None:
        return text
    return f"{text} [{form.signed(band.nll_delta_low, 3)}, {form.signed(band.nll_delta_high, 3)}]"


def _with_interval(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return form.NOT_MEASURED
    return f"{value:.1f}" if low is None or high is None else f"{value:.1f} [{low:.1f}, {high:.1f}]"
