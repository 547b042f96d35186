"""Adds blocks until the primary intervals are narrow enough, or the blocks or the time are used up (`scenario.until`).

Only the width of the intervals decides, never where they lie: a run that goes on until it finds something will find it.
That a small residual ends a run too soon is paid for by a wider interval (`bench.analysis.power.ALPHA_UNTIL`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from bench import store
from bench.analysis import analyse
from bench.analysis.metrics import is_latency
from bench.analysis.result import Analysis, Comparison
from bench.config import Config, Scenario, Until
from bench.plan import EXTENSION_FILE, blocks_of
from harness.files import read_json, write_json

BLOCKS_MIN = 3
"""The precision of fewer blocks rests on one or two degrees of freedom: the residual may be small by chance."""


@dataclass(frozen=True)
class Look:
    """What was seen after so many blocks.

    Attributes
    ----------
    half_widths_pct : dict
        ``load/metric/deployment`` → half-width of the interval; None: no interval yet.
    enough : bool
        Whether all are as narrow as asked.
    why : str
        Why a block was added, or why none was.
    """

    blocks: int
    half_widths_pct: dict[str, float | None]
    enough: bool
    why: str


def extend(run: Path, config: Config, measure: Callable[[int], None]) -> None:
    """Measure one block more at a time for as long as precision, blocks and time allow; what was decided is recorded.

    Parameters
    ----------
    measure : callable
        Measures the block of that index, in the run's folder.
    """
    if not config.scenario.until.asked:
        return
    looks = _looks(run)
    while True:
        blocks = blocks_of(run)
        for block in range(blocks):
            if not store.block_complete(run, block):  # one that was added, and interrupted
                measure(block)
        if not all(store.block_complete(run, block) for block in range(blocks)):
            return
        seconds = [block_seconds(read_json(store.block_folder(run, b) / "block.json")) for b in range(blocks)]
        found, another = look(analyse(run), config.scenario.until, config.scenario.budget_minutes, seconds)
        looks = [*(one for one in looks if one.blocks != blocks), found]
        record = {"schema_version": store.SCHEMA_VERSION, "looks": [asdict(one) for one in looks]}
        write_json(run / EXTENSION_FILE, {**record, "blocks": blocks + another})
        if not another:
            return


def most_blocks(scenario: Scenario) -> int:
    """Blocks that a run of this scenario may come to."""
    return max(scenario.blocks, scenario.until.blocks_max if scenario.until.asked else 0)


def look(analysis: Analysis, until: Until, budget_minutes: float | None, seconds: Sequence[float]) -> tuple[Look, bool]:
    """What the blocks so far show, and whether another one is measured.

    Parameters
    ----------
    seconds : sequence of float
        What each block took.
    """
    waited = {c: limit for c in analysis.comparisons if (limit := _limit(c, until)) is not None}
    widths = {c: half_width_pct(c) for c in waited}
    blocks = analysis.blocks
    enough = blocks >= BLOCKS_MIN and all(widths[c] <= limit for c, limit in waited.items())
    found = "; ".join(_widest(kind, waited, widths) for kind in (False, True) if any(_is(c, kind) for c in waited))
    another = False
    if not waited:
        why = "nothing that is waited for is compared with its engine's own baseline"
    elif enough:
        why = found
    elif blocks >= until.blocks_max:
        why = f"{found}; {blocks} blocks are the most allowed (scenario.until.blocks_max)"
    elif budget_minutes is not None and sum(seconds) * (1 + 1 / len(seconds)) > 60 * budget_minutes:
        why = f"{found}; another block would exceed the {budget_minutes:g} minutes (scenario.budget_minutes)"
    else:
        another = True
        why = found if blocks >= BLOCKS_MIN else f"{found}; fewer than {BLOCKS_MIN} blocks"
    named = {f"{c.load}/{c.metric}/{c.deployment}": w if math.isfinite(w) else None for c, w in widths.items()}
    return Look(blocks, named, enough and bool(waited), why), another


def half_width_pct(comparison: Comparison) -> float:
    """Half-width of the interval on the ratio's scale: it reaches from the effect ÷ (1 + w) to the effect × (1 + w)."""
    if comparison.low_pct is None or comparison.high_pct is None:
        return math.inf
    low, high = (math.log1p(end / 100) for end in (comparison.low_pct, comparison.high_pct))
    return 100 * math.expm1((high - low) / 2)


def block_seconds(record: Mapping[str, str]) -> float:
    """How long a complete block took, from its `block.json`."""
    started, finished = (datetime.fromisoformat(record[key]) for key in ("started", "finished"))
    return (finished - started).total_seconds()


def _limit(comparison: Comparison, until: Until) -> float | None:
    """The half-width that is waited for; None: this comparison has none, or more blocks wouldn't give it one."""
    c = comparison
    if (c.role, c.against) != ("primary", "engine") or not c.launches:
        return None  # not comparable, or infinite: no width
    return until.latency_pct if is_latency(c.metric) else until.throughput_pct


def _is(comparison: Comparison, latency: bool) -> bool:
    return is_latency(comparison.metric) == latency


def _widest(latency: bool, waited: Mapping[Comparison, float], widths: Mapping[Comparison, float]) -> str:
    kind = "latency" if latency else "throughput"
    widest = max((c for c in waited if _is(c, latency)), key=lambda c: widths[c])
    asked = f"asked: ± {waited[widest]:g} %"
    if math.isinf(widths[widest]):
        return f"{kind} without interval yet ({asked})"
    return f"{kind} ± {widths[widest]:.3g} % at the widest ({asked})"


def _looks(run: Path) -> list[Look]:
    path = run / EXTENSION_FILE
    return [Look(**one) for one in read_json(path)["looks"]] if path.exists() else []


def in_words(until: Until, blocks: int, budget_minutes: float | None) -> str:
    """The plan's line: ``3 blocks, more until throughput ± 5 % or 12 blocks or 30 min``."""
    asked = (("throughput", until.throughput_pct), ("TTFT tail", until.latency_pct))
    wanted = " and ".join(f"{name} ± {value:g} %" for name, value in asked if value is not None)
    time = "" if budget_minutes is None else f" or {budget_minutes:g} min"
    return f"{blocks} {'block' if blocks == 1 else 'blocks'}, more until {wanted} or {until.blocks_max} blocks{time}"
