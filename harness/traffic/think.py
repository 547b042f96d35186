"""How long a user thinks between an answer and the next turn: distributions of seconds, as quantile functions.

In YAML a think time is a number (always that many seconds) or a mapping with `kind` and the keys of that kind's class.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Protocol, TypeVar

from harness.errors import ConfigError
from harness.traffic.lengths import quantile
from harness.traffic.parameters import checked, need, unknown


class Think(Protocol):
    """A distribution of think times."""

    def at(self, level: float) -> float:
        """Seconds at a level of the distribution, 0 <= level < 1; never falls as the level rises."""


THINKS: dict[str, type] = {}
"""Distributions by their name in YAML."""

C = TypeVar("C", bound=type)


def think(kind: str) -> Callable[[C], C]:
    """Class decorator: make a distribution known under `kind`."""

    def register(cls: C) -> C:
        THINKS[kind] = cls
        return cls

    return register


def think_of(value: Any, where: str) -> Think:
    """The distribution that a number or a mapping of a YAML stands for; raises `ConfigError` naming the key."""
    if isinstance(value, Mapping):
        kind = value.get("kind")
        if kind not in THINKS:
            raise ConfigError(f"{where}.kind: {unknown(str(kind), THINKS)}")
        return checked(THINKS[kind], {k: v for k, v in value.items() if k != "kind"}, where)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return Always(float(value))
    raise ConfigError(f"{where}: {value!r} must be seconds >= 0, or a mapping with kind: {', '.join(THINKS)}")


@dataclass(frozen=True)
class Always:
    """Always the same."""

    seconds: float

    def at(self, level: float) -> float:
        return self.seconds


@think("exponential")
@dataclass(frozen=True)
class Exponential:
    """Memoryless.

    Attributes
    ----------
    mean_s : float
        > 0.
    """

    mean_s: float

    def __post_init__(self) -> None:
        need(self.mean_s > 0, f"mean_s: {self.mean_s} must be > 0")

    def at(self, level: float) -> float:
        return -math.log1p(-level) * self.mean_s


@think("lognormal")
@dataclass(frozen=True)
class LognormalThink:
    """The logarithm is normal with mean ln(`median_s`) and standard deviation `sigma`.

    Attributes
    ----------
    median_s, sigma : float
        > 0.
    """

    median_s: float
    sigma: float

    def __post_init__(self) -> None:
        for key in ("median_s", "sigma"):
            need(getattr(self, key) > 0, f"{key}: {getattr(self, key)} must be > 0")

    def at(self, level: float) -> float:
        return self.median_s * math.exp(self.sigma * NormalDist().inv_cdf(max(level, 1e-16)))


@think("mooncake")
@dataclass(frozen=True)
class Mooncake:
    """Measured: the gap between a request and the latest earlier one that holds its deepest shared block.

    From the conversation trace of Mooncake's FAST'25 paper (kvcache-ai/Mooncake, Apache-2.0): 4,658 gaps of requests
    that share more than the system prompt's block. A gap is arrival to arrival, so it holds the answer's time too, and
    overstates the thinking by that. ShareGPT itself has no times.

    Attributes
    ----------
    scale : float
        Factor on every gap, > 0: a measurement of minutes has no room for a user who comes back after four.
    """

    scale: float = 1.0

    LEVELS_PCT = (0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 100.0)
    SECONDS = (0.0, 12.0, 30.0, 42.0, 66.0, 123.0, 264.0, 483.0, 615.0, 1477.0, 3030.0)

    def __post_init__(self) -> None:
        need(self.scale > 0, f"scale: {self.scale} must be > 0")

    def at(self, level: float) -> float:
        return self.scale * quantile(self.LEVELS_PCT, self.SECONDS, level)
