"""Open loops whose rate is the same at all times: independent gaps of one distribution."""

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from harness.traffic.arrivals import Arrival, arrival
from harness.traffic.parameters import need


class Steady(Arrival):
    """An open loop whose rate is the same at all times."""

    rate_rps: float

    def __post_init__(self) -> None:
        need_rate("rate_rps", self.rate_rps)

    def gaps(self, rng: random.Random) -> Iterator[float]:
        """Times between two starts, and before the first, in units of their mean."""
        raise NotImplementedError

    def offsets_s(self, rng: random.Random) -> Iterator[float]:
        for at in itertools.accumulate(self.gaps(rng)):
            yield at / self.rate_rps

    def seconds(self, sessions: int) -> float:
        return sessions / self.rate_rps

    def in_flight(self, sessions: int, session_s: float) -> float:
        return min(sessions, max(1.0, self.rate_rps * session_s))

    @property
    def mean_rps(self) -> float | None:
        return self.rate_rps

    def summary(self) -> str:
        return f"{self.kind} {self.rate_rps:g}/s"


@arrival("constant")
@dataclass(frozen=True)
class Constant(Steady):
    """A session every 1 / `rate_rps` seconds, the first at once.

    Attributes
    ----------
    rate_rps : float
        Session starts a second, > 0. For sessions of one turn these are requests a second.
    """

    rate_rps: float

    def gaps(self, rng: random.Random) -> Iterator[float]:
        return evenly()


@arrival("poisson")
@dataclass(frozen=True)
class Poisson(Steady):
    """Independent arrivals: exponential gaps of mean 1 / `rate_rps` seconds, also before the first.

    Attributes
    ----------
    rate_rps : float
        Session starts a second, > 0.
    """

    rate_rps: float

    def gaps(self, rng: random.Random) -> Iterator[float]:
        return exponential(rng)


@arrival("gamma")
@dataclass(frozen=True)
class Gamma(Steady):
    """Gaps of a gamma distribution: more even than Poisson's for a CV below 1, in bursts above.

    Attributes
    ----------
    rate_rps : float
        Session starts a second, > 0.
    cv : float or None
        Coefficient of variation of the gaps, > 0 (1: Poisson).
    burstiness : float or None
        Instead of `cv`: shape of the gamma distribution, 1 / cv² (as `--burstiness` of vLLM's benchmark).
    """

    rate_rps: float
    cv: float | None = None
    burstiness: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _need_one_of(self, "cv", "burstiness", 1e-2, 1e2)
        need(1e-4 <= self.shape <= 1e4, f"burstiness: {self.burstiness} must lie between 0.0001 and 10000")

    @property
    def shape(self) -> float:
        """Of the gamma distribution."""
        cv = self.cv or 1.0
        return self.burstiness if self.burstiness is not None else 1 / (cv * cv)

    def gaps(self, rng: random.Random) -> Iterator[float]:
        while True:
            yield _gamma(rng, self.shape) / self.shape

    def summary(self) -> str:
        return f"{super().summary()}, CV {self.shape**-0.5:.2g}"


@arrival("weibull")
@dataclass(frozen=True)
class Weibull(Steady):
    """Gaps of a Weibull distribution: in bursts with a long tail for a shape below 1.

    Attributes
    ----------
    rate_rps : float
        Session starts a second, > 0.
    cv : float or None
        Coefficient of variation of the gaps, > 0 (1: Poisson).
    shape : float or None
        Instead of `cv`: shape of the distribution.
    """

    rate_rps: float
    cv: float | None = None
    shape: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _need_one_of(self, "cv", "shape", 0.1, 10.0)

    @cached_property
    def exponent(self) -> float:
        """The distribution's shape."""
        return self.shape if self.shape is not None else _weibull_shape(self.cv or 1.0)

    def gaps(self, rng: random.Random) -> Iterator[float]:
        mean = math.gamma(1 + 1 / self.exponent)
        for value in exponential(rng):
            yield value ** (1 / self.exponent) / mean

    def summary(self) -> str:
        return f"{super().summary()}, shape {self.exponent:.2g}"


def evenly() -> Iterator[float]:
    """Gaps of one, none before the first."""
    yield 0.0
    yield from itertools.repeat(1.0)


def exponential(rng: random.Random) -> Iterator[float]:
    """Exponential gaps of mean 1."""
    while True:
        yield -math.log(1.0 - rng.random())


def _gamma(rng: random.Random, shape: float) -> float:
    """A gamma variable of scale 1 (Marsaglia and Tsang, ACM TOMS 26(3), 2000; its section 6 for a shape below 1)."""
    if shape < 1:
        boost: float = (1.0 - rng.random()) ** (1 / shape)
        return _gamma(rng, shape + 1) * boost
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    while True:
        # A normal variable by Box and Muller.
        x = math.sqrt(-2 * math.log(1.0 - rng.random())) * math.cos(2 * math.pi * rng.random())
        v = (1 + c * x) ** 3
        if v > 0 and math.log(1.0 - rng.random()) < x * x / 2 + d - d * v + d * math.log(v):
            return d * v


def _weibull_shape(cv: float) -> float:
    """The shape whose coefficient of variation is `cv`: it falls as the shape rises."""
    low, high = 1e-2, 1e3
    for _ in range(100):
        middle = math.sqrt(low * high)
        squared = math.expm1(math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle))
        low, high = (middle, high) if squared > cv * cv else (low, middle)
    return math.sqrt(low * high)


def need_rate(key: str, value: float) -> None:
    need(0 < value < math.inf, f"{key}: {value} must be > 0")


def _need_one_of(process: Arrival, key: str, other: str, low: float, high: float) -> None:
    """One of two ways to say the same; both within the same limits, but `burstiness`, which is checked by its shape."""
    given = [name for name in (key, other) if getattr(process, name) is not None]
    need(len(given) == 1, f"{key}: give either {key} or {other}")
    value = getattr(process, given[0])
    if given[0] != "burstiness":
        need(low <= value <= high, f"{given[0]}: {value} must lie between {low:g} and {high:g}")
