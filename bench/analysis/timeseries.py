"""A launch second by second: what arrived, was sent, ended and failed, what was under way, and how fast tokens came."""

import math

import numpy as np
from numpy.typing import NDArray

from bench.analysis.distribution import Floats, Ints
from bench.analysis.metrics import NS_PER_MS, Requests
from bench.analysis.records import MISSING, Flags
from bench.analysis.result import Series

NS_PER_S = 1_000_000_000
MOST_BINS = 3600
"""A cell of up to an hour has bins of a second; a longer one has as many whole seconds a bin as it needs."""

_BITS_LEFT_OUT = 16
_ONE_US = int(np.float32(1).view(np.uint32)) >> _BITS_LEFT_OUT
_CLASSES = (int(np.float32(2**33).view(np.uint32)) >> _BITS_LEFT_OUT) - _ONE_US + 1
"""Classes of gap for the medians a second: a single-precision number of µs cut to seven bits behind the point, so that
a class is under 0.8 % wide and its middle is within 0.4 % of every value in it."""


class Timeline:
    """Bins over a cell's whole life, aligned to the window's first arrival; takes events as they are read."""

    def __init__(self, origin_ns: int, width_ns: int, bins: int, before: int) -> None:
        self.origin_ns, self.width_ns, self.bins = origin_ns, width_ns, bins
        self.before = before  # bins of the warm-up
        self.tokens: Ints = np.zeros(bins, dtype=np.int64)
        self._gaps: NDArray[np.int32] = np.zeros((bins, _CLASSES), dtype=np.int32)

    @staticmethod
    def over(start_ns: Ints, sent_ns: Ints, ended_ns: Ints, window_ns: int | None) -> "Timeline":
        """Bins for requests with these times, counted from `window_ns`."""
        known = [times[times != MISSING] for times in (start_ns, sent_ns)]
        ends = [int(times.max()) for times in (*known, ended_ns) if len(times)]
        begins = [int(times.min()) for times in known if len(times)]
        if not begins or window_ns is None:
            return Timeline(0, NS_PER_S, 1, 0)
        begin, end = min(begins), max(ends)
        width = NS_PER_S * max(1, math.ceil((end - begin) / NS_PER_S / MOST_BINS))
        before = math.ceil(max(0, window_ns - begin) / width)
        origin = window_ns - before * width
        return Timeline(origin, width, (end - origin) // width + 1, before)

    def bin_of(self, times_ns: Ints) -> Ints:
        return np.asarray((times_ns - self.origin_ns) // self.width_ns)

    def add_tokens(self, bins: Ints, tokens: NDArray[np.integer] | None) -> None:
        """Count tokens that arrived in the bins of their events."""
        self._add(self.tokens, self._inside(bins), tokens)

    def add_gaps(self, bins: Ints, gaps: NDArray[np.integer], tokens: NDArray[np.integer] | None, unit_ns: int) -> None:
        """Count the inter-token latencies of events, a value a token."""
        if not len(bins):
            return
        us = gaps.astype(np.float32) if unit_ns == 1000 else (gaps * (unit_ns / 1000)).astype(np.float32)
        if tokens is not None:
            us /= tokens
        classes = us.view(np.uint32)
        classes >>= _BITS_LEFT_OUT
        low, high = int(classes.min()), int(classes.max())
        if low < _ONE_US:  # less than a microsecond between two tokens
            low, high = _ONE_US, max(high, _ONE_US)
            np.maximum(classes, _ONE_US, out=classes)
        bins = self._inside(bins)
        first, last = int(bins.min()), int(bins.max())
        width = high - low + 1
        cells = (bins - first) * width
        cells += classes
        cells -= low
        found = np.zeros((last - first + 1) * width, dtype=np.int64)
        self._add(found, cells, tokens)
        shown = slice(low - _ONE_US, high - _ONE_US + 1)
        self._gaps[first : last + 1, shown] += found.reshape(-1, width).astype(np.int32)

    def _inside(self, bins: Ints) -> Ints:
        """Bins of this timeline: a time outside (a damaged record's) counts in the nearest."""
        if len(bins) and (int(bins.min()) < 0 or int(bins.max()) >= self.bins):
            return bins.clip(0, self.bins - 1)
        return bins

    @staticmethod
    def _add(into: Ints, where: Ints, tokens: NDArray[np.integer] | None) -> None:
        counts = np.bincount(where, weights=tokens, minlength=len(into))
        into += counts if tokens is None else np.rint(counts).astype(np.int64)

    def count(self, times_ns: Ints) -> Ints:
        """How many of some times fall in each bin."""
        known = times_ns[times_ns != MISSING]
        return np.bincount(self._inside(self.bin_of(known)), minlength=self.bins)

    def series(self, requests: Requests) -> Series:
        """What was counted, with the requests that it belongs to."""
        width_s = self.width_ns // NS_PER_S
        shown = slice(self.before, None)
        return Series(
            width_s=width_s,
            arrivals=tuple(self.count(requests.start_ns)[shown].tolist()),
            sends=tuple(self.count(requests.sent_ns)[shown].tolist()),
            completions=tuple(self.count(requests.end_ns[requests.ok])[shown].tolist()),
            failures=tuple(self.count(requests.end_ns[~requests.ok])[shown].tolist()),
            output_tokens_per_s=tuple((self.tokens / width_s)[shown].tolist()),
            running=tuple(np.round(self._running(requests), 3)[shown].tolist()),
            ttft_p50_ms=self._ttft(requests)[shown],
            itl_p50_ms=self._itl()[shown],
        )

    def _running(self, requests: Requests) -> Floats:
        """Requests under way, averaged over each bin."""
        sent = requests.sent_ns != MISSING
        begins, ends = (times[sent] - self.origin_ns for times in (requests.sent_ns, requests.end_ns))
        edges = np.arange(self.bins + 1, dtype=np.int64) * self.width_ns
        return np.diff(_waited(begins, edges) - _waited(ends, edges)) / self.width_ns

    def _ttft(self, requests: Requests) -> tuple[float | None, ...]:
        known: Flags = requests.start_ns != MISSING
        bins, values = self._inside(self.bin_of(requests.start_ns[known])), requests.ttft_ms[known]
        order = np.lexsort((values, bins))
        counts = np.bincount(bins, minlength=self.bins)
        middle = np.cumsum(counts) - counts + (counts + 1) // 2 - 1
        ordered = np.append(values[order], np.nan)
        return tuple(
            round(value, 3) if count else None
            for value, count in zip(ordered[np.minimum(middle, len(values))].tolist(), counts.tolist(), strict=True)
        )

    def _itl(self) -> tuple[float | None, ...]:
        total = self._gaps.sum(axis=1, dtype=np.int64)
        running = np.cumsum(self._gaps, axis=1, dtype=np.int64)
        classes = (running < ((total + 1) // 2)[:, None]).sum(axis=1)
        low = ((classes + _ONE_US) << _BITS_LEFT_OUT).astype(np.uint32)
        middle = (low.view(np.float32) + (low + (1 << _BITS_LEFT_OUT)).astype(np.uint32).view(np.float32)) / 2
        return tuple(
            round(float(value) * 1000 / NS_PER_MS, 6) if count else None
            for value, count in zip(middle, total.tolist(), strict=True)
        )


def _waited(times: Ints, edges: Ints) -> Floats:
    """For each edge, the sum of (edge − time) over all times before it."""
    ordered = np.sort(times)
    before = np.searchsorted(ordered, edges, side="right")
    sums = np.concatenate([[0.0], np.cumsum(ordered, dtype=np.float64)])
    return np.asarray(before * edges.astype(np.float64) - sums[before])
