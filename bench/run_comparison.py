"""What a comparison of two runs says: frozen, typed, and JSON-able."""

from dataclasses import dataclass
from typing import Any

from bench.analysis.result import AccuracyComparison
from bench.difference import Difference

SCHEMA_VERSION = 1
NOT_COMPARABLE = "not comparable"


@dataclass(frozen=True)
class Ratio:
    """B over A less one, in per cent, with its 95 % interval.

    Attributes
    ----------
    blocks : int
        Blocks of equal traffic that both have.
    launches_a, launches_b : int
        Launches of each side that took part.
    smallest_effect_pct : float
        What could have been seen with 80 % power, from the residual found.
    """

    effect_pct: float
    low_pct: float
    high_pct: float
    degrees_of_freedom: int
    blocks: int
    launches_a: int
    launches_b: int
    smallest_effect_pct: float
    method: str


@dataclass(frozen=True)
class SpeedVerdict:
    """One metric under one load: B against A.

    Attributes
    ----------
    role : str
        ``primary`` (adjusted over all pairs and loads) or ``exploratory`` (not adjusted).
    verdict, reason : str
        B against A, as in a run's own comparisons.
    rests_on : str
        ``ratio of ratios``, ``direct``, ``own comparison`` (both are of one run), or ``nothing``.
    direct : Ratio or None
        B over A as measured; a shift of the machine between the runs is in it.
    direct_verdict : str
        The verdict on that alone.
    control : str or None
        The deployment that both runs have.
    drift : Ratio or None
        The control in B over the same in A: the machine's shift, where the engine is the same.
    ratio_of_ratios : Ratio or None
        B over B's control, over A over A's control: a shift that both share cancels out.
    """

    load: str
    metric: str
    role: str
    a: str
    b: str
    margin_pct: float
    verdict: str
    reason: str
    rests_on: str = "nothing"
    direct: Ratio | None = None
    direct_verdict: str = NOT_COMPARABLE
    control: str | None = None
    drift: Ratio | None = None
    ratio_of_ratios: Ratio | None = None


@dataclass(frozen=True)
class MemoryNumber:
    """A number that a deployment has by its making: not a sample, so that it is equal or not."""

    name: str
    a: Any
    b: Any
    ratio: float | None


@dataclass(frozen=True)
class PairComparison:
    """A deployment of B against one of A; `memory_refused` says why its numbers aren't put beside each other."""

    a: str
    b: str
    differences: tuple[Difference, ...]
    speed: tuple[SpeedVerdict, ...]
    accuracy: tuple[AccuracyComparison, ...]
    memory: tuple[MemoryNumber, ...]
    memory_refused: str | None = None


@dataclass(frozen=True)
class RunComparison:
    """Two runs, or two deployments.

    Attributes
    ----------
    a, b : str
        What was named.
    same_run : bool
        Both are of one run, measured in the same blocks.
    refused : tuple of Difference
        Why nothing at all can be compared.
    only_in_a, only_in_b : tuple of str
        Deployments without a counterpart.
    """

    schema_version: int
    a: str
    b: str
    path_a: str
    path_b: str
    created_a: str | None
    created_b: str | None
    same_run: bool
    refused: tuple[Difference, ...] = ()
    pairs: tuple[PairComparison, ...] = ()
    only_in_a: tuple[str, ...] = ()
    only_in_b: tuple[str, ...] = ()

    @property
    def compared(self) -> bool:
        """Whether anything could be compared."""
        verdicts = [row.verdict for pair in self.pairs for row in pair.speed]
        verdicts += [row.verdict for pair in self.pairs for row in pair.accuracy]
        return any(verdict != NOT_COMPARABLE for verdict in verdicts)
