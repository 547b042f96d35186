"""The table that a run ends with, in the terminal or as plain text."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.analysis.planned import throughput_metric
from bench.analysis.result import Analysis, DeploymentResult, shortened
from bench.report import form, traffic
from bench.report.conclusion import conclusion

WIDE = 170
"""From this width on the verdict stands in the table; below it, under the table."""


def render_terminal(analysis: Analysis, console: Console) -> None:
    """Print heading, a table a load, and the conclusion. Without a terminal there are no control characters."""
    console.print(Text(_heading(analysis), style="bold"), soft_wrap=True)
    for load in _loads(analysis):
        console.print()
        if len(_loads(analysis)) > 1:
            console.print(Text(f"load {load}", style="bold"))
        console.print(_table(analysis, load, wide=console.width >= WIDE))
        if console.width < WIDE:
            console.print()
            for one in analysis.deployments:
                if line := form.verdict_line(analysis, one, load):
                    console.print(Text(f"{one.label}: {line}"))
    if shares := list(traffic.tenants(analysis)):
        console.print()
        console.print(_grid(shares))
    console.print()
    for sentence in conclusion(analysis):
        console.print(Text(sentence))
    for problem in analysis.problems:
        console.print(Text(f"problem: {problem}"))


def _grid(rows: Sequence[Mapping[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for name in rows[0]:
        table.add_column(name)
    for row in rows:
        table.add_row(*map(Text, row.values()))
    return table


def _heading(analysis: Analysis) -> str:
    models = ", ".join(dict.fromkeys(d.model for d in analysis.deployments))
    counted = [d for d in analysis.deployments if d.state != "unsupported"]
    parts = [
        analysis.title,
        models,
        f"{_count(len(counted), 'deployment')} × {_count(analysis.blocks, 'launch', 'launches')}",
    ]
    if analysis.blocks < 2:
        return " · ".join([*parts, "no verdict: one block" if analysis.blocks else "no complete block"])
    seen: dict[str, float] = {}
    for c in analysis.comparisons:
        if (c.role, c.against) == ("primary", "engine") and c.smallest_effect_pct is not None:
            name = "throughput" if c.metric == "output_tokens_per_s" else form.metric_name(c.metric)
            seen[name] = max(seen.get(name, 0.0), c.smallest_effect_pct)
    if seen:
        parts.append("smallest effect visible: " + ", ".join(f"{n} {form.smallest_effect(v)}" for n, v in seen.items()))
    return " · ".join(parts)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _loads(analysis: Analysis) -> list[str]:
    return list(analysis.plan.get("loads") or {})


def _table(analysis: Analysis, load: str, *, wide: bool) -> Table:
    several_models = len({d.model for d in analysis.deployments}) > 1
    several_engines = len({(d.backend, d.model) for d in analysis.deployments}) > 1
    tail = tail_percent(analysis, load)
    throughput = throughput_metric(analysis.plan["loads"][load])
    tasks = list(analysis.plan.get("accuracy") or {})
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for name in ("engine", *(["model"] if several_models else []), "strategy"):
        table.add_column(name)
    for name in (
        "KV bytes/token",
        "capacity",
        form.metric_name(throughput),
        f"TTFT P{tail}",
        *map(form.accuracy_name, tasks),
    ):
        table.add_column(name, justify="left")
    if wide and several_engines:
        table.add_column(f"{form.metric_name(throughput).removeprefix('output ')} vs common")
    if wide:
        table.add_column("verdict (against own 16-bit)", ratio=1)
    for one in analysis.deployments:
        base = own_baseline(analysis, one)
        cells = [shortened(one.backend_title), *([one.model] if several_models else []), shortened(one.strategy_title)]
        cells += [_kv_bytes(one, base), _capacity(one, base)]
        cells += [_throughput(analysis, one, load, throughput), _latency(analysis, one, load, tail)]
        cells += [_accuracy(analysis, one, task) for task in tasks]
        if wide and several_engines:
            cells.append(_common(analysis, one, load, throughput))
        if wide:
            cells.append(form.verdict_line(analysis, one, load))
        table.add_row(*map(Text, cells), style=None if one.state == "measured" else "dim")
    return table


def own_baseline(analysis: Analysis, one: DeploymentResult) -> DeploymentResult | None:
    """The same engine's 16-bit deployment."""
    same = (d for d in analysis.deployments if (d.backend, d.model) == (one.backend, one.model))
    return next((d for d in same if d.engine_baseline), None)


def tail_percent(analysis: Analysis, load: str) -> int:
    """The tail percentile that this load's primary comparison uses; 90 where there is none."""
    for c in analysis.comparisons:
        if c.load == load and c.role == "primary" and c.metric.startswith("ttft_p"):
            return int(c.metric.split("_")[1][1:])
    return 90


def _kv_bytes(one: DeploymentResult, base: DeploymentResult | None) -> str:
    value = one.memory.kv_bytes_per_token
    if value is None:
        return "–"
    if one.engine_baseline or base is None or not base.memory.kv_bytes_per_token:
        return f"{value:,.0f}"
    return form.times(value, base.memory.kv_bytes_per_token)


def _capacity(one: DeploymentResult, base: DeploymentResult | None) -> str:
    value = one.memory.capacity_tokens
    if value is None:
        return "–"
    if one.engine_baseline or base is None or not base.memory.capacity_tokens:
        return form.tokens(value)
    return form.times(value, base.memory.capacity_tokens)


def _is_reference(one: DeploymentResult) -> bool:
    """Whether its own numbers are shown, which the engine's other rows are held against."""
    return one.engine_baseline and one.state == "measured"


def _throughput(analysis: Analysis, one: DeploymentResult, load: str, metric: str) -> str:
    if _is_reference(one) and (cell := one.cells.get(load)) and cell.means:
        return form.number(cell.means.get(metric))
    return _relative(analysis, one, load, metric)


def _latency(analysis: Analysis, one: DeploymentResult, load: str, tail: int) -> str:
    if _is_reference(one) and (cell := one.cells.get(load)):
        found = [q for q in cell.quantiles.get("ttft_ms", ()) if q.percent == tail]
        if found:
            return form.milliseconds(found[0].value)
    return _relative(analysis, one, load, f"ttft_p{tail}_ms")


def _relative(analysis: Analysis, one: DeploymentResult, load: str, metric: str) -> str:
    if one.state == "unsupported":
        return "–"
    if one.check_only:
        return "not measured" if one.state == "measured" else "not ranked"
    if one.state != "measured":
        return "not ranked"
    found = [c for c in analysis.compared(one.id, "engine") if (c.load, c.metric) == (load, metric)]
    return form.effect(found[0]) if found else "not measured"


def _common(analysis: Analysis, one: DeploymentResult, load: str, metric: str) -> str:
    if one.state != "measured" or one.common_baseline or one.check_only:
        return ""
    found = [c for c in analysis.compared(one.id, "common") if (c.load, c.metric) == (load, metric)]
    return form.effect(found[0]) if found else ""


def _accuracy(analysis: Analysis, one: DeploymentResult, task: str) -> str:
    score = one.accuracy.get(task)
    if score is None:
        return "–"
    if score.score is None:
        return "not measured"
    if one.engine_baseline:
        return form.share(score.score)
    found = [c for c in analysis.accuracy if (c.deployment, c.task, c.against) == (one.id, task, "engine")]
    return form.accuracy_effect(found[0]) if found else form.share(score.score)
