"""Whether the forced decode's prefixes were read from the cache, by the engine's own word."""

from collections.abc import Sequence
from typing import Any

from bench.analysis.load import LaunchRecord
from harness.accuracy.fidelity import texts_of

VERIFIED_SHARE = 0.8
"""Least share of the tokens that could come from the cache; an engine with blocks computes a part of one again."""


def prefix_hits(launches: Sequence[LaunchRecord]) -> tuple[bool | None, str]:
    """Verified or not, None where the engine says nothing, and the evidence in words.

    Each prefix could take from the cache what the one before it left there. Per text where each answer told its cached
    tokens; else from the counters before and after, over all texts.
    """
    records = [launch.output_check for launch in launches if launch.output_check]
    of_texts: dict[int, list[float]] = {}
    for record in records:
        for number, text in enumerate(texts_of(record)):
            share = _share_of(text)
            if share is not None:
                of_texts.setdefault(number, []).append(share)
    if of_texts:
        least = [min(shares) for _, shares in sorted(of_texts.items())]
        words = " and ".join(f"{share:.0%}" for share in least)
        each = " (text by text, the least of the launches)" if len(least) > 1 else ""
        return min(least) >= VERIFIED_SHARE, f"{words} of the tokens that could come from the cache did{each}"
    counted = [share for record in records if (share := _share_by_counters(record)) is not None]
    if counted:
        return min(
            counted
        ) >= VERIFIED_SHARE, f"{min(counted):.0%} of the tokens that could did, by the engine's counters"
    return None, "the engine reports no cache hits"


def _share_of(text: dict[str, Any]) -> float | None:
    """Cached ÷ cacheable tokens of one text; None where an answer after the first doesn't tell."""
    cached: list[int | None] = (text.get("cached_tokens") or [])[1:]
    known = [count for count in cached if count is not None]
    possible: int = sum(text["positions"][:-1])
    if not possible or not known or len(known) < len(cached):
        return None
    return sum(known) / possible


def _share_by_counters(record: dict[str, Any]) -> float | None:
    hits = record.get("prefix_hits")
    possible: int = sum(sum(text["positions"][:-1]) for text in texts_of(record))
    if not hits or not possible:
        return None
    counted: float = hits["after"] - hits["before"]
    return min(counted / possible, 1.0)
