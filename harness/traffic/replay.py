"""Replay a schedule against a running server: start the client process, follow it, turn its record into rows."""

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.engine_log import log_tail
from harness.errors import LaunchError, StorageError
from harness.files import storage_error
from harness.guard import Guarded, guarded
from harness.traffic.journal import END_MARK, EXIT_STORAGE
from harness.traffic.load import Load
from harness.traffic.records import convert, peak_context_tokens

POLL_S = 0.2
STALL_MARGIN_S = 60.0
"""A client whose record doesn't grow for so long beyond the longest wait that the load allows is taken for stuck."""


@dataclass(frozen=True)
class ClientFacts:
    """How the client itself fared; null where it died before it could say.

    Attributes
    ----------
    cpu_s, wall_s : float or None
        CPU time and duration from its being ready to its end.
    loop_lag_max_ms : float or None
        Longest time that its event loop came late.
    send_lag_max_ms : float or None
        Longest time between a request being due and its first byte being sent, in the window.
    exit_code : int or None
        Of its process; 0: it played the whole schedule.
    """

    cpu_s: float | None
    wall_s: float | None
    loop_lag_max_ms: float | None
    send_lag_max_ms: float | None
    exit_code: int | None


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


def replay(
    load: Load,
    *,
    schedule_path: Path,
    base_url: str,
    out_dir: Path,
    env: Mapping[str, str],
    on_progress: Callable[[int, int], None],
    record_dir: Path | None = None,
) -> ReplayReport:
    """Play a schedule and write `stream.jsonl` (raw), `client.log` and `requests.parquet` into `out_dir`.

    Parameters
    ----------
    load : Load
        The load that the schedule was built from.
    schedule_path : Path
        What `build_schedule` wrote.
    base_url : str
        The server, `http://host:port`.
    out_dir : Path
        The cell's folder; an earlier raw record there is replaced.
    env : mapping
        Variables for the client's process, on top of ours.
    on_progress : callable
        Called with (requests ended, requests in all), warm-up included.
    record_dir : Path, optional
        Where `harness.guard` notes the process, for the sweep of a later run.

    Raises
    ------
    LaunchError
        When the client died or got stuck. Its raw record and `requests.parquet` are kept, with what was under way as
        `client_lost`.
    StorageError
        When the record can't be written.
    """
    journal = out_dir / "stream.jsonl"
    log_path = out_dir / "client.log"
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        journal.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(journal, error) from error
    try:
        with guarded(
            _argv(load, schedule_path.resolve(), base_url, journal.resolve()),
            env={"PYTHONPATH": _python_path(), **env},
            log_path=log_path,
            cwd=out_dir,
            record_dir=record_dir,
        ) as client:
            stuck_s = _follow(client, load, journal, on_progress)
    except BaseException:
        # Whatever stopped us has stopped the client as well; its record is kept readable.
        with contextlib.suppress(Exception):
            convert(journal, out_dir / "requests.parquet", time.monotonic_ns())
        raise
    rows, own = convert(journal, out_dir / "requests.parquet", time.monotonic_ns())
    code = client.poll()
    if code == EXIT_STORAGE:
        reason = log_tail(log_path, 1) or "the disk is full, for its log as well"
        raise StorageError(f"the load client can't write {journal}: {reason}. What was measured before is intact.")
    if stuck_s is not None:
        raise LaunchError(f"the load client got stuck: no request started or ended for {stuck_s:.0f} s")
    if code != 0 or not own.get("complete"):
        raise LaunchError(f"the load client died: {client.exit_reason()}\n{log_tail(log_path)}".rstrip())
    return _report(load, rows, own, code)


def _argv(load: Load, schedule: Path, base_url: str, journal: Path) -> list[str]:
    users = load.arrival.concurrency if load.arrival.kind == "closed" else 1
    return [
        sys.executable, "-m", "locust",
        "--locustfile", str(Path(__file__).with_name("locustfile.py")),
        "--headless", "--only-summary", "--loglevel", "WARNING",
        "--users", str(users), "--spawn-rate", str(users),
        "--host", base_url,
        "--schedule", str(schedule),
        "--journal", str(journal),
    ]  # fmt: skip


def _python_path() -> str:
    """So that the client finds this package wherever it lies."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


def _follow(client: Guarded, load: Load, journal: Path, on_progress: Callable[[int, int], None]) -> float | None:
    """Watch the client to its end; the seconds without a sign of life when it had to be stopped."""
    total = load.requests + load.warmup_requests
    longest_wait_s = load.timeout_s + load.think_time_s + STALL_MARGIN_S
    if load.arrival.rate_rps:
        longest_wait_s += 20 / load.arrival.rate_rps  # an exponential gap is longer than 20 means once in 5e8
    done = seen_bytes = 0
    last_sign = time.monotonic()
    on_progress(0, total)
    while True:
        ended = client.wait(POLL_S) is not None
        new_done, new_bytes = _count_ended(journal, done, seen_bytes)
        if new_bytes != seen_bytes:
            last_sign = time.monotonic()
        if new_done != done:
            on_progress(new_done, total)
        done, seen_bytes = new_done, new_bytes
        if ended:
            return None
        quiet_s = time.monotonic() - last_sign
        if quiet_s > longest_wait_s:
            client.stop()
            return quiet_s


def _count_ended(journal: Path, done: int, at: int) -> tuple[int, int]:
    """Ended requests so far and the position after the last whole line, going on from an earlier count."""
    if not journal.exists():
        return done, at
    with open(journal, "rb") as file:
        file.seek(at)
        for line in file:
            if not line.endswith(b"\n"):
                break
            at += len(line)
            done += line.startswith(END_MARK)
    return done, at


def _report(load: Load, rows: list[dict[str, Any]], own: dict[str, Any], exit_code: int | None) -> ReplayReport:
    window = [row for row in rows if row["phase"] == "window"]
    failures = [row for row in window if row["error"]]
    errors = Counter(row["error"] for row in failures)
    words = None
    if errors:
        name = errors.most_common(1)[0][0]
        words = f"{name}: {next(row['error_detail'] for row in failures if row['error'] == name)}"
    first, second = ("sent_ns", "scheduled_ns") if load.arrival.kind == "closed" else ("scheduled_ns", "sent_ns")
    arrivals = [at for row in window if (at := row[first] or row[second] or row["ended_ns"])]
    return ReplayReport(
        client=ClientFacts(
            cpu_s=own.get("cpu_s"),
            wall_s=own.get("wall_s"),
            loop_lag_max_ms=own.get("loop_lag_max_ms"),
            send_lag_max_ms=own.get("send_lag_max_ms"),
            exit_code=exit_code,
        ),
        window=Window(min(arrivals), max(arrivals), max(row["ended_ns"] for row in window)) if arrivals else None,
        window_requests=len(window),
        failed_requests=len(failures),
        errors=dict(errors),
        commonest_error=words,
        peak_context_tokens=peak_context_tokens(rows),
    )
