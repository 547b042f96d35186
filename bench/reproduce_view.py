"""What came back of a run's numbers, as people and programs read it: terminal, Markdown, JSON."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.analysis.result import plain
from bench.difference import short
from bench.report import form
from bench.reproduction import NOT_COMPARABLE, NOT_REPRODUCED, VERDICTS, Number, Reproduction
from bench.text_tables import Row, Section, markdown, print_sections
from harness.files import write_bytes, write_json

ALLOWED = "named"


def write(result: Reproduction) -> list[Path]:
    """Write `reproduction.json` and `tables/reproduction.md` into the second run's folder."""
    folder = Path(result.path_second)
    paths = [folder / "reproduction.json", folder / "tables" / "reproduction.md"]
    counts = {verdict: result.count(verdict) for verdict in VERDICTS}
    differences = [{**asdict(one), "deployments": ids} for one, ids in result.differences]
    write_json(paths[0], plain({**asdict(result), "differences": differences, "counts": counts}))
    write_bytes(paths[1], markdown(heading(result), sections(result, full=True), conclusion(result)).encode())
    return paths


def show(result: Reproduction, console: Console) -> None:
    """Print it; of what came back, and of what is exploratory, the file has the rows."""
    shown = [number for number in result.numbers if _told(number)]
    closing = conclusion(result)
    if left := len(result.numbers) - len(shown):
        closing.append(f"{left} more numbers, equal or exploratory, stand in tables/reproduction.md.")
    print_sections(console, heading(result), sections(replace(result, numbers=tuple(shown))), closing)


def _told(number: Number) -> bool:
    """Whether the terminal shows a number: what a run is read for, and whatever is not as it was."""
    return number.role in ("primary", "accuracy") or number.verdict == NOT_REPRODUCED


def heading(result: Reproduction) -> str:
    return f"{result.second} against {result.first}, which it reproduces"


def sections(result: Reproduction, full: bool = False) -> list[Section]:
    """The tables; in full with what each verdict rests on, for which a terminal has no room."""
    changed: list[Row] = [
        {
            "what": one.what,
            "first run": short(one.a),
            "second run": short(one.b),
            "deployments": "all" if len(ids) == len(result.deployments) else ", ".join(ids),
            "so": f"{NOT_COMPARABLE}: {', '.join(one.voids)}" if one.voids else ALLOWED,
        }
        for one, ids in sorted(result.differences, key=lambda item: not item[0].voids)
    ]
    return [
        Section("What differs", changed),
        Section("Numbers", [_row(one) | (_basis(one) if full else {}) for one in result.numbers]),
    ]


def conclusion(result: Reproduction) -> list[str]:
    """The counts, and what must be known to read them."""
    said = [", ".join(f"{count} {verdict}" for verdict in VERDICTS if (count := result.count(verdict))) + "."]
    judged = sum(number.low is not None for number in result.numbers)
    if judged:
        said.append(
            f"Of {judged} numbers with an interval about {0.05 * judged:.0f} would lie outside by chance alone: each "
            "interval holds for itself at 95 %. A shift of the machine between the two runs is in none of them; the "
            "effects, relative to the engine's own baseline, are free of it."
        )
    return said


def _row(number: Number) -> Row:
    name = form.metric_name(number.metric) if number.kind in ("speed", "effect") else number.metric
    return {
        "deployment": number.deployment,
        "load or task": number.scope or "—",
        "number": f"{name} ÷ the baseline's" if number.kind == "effect" else name,
        "first": _value(number, number.old),
        "expected": _interval(number),
        "second": _value(number, number.new),
        "verdict": f"{number.verdict} (exploratory)" if number.role == "exploratory" else number.verdict,
        "why": number.reason,
    }


def _basis(number: Number) -> Row:
    freedom = "–" if number.degrees_of_freedom is None else str(number.degrees_of_freedom)
    blocks = f"{number.old_blocks} and {number.new_blocks}" if number.old_blocks else "–"
    return {"blocks": blocks, "degrees of freedom": freedom, "method": number.method or "–"}


def _interval(number: Number) -> str:
    if number.low is None or number.high is None or number.width is None:
        return "—"
    unit = "pp" if number.kind == "accuracy" else "%"
    width = f"{number.width:.0f}" if number.width >= 10 else f"{number.width:.1f}"
    return f"{_value(number, number.low)} to {_value(number, number.high)} (+{width} {unit})"


def _value(number: Number, value: Any) -> str:
    if value is None:
        return "—"
    if number.kind == "accuracy":
        return f"{100 * value:.1f} %"
    if number.kind == "speed" and number.metric.endswith("_ms"):
        return form.milliseconds(value)
    if number.kind in ("speed", "effect"):
        return form.number(value)
    return f"{value:,.10g}" if isinstance(value, int | float) else short(value)
