"""Every metric of one launch under one load, from its requests (definitions: `docs/metrics.md`; rules 7 to 11)."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bench.analysis.distribution import Distribution, Floats, Ints, quantile, quantiles
from bench.analysis.drift import drift
from bench.analysis.records import MISSING, Flags, Names

LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "normalised_latency_ms")
NO_OUTPUT = "no output"
"""Kind of failure of a request that ended without an error and without a token."""

NOT_SENT = "not_sent"
"""Error of a planned request that the client never came to."""

STALL_FACTOR = 10
"""An inter-token latency of more than this many times the launch's median is a stall."""

NS_PER_MS = 1e6
_SLA_KEY = re.compile(r"(ttft|itl|tpot|e2e|normalised_latency)_p(\d+)_ms")

ItlLimit = tuple[int, float]
"""Percentile of a request's own inter-token latencies, and the most ms that it may be."""


@dataclass(frozen=True)
class Requests:
    """Requests as parallel arrays, one entry a request unless said otherwise.

    Attributes
    ----------
    ok : array of bool
        Ended without error and with output.
    error : Names
        What the record says; null for a success, and for an answer without output.
    start_ns, end_ns : array of int
        From when its latency counts (scheduled arrival in an open loop, send in a closed one; `MISSING` where it has
        neither); when its end was seen.
    first_event_ns, last_event_ns : array of int
        Of every request with output, failed ones too; else `MISSING`.
    ttft_ms, tpot_ms, e2e_ms, normalised_latency_ms : array of float
        Infinite for a failure; TPOT is NaN for a success of one token or one whose output was held back.
    itl : Distribution
        One value a token after the first event, successes only.
    itl_kept : dict
        For each limit that was asked about: whether the request's own percentile is within it.
    steady_tokens : array of int
        Output tokens that arrived within the steady window.
    packed_tokens : array of int
        Tokens that arrived together with another one, whose ITL is therefore spread or missing.
    estimated, buffered : array of bool
        Successes whose tokens an event were spread from the usage total; and those whose output came all at once, held
        back on its way: they have no ITL and no TPOT.
    drift_xy, drift_xx : array of float
        Sums of products about the request's own means, of position and ITL (tokens × ms), and of position alone.
    reused : array of int
        Whether the connection had served before; `MISSING` where the record doesn't say.
    """

    ok: Flags
    error: Names
    start_ns: Ints
    end_ns: Ints
    sent_ns: Ints
    scheduled_ns: Ints
    first_event_ns: Ints
    last_event_ns: Ints
    ttft_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats
    normalised_latency_ms: Floats
    itl: Distribution
    itl_kept: dict[ItlLimit, Flags]
    output_tokens: Ints
    prompt_tokens: Ints
    cached_prompt_tokens: Floats
    first_turn: Flags
    steady_tokens: Ints
    packed_tokens: Ints
    estimated: Flags
    buffered: Flags
    drift_xy: Floats
    drift_xx: Floats
    reused: Ints

    def __len__(self) -> int:
        return len(self.ok)

    def latency(self, metric: str) -> Floats | Distribution:
        """Values of one of `LATENCIES`, undefined ones left out."""
        if metric == "itl_ms":
            return self.itl
        values: Floats = getattr(self, metric)
        return values[~np.isnan(values)]

    @property
    def send_lag_ms(self) -> Floats:
        """Send − schedule of each request that has both."""
        both = (self.sent_ns != MISSING) & (self.scheduled_ns != MISSING)
        lag: Floats = (self.sent_ns[both] - self.scheduled_ns[both]) / NS_PER_MS
        return lag

    def failures(self) -> dict[str, int]:
        """Failed requests by kind, most frequent first."""
        codes, counts = np.unique(self.error.codes[~self.ok], return_counts=True)
        found = {
            NO_OUTPUT if code == MISSING else self.error.texts[code]: int(count)
            for code, count in zip(codes.tolist(), counts.tolist(), strict=True)
        }
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def select(self, mask: Flags, itl: Distribution) -> "Requests":
        """Some of the requests; `itl` are theirs."""
        taken: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            taken[one.name] = value[mask] if isinstance(value, np.ndarray) else value
        taken["error"] = Names(self.error.codes[mask], self.error.texts)
        taken["itl_kept"] = {limit: kept[mask] for limit, kept in self.itl_kept.items()}
        return Requests(**{**taken, "itl": itl})


@dataclass(frozen=True)
class SteadyWindow:
    """From the first arrival of the window to its last: warm-up is over, and nothing has begun to run dry."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def holds(self, times_ns: Ints) -> Flags:
        inside: Flags = (times_ns >= self.start_ns) & (times_ns <= self.end_ns)
        return inside


def meets(requests: Requests, limits: Mapping[str, Any]) -> Flags:
    """Which requests keep every limit; keys as in an SLA file (``ttft_p90_ms``): the value limits each request."""
    kept = requests.ok.copy()
    for metric, percent, limit in sla_limits(limits):
        if metric == "itl_ms":
            kept &= requests.itl_kept[percent, limit]
        else:
            values = getattr(requests, metric)
            kept &= np.isnan(values) | (values <= limit)
    return kept


def sla_limits(limits: Mapping[str, Any]) -> list[tuple[str, int, float]]:
    """An SLA's keys as (metric, percentile, limit in ms); other keys (a title) are no limits."""
    found = [(_SLA_KEY.fullmatch(key), value) for key, value in limits.items() if value is not None]
    return [(f"{match[1]}_ms", int(match[2]), float(value)) for match, value in found if match]


def held_against(limits: Mapping[str, Any], values: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """An SLA's limits as (name, a launch's statistic, limit); the statistic is infinite where it isn't known.

    A limit on what no request has (the TPOT of answers of one token) is left out, as `meets` lets each of them pass.
    Failures have no ITL: one is infinite where more of the requests failed than its percentile leaves room for.
    """
    found = []
    for metric, percent, limit in sla_limits(limits):
        name = limit_name(metric, percent)
        too_many_failed = 100 * values.get("failed_share", 0.0) > 100 - percent
        if metric == "itl_ms" and too_many_failed:
            found.append((name, math.inf, limit))
        elif not values or limit_name(metric, 50) in values:
            found.append((name, values.get(name, math.inf), limit))
    return found


def itl_limits(*slas: Mapping[str, Any]) -> set[ItlLimit]:
    """Limits on a request's own ITL percentile in some SLAs."""
    return {(percent, limit) for sla in slas for metric, percent, limit in sla_limits(sla) if metric == "itl_ms"}


def limit_name(metric: str, percent: int) -> str:
    """``ttft_ms`` at 90 as ``ttft_p90_ms``."""
    return f"{metric.removesuffix('_ms')}_p{percent}_ms"


def is_latency(name: str) -> bool:
    """Whether a statistic is a latency: those are pooled over launches, never averaged."""
    return name.startswith(("ttft_", "itl_", "tpot_", "e2e_", "normalised_latency_"))


def duration_s(requests: Requests) -> float:
    """From the first arrival in the window to the end of the last request that arrived in it (rule 8)."""
    known = requests.start_ns[requests.start_ns != MISSING]
    return float(requests.end_ns.max() - known.min()) / 1e9 if len(known) else 0.0


def launch_statistics(requests: Requests, slas: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """One number a metric for one launch and load: what comparisons across launches use (rule 13)."""
    if not len(requests):
        return {}
    seconds = duration_s(requests)
    if seconds <= 0:
        return {}
    ok = requests.ok
    inputs, outputs = float(requests.prompt_tokens[ok].sum()), float(requests.output_tokens[ok].sum())
    busy = requests.start_ns != MISSING
    busy_ns = (requests.end_ns[busy] - requests.start_ns[busy]).sum()
    values = {
        "requests": float(len(requests)),
        "duration_s": seconds,
        "output_tokens_per_s": outputs / seconds,
        "input_tokens_per_s": inputs / seconds,
        "total_tokens_per_s": (inputs + outputs) / seconds,
        "request_rate_attained_rps": float(ok.sum()) / seconds,
        "failed_share": float((~ok).mean()),
        "mean_concurrency": float(busy_ns) / 1e9 / seconds,
    }
    if ok.any():
        values["output_tokens_mean"] = outputs / float(ok.sum())
        values["prompt_tokens_mean"] = inputs / float(ok.sum())
        cached = requests.cached_prompt_tokens[ok]
        if not np.isnan(cached).any() and inputs > 0:
            values["cached_prompt_share"] = float(cached.sum()) / inputs
    if len(lags := requests.send_lag_ms):
        values["send_lag_p90_ms"] = quantile(lags, 90).value
    values |= request_rates(requests)
    for metric in LATENCIES:
        for q in quantiles(requests.latency(metric)):
            values[limit_name(metric, q.percent)] = q.value
    values["normalised_latency_mean_ms"] = float(requests.normalised_latency_ms.mean())
    values |= _pace(requests)
    for name, limits in slas.items():
        kept = meets(requests, limits)
        values[f"goodput_rps.{name}"] = float(kept.sum()) / seconds
        values[f"goodput_share.{name}"] = float(kept.mean())
    return values


def steady_statistics(everything: Requests, window: SteadyWindow) -> dict[str, float]:
    """Throughput within the steady window, by when tokens arrived; `everything` holds the warm-up's requests too.

    Warm-up requests that still run as the window opens keep the server as busy as it is later: what they are given is
    part of its throughput.
    """
    seconds = window.seconds
    if seconds <= 0:
        return {}
    ok = everything.ok
    outputs = float(everything.steady_tokens[ok].sum())
    inputs = float(everything.prompt_tokens[ok & window.holds(everything.first_event_ns)].sum())
    return {
        "steady_s": seconds,
        "steady_output_tokens_per_s": outputs / seconds,
        "steady_input_tokens_per_s": inputs / seconds,
        "steady_total_tokens_per_s": (inputs + outputs) / seconds,
        "steady_request_rate_rps": float((ok & window.holds(everything.end_ns)).sum()) / seconds,
    }


def request_rates(requests: Requests) -> dict[str, float]:
    """Rate of first turns as scheduled, and as sent; empty without a schedule or with fewer than two of them.

    A request that the client never came to counts as asked and not as sent; one that found no connection is left out:
    that is the server's doing.
    """
    asked = requests.first_turn & (requests.scheduled_ns != MISSING)
    mine = asked & (requests.sent_ns != MISSING)
    sent = int(mine.sum())
    if sent < 2:
        return {}
    scheduled_s = float(np.ptp(requests.scheduled_ns[mine])) / 1e9
    sent_s = float(np.ptp(requests.sent_ns[mine])) / 1e9
    if scheduled_s <= 0 or sent_s <= 0:
        return {}
    left = int((asked & requests.error.where(NOT_SENT)).sum())
    return {
        "request_rate_asked_rps": (sent - 1) / scheduled_s,
        "request_rate_sent_rps": (sent - 1) / sent_s,
        "attained_over_requested_rate": scheduled_s / sent_s * sent / (sent + left),
    }


def _pace(requests: Requests) -> dict[str, float]:
    """How evenly tokens came: drift along the generation, stalls, tokens that came together or were held back."""
    tokens = float(requests.output_tokens.sum())
    values = {}
    if tokens > 0:
        values["packed_tokens_share"] = float(requests.packed_tokens[requests.ok].sum()) / tokens
        values["buffered_tokens_share"] = float(requests.output_tokens[requests.buffered].sum()) / tokens
    if len(requests.itl):
        stalls = requests.itl.above(STALL_FACTOR * quantile(requests.itl, 50).value)
        values["stalled_tokens_share"] = len(stalls) / len(requests.itl)
        total = requests.itl.sum()
        values["stalled_time_share"] = stalls.sum() / total if total > 0 else 0.0
    if (found := drift(requests.drift_xy, requests.drift_xx)) is not None:
        values["itl_drift_ms_per_1k_tokens"] = found.slope
        if math.isfinite(found.low):
            values["itl_drift_low_ms_per_1k_tokens"] = found.low
            values["itl_drift_high_ms_per_1k_tokens"] = found.high
    return values
