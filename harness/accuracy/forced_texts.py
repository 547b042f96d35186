"""Which texts an engine is forced along, and where: the same for every deployment of a run.

An engine with prefix reuse reads each prefix out of the KV that it stored for the one before. Anchors lie evenly over
the context, on multiples of 128 tokens, so that blocks of up to that size are full and nothing of them is computed
again; after each anchor the prefix grows by one token at a time. Those prefixes leave next to nothing to prefill: their
prediction is made as in decoding, out of stored KV.
"""

from dataclasses import dataclass

from harness.accuracy.fidelity_options import FidelityOptions
from harness.accuracy.passages import passage
from harness.model import Model

LATE_UP_TO = 4096
"""How far the first text goes, or to a quarter of the context: a slow engine reads 50 tokens a second (on 2 cores),
and retrieval goes through the whole context anyway."""
SHORT_UP_TO = 1024
_LONGEST_PREFIX = 32_768
GRAINS = (128, 16, 1)
"""Largest usual block sizes on a CPU and on a GPU; the first that fits a text at least twice is taken."""
RUN = 4
"""Prefixes in a row: an anchor, and the ones that grow it by one token each."""


@dataclass(frozen=True)
class ForcedText:
    """One text: its token ids, and how many of them stand before each prediction."""

    ids: list[int]
    positions: list[int]


def lengths(options: FidelityOptions, context_tokens: int, *, prefix_reuse: bool = True) -> list[list[int]]:
    """Positions of each text. An engine that reuses nothing reads every prefix anew and gets only the anchors."""
    deep = min(context_tokens - 1, max(LATE_UP_TO, context_tokens // 4), _LONGEST_PREFIX)
    ends = [deep] + [min(context_tokens - 1, SHORT_UP_TO)] * (options.texts - 1)
    return [_positions(end, options.positions, anchors_only=not prefix_reuse) for end in ends]


def forced_texts(
    model: Model, options: FidelityOptions, context_tokens: int, *, seed: int, prefix_reuse: bool = True
) -> list[ForcedText]:
    """The texts themselves: equal seeds give equal texts, whatever the engine reuses."""
    whole = lengths(options, context_tokens)
    asked = lengths(options, context_tokens, prefix_reuse=prefix_reuse)
    return [
        ForcedText(passage(model, whole[i][-1] + 1, seed=seed, stream=f"forced-decode-{i}"), positions)
        for i, positions in enumerate(asked)
    ]


def _positions(last: int, count: int, *, anchors_only: bool) -> list[int]:
    """Runs of `RUN` prefixes, longer ones where a short text has room for few anchors: `count` in all, up to `last`."""
    wanted = max(count // RUN, 1)
    grain = next(grain for grain in GRAINS if last // grain >= 2 or grain == 1)
    end = max(last - RUN + 1, 1)
    anchors = sorted({max(grain, end * (i + 1) // wanted // grain * grain) for i in range(wanted)})
    if anchors_only:
        return anchors
    taken: set[int] = set()
    for step in range(count):
        grown = sorted({anchor + step for anchor in anchors if anchor + step <= last} - taken)
        taken.update(grown[: count - len(taken)])
    return sorted(taken)
