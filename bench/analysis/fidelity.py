"""How near a deployment's predictions and greedy answers stay to the same engine's 16-bit launch of the block.

A position that was forced in several blocks is averaged over them first: the same text on a deterministic engine says
the same again, and counted anew in each block it would narrow the intervals for nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from bench.analysis.load import LaunchRecord
from bench.analysis.mean_interval import mean_interval
from bench.analysis.prefix_hits import prefix_hits
from bench.analysis.result import FidelityBand, FidelityResult
from harness.accuracy.fidelity import Shift, same_texts, shifts, texts_of

STRETCHES = ("early", "middle", "late")
"""Thirds of the context, up to the deepest position."""

Pair = tuple[LaunchRecord, LaunchRecord]
"""A launch, and the 16-bit launch A of its block."""


def fidelity(
    launches: Sequence[LaunchRecord], baseline: Sequence[LaunchRecord], *, baseline_id: str, is_baseline: bool
) -> FidelityResult | None:
    """Forced decode and greedy answers against launch A; of the baseline itself, A′ against A.

    None where no launch can be paired: another engine's baseline that is launched once a block, say, or records of
    other texts.
    """
    mine = [launch for launch in launches if launch.replica != 1] if is_baseline else launches
    first = {launch.block: launch for launch in baseline if launch.replica == 1}
    pairs = [(launch, first[launch.block]) for launch in mine if launch.block in first]
    forced = [pair for pair in pairs if _comparable(pair)]
    found = _averaged(forced)
    answers = [answer for pair in pairs for answer in _answers(pair)]
    if not found and not answers:
        return None
    verified, words = prefix_hits([launch for launch, _ in forced])
    diverged = [a.diverged for a in answers if a.diverged is not None]
    records = [launch.output_check for launch, _ in forced if launch.output_check]
    return FidelityResult(
        baseline=baseline_id,
        is_floor=is_baseline,
        blocks=len({launch.block for launch, _ in pairs}),
        texts=max((len(texts_of(record)) for record in records), default=0),
        bands=tuple(_bands(found)),
        cache_hits_verified=verified,
        cache_hits=words,
        greedy_prompts=len(answers),
        greedy_tokens=max((a.tokens for a in answers), default=0),
        identical_outputs=fmean(a.identical for a in answers) if answers else None,
        divergence_tokens_median=median(diverged) if diverged else None,
    )


def _comparable(pair: Pair) -> bool:
    mine, theirs = (launch.output_check for launch in pair)
    return mine is not None and theirs is not None and same_texts(mine, theirs)


def _averaged(pairs: Iterable[Pair]) -> list[Shift]:
    """One shift a position and text: the mean over the blocks."""
    seen: dict[tuple[str, int], list[Shift]] = defaultdict(list)
    for launch, reference in pairs:
        assert launch.output_check is not None and reference.output_check is not None
        for shift in shifts(launch.output_check, reference.output_check)[0]:
            seen[shift.text_sha256, shift.position].append(shift)
    return [
        Shift(
            text_sha256=text,
            position=position,
            run=same[0].run,
            nll=fmean(one.nll for one in same),
            reference_nll=fmean(one.reference_nll for one in same),
            same_top=fmean(one.same_top for one in same),
            kl=fmean(one.kl for one in same),
        )
        for (text, position), same in sorted(seen.items())
    ]


def _bands(found: Sequence[Shift]) -> Iterable[FidelityBand]:
    if not found:
        return
    yield _band("all", found)
    last = max(shift.position for shift in found)
    for number, name in enumerate(STRETCHES):
        low, high = last * number / 3, last * (number + 1) / 3
        if inside := [shift for shift in found if low < shift.position <= high]:
            yield _band(name, inside)


def _band(name: str, found: Sequence[Shift]) -> FidelityBand:
    low, high = mean_interval([one.nll_delta for one in found], [(one.text_sha256, one.run) for one in found])
    return FidelityBand(
        name=name,
        first_position=min(one.position for one in found),
        last_position=max(one.position for one in found),
        positions=len(found),
        nll=fmean(one.nll for one in found),
        nll_delta=fmean(one.nll_delta for one in found),
        nll_delta_low=low,
        nll_delta_high=high,
        top1_agreement=fmean(one.same_top for one in found),
        kl=fmean(one.kl for one in found),
    )


@dataclass(frozen=True)
class _Answer:
    """One greedy continuation against launch A's: tokens before the first difference where token ids are there."""

    identical: bool
    tokens: int
    diverged: int | None


def _answers(pair: Pair) -> Iterable[_Answer]:
    """Prompts that both launches answered; a prompt of another text is none of theirs."""
    mine, theirs = (_greedy(launch) for launch in pair)
    for sha, prompt in mine.items():
        other = theirs.get(sha)
        if other is None or prompt.get("error") or other.get("error"):
            continue
        tokens = int(((pair[0].fidelity or {}).get("greedy") or {}).get("tokens") or 0)
        a, b = prompt.get("token_ids"), other.get("token_ids")
        if a is not None and b is not None:
            yield _Answer(a == b, tokens, _common(a, b))
        elif prompt.get("text") is not None and other.get("text") is not None:
            yield _Answer(prompt["text"] == other["text"], tokens, None)


def _greedy(launch: LaunchRecord) -> Mapping[str, dict[str, Any]]:
    greedy = (launch.fidelity or {}).get("greedy") or {}
    return {str(prompt["prompt_sha256"]): prompt for prompt in greedy.get("prompts") or ()}


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
