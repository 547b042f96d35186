"""Is what a deployment says still language? Forced decode against the same engine's 16-bit launches (rule 2).

The rule, for the mean shift of the NLL of the texts' own tokens against the 16-bit launch of the block, with a 95 % t
interval over all positions of all texts, in which positions that follow each other are one cluster:

- *broken* when the shift exceeds the limit and the interval lies above zero, over all positions or over the later half;
- *sound* when the interval's high end lies below the limit (and the later half's shift does);
- *in doubt* otherwise: ranked, and said so everywhere.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median
from typing import Any

from bench.analysis.load import LaunchRecord
from bench.analysis.mean_interval import mean_interval
from bench.analysis.result import OutputCheckResult
from harness.accuracy.fidelity import Fidelity, Record, compare, mean_nll, same_texts, texts_of

BAND_FACTOR = 5.0
"""The band is this many times the largest difference seen between two 16-bit launches, if wider than the floor."""


@dataclass(frozen=True)
class Band:
    """How far a record may lie from a 16-bit launch's.

    Attributes
    ----------
    nll : float
        Largest increase of the mean NLL, nats.
    top1 : float
        Least share of positions with the same most probable token.
    pairs : int
        Pairs of 16-bit launches that it was taken from; 0: the floors alone.
    guessing : float
        NLL above which a 16-bit launch is as good as guessing (random weights): which token is most probable says
        nothing then.
    """

    nll: float
    top1: float
    pairs: int
    guessing: float


def band(baseline_launches: Sequence[LaunchRecord], tolerances: Mapping[str, Any]) -> Band:
    """The band of one engine, from A/A′ and repeats of its 16-bit launches, and the plan's floors."""
    records = [record for launch in baseline_launches if (record := _usable(launch))]
    found = [compare(a, b) for a, b in combinations(records, 2) if same_texts(a, b)]
    shifts = [abs(f.nll_delta) for f in found if f.nll_delta is not None]
    disagreements = [1 - f.top1_agreement for f in found if f.top1_agreement is not None]
    floor = float(tolerances.get("nll_increase_nats", 0.3))
    least = float(tolerances.get("top1_agreement_min", 0.5))
    return Band(
        nll=max([floor, *(BAND_FACTOR * shift for shift in shifts)]),
        top1=min([least, *(1 - BAND_FACTOR * d for d in disagreements)]),
        pairs=len(found),
        guessing=min(
            (0.9 * math.log(text["vocab"]) for record in records for text in texts_of(record)), default=math.inf
        ),
    )


@dataclass(frozen=True)
class _Judged:
    """One launch's record: its state, why, and the comparison that is shown."""

    state: str
    why: str
    shown: Fidelity


def check(launches: Sequence[LaunchRecord], baseline: Sequence[LaunchRecord], limits: Band) -> OutputCheckResult | None:
    """A deployment's verdict over its launches, each against the 16-bit launches of its block; the worst one decides.

    None where there is nothing to judge: no record of its own, or no usable 16-bit record.
    """
    judged: list[_Judged] = []
    references = [record for launch in baseline if (record := _usable(launch))]
    other_texts = False
    for launch in launches:
        mine = launch.output_check
        if mine is None or (launch.state == "failed" and not _all_answered(mine)):
            continue  # a server that died or was killed says nothing about its cache
        theirs = _references(launch, baseline)
        if not theirs:
            other_texts |= any(other is not launch and _usable(other) for other in baseline)
            continue
        if mine.get("error") and not _all_answered(mine):
            if references:
                return _broken_without_numbers(f"forced decode failed: {mine['error']}", references, limits)
            continue
        found = [compare(mine, reference) for reference in theirs]
        if any(f.unusable or not f.positions for f in found):
            return _broken_without_numbers(
                f"forced decode gave no usable log-probabilities at {found[0].unusable} positions", references, limits
            )
        late = [compare(mine, reference, _late(mine)) for reference in theirs]
        judged.append(_judge(found, late, limits))
    if not judged:
        return _not_compared(limits) if other_texts else None
    state = next(state for state in ("broken", "in doubt", "sound") if any(one.state == state for one in judged))
    worst = max((one for one in judged if one.state == state), key=lambda one: one.shown.nll_delta or 0.0)
    shown = [one.shown for one in judged] if state == "sound" else [worst.shown]
    low, high = _interval(worst.shown)
    return OutputCheckResult(
        broken=state == "broken",
        nll=_mean(f.nll for f in shown),
        baseline_nll=_mean(None if f.nll is None else f.nll - (f.nll_delta or 0.0) for f in shown),
        top1_agreement=_mean(f.top1_agreement for f in shown),
        kl=_mean(f.kl for f in shown),
        nll_band=limits.nll,
        top1_band=limits.top1,
        reason=worst.why if state == "broken" else _summary(shown) + worst.why,
        state=state,
        nll_shift_low=low,
        nll_shift_high=high,
        positions=worst.shown.positions,
    )


def baseline_fault(launches: Sequence[LaunchRecord], common: Sequence[LaunchRecord], limits: Band) -> str | None:
    """Why an engine's own 16-bit baseline can't be one: far worse on the same text than the common baseline.

    Engines differ a little on near ties, so that only the likelihood of the text's own tokens is held against it.
    """
    for launch in launches:
        mine = _usable(launch)
        for theirs in (_usable(other) for other in common):
            if mine is None or theirs is None or not same_texts(mine, theirs):
                continue
            nll, reference = mean_nll(mine), mean_nll(theirs)
            if nll is not None and reference is not None and nll > reference + 1.0 + limits.nll:
                return f"forced-decode NLL {nll:.1f} against {reference:.1f} of the common baseline"
    return None


def _judge(found: Sequence[Fidelity], late: Sequence[Fidelity], limits: Band) -> _Judged:
    """State of one record, against every 16-bit launch of its block: one of them alone may be the odd one."""
    nearest = _nearest(found)
    if fault := _fault(found, limits, "") or _fault(late, limits, " in the later half"):
        return _Judged("broken", fault, nearest)
    shift, (low, high) = nearest.nll_delta or 0.0, _interval(nearest)
    late_shift = _nearest(late).nll_delta or 0.0
    words = f". A shift of {shift:.2f} nats [{_nats(low)}, {_nats(high)}] over {nearest.positions} positions"
    unsure = "not shown to be broken, nor to be sound"
    if shift > limits.nll:
        return _Judged(
            "in doubt", f"{words} is over the limit of {limits.nll:.2f}, not surely over 0: {unsure}", nearest
        )
    if high is None or high >= limits.nll:
        return _Judged("in doubt", f"{words} reaches the limit of {limits.nll:.2f}: {unsure}", nearest)
    if late_shift > limits.nll:
        late_words = f"the later half's shift of {late_shift:.2f} is over the limit of {limits.nll:.2f}"
        return _Judged("in doubt", f"{words}, but {late_words}, not surely over 0: {unsure}", nearest)
    return _Judged("sound", "", nearest)


def _nearest(found: Sequence[Fidelity]) -> Fidelity:
    return min(found, key=lambda f: f.nll_delta if f.nll_delta is not None else math.inf)


def _interval(f: Fidelity) -> tuple[float | None, float | None]:
    """95 % interval of the mean shift, neighbouring positions as one cluster; open where there is but one."""
    return mean_interval([one.nll_delta for one in f.shifts], [(one.text_sha256, one.run) for one in f.shifts])


def _fault(found: Sequence[Fidelity], limits: Band, where: str) -> str | None:
    """What is broken, against every 16-bit launch of the block."""
    usable = [f for f in found if f.nll is not None and f.nll_delta is not None and f.top1_agreement is not None]
    if not usable:
        return None
    nearest = _nearest(usable)
    assert nearest.nll is not None and nearest.nll_delta is not None
    low, _ = _interval(nearest)
    if nearest.nll_delta > limits.nll and low is not None and low > 0.0:
        return f"forced-decode NLL {nearest.nll:.1f} against {nearest.nll - nearest.nll_delta:.1f}{where}"
    agreement = max(f.top1_agreement or 0.0 for f in usable)
    if agreement < limits.top1 and nearest.nll - nearest.nll_delta < limits.guessing:
        return f"the most probable token agrees at {agreement:.0%} of positions{where} (least: {limits.top1:.0%})"
    echo = [f.echo_nll_delta for f in usable if f.echo_nll_delta is not None]
    if echo and min(echo) > limits.nll:
        return f"NLL of an echoed text {min(echo):.1f} above the 16-bit launch's"
    return None


def _summary(found: Sequence[Fidelity]) -> str:
    nll, agreement = _mean(f.nll for f in found), _mean(f.top1_agreement for f in found)
    base = _mean(None if f.nll is None else f.nll - (f.nll_delta or 0.0) for f in found)
    return f"forced-decode NLL {nll:.2f} against {base:.2f}; the most probable token agrees at {agreement:.0%}"


def _not_compared(limits: Band) -> OutputCheckResult:
    reason = "not compared: the 16-bit launches were forced along other texts (another seed, tokenizer or context)"
    return OutputCheckResult(False, None, None, None, None, limits.nll, limits.top1, reason, state="not compared")


def _broken_without_numbers(reason: str, references: Sequence[Record], limits: Band) -> OutputCheckResult:
    base = _mean(mean_nll(reference) for reference in references)
    return OutputCheckResult(True, None, base, None, None, limits.nll, limits.top1, reason, state="broken")


def _references(launch: LaunchRecord, baseline: Sequence[LaunchRecord]) -> list[Record]:
    """Usable 16-bit records of the launch's block and text; of other blocks where its own block has none."""
    mine = launch.output_check
    same = [(other.block, r) for other in baseline if (r := _usable(other)) and other is not launch]
    if mine is not None and (not mine.get("error") or _all_answered(mine)):
        same = [(block, record) for block, record in same if same_texts(mine, record)]
    return [r for block, r in same if block == launch.block] or [r for _, r in same]


def _all_answered(record: Record) -> bool:
    """Whether the forced decode itself is whole, whatever else went wrong (an echo that crashed the engine, say)."""
    texts = texts_of(record)
    return bool(texts) and all(text.get("positions") and all(text.get("top_logprobs") or [[]]) for text in texts)


def _usable(launch: LaunchRecord) -> Record | None:
    record = launch.output_check
    return record if record is not None and _all_answered(record) else None


def _late(record: Record) -> int:
    return int(median(position for text in texts_of(record) for position in text["positions"]))


def _nats(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.2f}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
