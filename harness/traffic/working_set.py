"""How much KV is wanted at once: the distinct tokens of all sessions that are under way at the peak."""

import heapq
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from harness.traffic.arrivals import NS_PER_S
from harness.traffic.draw import Planned
from harness.traffic.segments import Shared

Prefix = tuple[str, int, str]
"""Tenant, hash of all that stands before, key."""


def working_set_tokens(window: Sequence[Planned], places: Mapping[str, int | None], request_s: float) -> int:
    """Distinct KV tokens that must be held at once at the peak.

    A session needs its final context from its start to its end. What its first prompt begins with and shares with other
    sessions is counted once for all that are under way.

    - Closed loop: `places` sessions live at a time; all requests are taken to last equally long, a session starts
      when a place is free, and the peak is over that timetable.
    - Open loop: how long a session lives depends on the engine; each request is taken to last `request_s`.

    What really overlapped in a measurement is in its records.

    Parameters
    ----------
    window : sequence of Planned
        Sessions in the order in which they start.
    places : mapping
        Sessions at a time, of each tenant; None: an open loop.
    request_s : float
        How long a request is taken to last.
    """
    free = {tenant: [0.0] * count for tenant, count in places.items() if count}
    starts, ends = array("d"), array("d")
    for planned in window:
        duration = request_s * len(planned.session.turns)
        if planned.due_ns is None:
            start = heapq.heappop(free[planned.tenant])
            heapq.heappush(free[planned.tenant], start + duration)
        else:
            start = planned.due_ns / NS_PER_S
        starts.append(start)
        ends.append(start + duration)
    return _peak(window, starts, ends)


def _peak(window: Sequence[Planned], starts: "array[float]", ends: "array[float]") -> int:
    """The largest sum over sessions that overlap; one that ends as another starts does not."""
    sizes: dict[Prefix, int] = {}
    for planned in window:
        for key, tokens in _shared_prefix(planned):
            sizes[key] = max(tokens, sizes.get(key, 0))
    # As integers, the ends of sessions lie before the starts: at equal times they come first.
    count = len(window)
    times = ends + starts
    users: Counter[Prefix] = Counter()
    level = peak = 0
    for change in sorted(range(2 * count), key=times.__getitem__):
        starting, planned = change >= count, window[change % count]
        own = planned.session.final_tokens
        for key, tokens in _shared_prefix(planned):
            own -= tokens
            if starting and not users[key]:
                level += sizes[key]
            users[key] += 1 if starting else -1
            if not users[key]:
                level -= sizes[key]
                del users[key]
        level += own if starting else -own
        peak = max(peak, level)
    return peak


def _shared_prefix(planned: Planned) -> Iterator[tuple[Prefix, int]]:
    """What a session begins with and shares: each part with its tokens."""
    before = 0
    for part in planned.session.turns[0].new:
        if not isinstance(part, Shared):
            return
        yield (planned.tenant, before, part.key), part.count
        before = hash((before, part.key))
