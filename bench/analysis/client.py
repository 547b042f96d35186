"""Whether a cell's numbers are the server's: how the load client fared, against what it can measure (rule 11).

What tells a slow server from a slow client. A closed loop's users wait in the server when it is slow: as many sessions
as asked are still in progress, and only time *between* a user's requests that isn't thinking is the client's. An open
loop's requests leave on the schedule's clock however slow the server is; if they leave late, either the client was
behind (its CPU, its loop, connections that were open already), or opening a connection took the time, which is the
server's or the network's. Streams that wait for a first token cost the client nothing: only those that receive count.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.analysis.distribution import Distribution, Ints, quantile
from bench.analysis.measure import CellMeasures
from bench.analysis.metrics import Requests, request_rates
from bench.analysis.planned import ALL, Group, PlannedLoad, groups_as_sent
from bench.analysis.records import MISSING, Flags, Rows
from bench.analysis.result import ClientFigures

CPU_SHARE = 0.9
"""CPU ÷ wall time of a client process above which it may set the pace, and not the server."""

SEND_LAG_MS, SEND_LAG_SHARE = 50.0, 0.1
"""A P90 send lag beyond both the milliseconds and this share of the median TTFT counts as the client's."""

LOOP_LAG_MS = 10.0
"""A P99 lag of the client's loop beyond this explains late sends."""

LEAST_ATTAINED = 0.95
"""Least share of the requested rate or concurrency that a load must reach."""

MOST_UNCONNECTED = 0.01
"""With more requests than this that found no connection, an unreached concurrency says nothing of the client."""

NOT_CALIBRATED = "client not calibrated (make calibrate)"
NS_PER_S = 1e9

CLIENT, SERVER, UNKNOWN = "client", "server", "unknown"
"""Whose delay late or missing requests are."""


@dataclass(frozen=True)
class Verdict:
    """`bound`: why the numbers may be the client's, None: they aren't; `notes`: what a reader must know."""

    bound: str | None
    notes: tuple[str, ...] = field(default=())


def client_figures(facts: Mapping[str, Any], measured: CellMeasures, load: PlannedLoad) -> ClientFigures:
    """How the client fared: its own account (`cell.json`), and what the records show."""
    client = facts.get("client") or {}
    lags = measured.window.send_lag_ms
    percentile = {p: quantile(lags, p).value for p in (50, 90, 99)} if len(lags) else {}
    everything, timeline = measured.everything, measured.timeline
    receiving = everything.first_event_ns != MISSING
    bin_s = timeline.width_ns / NS_PER_S
    asked, attained = concurrency(measured, groups_as_sent(facts, load))
    sent = measured.window.sent_ns != MISSING
    reused = measured.window.reused[sent & (measured.window.reused != MISSING)]
    return ClientFigures(
        transport=client.get("transport"),
        processes=int(client.get("processes") or 1),
        lost_workers=_lost(client.get("lost_workers")),
        cpu_share=_cpu_share(client),
        loop_lag_p99_ms=client.get("loop_lag_p99_ms"),
        loop_lag_max_ms=client.get("loop_lag_max_ms"),
        send_lag_p50_ms=percentile.get(50),
        send_lag_p90_ms=percentile.get(90),
        send_lag_p99_ms=percentile.get(99),
        send_lag_max_ms=float(lags.max()) if len(lags) else None,
        attained_over_asked_rate=request_rates(measured.window).get("attained_over_requested_rate"),
        asked_concurrency=asked,
        attained_over_asked_concurrency=attained / asked if attained is not None and asked else None,
        reused_connections_share=float(reused.mean()) if len(reused) else None,
        peak_streams=_most_at_once(everything.first_event_ns[receiving], everything.last_event_ns[receiving]),
        peak_tokens_per_s=float(timeline.tokens.max()) / bin_s,
        peak_requests_per_s=float(timeline.count(everything.sent_ns).max()) / bin_s,
        ceiling=client.get("ceiling"),
        calibration_asked="ceiling" in client,
    )


def judge_client(figures: ClientFigures, requests: Requests) -> Verdict:
    """Whether a cell is client-bound, and what else is to be said of its client."""
    notes = []
    ceiling = figures.ceiling
    if ceiling is not None and (other := ceiling.get("transport")) and figures.transport not in (None, other):
        notes.append(f"the {figures.transport} client is not calibrated, only the {other} one is (make calibrate)")
        ceiling = None
    elif ceiling is None and figures.calibration_asked:
        notes.append(NOT_CALIBRATED)

    bound = _past_ceiling(figures, ceiling) if ceiling is not None else _too_busy(figures)
    whose, why = _whose_delay(figures)
    for what, attained in (
        ("rate", figures.attained_over_asked_rate),
        ("concurrency", figures.attained_over_asked_concurrency),
    ):
        if attained is None or attained >= LEAST_ATTAINED:
            continue
        if whose == CLIENT:
            bound = bound or f"the client attained {_percent(attained)} of the asked {what}: {why}"
        notes.append(f"attained {_percent(attained)} of the asked {what}" + (f": {why}" if why else ""))
    if (late := _sent_late(figures, requests)) is not None:
        if whose == SERVER:
            notes.append(f"{late}: {why}")
        else:
            bound = bound or late
    return Verdict(bound, tuple(notes))


def _cpu_share(client: Mapping[str, Any]) -> float | None:
    """CPU ÷ wall time of the busiest process."""
    if (share := client.get("cpu_share_max")) is not None:
        return float(share)
    cpu, wall = client.get("cpu_s"), client.get("wall_s")
    return cpu / wall if cpu is not None and wall else None


def _lost(workers: Any) -> tuple[str, ...]:
    """Processes that were lost, in words."""
    return tuple(f"worker {one['number']} on {one['host']}: {one['reason']}" for one in workers or ())


def _past_ceiling(figures: ClientFigures, ceiling: Mapping[str, Any]) -> str | None:
    """What the cell asked of the client beyond what it was found to measure well."""
    error = f"{ceiling.get('error_pct') or 2:g} %"
    for value, key, text in (
        (figures.peak_streams, "streams", "{:,.0f} streams received at once"),
        (figures.peak_tokens_per_s, "tokens_per_s", "{:,.0f} tokens arrived within a second"),
        (figures.peak_requests_per_s, "requests_per_s", "{:,.0f} requests were sent within a second"),
    ):
        limit = ceiling.get(key)
        if limit is not None and value > limit:
            return f"{text.format(value)}; this client is known to measure within {error} up to {limit:,.0f}"
    return None


def _too_busy(figures: ClientFigures) -> str | None:
    share = figures.cpu_share
    if share is None or share <= CPU_SHARE:
        return None
    who = "the load client" if figures.processes == 1 else "a process of the load client"
    return f"{who} used {share:.0%} of a core (limit {CPU_SHARE:.0%})"


def _whose_delay(figures: ClientFigures) -> tuple[str, str]:
    """Whose a delay before sending is, and what shows it."""
    busy, lag, reused = figures.cpu_share, figures.loop_lag_p99_ms, figures.reused_connections_share
    if busy is not None and busy > CPU_SHARE:
        return CLIENT, f"it used {busy:.0%} of a core"
    if lag is not None and lag > LOOP_LAG_MS:
        return CLIENT, f"its loop was {lag:.0f} ms late (P99)"
    if reused is not None and reused >= 0.5:
        return CLIENT, f"{reused:.0%} of the connections were open already"
    if busy is None or lag is None or reused is None:
        return UNKNOWN, ""
    return SERVER, "new connections were slow to open (the client was on time)"


def _sent_late(figures: ClientFigures, requests: Requests) -> str | None:
    lag = figures.send_lag_p90_ms
    if lag is None or not requests.ok.any():
        return None
    usual = quantile(requests.ttft_ms[requests.ok], 50).value
    if lag > SEND_LAG_MS and lag > SEND_LAG_SHARE * usual:
        return f"requests left {lag:.0f} ms late (P90), against a median TTFT of {usual:.0f} ms"
    return None


def loop_lag_note(figures: ClientFigures, itl: Distribution) -> str | None:
    """Where the client's loop was late by so much that single inter-token latencies can be off."""
    lag = figures.loop_lag_p99_ms
    if lag is None or not len(itl) or lag <= max(LOOP_LAG_MS, SEND_LAG_SHARE * quantile(itl, 50).value):
        return None
    return f"the client's loop was {lag:.0f} ms late (P99): single inter-token latencies may be off by that"


def concurrency(measured: CellMeasures, groups: Mapping[str, Group]) -> tuple[float | None, float | None]:
    """Sessions at a time that were asked of the closed loops, and that were in progress; None where it can't be told.

    In progress is a session whose request is under way, or whose user thinks. Taken from when as many sessions as asked
    had begun to when the last one did: before, users are still being started; after, sessions run out.
    """
    rows = measured.rows
    closed = {name: group.concurrency for name, group in groups.items() if group.concurrency}
    found = [
        _in_progress(rows, np.ones(len(rows), dtype=bool) if name == ALL else rows.tenant.where(name), asked)
        for name, asked in closed.items()
    ]
    if not closed:
        return None, None
    told = [one for one in found if one is not None]
    return float(sum(closed.values())), sum(told) if len(told) == len(found) else None


def _in_progress(rows: Rows, mine: Flags, asked: int) -> float | None:
    sent = mine & (rows.sent_ns != MISSING)
    firsts = sent & (rows.turn == 0)
    begins = np.sort(rows.sent_ns[firsts])
    if len(begins) <= asked or (mine & ~sent).sum() > MOST_UNCONNECTED * mine.sum():
        return None
    start = int(begins[asked - 1])
    # Each worker has sessions of its own, and may be through with them before the others.
    workers = np.unique(rows.worker[firsts])
    end = min(int(rows.sent_ns[firsts & (rows.worker == worker)].max()) for worker in workers)
    if end <= start:
        return None
    busy = _overlap(rows.sent_ns[sent], rows.ended_ns[sent], start, end)
    return (busy + _thinking(rows, mine, start, end)) / (end - start)


def _thinking(rows: Rows, mine: Flags, start: int, end: int) -> float:
    """Time between a turn's end and when the next one was due."""
    later = np.flatnonzero(mine & (rows.turn > 0) & (rows.scheduled_ns != MISSING))
    if not len(later):
        return 0.0
    order = np.lexsort((rows.turn, rows.session.codes))
    before = np.empty(len(rows), dtype=np.int64)
    before[order[1:]] = order[:-1]
    before[order[0]] = order[0]
    previous = before[later]
    same = rows.session.codes[previous] == rows.session.codes[later]
    return _overlap(rows.ended_ns[previous[same]], rows.scheduled_ns[later[same]], start, end)


def _overlap(begins: Ints, ends: Ints, start: int, end: int) -> float:
    return float(np.maximum(np.minimum(ends, end) - np.maximum(begins, start), 0).sum())


def _most_at_once(begins: Ints, ends: Ints) -> int:
    """Most intervals that hold one moment."""
    if not len(begins):
        return 0
    begins, ends = np.sort(begins), np.sort(ends)
    open_then = np.arange(1, len(begins) + 1) - np.searchsorted(ends, begins, side="left")
    return int(open_then.max())


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
