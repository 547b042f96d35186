"""What a second run says of the numbers of the first: frozen, typed, and JSON-able."""

from dataclasses import dataclass
from typing import Any

from bench.difference import Difference

SCHEMA_VERSION = 1
REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE, NOT_COMPARABLE = (
    "reproduced",
    "not reproduced",
    "inconclusive",
    "not comparable",
)
VERDICTS = (REPRODUCED, NOT_REPRODUCED, INCONCLUSIVE, NOT_COMPARABLE)


@dataclass(frozen=True)
class Number:
    """One number of the first run, and what became of it in the second.

    Attributes
    ----------
    kind : str
        ``state``, ``memory``, ``speed``, ``effect`` (a primary statistic over the engine's own baseline), ``accuracy``.
    scope : str
        The load or task; empty for state and memory.
    role : str
        ``primary`` or ``exploratory``, of statistics under a load; else ``exact`` or ``accuracy``.
    old, new : object
        The values: geometric means over blocks, scores, or what a deployment holds.
    low, high : float or None
        The 95 % prediction interval, in the number's own unit; None: there is none.
    width : float or None
        How far it reaches up from the old value: per cent, of accuracy percentage points.
    old_blocks, new_blocks : int
        Of equal traffic or questions, that took part.
    """

    deployment: str
    kind: str
    scope: str
    metric: str
    role: str
    old: Any
    new: Any
    verdict: str
    reason: str
    low: float | None = None
    high: float | None = None
    width: float | None = None
    old_blocks: int = 0
    new_blocks: int = 0
    degrees_of_freedom: int | None = None
    residual_pct: float | None = None
    method: str = ""


@dataclass(frozen=True)
class Reproduction:
    """The second run against the first.

    Attributes
    ----------
    width_pct_max : float
        A prediction interval of a speed that is wider decides nothing.
    deployments : tuple of str
        Those of the first run.
    differences : tuple of (Difference, tuple of str)
        What isn't the same in both runs, and the deployments that it holds for.
    """

    schema_version: int
    first: str
    second: str
    path_first: str
    path_second: str
    width_pct_max: float
    deployments: tuple[str, ...] = ()
    differences: tuple[tuple[Difference, tuple[str, ...]], ...] = ()
    numbers: tuple[Number, ...] = ()

    def count(self, verdict: str) -> int:
        """Numbers with this verdict."""
        return sum(number.verdict == verdict for number in self.numbers)

    @property
    def compared(self) -> bool:
        """Whether anything of the two runs could be held against each other."""
        return any(number.verdict != NOT_COMPARABLE for number in self.numbers if number.kind != "state")
