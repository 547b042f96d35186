"""Percentiles, and how a hundred million inter-token latencies are held so that they stay exact.

An arrival is a whole number of microseconds (nanoseconds in version 1 of the records), so latencies between tokens are
counted by value: exact, small, and cheap to add up over launches. Nothing is sampled, nothing is binned.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from bench.analysis.result import Quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

P99_SAMPLES = 368
"""Fewest values for which the largest bounds P99 on both sides of a 95 % interval: 0.99^368 < 0.025 (rule 10)."""

_SMALL = 1 << 20
"""Gaps below this are counted in an array; the few above it are kept, and counted now and then."""

_PENDING = 4_000_000
"""Most large gaps kept before they are counted."""


@dataclass(frozen=True)
class Distribution:
    """Values in rising order, each once, and how often each was seen."""

    values: Floats
    counts: Ints

    @staticmethod
    def of(values: Floats) -> "Distribution":
        return Distribution(*_counted(np.asarray(values, dtype=np.float64), None))

    @staticmethod
    def together(parts: Sequence["Distribution"]) -> "Distribution":
        """All values of several."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([np.empty(0), *(part.values for part in parts)])
        counts = np.concatenate([np.empty(0, dtype=np.int64), *(part.counts for part in parts)])
        return Distribution(*_counted(values, counts))

    def __len__(self) -> int:
        return int(self.counts.sum())

    def at_ranks(self, ranks: Sequence[int]) -> Floats:
        """The values at 1-based ranks."""
        return self.values[np.searchsorted(np.cumsum(self.counts), ranks)]

    def sum(self) -> float:
        return float(self.values @ self.counts)

    def above(self, limit: float) -> "Distribution":
        """What exceeds a limit."""
        start = int(np.searchsorted(self.values, limit, side="right"))
        return Distribution(self.values[start:], self.counts[start:])

    def listed(self) -> Floats:
        """Every value, as often as it was seen: for small cells and tests."""
        return np.repeat(self.values, self.counts)


def _counted(values: Floats, counts: Ints | None) -> tuple[Floats, Ints]:
    """Rising distinct values with the sum of their counts (1 each where None)."""
    if counts is None:
        distinct, times = np.unique(values, return_counts=True)
        return distinct, times.astype(np.int64)
    order = np.argsort(values, kind="stable")
    values, counts = values[order], counts[order]
    first = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])) if len(values) else np.empty(0, int)
    return values[first], np.add.reduceat(counts, first) if len(values) else counts


class GapCounts:
    """Counts the gaps before events: whole numbers of a unit of time, apart for each number of tokens in the event."""

    def __init__(self) -> None:
        self._small: dict[int, Ints] = {}
        self._large: dict[int, list[tuple[Ints, Ints]]] = {}
        self._pending = 0

    def add(self, gaps: NDArray[np.integer], tokens: NDArray[np.integer] | None) -> None:
        """Count gaps; `tokens` are those of each gap's event, one each where None."""
        if tokens is None:
            self._add(gaps, 1)
            return
        for k in np.flatnonzero(np.bincount(tokens)):
            self._add(gaps[tokens == k], int(k))

    def _add(self, gaps: NDArray[np.integer], k: int) -> None:
        if not len(gaps):
            return
        if int(gaps.max()) >= _SMALL:
            large = gaps[gaps >= _SMALL].astype(np.int64)
            self._large.setdefault(k, []).append((large, np.ones(len(large), dtype=np.int64)))
            self._pending += len(large)
            gaps = gaps[gaps < _SMALL]
        found = np.bincount(gaps)
        known = self._small.get(k)
        if known is None or len(known) < len(found):
            found[: 0 if known is None else len(known)] += known if known is not None else 0
            self._small[k] = found
        else:
            known[: len(found)] += found
        if self._pending > _PENDING:
            self._compress()

    def _compress(self) -> None:
        self._pending = 0
        for k, parts in self._large.items():
            values, counts = _counted(
                np.concatenate([part[0] for part in parts]).astype(np.float64), np.concatenate([p[1] for p in parts])
            )
            self._large[k] = [(values.astype(np.int64), counts)]

    def distribution(self, unit_ns: int) -> Distribution:
        """Latency of each token in ms: an event's gap, spread over its tokens."""
        parts = []
        for k in sorted(self._small.keys() | self._large.keys()):
            small = self._small.get(k, np.empty(0, dtype=np.int64))
            found = np.flatnonzero(small)
            for values, counts in [(found, small[found]), *self._large.get(k, [])]:
                parts.append(Distribution(values * unit_ns / 1e6 / k, counts * k))
        return Distribution.together(parts) if len(parts) != 1 else parts[0]


def quantile(values: Floats | Distribution, percent: int) -> Quantile:
    """The smallest value with at least `percent` % at or below it, with its order-statistic interval (95 %).

    No interpolation: a percentile between a finite time and a failure would be no time at all.
    """
    return _quantiles(values, (percent,))[0]


def quantiles(values: Floats | Distribution) -> tuple[Quantile, ...]:
    """P50 and P90, and P99 where the sample supports it."""
    if not len(values):
        return ()
    return _quantiles(values, (50, 90, 99) if len(values) >= P99_SAMPLES else (50, 90))


def tail_percent(n: int) -> int:
    """The tail percentile that `n` values support: 99, else 90 (rule 10)."""
    return 99 if n >= P99_SAMPLES else 90


def _quantiles(values: Floats | Distribution, percents: Sequence[int]) -> tuple[Quantile, ...]:
    n = len(values)
    wanted = [_ranks(n, percent) for percent in percents]
    inside = sorted({rank for ranks in wanted for rank in ranks if 1 <= rank <= n})
    if isinstance(values, Distribution):
        found = values.at_ranks(inside)
    else:
        found = np.partition(values, [rank - 1 for rank in inside])[[rank - 1 for rank in inside]]
    at = dict(zip(inside, found.tolist(), strict=True))
    return tuple(
        Quantile(percent=percent, value=float(at[rank]), low=at.get(low), high=at.get(high), n=n)
        for percent, (rank, low, high) in zip(percents, wanted, strict=True)
    )


def _ranks(n: int, percent: int) -> tuple[int, int, int]:
    """Ranks of a percentile and of the ends of its interval; an end outside 1 … n isn't bounded."""
    share = percent / 100
    rank = max(1, int(np.ceil(n * share - 1e-9)))
    return rank, int(stats.binom.ppf(0.025, n, share)), int(stats.binom.ppf(0.975, n, share)) + 1


def pooled(parts: Iterable[Floats | Distribution]) -> Floats | Distribution:
    """Values of several launches as one sample."""
    found = list(parts)
    if all(isinstance(part, Distribution) for part in found):
        return Distribution.together([part for part in found if isinstance(part, Distribution)])
    return np.concatenate([part for part in found if not isinstance(part, Distribution)])
