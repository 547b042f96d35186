"""One cell's request records → its requests with their latencies, its series over time, and what the client was up to.

Two passes: the rows at once, then their events a batch at a time, so that memory doesn't grow with the tokens.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.analysis.distribution import Distribution, GapCounts, Ints
from bench.analysis.drift import sums_of_positions
from bench.analysis.metrics import NS_PER_MS, ItlLimit, Requests, SteadyWindow
from bench.analysis.planned import ALL, Group
from bench.analysis.records import MISSING, Events, Flags, Records, Rows
from bench.analysis.result import Series
from bench.analysis.timeseries import Timeline

WINDOW = "window"
_WARMUP = -1


@dataclass(frozen=True)
class CellMeasures:
    """All that the records of one cell say.

    Attributes
    ----------
    window : Requests
        Those that arrived in the window: every metric is of these.
    everything : Requests
        With the warm-up's, which share the server, the connections and the client with the window's first.
    tenants : dict
        Tenant → (its requests of the window, all of its requests).
    steady : SteadyWindow or None
        None: no request of the window has an arrival.
    rows : Rows
        The records as read, in the order of `everything`.
    """

    window: Requests
    everything: Requests
    tenants: dict[str, tuple[Requests, Requests]]
    steady: SteadyWindow | None
    series: Series
    timeline: Timeline
    rows: Rows


def measure(
    records: Records, groups: Mapping[str, Group], itl_limits: Collection[ItlLimit] = (), tenants: bool = False
) -> CellMeasures:
    """Measure one cell.

    Parameters
    ----------
    records : Records
        The cell's `requests.parquet`.
    groups : mapping
        How each tenant's requests arrive; `ALL` for those of no tenant.
    itl_limits : collection
        Limits on a request's own ITL percentile that will be asked about.
    tenants : bool
        Whether to tell tenants apart.
    """
    rows = records.rows()
    in_window = rows.phase.where(WINDOW)
    start = _starts(rows, groups)
    arrivals = start[in_window & (start != MISSING)]
    steady = SteadyWindow(int(arrivals.min()), int(arrivals.max())) if len(arrivals) else None
    timeline = Timeline.over(start, rows.sent_ns, rows.ended_ns, steady.start_ns if steady else None)

    classes = np.where(in_window, rows.tenant.codes if tenants else 0, _WARMUP)
    if tenants and (in_window & (rows.tenant.codes == MISSING)).any():  # no tenant's: a class of its own
        classes[in_window & (rows.tenant.codes == MISSING)] = len(rows.tenant.texts)
    reader = _Reader(rows, classes, timeline, steady, itl_limits)
    unit_ns = 1
    for events in records.events(rows):
        unit_ns = events.unit_ns
        reader.add(events)
    everything = reader.requests(start)
    gaps = {name: counts.distribution(unit_ns) for name, counts in reader.gaps.items()}
    nothing = Distribution.together([])
    window_gaps = Distribution.together([found for name, found in gaps.items() if name != _WARMUP])
    by_tenant = {}
    for code, name in enumerate(rows.tenant.texts if tenants else ()):
        mine = rows.tenant.codes == code
        by_tenant[name] = (
            everything.select(mine & in_window, gaps.get(code, nothing)),
            everything.select(mine, nothing),
        )
    return CellMeasures(
        window=everything.select(in_window, window_gaps),
        everything=everything,
        tenants=by_tenant,
        steady=steady,
        series=timeline.series(everything),
        timeline=timeline,
        rows=rows,
    )


def _starts(rows: Rows, groups: Mapping[str, Group]) -> Ints:
    """From when each request's latency counts (rule 7): what waits in the client is part of an open loop's latency."""
    is_open = np.full(len(rows), groups[ALL].open_loop if ALL in groups else True)
    for code, name in enumerate(rows.tenant.texts):
        if name in groups:
            is_open[rows.tenant.codes == code] = groups[name].open_loop
    sent_first = np.where(rows.sent_ns == MISSING, rows.scheduled_ns, rows.sent_ns)
    due_first = np.where(rows.scheduled_ns == MISSING, sent_first, rows.scheduled_ns)
    return np.where(is_open, due_first, sent_first)


class _Reader:
    """Takes the events, a batch at a time, and keeps what is a number a request or a count."""

    def __init__(
        self,
        rows: Rows,
        classes: Ints,
        timeline: Timeline,
        steady: SteadyWindow | None,
        itl_limits: Collection[ItlLimit],
    ) -> None:
        n = len(rows)
        self.rows, self.classes, self.timeline, self.steady = rows, classes, timeline, steady
        self.gaps: dict[int, GapCounts] = {}
        self.no_error = rows.error.codes == MISSING
        self.ok: Flags = np.zeros(n, dtype=bool)
        self.first: Ints = np.full(n, MISSING, dtype=np.int64)
        self.last: Ints = np.full(n, MISSING, dtype=np.int64)
        self.tokens: Ints = np.zeros(n, dtype=np.int64)
        self.packed: Ints = np.zeros(n, dtype=np.int64)
        self.steady_tokens: Ints = np.zeros(n, dtype=np.int64)
        self.drift_xy, self.drift_xx = np.zeros(n), np.zeros(n)
        self.kept: dict[ItlLimit, Flags] = {limit: np.ones(n, dtype=bool) for limit in itl_limits}

    def add(self, events: Events) -> None:
        where, offsets, at, tokens = events.rows, events.offsets, events.at, events.tokens
        lengths = np.diff(offsets)
        has = lengths > 0
        self.ok[where] = ok = self.no_error[where] & has
        if not has.any():
            return
        begins = offsets[:-1][has]  # rows without events have none: these bound the others' without gaps
        sent = self.rows.sent_ns[where][has]
        self.first[where][has] = sent + at[begins].astype(np.int64) * events.unit_ns
        self.last[where][has] = sent + at[offsets[1:][has] - 1].astype(np.int64) * events.unit_ns
        self.tokens[where][has] = lengths[has] if tokens is None else np.add.reduceat(tokens, begins)
        if tokens is not None:
            self.packed[where][has] = np.add.reduceat(np.where(tokens > 1, tokens, 0), begins)

        relative = np.repeat(self.rows.sent_ns[where] - self.timeline.origin_ns, lengths)
        relative += at.astype(np.int64) * events.unit_ns
        seconds = relative // self.timeline.width_ns
        self.timeline.add_tokens(seconds, tokens)
        self._add_steady(where, has, begins, relative, tokens)

        paced = ok & ~self.rows.buffered[where]
        is_first = np.zeros(len(at), dtype=bool)
        is_first[begins] = True
        if tokens is not None and (tokens == 0).any():
            # An event of no tokens (an empty delta) is no token: its gap belongs to the next token.
            keep = (tokens > 0) | is_first
            at, tokens, seconds, is_first = at[keep], tokens[keep], seconds[keep], is_first[keep]
            offsets = np.concatenate([[0], np.cumsum(keep)])[offsets]
            lengths, begins = np.diff(offsets), offsets[:-1][has]
        taken = np.repeat(paced, lengths) & ~is_first
        gaps = np.zeros_like(at)
        np.subtract(at[1:], at[:-1], out=gaps[1:])
        gaps[begins] = 0
        self._add_drift(where, has & paced, has, begins, gaps, tokens, at, lengths, events.unit_ns)
        some, some_tokens = gaps[taken], None if tokens is None else tokens[taken]
        self.timeline.add_gaps(seconds[taken], some, some_tokens, events.unit_ns)
        self._count(where, lengths, taken, some, some_tokens)
        for limit in self.kept:
            self._hold_against(limit, where, np.where(paced, lengths - has, 0), some, some_tokens, events.unit_ns)

    def _add_steady(
        self, where: slice, has: Flags, begins: Ints, relative: Ints, tokens: NDArray[np.integer] | None
    ) -> None:
        """Tokens that arrived in the steady window: all of a request's, none, or (few requests) those inside."""
        if self.steady is None:
            return
        first_in, last_in = (self.steady.holds(ends[where][has]) for ends in (self.first, self.last))
        found = np.where(first_in & last_in, self.tokens[where][has], 0)
        if (first_in != last_in).any() or (
            (self.first[where][has] < self.steady.start_ns) & (self.last[where][has] > self.steady.end_ns)
        ).any():
            inside = self.steady.holds(relative + self.timeline.origin_ns).astype(np.int64)
            found = np.add.reduceat(inside if tokens is None else inside * tokens, begins)
        self.steady_tokens[where][has] = found

    def _add_drift(
        self,
        where: slice,
        mine: Flags,
        has: Flags,
        begins: Ints,
        gaps: NDArray[np.integer],
        tokens: NDArray[np.integer] | None,
        at: NDArray[np.integer],
        lengths: Ints,
        unit_ns: int,
    ) -> None:
        """Sums of position × ITL; the gaps telescope, so that single tokens need the sum of their times only."""
        if tokens is None:
            n = (lengths[has] - 1).astype(np.float64)
            span = (at[begins + lengths[has] - 1] - at[begins]).astype(np.float64)
            times = np.add.reduceat(at, begins, dtype=np.int64) - lengths[has] * at[begins].astype(np.int64)
            xy = n * span - (times - span)
        else:
            inner = tokens.astype(np.int64)
            inner[begins] = 0
            n = np.add.reduceat(inner, begins).astype(np.float64)
            span = np.add.reduceat(gaps, begins, dtype=np.int64).astype(np.float64)
            before = np.cumsum(inner) - inner
            before -= np.repeat(before[begins], lengths[has])
            xy = np.add.reduceat(gaps * (before + (inner + 1) / 2), begins)
        xy = (xy - (n + 1) / 2 * span) * unit_ns / NS_PER_MS
        enough = mine[has] & (n > 1)
        self.drift_xy[where][has] = np.where(enough, xy, 0.0)
        self.drift_xx[where][has] = np.where(enough, sums_of_positions(n), 0.0)

    def _count(
        self,
        where: slice,
        lengths: Ints,
        taken: Flags,
        gaps: NDArray[np.integer],
        tokens: NDArray[np.integer] | None,
    ) -> None:
        """Count gaps, each class apart."""
        classes = self.classes[where]
        if (classes == classes[0]).all():
            self.gaps.setdefault(int(classes[0]), GapCounts()).add(gaps, tokens)
            return
        owner = np.repeat(classes, lengths)[taken]
        for one in np.unique(owner).tolist():
            mine = owner == one
            self.gaps.setdefault(one, GapCounts()).add(gaps[mine], None if tokens is None else tokens[mine])

    def _hold_against(
        self,
        limit: ItlLimit,
        where: slice,
        counts: Ints,
        gaps: NDArray[np.integer],
        tokens: NDArray[np.integer] | None,
        unit_ns: int,
    ) -> None:
        """A request's own percentile is within a limit where as many of its values are: no sorting.

        `counts` are the gaps of each row; `gaps` and `tokens` of all of them in order.
        """
        percent, most_ms = limit
        if tokens is None:
            within = gaps <= _largest_within(most_ms, unit_ns)
            total, inside = counts, _sums(within, counts)
        else:
            within = gaps * (unit_ns / NS_PER_MS) / tokens <= most_ms
            total, inside = _sums(tokens, counts), _sums(np.where(within, tokens, 0), counts)
        needed = np.maximum(1, np.ceil(total * percent / 100 - 1e-9))
        self.kept[limit][where] = (total == 0) | (inside >= needed)

    def requests(self, start: Ints) -> Requests:
        """All requests, once every event was seen."""
        rows, ok = self.rows, self.ok
        tokens = np.where(rows.output_tokens == MISSING, self.tokens, rows.output_tokens)
        begin = np.where(start == MISSING, rows.ended_ns, start)
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = np.where(tokens > 1, (self.last - self.first) / NS_PER_MS / (tokens - 1), np.nan)
            e2e = np.where(ok, (self.last - begin) / NS_PER_MS, np.inf)
            normalised = np.where(ok, np.where(tokens > 0, e2e / tokens, np.nan), np.inf)
        tpot[ok & rows.buffered] = np.nan
        cached = rows.cached_prompt_tokens.astype(float)
        cached[rows.cached_prompt_tokens == MISSING] = np.nan
        prompt = np.where(rows.prompt_tokens == MISSING, rows.planned_prompt_tokens, rows.prompt_tokens)
        return Requests(
            ok=ok,
            error=rows.error,
            start_ns=start,
            end_ns=rows.ended_ns,
            sent_ns=rows.sent_ns,
            scheduled_ns=rows.scheduled_ns,
            first_event_ns=self.first,
            last_event_ns=self.last,
            ttft_ms=np.where(ok, (self.first - begin) / NS_PER_MS, np.inf),
            tpot_ms=np.where(ok, tpot, np.inf),
            e2e_ms=e2e,
            normalised_latency_ms=normalised,
            itl=Distribution.together([]),
            itl_kept=self.kept,
            output_tokens=np.where(ok, tokens, 0),
            prompt_tokens=prompt,
            cached_prompt_tokens=cached,
            first_turn=rows.turn == 0,
            steady_tokens=self.steady_tokens,
            packed_tokens=self.packed,
            estimated=ok & rows.tokens_estimated,
            buffered=ok & rows.buffered,
            drift_xy=self.drift_xy,
            drift_xx=self.drift_xx,
            reused=rows.connection_reused,
        )


def _sums(values: NDArray[np.generic], counts: Ints) -> Ints:
    """Sum of each row's values, of which it has so many."""
    found = np.zeros(len(counts), dtype=np.int64)
    has = counts > 0
    if has.any():  # rows without values have none between the others'
        found[has] = np.add.reduceat(values, (np.cumsum(counts) - counts)[has], dtype=np.int64)
    return found


def _largest_within(limit_ms: float, unit_ns: int) -> int:
    """Largest whole number of units that isn't above a limit in ms, as a division of floats decides it."""
    guess = math.floor(min(limit_ms, 1e12) * NS_PER_MS / unit_ns)
    return max(n for n in range(guess - 1, guess + 2) if n * unit_ns / NS_PER_MS <= limit_ms)
