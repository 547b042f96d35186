"""What a replay came to: the client's own account, and the requests in short. The rows are in `requests.parquet`."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Attained:
    """Asked and attained, in the window; null where a load has no such thing.

    Attributes
    ----------
    send_lag_p50_ms, send_lag_p90_ms, send_lag_p99_ms, send_lag_max_ms : float or None
        Time between a request being due and its first byte being sent.
    asked_rps, attained_rps : float or None
        Session starts a second of the open loops: as scheduled, and as sent.
    asked_concurrency : int or None
        Sessions at a time of the closed loops.
    attained_concurrency_mean : float or None
        Mean of the sessions under way, from the first to the last start of one.
    attained_over_asked : float or None
        Ratio of the rates, or of the concurrencies; the lower one where a load has both.
    streams_peak : int
        Most requests under way at once.
    """

    send_lag_p50_ms: float | None
    send_lag_p90_ms: float | None
    send_lag_p99_ms: float | None
    send_lag_max_ms: float | None
    asked_rps: float | None
    attained_rps: float | None
    asked_concurrency: int | None
    attained_concurrency_mean: float | None
    attained_over_asked: float | None
    streams_peak: int


@dataclass(frozen=True)
class ClientFacts(Attained):
    """How the client itself fared; null where it died before it could say.

    Attributes
    ----------
    processes, workers : int
        Client processes, and how many of them were on other machines.
    transport : str or None
        `pure` or `compiled`.
    cpu_s, wall_s : float or None
        CPU time of all processes, and the longest of their durations, from the start to the end.
    cpu_share_max : float or None
        CPU time ÷ duration of the busiest process: 1 is a whole core.
    loop_lag_p99_ms, loop_lag_max_ms : float or None
        How late an event loop came, at worst over the processes.
    exit_code : int or None
        Of the client; 0: it played the whole schedule.
    lost_workers : tuple of dict
        `number`, `host`, `reason` of the processes that were lost.
    each : tuple of dict
        What each process said of itself.
    ceiling : dict or None
        What this machine's client can measure (`make calibrate`); null: not calibrated.
    """

    processes: int
    workers: int
    transport: str | None
    cpu_s: float | None
    wall_s: float | None
    cpu_share_max: float | None
    loop_lag_p99_ms: float | None
    loop_lag_max_ms: float | None
    exit_code: int | None
    lost_workers: tuple[dict[str, Any], ...]
    each: tuple[dict[str, Any], ...]
    ceiling: dict[str, Any] | None


@dataclass(frozen=True)
class Window:
    """The measured stretch, in monotonic ns.

    Attributes
    ----------
    start_ns, end_ns : int
        First and last arrival of the window's requests: when they were due in an open loop, sent in a closed one.
    last_ended_ns : int
        When the last of them ended.
    """

    start_ns: int
    end_ns: int
    last_ended_ns: int


@dataclass(frozen=True)
class ReplayReport:
    """What a replay came to; the rows themselves are in `requests.parquet`.

    Attributes
    ----------
    client : ClientFacts
        How the client fared.
    window : Window or None
        The measured stretch; None when none of its requests was sent.
    window_requests, failed_requests : int
        Requests of the window, and how many of them failed.
    errors : dict
        Failures of the window by name.
    commonest_error : str or None
        The most frequent failure, with the words of its first case.
    peak_context_tokens : int
        Largest sum of contexts of requests that were under way at once.
    """

    client: ClientFacts
    window: Window | None
    window_requests: int
    failed_requests: int
    errors: dict[str, int]
    commonest_error: str | None
    peak_context_tokens: int
