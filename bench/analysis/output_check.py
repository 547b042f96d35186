"""Is what a deployment says still language? Forced decode against the same engine's 16-bit launches (rule 2)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median
from typing import Any

from bench.analysis.load import LaunchRecord
from bench.analysis.result import OutputCheckResult
from harness.accuracy.fidelity import Fidelity, Record, compare, mean_nll

BAND_FACTOR = 5.0
"""The band is this many times the largest difference seen between two 16-bit launches, if wider than the floor."""

SURE_SE = 2.1
"""Standard errors by which a shift of the mean NLL must exceed zero: two-sided 95 % of t over two dozen positions."""


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
    found = [compare(a, b) for a, b in combinations(records, 2) if _same_text(a, b)]
    shifts = [abs(f.nll_delta) for f in found if f.nll_delta is not None]
    disagreements = [1 - f.top1_agreement for f in found if f.top1_agreement is not None]
    floor = float(tolerances.get("nll_increase_nats", 0.3))
    least = float(tolerances.get("top1_agreement_min", 0.5))
    return Band(
        nll=max([floor, *(BAND_FACTOR * shift for shift in shifts)]),
        top1=min([least, *(1 - BAND_FACTOR * d for d in disagreements)]),
        pairs=len(found),
        guessing=min((0.9 * math.log(record["vocab"]) for record in records), default=math.inf),
    )


def check(launches: Sequence[LaunchRecord], baseline: Sequence[LaunchRecord], limits: Band) -> OutputCheckResult | None:
    """A deployment's verdict over its launches, each against the 16-bit launches of its block.

    None where there is nothing to judge: no record of its own, or no usable 16-bit record of the same text.
    """
    worst: list[tuple[str, Fidelity]] = []
    sound: list[Fidelity] = []
    references = [record for launch in baseline if (record := _usable(launch))]
    for launch in launches:
        mine = launch.output_check
        theirs = _references(launch, baseline)
        if mine is None or not theirs:
            continue
        if launch.state == "failed" and not _all_answered(mine):
            continue  # the server died or was killed: that says nothing about its cache
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
        if fault := _fault(found, limits, "") or _fault(late, limits, " in the later half"):
            worst.append((fault, found[0]))
        sound += found
    if not sound:
        return None
    gravest = max(worst, key=lambda pair: pair[1].nll or 0.0) if worst else None
    shown = [gravest[1]] if gravest else sound
    return OutputCheckResult(
        broken=gravest is not None,
        nll=_mean(f.nll for f in shown),
        baseline_nll=_mean(None if f.nll is None else f.nll - (f.nll_delta or 0.0) for f in shown),
        top1_agreement=_mean(f.top1_agreement for f in shown),
        kl=_mean(f.kl for f in shown),
        nll_band=limits.nll,
        top1_band=limits.top1,
        reason=gravest[0] if gravest else _summary(sound) + _doubt(sound, limits),
    )


def baseline_fault(launches: Sequence[LaunchRecord], common: Sequence[LaunchRecord], limits: Band) -> str | None:
    """Why an engine's own 16-bit baseline can't be one: far worse on the same text than the common baseline.

    Engines differ a little on near ties, so that only the likelihood of the text's own tokens is held against it.
    """
    for launch in launches:
        mine = _usable(launch)
        for theirs in (_usable(other) for other in common):
            if mine is None or theirs is None or mine["text_sha256"] != theirs["text_sha256"]:
                continue
            nll, reference = mean_nll(mine), mean_nll(theirs)
            if nll is not None and reference is not None and nll > reference + 1.0 + limits.nll:
                return f"forced-decode NLL {nll:.1f} against {reference:.1f} of the common baseline"
    return None


def _fault(found: Sequence[Fidelity], limits: Band, where: str) -> str | None:
    """What lies outside the band, against every 16-bit launch of the block (one alone may be the odd one)."""
    usable = [f for f in found if f.nll is not None and f.nll_delta is not None and f.top1_agreement is not None]
    if not usable:
        return None
    nearest = min(usable, key=lambda f: f.nll_delta or 0.0)
    assert nearest.nll is not None and nearest.nll_delta is not None
    # One token that leaves the top k moves the mean of two dozen positions by a third of a nat: not proof enough.
    if nearest.nll_delta > max(limits.nll, SURE_SE * (nearest.nll_delta_se or 0.0)):
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


def _doubt(found: Sequence[Fidelity], limits: Band) -> str:
    """What must be said of a deployment that the standard error alone keeps from being broken."""
    doubtful = [f for f in found if f.nll_delta is not None and f.nll_delta > limits.nll]
    if not doubtful:
        return ""
    widest = max(doubtful, key=lambda f: f.nll_delta or 0.0)
    return (
        f". A shift of {widest.nll_delta:.2f} is over the limit of {limits.nll:.2f}, not by {SURE_SE} standard errors "
        f"({widest.nll_delta_se or 0.0:.2f} each): not shown to be broken, nor to be sound"
    )


def _broken_without_numbers(reason: str, references: Sequence[Record], limits: Band) -> OutputCheckResult:
    base = _mean(mean_nll(reference) for reference in references)
    return OutputCheckResult(True, None, base, None, None, limits.nll, limits.top1, reason)


def _references(launch: LaunchRecord, baseline: Sequence[LaunchRecord]) -> list[Record]:
    """Usable 16-bit records of the launch's block and text; of other blocks where its own block has none."""
    mine = launch.output_check
    same = [(other.block, r) for other in baseline if (r := _usable(other)) and other is not launch]
    if mine is not None and (not mine.get("error") or _all_answered(mine)):
        same = [(block, record) for block, record in same if _same_text(mine, record)]
    return [r for block, r in same if block == launch.block] or [r for _, r in same]


def _all_answered(record: Record) -> bool:
    """Whether the forced decode itself is whole, whatever else went wrong (an echo that crashed the engine, say)."""
    return bool(record.get("positions")) and all(record.get("top_logprobs") or [])


def _usable(launch: LaunchRecord) -> Record | None:
    record = launch.output_check
    return record if record is not None and _all_answered(record) else None


def _same_text(a: Record, b: Record) -> bool:
    return bool(a.get("text_sha256") == b.get("text_sha256") and a.get("positions") == b.get("positions"))


def _late(record: Record) -> int:
    return int(median(record["positions"]))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
