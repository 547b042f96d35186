"""Every metric of one cell, from its request records (definitions: `docs/metrics.md`; rules 7 to 11)."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy import stats

from bench.analysis.result import Quantile

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

P99_SAMPLES = 368
"""Fewest values for which the largest bounds P99 on both sides of a 95 % interval: 0.99^368 < 0.025 (rule 10)."""

LATENCIES = ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
NO_OUTPUT = "no output"
"""Kind of failure of a request that ended without an error and without a token."""

_NS_PER_MS = 1e6
_MISSING = -1
_SLA_KEY = re.compile(r"(ttft|itl|tpot|e2e)_p(\d+)_ms")


@dataclass(frozen=True)
class Requests:
    """The window's requests as parallel arrays, one entry a request unless said otherwise.

    Attributes
    ----------
    ok : array of bool
        Ended without error and with output.
    start_ns, end_ns : array of int
        From when its latency counts (scheduled arrival in an open loop, send in a closed one); when its end was seen.
    ttft_ms, tpot_ms, e2e_ms : array of float
        Infinite for a failure; TPOT is NaN for a success of one token.
    itl_ms, itl_request : array
        One entry a token after the first event, successes only; and the index of the token's request.
    packed : int
        Tokens that arrived together with another one, whose ITL is therefore spread or missing.
    estimated, buffered : int
        Successes whose tokens an event were spread from the usage total; and those whose output came all at once, held
        back on its way: they have no ITL and no TPOT.
    """

    ok: NDArray[np.bool_]
    errors: tuple[str | None, ...]
    start_ns: Ints
    end_ns: Ints
    ttft_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats
    itl_ms: Floats
    itl_request: Ints
    output_tokens: Ints
    prompt_tokens: Ints
    cached_prompt_tokens: Floats
    send_lag_ms: Floats
    first_turn: NDArray[np.bool_]
    sent_ns: Ints
    scheduled_ns: Ints
    packed: int
    estimated: int
    buffered: int

    def __len__(self) -> int:
        return len(self.ok)

    def latency(self, metric: str) -> Floats:
        """Values of one of `LATENCIES`, undefined ones left out."""
        values: Floats = getattr(self, metric)
        return values[~np.isnan(values)]

    def failures(self) -> dict[str, int]:
        """Failed requests by kind, most frequent first."""
        kinds = Counter(e or NO_OUTPUT for e, ok in zip(self.errors, self.ok, strict=True) if not ok)
        return dict(kinds.most_common())


def window_requests(table: pa.Table, *, open_loop: bool) -> Requests:
    """The window's rows of a `requests.parquet`, with their latencies."""
    rows = table.filter(pc.equal(table["phase"], "window")).combine_chunks()
    sent, scheduled, ended = (_ints(rows, name) for name in ("sent_ns", "scheduled_ns", "ended_ns"))
    errors = tuple(rows["error"].to_pylist())
    times, counts, offsets = _events(rows)
    events = np.diff(offsets)
    ok = np.array([error is None for error in errors], dtype=bool) & (events > 0)

    start = np.where(sent == _MISSING, scheduled, sent)
    if open_loop:  # rule 7: what waits in the client is part of the latency that a user sees
        start = np.where(scheduled == _MISSING, start, scheduled)
    first, last = _ends(times, offsets, ok)
    token_sums = np.add.reduceat(np.append(counts, 0), offsets[:-1]) * (events > 0) if len(events) else events
    stated = _ints(rows, "output_tokens")
    tokens = np.where(stated == _MISSING, token_sums, stated)
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(tokens > 1, (last - first) / _NS_PER_MS / (tokens - 1), np.nan)
    held_back = ok & _flags(rows, "buffered")
    tpot[held_back] = np.nan
    itl, owner, packed = _inter_token(times, counts, offsets, ok & ~held_back)
    prompt, planned = _ints(rows, "prompt_tokens"), _ints(rows, "planned_prompt_tokens")
    cached = _ints(rows, "cached_prompt_tokens").astype(float)
    cached[cached == _MISSING] = np.nan
    lag = np.where((sent == _MISSING) | (scheduled == _MISSING), np.nan, (sent - scheduled) / _NS_PER_MS)
    return Requests(
        ok=ok,
        errors=errors,
        start_ns=start,
        end_ns=ended,
        ttft_ms=np.where(ok, (first - start) / _NS_PER_MS, np.inf),
        tpot_ms=np.where(ok, tpot, np.inf),
        e2e_ms=np.where(ok, (last - start) / _NS_PER_MS, np.inf),
        itl_ms=itl,
        itl_request=owner,
        output_tokens=np.where(ok, tokens, 0),
        prompt_tokens=np.where(prompt == _MISSING, planned, prompt),
        cached_prompt_tokens=cached,
        send_lag_ms=lag,
        first_turn=_ints(rows, "turn") == 0,
        sent_ns=sent,
        scheduled_ns=scheduled,
        packed=packed,
        estimated=int((ok & _flags(rows, "tokens_estimated")).sum()),
        buffered=int(held_back.sum()),
    )


def _ints(rows: pa.Table, name: str) -> Ints:
    """A column as int64, nulls as -1: times and counts are never negative, and floats would lose nanoseconds."""
    column = rows[name].combine_chunks() if isinstance(rows[name], pa.ChunkedArray) else rows[name]
    return np.asarray(pc.fill_null(column.cast(pa.int64()), _MISSING).to_numpy(zero_copy_only=False), dtype=np.int64)


def _flags(rows: pa.Table, name: str) -> NDArray[np.bool_]:
    """A column of booleans; nulls, and a column that older records lack, are false."""
    if name not in rows.column_names:
        return np.zeros(len(rows), dtype=bool)
    return np.array([bool(value) for value in rows[name].to_pylist()], dtype=bool)


def _events(rows: pa.Table) -> tuple[Ints, Ints, Ints]:
    """All events of all rows: times, tokens, and where each row's begin (and the last ends)."""
    lengths = pc.fill_null(pc.list_value_length(rows["event_ns"]), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    times = pc.list_flatten(rows["event_ns"]).to_numpy().astype(np.int64)
    counts = pc.list_flatten(rows["event_tokens"]).to_numpy().astype(np.int64)
    return times, counts, offsets


def _ends(times: Ints, offsets: Ints, ok: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """First and last event of each row; 0 where the row is no success."""
    if not len(times):
        return np.zeros(len(ok), dtype=np.int64), np.zeros(len(ok), dtype=np.int64)
    begin = np.minimum(offsets[:-1], len(times) - 1)
    end = np.maximum(offsets[1:] - 1, 0)
    return np.where(ok, times[begin], 0), np.where(ok, times[end], 0)


def _inter_token(times: Ints, counts: Ints, offsets: Ints, ok: NDArray[np.bool_]) -> tuple[Floats, Ints, int]:
    """Gap before each token: an event of k tokens spreads its gap over them; the first event has no gap."""
    owner = np.repeat(np.arange(len(ok)), np.diff(offsets))
    is_first = np.zeros(len(times), dtype=bool)
    is_first[offsets[:-1][np.diff(offsets) > 0]] = True
    good = ok[owner] if len(owner) else np.zeros(0, dtype=bool)
    packed = int(counts[good & (counts > 1)].sum())
    take = good & ~is_first & (counts > 0)
    # An event of no tokens (an empty delta) is no token: its gap belongs to the next token.
    if (counts == 0).any():
        keep = (counts > 0) | is_first
        return _inter_token(times[keep], counts[keep], _recount(offsets, keep), ok)
    gaps = np.diff(times, prepend=times[:1])[take] / _NS_PER_MS / counts[take]
    return np.repeat(gaps, counts[take]), np.repeat(owner[take], counts[take]), packed


def _recount(offsets: Ints, keep: NDArray[np.bool_]) -> Ints:
    return np.concatenate([[0], np.cumsum(keep)])[offsets].astype(np.int64)


def quantile(values: Floats, percent: int) -> Quantile:
    """The smallest value with at least `percent` % at or below it, with its order-statistic interval (95 %).

    No interpolation: a percentile between a finite time and a failure would be no time at all.
    """
    n, share = len(values), percent / 100
    ordered = np.sort(values)
    rank = max(1, int(np.ceil(n * share - 1e-9)))
    low, high = int(stats.binom.ppf(0.025, n, share)), int(stats.binom.ppf(0.975, n, share)) + 1
    return Quantile(
        percent=percent,
        value=float(ordered[rank - 1]),
        low=float(ordered[low - 1]) if low >= 1 else None,
        high=float(ordered[high - 1]) if high <= n else None,
        n=n,
    )


def tail_percent(n: int) -> int:
    """The tail percentile that `n` values support: 99, else 90 (rule 10)."""
    return 99 if n >= P99_SAMPLES else 90


def quantiles(values: Floats) -> tuple[Quantile, ...]:
    """P50 and P90, and P99 where the sample supports it."""
    if not len(values):
        return ()
    percents = (50, 90, 99) if len(values) >= P99_SAMPLES else (50, 90)
    return tuple(quantile(values, percent) for percent in percents)


def meets(requests: Requests, limits: Mapping[str, float | None]) -> NDArray[np.bool_]:
    """Which requests keep every limit; keys as in an SLA file (``ttft_p90_ms``): the value limits each request."""
    kept = requests.ok.copy()
    for metric, percent, limit in sla_limits(limits):
        if metric == "itl_ms":
            kept &= _itl_of_request(requests, percent) <= limit
        else:
            values = getattr(requests, metric)
            kept &= np.isnan(values) | (values <= limit)
    return kept


def sla_limits(limits: Mapping[str, Any]) -> list[tuple[str, int, float]]:
    """An SLA's keys as (metric, percentile, limit in ms); other keys (a title) are no limits."""
    found = [(_SLA_KEY.fullmatch(key), value) for key, value in limits.items() if value is not None]
    return [(f"{match[1]}_ms", int(match[2]), float(value)) for match, value in found if match]


def limit_name(metric: str, percent: int) -> str:
    """``ttft_ms`` at 90 as ``ttft_p90_ms``."""
    return f"{metric.removesuffix('_ms')}_p{percent}_ms"


def _itl_of_request(requests: Requests, percent: int) -> Floats:
    """Each request's own ITL percentile; 0 for a request of one token."""
    result = np.zeros(len(requests))
    order = np.lexsort((requests.itl_ms, requests.itl_request))
    values, owner = requests.itl_ms[order], requests.itl_request[order]
    present, first, count = np.unique(owner, return_index=True, return_counts=True)
    rank = np.maximum(1, np.ceil(count * percent / 100 - 1e-9)).astype(np.int64)
    result[present] = values[first + rank - 1]
    return result


def duration_s(requests: Requests) -> float:
    """From the first arrival in the window to the end of the last request that arrived in it (rule 8)."""
    return float(requests.end_ns.max() - requests.start_ns.min()) / 1e9


def launch_statistics(requests: Requests, slas: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """One number a metric for one launch and load: what comparisons across launches use (rule 13)."""
    if not len(requests):
        return {}
    seconds = duration_s(requests)
    if seconds <= 0:
        return {}
    ok = requests.ok
    inputs, outputs = float(requests.prompt_tokens[ok].sum()), float(requests.output_tokens[ok].sum())
    busy_ns = (requests.end_ns - requests.start_ns).sum()
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
    lags = requests.send_lag_ms[~np.isnan(requests.send_lag_ms)]
    if len(lags):
        values["send_lag_p90_ms"] = quantile(lags, 90).value
    if (ratio := _attained_over_requested(requests)) is not None:
        values["attained_over_requested_rate"] = ratio
    for metric in LATENCIES:
        for q in quantiles(requests.latency(metric)):
            values[limit_name(metric, q.percent)] = q.value
    for name, limits in slas.items():
        kept = meets(requests, limits)
        values[f"goodput_rps.{name}"] = float(kept.sum()) / seconds
        values[f"goodput_share.{name}"] = float(kept.mean())
    return values


def _attained_over_requested(requests: Requests) -> float | None:
    """Rate of first turns as sent ÷ as scheduled; None without a schedule or with fewer than two of them."""
    mine = requests.first_turn & (requests.scheduled_ns != _MISSING) & (requests.sent_ns != _MISSING)
    if mine.sum() < 2:
        return None
    asked, sent = np.ptp(requests.scheduled_ns[mine]), np.ptp(requests.sent_ns[mine])
    return float(asked / sent) if sent > 0 and asked > 0 else None
