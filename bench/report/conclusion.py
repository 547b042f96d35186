"""What to run, in one honest sentence an SLA; and what is not ranked, and why."""

import math
from collections.abc import Sequence

from bench.analysis.compare import HIGHER_IS_BETTER
from bench.analysis.metrics import limit_name, sla_limits
from bench.analysis.result import AccuracyComparison, Analysis, Comparison, DeploymentResult
from bench.report.form import accuracy_effect, accuracy_name, effect, extension, metric_name, milliseconds


def conclusion(analysis: Analysis) -> list[str]:
    """Sentences, the most important first."""
    if analysis.blocks == 0:
        return ["No block was completed, so that nothing can be said.", *_not_ranked(analysis)]
    ranked = [d for d in analysis.deployments if d.ranked and d.cells]
    if not ranked:
        return ["No deployment could be ranked.", *_not_ranked(analysis)]
    if analysis.blocks == 1:
        first = ["No verdict: one block. The numbers below are one measurement each."]
    else:
        limits = {name: sla for name, sla in (analysis.plan.get("sla") or {}).items() if sla_limits(sla)}
        models = list(dict.fromkeys(d.model for d in ranked))
        first = []
        for model in models:
            mine = [d for d in ranked if d.model == model]
            said = [_choice(analysis, mine, name) for name in limits]
            if not any(_keeps(one, name) for one in mine for name in limits):
                # no SLA can be kept, or none is set: then throughput decides
                said.append(_choice(analysis, mine, None))
            first += [f"{model}: {text}" for text in said] if len(models) > 1 else said
    return [*first, *_narrow(ranked), *_not_ranked(analysis), *_incomplete(analysis)]


def _narrow(ranked: Sequence[DeploymentResult]) -> list[str]:
    """Whose place in the ranking hangs on the standard error of its output check."""
    return [
        f"The output of {d.label} is in doubt though it is ranked: {d.output_check.reason}."
        for d in ranked
        if d.output_check is not None and d.output_check.narrow
    ]


def _choice(analysis: Analysis, ranked: Sequence[DeploymentResult], sla: str | None) -> str:
    """What to run of one model's deployments for one SLA, or, without one, for throughput."""
    common = _reference(ranked)
    where = "at this KV budget" if _has_budget(analysis) else "with the engines' own KV pools"
    aim = f"For SLA `{sla}` {where}" if sla else f"For throughput {where}"
    feasible = [d for d in ranked if sla is None or _keeps(d, sla)]
    if not feasible:
        count = len(ranked)
        nearest = _nearest(analysis, ranked, sla)
        return f"None of the {count} ranked deployments keeps SLA `{sla}` in every launch; {nearest}."
    sound = [d for d in feasible if not _loses(analysis, d)]
    if common is None:
        return f"{aim} no choice can be defended: the baseline is not ranked."
    better = [d for d in sound if d is not common and _is_better(analysis, d, common)]
    if better:
        best = max(better, key=lambda d: _gain(analysis, d, common))
        return f"{aim} run {best.label}: {_why(analysis, best, common)}."
    less_accurate = ", ".join(d.label for d in feasible if d not in sound)
    if common in feasible:
        return f"{aim} stay with {common.label}: {_why_stay(len(sound) - 1, less_accurate)}."
    missed = f"{common.label} does not keep the SLA in every launch"
    if not sound:
        return f"{aim} no choice can be defended: {missed}, and what does is less accurate: {less_accurate}."
    fastest = max(sound, key=_throughput)
    return f"{aim} run {fastest.label}: {missed} and this does{_accuracy_said(analysis, fastest, common)}."


def _why_stay(others: int, less_accurate: str) -> str:
    """Why none of the others, and none of the less accurate ones, is chosen; a baseline itself loses nothing."""
    if not others:
        return f"all others are less accurate: {less_accurate}" if less_accurate else "nothing else could be compared"
    none = f"none of the {others} others is" if others > 1 else "the other one is not"
    return f"{none} shown to be better" + (f"; less accurate: {less_accurate}" if less_accurate else "")


def _has_budget(analysis: Analysis) -> bool:
    budget = analysis.plan.get("kv_budget_bytes")
    return any(budget.values()) if isinstance(budget, dict) else bool(budget)


def _keeps(one: DeploymentResult, sla: str) -> bool:
    return all(cell.state == "measured" and cell.sla_met.get(sla, False) for cell in one.cells.values())


def _reference(ranked: Sequence[DeploymentResult]) -> DeploymentResult | None:
    """The common baseline; of a model that it isn't of, the first engine's own 16-bit baseline."""
    baselines = sorted((d for d in ranked if d.engine_baseline), key=lambda d: not d.common_baseline)
    return baselines[0] if baselines else None


def _against(analysis: Analysis, one: DeploymentResult, base: DeploymentResult) -> list[Comparison]:
    found = [c for c in analysis.comparisons if (c.deployment, c.baseline, c.role) == (one.id, base.id, "primary")]
    return [c for c in found if c.against == ("common" if base.common_baseline else "engine")]


def _is_better(analysis: Analysis, one: DeploymentResult, base: DeploymentResult) -> bool:
    """Better than the baseline in a primary metric and worse in none."""
    words = [c.verdict for c in _against(analysis, one, base)]
    return "better" in words and "worse" not in words


def _gain(analysis: Analysis, one: DeploymentResult, base: DeploymentResult) -> tuple[float, float]:
    """Throughput gain first, then the largest latency gain."""
    gains: dict[bool, float] = {True: -math.inf, False: -math.inf}
    for c in _against(analysis, one, base):
        if c.effect_pct is not None:
            rate = c.metric in HIGHER_IS_BETTER
            gains[rate] = max(gains[rate], c.effect_pct if rate else -c.effect_pct)
    return gains[True], gains[False]


def _loses(analysis: Analysis, one: DeploymentResult) -> bool:
    """Whether it answers worse than its own engine's 16-bit baseline, or than the common one."""
    return any(c.verdict == "worse" for c in analysis.accuracy if c.deployment == one.id)


def _accuracy(analysis: Analysis, one: DeploymentResult, base: DeploymentResult) -> list[AccuracyComparison]:
    against = "common" if base.common_baseline else "engine"
    return [c for c in analysis.accuracy if (c.deployment, c.baseline, c.against) == (one.id, base.id, against)]


def _throughput(one: DeploymentResult) -> float:
    return max((cell.means.get("output_tokens_per_s", 0.0) for cell in one.cells.values()), default=0.0)


def _why(analysis: Analysis, one: DeploymentResult, base: DeploymentResult) -> str:
    several = len(one.cells) > 1
    parts = [
        f"{metric_name(c.metric)} {effect(c)}" + (f" under {c.load}" if several else "")
        for c in _against(analysis, one, base)
        if c.verdict == "better"
    ]
    return f"{', '.join(parts)} against {base.label}{_accuracy_said(analysis, one, base)}"


def _accuracy_said(analysis: Analysis, one: DeploymentResult, base: DeploymentResult) -> str:
    """What is known of a choice's accuracy, task by task, as the end of a sentence."""
    text = ""
    for c in _accuracy(analysis, one, base):
        name = accuracy_name(c.task)
        if c.non_inferior:
            text += f"; {name} keeps within {c.margin} ({accuracy_effect(c)})"
        else:
            text += f"; {name} is {c.verdict}: {c.reason}"
    if not one.accuracy:
        text += "; accuracy was not measured"
    return text


def _nearest(analysis: Analysis, ranked: Sequence[DeploymentResult], sla: str | None) -> str:
    """The deployment whose worst limit is missed by the least."""
    limits = sla_limits(analysis.plan["sla"][sla])

    def worst(one: DeploymentResult) -> tuple[float, str]:
        missed = [(math.inf, "no measured cell")]
        for cell in one.cells.values():
            for metric, percent, limit in limits:
                name = limit_name(metric, percent)
                for launch in cell.launches:
                    value = launch.values.get(name, math.inf)
                    missed.append(
                        (value / limit, f"{metric_name(name)} {milliseconds(value)}, limit {milliseconds(limit)}")
                    )
        return max(missed[1:] or missed)

    nearest = min(ranked, key=lambda d: worst(d)[0])
    return f"nearest is {nearest.label} ({worst(nearest)[1]})"


def _not_ranked(analysis: Analysis) -> list[str]:
    """Deployments that are not ranked, by state; and what the traffic doesn't allow to rank."""
    sentences = []
    left_out = [d for d in analysis.deployments if d.state not in ("measured", "unsupported")]
    if left_out:
        count = "One deployment is" if len(left_out) == 1 else f"{len(left_out)} deployments are"
        sentences.append(f"{count} not ranked: {', '.join(f'{d.label} ({d.state})' for d in left_out)}.")
    unsupported = [d for d in analysis.deployments if d.state == "unsupported"]
    if unsupported:
        sentences.append(f"Not supported: {', '.join(d.label for d in unsupported)}.")
    if any("closed loop" in c.reason for c in analysis.comparisons):
        sentences.append("Latencies are not ranked across engines: in a closed loop a faster server gets more load.")
    return sentences


def _incomplete(analysis: Analysis) -> list[str]:
    if analysis.blocks >= analysis.blocks_planned:
        added = extension(analysis.plan.get("extension"))
        return [added] if added else []
    return [f"Incomplete: {analysis.blocks} of {analysis.blocks_planned} blocks are measured."]
