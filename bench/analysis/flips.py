"""Flips: answers whose score differs. Between a baseline's own two launches (A, A′) they are the floor (rule 12).

A server that batches isn't deterministic: some answers change though nothing was changed. A candidate's flips say
something where they exceed those.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.analysis.load import LaunchRecord
from bench.analysis.paired import paired
from bench.analysis.pairing import Answer, Key, Scores, answers
from bench.analysis.result import FlipFloor


@dataclass(frozen=True)
class Flips:
    """Of the same items, whether the candidate's answer, and A′'s, is scored otherwise than A's."""

    n: int
    floor_pct: float
    pct: float
    exceed: bool

    @property
    def remark(self) -> str:
        """What the reason of a verdict says of them; nothing where they exceed the floor, or nothing flipped."""
        if self.exceed or not self.pct:
            return ""
        return f"its flips ({self.pct:.1f} %) don't exceed those of A against A′ ({self.floor_pct:.1f} %) beyond chance"


def repeated(launches: Sequence[LaunchRecord], task: str) -> dict[Key, tuple[Answer, Answer]]:
    """Items that a baseline's launches A and A′ of a block both answered."""
    found: dict[Key, tuple[Answer, Answer]] = {}
    records = {(one.block, one.replica): one.tasks[task] for one in launches if task in one.tasks}
    for block in sorted({block for block, _ in records}):
        if (block, 1) not in records or (block, 2) not in records:
            continue
        first, second = records[block, 1], records[block, 2]
        if any(first.facts.get(key) != second.facts.get(key) for key in ("items_sha256", "asked_sha256")):
            continue
        a, again = answers(first), answers(second)
        found |= {(block, item): (a[item], again[item]) for item in a.keys() & again.keys()}
    return found


def flip_floor(launches: Sequence[LaunchRecord], deployment: str, task: str) -> FlipFloor | None:
    """A against A′ of one baseline; None where no block has answers of both."""
    pairs = repeated(launches, task)
    if not pairs:
        return None
    flips = {key: a.score != again.score for key, (a, again) in pairs.items()}
    blocks: dict[str, list[bool]] = {}
    for (block, _), flipped in sorted(flips.items()):
        blocks.setdefault(str(block), []).append(flipped)
    generated = [(a.text, again.text) for key, (a, again) in pairs.items() if _generated(launches, key[0], task)]
    return FlipFloor(
        task=task,
        deployment=deployment,
        n=len(pairs),
        lost=sum(again.score < a.score for a, again in pairs.values()),
        gained=sum(again.score > a.score for a, again in pairs.values()),
        flips_pct=100 * sum(flips.values()) / len(flips),
        blocks={block: 100 * sum(found) / len(found) for block, found in blocks.items()},
        identical=sum(a == again for a, again in generated) / len(generated) if generated else None,
    )


def flip_floors(launches: Mapping[str, Sequence[LaunchRecord]], tasks: Iterable[str]) -> Iterable[FlipFloor]:
    """Of every deployment that was launched twice a block, task by task."""
    for task in tasks:
        for deployment, mine in launches.items():
            if (floor := flip_floor(mine, deployment, task)) is not None:
                yield floor


def flips(candidate: Scores, baseline: Scores, floor: Mapping[Key, tuple[Answer, Answer]]) -> Flips | None:
    """A candidate's flips against the floor, on the items that all three launches answered; None without such."""
    keys = sorted(candidate.keys() & baseline.keys() & floor.keys())
    if not keys:
        return None
    flipped = np.array([float(candidate[key][0] != baseline[key][0]) for key in keys])
    by_chance = np.array([float(floor[key][0].score != floor[key][1].score) for key in keys])
    excess = paired(flipped, by_chance, np.array([baseline[key][1] for key in keys])).difference
    return Flips(len(keys), 100 * float(by_chance.mean()), 100 * float(flipped.mean()), excess.low > 0)


def _generated(launches: Sequence[LaunchRecord], block: int, task: str) -> bool:
    return any(one.tasks[task].facts.get("mode") == "generation" for one in launches if one.block == block)
