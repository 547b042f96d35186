"""Distributions of lengths, in tokens; each is a quantile function, so draws can be stratified and are reproducible.

In YAML a length is a number (always that many tokens) or a mapping with `kind` and the keys of that kind's class.
Every class conditions on its bounds exactly: what it draws is distributed as `X` given min <= round(X) <= max, not as X
with its tails piled up at the bounds.
"""

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Any, Protocol, TypeVar

from harness.errors import ConfigError
from harness.traffic.parameters import checked, need, unknown

LONGEST_TOKENS = 10_000_000
"""No length is longer; a bound beyond is a slip of the finger."""


class Length(Protocol):
    """A distribution of lengths."""

    def at(self, level: float) -> int:
        """The length at a level of the distribution, 0 <= level < 1; never falls as the level rises."""

    @property
    def longest(self) -> int:
        """The longest that can be drawn."""


LENGTHS: dict[str, type] = {}
"""Distributions by their name in YAML."""

L = TypeVar("L", bound=type)
T = TypeVar("T")


def length(kind: str) -> Callable[[L], L]:
    """Class decorator: make a distribution known under `kind`."""

    def register(cls: L) -> L:
        LENGTHS[kind] = cls
        return cls

    return register


def length_of(value: Any, where: str) -> Length:
    """The distribution that a number or a mapping of a YAML stands for; raises `ConfigError` naming the key."""
    if isinstance(value, Mapping):
        kind = value.get("kind")
        if kind not in LENGTHS:
            raise ConfigError(f"{where}.kind: {unknown(str(kind), LENGTHS)}")
        return checked(LENGTHS[kind], {k: v for k, v in value.items() if k != "kind"}, where)
    if isinstance(value, int) and not isinstance(value, bool):
        need(1 <= value <= LONGEST_TOKENS, f"{where}: {value} must be >= 1 and <= {LONGEST_TOKENS} tokens")
        return Fixed(value)
    raise ConfigError(f"{where}: {value!r} must be a number of tokens, or a mapping with kind: {', '.join(LENGTHS)}")


def is_open(what: Length) -> bool:
    """Whether it has no end of its own."""
    return getattr(what, "max_tokens", 0) is None


def closed_at(what: Length, most_tokens: int, key: str, room: str) -> Length:
    """The distribution, its open end closed at `most_tokens`.

    Raises
    ------
    ConfigError
        Naming its key, where it doesn't fit; `room` says where `most_tokens` comes from.
    """
    if is_open(what):
        try:
            what = replace(what, max_tokens=most_tokens)  # type: ignore[type-var]
        except ConfigError as error:
            raise ConfigError(f"{key}.{error}; max_tokens is what {room} leaves") from error
    need(what.longest <= most_tokens, f"{key}: up to {what.longest} tokens don't fit {room}")
    return what


def fitted(lengths: Mapping[str, Length], room_tokens: int, room: str) -> list[Length]:
    """Lengths that make up one sequence, such that their longest fit together.

    Those that have an end keep it; what they leave is divided equally between the others, whose ends it is.

    Parameters
    ----------
    lengths : mapping
        By their keys in YAML.
    room_tokens : int
        Longest sequence.
    room : str
        What to call it.

    Raises
    ------
    ConfigError
        Naming the longest, where those with an end don't fit.
    """
    ends = {key: what.longest for key, what in lengths.items() if not is_open(what)}
    left, others = room_tokens - sum(ends.values()), len(lengths) - len(ends)
    if left < others:
        key = max(ends, key=lambda name: ends[name]) if ends else next(iter(lengths))
        rest = sum(ends.values()) - ends.get(key, 0)
        raise ConfigError(
            f"{key}: up to {ends.get(key, 1)} tokens, {rest} of the other lengths beside, don't fit {room}"
        )
    return [
        closed_at(what, left // others if is_open(what) else what.longest, key, room) for key, what in lengths.items()
    ]


def stratified(rng: random.Random, count: int, draw: Callable[[float], T]) -> list[T]:
    """`count` draws, one from each of `count` equal slices of the distribution, in random order.

    A dozen draws already show the whole distribution, and no two seeds differ by a lucky tail.
    """
    levels = [(i + rng.random()) / count for i in range(count)]
    rng.shuffle(levels)
    return [draw(level) for level in levels]


def mean_tokens(what: Length, steps: int = 1000) -> float:
    """Mean of a distribution, by its quantiles at the middle of `steps` equal slices."""
    return sum(what.at((i + 0.5) / steps) for i in range(steps)) / steps


@length("fixed")
@dataclass(frozen=True)
class Fixed:
    """Always the same.

    Attributes
    ----------
    tokens : int
        The length, >= 1.
    """

    tokens: int

    def __post_init__(self) -> None:
        _need_bounds(self.tokens, self.tokens, "tokens", "tokens")

    def at(self, level: float) -> int:
        return self.tokens

    @property
    def longest(self) -> int:
        return self.tokens


@length("uniform")
@dataclass(frozen=True)
class Uniform:
    """Every whole number from `min_tokens` to `max_tokens`, all equally probable.

    Attributes
    ----------
    min_tokens, max_tokens : int
        Shortest and longest, >= 1.
    """

    min_tokens: int
    max_tokens: int

    def __post_init__(self) -> None:
        _need_bounds(self.min_tokens, self.max_tokens)

    def at(self, level: float) -> int:
        return min(self.min_tokens + int(level * (self.max_tokens - self.min_tokens + 1)), self.max_tokens)

    @property
    def longest(self) -> int:
        return self.max_tokens


@length("normal")
@dataclass(frozen=True)
class Normal:
    """The normal distribution, rounded, within bounds.

    Attributes
    ----------
    mean_tokens, sd_tokens : float
        Mean and standard deviation before the bounds are applied.
    min_tokens : int
        Shortest.
    max_tokens : int or None
        Longest; None: what the context has room for.
    """

    mean_tokens: float
    sd_tokens: float
    min_tokens: int = 1
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        _need_bounds(self.min_tokens, self.longest)
        need(self.sd_tokens > 0, f"sd_tokens: {self.sd_tokens} must be > 0 (a length that never varies is a number)")
        _need_mass(self.min_tokens, self.longest, *self._levels())

    def at(self, level: float) -> int:
        low, high = self._levels()
        value = NormalDist(self.mean_tokens, self.sd_tokens).inv_cdf(_inside(low + level * (high - low)))
        return _bounded(value, self.min_tokens, self.longest)

    def _levels(self) -> tuple[float, float]:
        whole = NormalDist(self.mean_tokens, self.sd_tokens)
        return whole.cdf(self.min_tokens - 0.5), whole.cdf(self.longest + 0.5)

    @property
    def longest(self) -> int:
        return LONGEST_TOKENS if self.max_tokens is None else self.max_tokens


@length("lognormal")
@dataclass(frozen=True)
class Lognormal:
    """The exponential of a normal variable, rounded, within bounds: its logarithm has mean ln(`median_tokens`).

    The mean before the bounds are applied is median_tokens * exp(sigma² / 2).

    Attributes
    ----------
    median_tokens : float
        Median before the bounds are applied, > 0.
    sigma : float
        Standard deviation of the natural logarithm, > 0.
    min_tokens : int
        Shortest.
    max_tokens : int or None
        Longest; None: what the context has room for.
    """

    median_tokens: float
    sigma: float
    min_tokens: int = 1
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        _need_bounds(self.min_tokens, self.longest)
        need(self.median_tokens > 0, f"median_tokens: {self.median_tokens} must be > 0")
        need(self.sigma > 0, f"sigma: {self.sigma} must be > 0 (a length that never varies is a number)")
        _need_mass(self.min_tokens, self.longest, *self._levels())

    def at(self, level: float) -> int:
        low, high = self._levels()
        value = NormalDist(math.log(self.median_tokens), self.sigma).inv_cdf(_inside(low + level * (high - low)))
        return _bounded(math.exp(min(value, 40.0)), self.min_tokens, self.longest)

    def _levels(self) -> tuple[float, float]:
        logarithm = NormalDist(math.log(self.median_tokens), self.sigma)
        return logarithm.cdf(math.log(self.min_tokens - 0.5)), logarithm.cdf(math.log(self.longest + 0.5))

    @property
    def longest(self) -> int:
        return LONGEST_TOKENS if self.max_tokens is None else self.max_tokens


@length("zipf")
@dataclass(frozen=True)
class Zipf:
    """Short is frequent: P(min_tokens + k - 1) is proportional to k to the power of -`exponent`, k = 1, 2, ….

    Attributes
    ----------
    exponent : float
        > 0; the larger, the more short ones.
    max_tokens : int
        Longest; the distribution ends there.
    min_tokens : int
        Shortest, and the most frequent.
    """

    exponent: float
    max_tokens: int
    min_tokens: int = 1

    def __post_init__(self) -> None:
        _need_bounds(self.min_tokens, self.max_tokens)
        need(self.exponent > 0, f"exponent: {self.exponent} must be > 0")
        need(self.max_tokens - self.min_tokens < 2_000_000, f"max_tokens: {self.max_tokens} is too long a table")

    def at(self, level: float) -> int:
        return self.min_tokens + rank_at(level, self.exponent, self.max_tokens - self.min_tokens + 1)

    @property
    def longest(self) -> int:
        return self.max_tokens


@length("empirical")
@dataclass(frozen=True)
class Empirical:
    """A table of quantiles, linear between its levels, rounded.

    Attributes
    ----------
    levels_pct : tuple of float
        Rising, from 0 to 100.
    tokens : tuple of float
        The length at each level; never falls; >= 1.
    """

    levels_pct: tuple[float, ...]
    tokens: tuple[float, ...]

    def __post_init__(self) -> None:
        for key in ("levels_pct", "tokens"):
            given = getattr(self, key)
            numbers = isinstance(given, list | tuple) and all(
                isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x) for x in given
            )
            need(numbers, f"{key}: {given!r} must be a list of numbers")
            object.__setattr__(self, key, tuple(float(x) for x in given))
        levels, tokens = self.levels_pct, self.tokens
        need(
            len(levels) == len(tokens) >= 2,
            f"tokens: {len(tokens)} values for {len(levels)} levels_pct; give >= 2 each",
        )
        rises = all(a < b for a, b in itertools.pairwise(levels))
        need(rises and levels[0] == 0 and levels[-1] == 100, f"levels_pct: {list(levels)} must rise from 0 to 100")
        need(all(a <= b for a, b in itertools.pairwise(tokens)), f"tokens: {list(tokens)} must not fall")
        need(tokens[0] >= 1 and tokens[-1] <= LONGEST_TOKENS, f"tokens: must lie between 1 and {LONGEST_TOKENS}")

    def at(self, level: float) -> int:
        return _bounded(quantile(self.levels_pct, self.tokens, level), round(self.tokens[0]), round(self.tokens[-1]))

    @property
    def longest(self) -> int:
        return round(self.tokens[-1])


def quantile(levels_pct: Sequence[float], values: Sequence[float], level: float) -> float:
    """Value of a table of quantiles at a level from 0 to 1, linear between the table's levels."""
    at = min(bisect_right(levels_pct, level * 100), len(levels_pct) - 1)
    left, right = levels_pct[at - 1], levels_pct[at]
    return values[at - 1] + (values[at] - values[at - 1]) * (level * 100 - left) / (right - left)


def rank_at(level: float, exponent: float, ranks: int) -> int:
    """A rank from 0 at a level, where rank r is drawn in proportion to (r + 1) to the power of -exponent."""
    table = _cumulative(exponent, ranks)
    return min(bisect_right(table, level * table[-1]), ranks - 1)


@cache
def _cumulative(exponent: float, ranks: int) -> list[float]:
    return list(itertools.accumulate((k + 1) ** -exponent for k in range(ranks)))


def _inside(level: float) -> float:
    """A probability that `inv_cdf` takes: it refuses 0 and 1."""
    return min(max(level, 1e-16), 1 - 1e-16)


def _bounded(value: float, low: int, high: int) -> int:
    return min(max(round(value), low), high)


def _need_bounds(low: int, high: int, low_key: str = "min_tokens", high_key: str = "max_tokens") -> None:
    need(low >= 1, f"{low_key}: {low} must be >= 1")
    need(high <= LONGEST_TOKENS, f"{high_key}: {high} must be <= {LONGEST_TOKENS}")
    need(low <= high, f"{high_key}: {high} must be >= {low_key} ({low})")


def _need_mass(low: int, high: int, below: float, up_to: float) -> None:
    need(up_to - below > 1e-9, f"min_tokens: almost nothing of the distribution lies between {low} and {high}")
