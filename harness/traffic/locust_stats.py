"""Locust's own statistics at the cost of an append a request: its table and its web page stay, its event loop is ours.

Firing Locust's `request` event costs 3 µs a request here, a tenth of all that a short request costs. Unless somebody
else listens to that event, requests are gathered and entered a few times a second, many at once: 0.4 µs a request.
"""

import time
from collections import Counter
from typing import Any

from locust.env import Environment
from locust.stats import StatsError, bucket_response_time

METHOD = "POST"
PERIOD_S = 0.2


class Tally:
    """What ended since the last entry.

    Parameters
    ----------
    environment : Environment
        Whose statistics.
    name : str
        Of the requests.
    """

    def __init__(self, environment: Environment, name: str) -> None:
        self._environment = environment
        self._name = name
        self._times_ms: list[float] = []
        self._bytes = 0
        self._failures: Counter[str] = Counter()
        # Locust's runner listens itself; whoever else does wants every event.
        self._is_heard = len(environment.events.request._handlers) > 1

    def add(self, took_ms: float, size: int, failure: str | None) -> None:
        """A request ended."""
        if self._is_heard:
            self._environment.events.request.fire(  # type: ignore[no-untyped-call]
                request_type=METHOD,
                name=self._name,
                response_time=took_ms,
                response_length=size,
                exception=RuntimeError(failure) if failure else None,
                context={},
            )
            return
        self._times_ms.append(took_ms)
        self._bytes += size
        if failure:
            self._failures[failure] += 1

    def enter(self) -> None:
        """Enter what was gathered into Locust's statistics."""
        times_ms, size, failures = self._times_ms, self._bytes, self._failures
        if not times_ms:
            return
        self._times_ms, self._bytes, self._failures = [], 0, Counter()
        stats = self._environment.stats
        now = time.time()  # as Locust's own: for its charts only
        buckets = Counter(map(bucket_response_time, times_ms))
        for entry in (stats.total, stats.entries[(self._name, METHOD)]):
            _log(entry, now, times_ms, buckets, size, failures.total())
        for failure, count in failures.items():
            key = StatsError.create_key(METHOD, self._name, failure)
            error = stats.errors.setdefault(key, StatsError(METHOD, self._name, failure))
            error.occurrences += count
            error.first_seen = error.first_seen or now
            error.last_seen = now


def _log(entry: Any, now: float, times_ms: list[float], buckets: "Counter[int]", size: int, failures: int) -> None:
    """What `locust.stats.StatsEntry.log` and `log_error` do for one request, for many."""
    second = int(now)
    if entry.use_response_times_cache and entry.last_request_timestamp and second > int(entry.last_request_timestamp):
        entry._cache_response_times(second - 1)
    entry.num_requests += len(times_ms)
    entry.num_reqs_per_sec[second] += len(times_ms)
    entry.last_request_timestamp = now
    entry.total_response_time += sum(times_ms)
    entry.min_response_time = min(times_ms if entry.min_response_time is None else [*times_ms, entry.min_response_time])
    entry.max_response_time = max([*times_ms, entry.max_response_time])
    for bucket, count in buckets.items():
        entry.response_times[bucket] += count
    entry.total_content_length += size
    if failures:
        entry.num_failures += failures
        entry.num_fail_per_sec[second] += failures
