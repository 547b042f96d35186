"""A comparison of two runs as people and programs read it: terminal, Markdown, JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.analysis.result import AccuracyComparison, plain
from bench.difference import Difference, short
from bench.report import form
from bench.run_comparison import MemoryNumber, PairComparison, Ratio, RunComparison, SpeedVerdict
from bench.slug import slug
from bench.text_tables import Row, Section, markdown, print_sections
from harness.files import write_bytes, write_json

ALLOWED = "named, allowed"


def write(result: RunComparison, reports: Path) -> list[Path]:
    """Write `compare-<a>-<b>.json` and `.md` into `reports`."""
    base = reports / f"compare-{slug(result.a)}-{slug(result.b)}"
    paths = [base.with_name(base.name + suffix) for suffix in (".json", ".md")]
    write_json(paths[0], plain({**asdict(result), "compared": result.compared}))
    write_bytes(paths[1], markdown(heading(result), sections(result), conclusion(result)).encode())
    return paths


def show(result: RunComparison, console: Console) -> None:
    """Print it; what is exploratory stands in the files only."""
    print_sections(console, heading(result), sections(result, primary_only=True), conclusion(result))


def heading(result: RunComparison) -> str:
    when = [f" ({created})" if created else "" for created in (result.created_a, result.created_b)]
    return f"B = {result.b}{when[1]} against A = {result.a}{when[0]}"


def sections(result: RunComparison, primary_only: bool = False) -> list[Section]:
    """The tables; of primary metrics only for a terminal, which has no room for what each verdict rests on either."""
    speed = [row for pair in result.pairs for row in pair.speed if row.role == "primary" or not primary_only]
    accuracy = [row for pair in result.pairs for row in pair.accuracy]
    return [
        Section("What differs", _differences(result)),
        Section("Speed", [_speed(row) | ({} if primary_only else _basis(row)) for row in speed]),
        Section("Accuracy", [_accuracy(row) | ({} if primary_only else _tests(row)) for row in accuracy]),
        Section("Memory", [row for pair in result.pairs for row in _memory(pair)]),
    ]


def conclusion(result: RunComparison) -> list[str]:
    """What must be known to read the tables."""
    said = []
    for name, alone in (("A", result.only_in_a), ("B", result.only_in_b)):
        if alone:
            said.append(f"Only {name} has: {', '.join(alone)}.")
    rests = {row.rests_on for pair in result.pairs for row in pair.speed}
    if "ratio of ratios" in rests:
        said.append(
            "Verdicts on speed rest on the ratio of ratios: B over its own run's control, divided by A over its own. "
            "What moved both between the runs (another day, another temperature) cancels out; the direct ratio holds "
            "it."
        )
    if "direct" in rests and not result.same_run:
        said.append(
            "A verdict that rests on the direct ratio takes the machine as unchanged between the two runs: a shift is "
            "not in its interval."
        )
    if not result.compared:
        said.append("Nothing is comparable.")
    return said


def _differences(result: RunComparison) -> list[Row]:
    """Each difference once, with the deployments that it holds for."""
    holders: dict[tuple[str, str, str, str], list[str]] = {}
    for pair in result.pairs:
        for one in pair.differences:
            holders.setdefault(_shown(one), []).append(pair.b)
    for one in result.refused:
        holders.setdefault(_shown(one), [])
    everywhere = len(result.pairs)
    return [
        {
            "what": key[0],
            "A": key[1],
            "B": key[2],
            "deployments": "all" if len(ids) in (0, everywhere) else ", ".join(ids),
            "so": key[3],
        }
        for key, ids in sorted(holders.items(), key=lambda item: item[0][3] == ALLOWED)
    ]


def _shown(one: Difference) -> tuple[str, str, str, str]:
    so = f"not comparable: {', '.join(one.voids)}" if one.voids else ALLOWED
    return one.what, short(one.a), short(one.b), so


def _speed(row: SpeedVerdict) -> Row:
    return {
        "load": row.load,
        "metric": form.metric_name(row.metric),
        "B against A": row.b if row.a == row.b else f"{row.b} against {row.a}",
        "direct": ratio(row.direct),
        "drift control": "none" if row.drift is None else f"{ratio(row.drift)} ({row.control})",
        "ratio of ratios": ratio(row.ratio_of_ratios),
        "verdict": row.verdict if row.role == "primary" else f"{row.verdict} (exploratory)",
        "rests on": row.rests_on,
        "why": row.reason,
    }


def _basis(row: SpeedVerdict) -> Row:
    """What the verdict's own ratio rests on."""
    one = row.ratio_of_ratios if row.rests_on == "ratio of ratios" else row.direct
    if one is None:
        return {"blocks": "–", "launches A, B": "–", "smallest effect visible": "–", "method": "–"}
    return {
        "blocks": str(one.blocks),
        "launches A, B": f"{one.launches_a}, {one.launches_b}",
        "smallest effect visible": f"{form.number(one.smallest_effect_pct, 2)} %",
        "method": one.method,
    }


def ratio(one: Ratio | None) -> str:
    """``−3 % [−6, +1]``."""
    if one is None:
        return "none"
    digits = 0 if one.high_pct - one.low_pct >= 1 else 1
    low, high = form.signed(one.low_pct, digits), form.signed(one.high_pct, digits)
    return f"{form.signed(one.effect_pct, digits)} % [{low}, {high if one.high_pct <= 1000 else '> +1000'}]"


def _accuracy(row: AccuracyComparison) -> Row:
    return {
        "task": row.task,
        "B against A": row.deployment if row.deployment == row.baseline else f"{row.deployment} against {row.baseline}",
        "difference": form.accuracy_interval(row) if row.n else "none",
        "margin": row.margin,
        "questions": str(row.n),
        "verdict": row.verdict,
        "why": row.reason,
    }


def _tests(row: AccuracyComparison) -> Row:
    return {
        "lost / gained": f"{row.lost} / {row.gained}" if row.n else "–",
        "p, loss of the margin": form.p_value(row.non_inferiority_p, row.non_inferiority_p_holm, row.tasks),
        "p, no difference": form.p_value(row.difference_p, row.difference_p_holm, row.tasks),
        "McNemar p": form.p_value(row.mcnemar_p),
        "method": row.method or "–",
    }


def _memory(pair: PairComparison) -> Iterator[Row]:
    title = pair.b if pair.a == pair.b else f"{pair.b} against {pair.a}"
    rows = [(one.name, _value(one.a), _value(one.b), _times(one)) for one in pair.memory]
    if pair.memory_refused:
        rows = [("all", "", "", f"not comparable: {pair.memory_refused}")]
    for row in rows:
        yield dict(zip(("B against A", "number", "A", "B", "B ÷ A"), (title, *row), strict=True))


def _times(one: MemoryNumber) -> str:
    if one.ratio is None:
        return "equal" if one.a == one.b else "differs"
    return "equal" if one.a == one.b else f"{one.ratio:.3g}×"


def _value(value: Any) -> str:
    return f"{value:,.10g}" if isinstance(value, int | float) else short(value)
