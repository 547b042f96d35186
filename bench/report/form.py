"""How numbers are written for people: units, signs, intervals. Every table and the page use these and no others."""

import math
from collections.abc import Mapping
from typing import Any

from bench.analysis.result import AccuracyComparison, Analysis, Comparison, DeploymentResult, Quantile

NOT_MEASURED = "not measured"
METRIC_NAMES = {
    "output_tokens_per_s": "output tok/s",
    "request_rate_attained_rps": "requests/s",
    "saturation_rate_rps": "max requests/s",
    "saturation_concurrency": "max concurrency",
    "ttft": "TTFT",
    "itl": "ITL",
    "tpot": "TPOT",
    "e2e": "E2E",
    "normalised_latency": "E2E ÷ output token",
}


def metric_name(metric: str) -> str:
    """``ttft_p90_ms`` as ``TTFT P90``."""
    if metric in METRIC_NAMES:
        return METRIC_NAMES[metric]
    name, _, percent = metric.removesuffix("_ms").rpartition("_")
    return f"{METRIC_NAMES.get(name, name)} {percent.upper()}" if name and metric.endswith("_ms") else metric


def number(value: float | None, digits: int = 3) -> str:
    """A number with about `digits` significant digits and thousands separated."""
    if value is None:
        return NOT_MEASURED
    if math.isinf(value):
        return "∞"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}".replace("-", "−")


def milliseconds(value: float | None) -> str:
    """A time: milliseconds below a second, seconds from there."""
    if value is None:
        return NOT_MEASURED
    if math.isinf(value):
        return "∞ (failures)"
    return f"{number(value / 1000)} s" if value >= 1000 else f"{number(value)} ms"


def quantile(q: Quantile) -> str:
    """A percentile with its interval; an open end says so."""
    if q.low is None and q.high is None:
        return milliseconds(q.value)
    low = "…" if q.low is None else milliseconds(q.low)
    high = "not bounded" if q.high is None else milliseconds(q.high)
    return f"{milliseconds(q.value)} [{low}, {high}]"


def memory_size(count: float | None) -> str:
    """Bytes as MiB or GiB."""
    if count is None:
        return NOT_MEASURED
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.2f} GiB"


def tokens(count: float | None) -> str:
    """Tokens as 8.0K tok."""
    if count is None:
        return NOT_MEASURED
    return f"{count / 1000:,.1f}K tok" if count >= 1000 else f"{count:,.0f} tok"


def times(value: float | None, base: float | None) -> str:
    """A ratio as 0.50×."""
    return NOT_MEASURED if value is None or not base else f"{value / base:.2f}×"


def signed(value: float, digits: int = 0) -> str:
    """A signed number with a real minus sign."""
    text = f"{value:+.{digits}f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def effect(comparison: Comparison) -> str:
    """An effect with its interval, ``+41 % [+33, +49]``, or why there is none."""
    c = comparison
    if c.effect_pct is None:
        return c.verdict
    digits = 0 if c.low_pct is None or c.high_pct is None or c.high_pct - c.low_pct >= 1 else 1
    text = f"{signed(c.effect_pct, digits)} %"
    if c.low_pct is None or c.high_pct is None:
        return text
    return f"{text} [{signed(c.low_pct, digits)}, {_capped(c.high_pct, digits)}]"


def _capped(value: float, digits: int) -> str:
    return "> +1000" if value > 1000 else signed(value, digits)


def share(value: float | None) -> str:
    """A share as a percentage."""
    return NOT_MEASURED if value is None else f"{100 * value:.0f} %"


def accuracy_effect(comparison: AccuracyComparison) -> str:
    """A difference with the loss that is not excluded: ``−2 pp [loss ≤ 8]``."""
    c = comparison
    if c.difference_pp is None or c.low_pp is None:
        return c.verdict
    if not math.isfinite(c.low_pp):
        return f"{signed(c.difference_pp)} pp"
    bound = "no loss" if c.low_pp >= 0 else f"loss ≤ {math.ceil(-c.low_pp - 1e-9)}"
    return f"{signed(c.difference_pp)} pp [{bound}]"


def accuracy_interval(comparison: AccuracyComparison) -> str:
    """A difference with both ends of its interval, ``−2 pp [−8, +4]``, or why there is none."""
    c = comparison
    if c.difference_pp is None or c.low_pp is None or c.high_pp is None or not math.isfinite(c.high_pp - c.low_pp):
        return accuracy_effect(c)
    return f"{signed(c.difference_pp, 1)} pp [{signed(c.low_pp, 1)}, {signed(c.high_pp, 1)}]"


def p_value(p: float | None, holm: float | None = None, tasks: int = 1) -> str:
    """A p-value; over several tasks also as adjusted."""
    if p is None:
        return "–"
    return f"{p:.2g}, Holm over {tasks} tasks {holm:.2g}" if tasks > 1 and holm is not None else f"{p:.2g}"


def percent(value: float) -> str:
    """A percentage that may be small."""
    return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.1f} %"


def smallest_effect(percent: float) -> str:
    """A smallest visible effect; one beyond a fourfold change says only that there were too few blocks."""
    return f"{number(percent, 2)} %" if percent <= 300 else "> 300 %"


def extension(facts: Mapping[str, Any] | None) -> str:
    """How many blocks the asked precision added, and why it ended; empty where none was asked."""
    if not facts:
        return ""
    added = facts["blocks_added"]
    count = f"{added} block{'' if added == 1 else 's'} more than the {facts['blocks_planned']} planned"
    return f"Precision asked for added {count}: {facts['why']}."


def verdict_line(analysis: Analysis, one: DeploymentResult, load: str) -> str:
    """What is said of a deployment under one load, against its own engine's 16-bit baseline."""
    if one.state != "measured":
        return f"{one.state.upper()}: {one.reason}"
    if one.check_only:
        return (
            f"output {one.output_check.state}; checked only, no load" if one.output_check else "checked only, no load"
        )
    cell = one.cells.get(load)
    if cell is not None and cell.state != "measured":
        return f"{cell.state.upper()}: {cell.reason}"
    lost = [f"{cell.failed_requests} of {cell.requests} requests failed"] if cell and cell.failed_requests else []
    if one.engine_baseline:
        return "; ".join(lost)
    found = [c for c in analysis.compared(one.id, "engine") if c.load == load]
    parts = _grouped([(c.verdict, _short(c.metric), c.reason) for c in found])
    for c in (c for c in analysis.accuracy if (c.deployment, c.against) == (one.id, "engine")):
        parts.append(f"{accuracy_name(c.task)} {_accuracy_word(c)}")
    return "; ".join([*parts, *lost])


def accuracy_name(task: str) -> str:
    return task.replace("_", " ")


def _accuracy_word(c: AccuracyComparison) -> str:
    if c.verdict == "equivalent" or (c.non_inferior and c.verdict == "inconclusive"):
        return f"{'equivalent' if c.verdict == 'equivalent' else 'not worse'} within {c.margin}"
    return c.verdict


def _short(metric: str) -> str:
    return "throughput" if metric == "output_tokens_per_s" else metric_name(metric)


def _grouped(found: list[tuple[str, str, str]]) -> list[str]:
    """Verdicts of several metrics with the same word as one phrase."""
    reasons = {reason for _, _, reason in found}
    if len(reasons) == 1 and found and next(iter(reasons)).startswith("no verdict"):
        return [next(iter(reasons))]
    words: dict[str, list[str]] = {}
    for word, name, _ in found:
        words.setdefault(word, []).append(name)
    return [f"{word}: {', '.join(names)}" for word, names in words.items()]
