"""A task's score by prompt length × depth of the answer: where in the context a cache loses."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from bench.analysis.result import GridCell

STRETCHES = 4
"""Into so many stretches the depth is cut."""


def length_by_depth(samples: Iterable[Mapping[str, Any]]) -> tuple[GridCell, ...]:
    """Scored items by length and stretch of depth; empty where items have no depth."""
    found: dict[tuple[int, int], list[float]] = defaultdict(list)
    for sample in samples:
        length, depth, score = (sample.get(key) for key in ("context_tokens", "depth", "score"))
        if length is not None and depth is not None and score is not None:
            found[int(length), min(int(float(depth) * STRETCHES), STRETCHES - 1)].append(float(score))
    return tuple(
        GridCell(length, stretch / STRETCHES, (stretch + 1) / STRETCHES, len(scores), fmean(scores))
        for (length, stretch), scores in sorted(found.items())
    )
