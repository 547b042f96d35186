"""How much KV is wanted at once: the distinct tokens of all sessions that are under way at the peak."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

from harness.traffic.arrivals import NS_PER_S
from harness.traffic.draw import Planned
from harness.traffic.segments import Session, Shared


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
    spans: list[tuple[float, float, Session, str]] = []
    for planned in window:
        duration = request_s * len(planned.session.turns)
        if planned.due_ns is None:
            start = heapq.heappop(free[planned.tenant])
            heapq.heappush(free[planned.tenant], start + duration)
        else:
            start = planned.due_ns / NS_PER_S
        spans.append((start, start + duration, planned.session, planned.tenant))
    return _peak(spans)


def _peak(spans: Sequence[tuple[float, float, Session, str]]) -> int:
    """The largest sum over sessions that overlap; one that ends as another starts does not."""
    shared: list[list[tuple[tuple[str, int, str], int]]] = []
    sizes: dict[tuple[str, int, str], int] = {}
    for _, _, session, tenant in spans:
        shared.append(_shared_prefix(session, tenant))
        for key, tokens in shared[-1]:
            sizes[key] = max(tokens, sizes.get(key, 0))
    changes = sorted(
        [(start, 1, index) for index, (start, _, _, _) in enumerate(spans)]
        + [(end, 0, index) for index, (_, end, _, _) in enumerate(spans)]
    )
    users: Counter[tuple[str, int, str]] = Counter()
    level = peak = 0
    for _, starts, index in changes:
        own = spans[index][2].final_tokens - sum(tokens for _, tokens in shared[index])
        level += own if starts else -own
        for key, _ in shared[index]:
            if starts and not users[key]:
                level += sizes[key]
            users[key] += 1 if starts else -1
            if not starts and not users[key]:
                level -= sizes[key]
                del users[key]
        peak = max(peak, level)
    return peak


def _shared_prefix(session: Session, tenant: str) -> list[tuple[tuple[str, int, str], int]]:
    """What a session begins with and shares: (tenant, hash of all before it, key) and tokens of each part."""
    out: list[tuple[tuple[str, int, str], int]] = []
    before = 0
    for part in session.turns[0].new:
        if not isinstance(part, Shared):
            break
        out.append(((tenant, before, part.key), part.count))
        before = hash((before, part.key))
    return out
