"""Replay a schedule against a running server: start the client's processes, follow them, turn the record into rows."""

import contextlib
import math
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import LaunchError, StorageError
from harness.files import read_json, storage_error
from harness.guard import Guarded, guarded
from harness.server import free_port
from harness.traffic.client_options import ClientOptions
from harness.traffic.load import Load
from harness.traffic.outcome import EXIT_STORAGE, WORKERS_FILE
from harness.traffic.playbook import Playbook
from harness.traffic.report import Attained, ClientFacts, ReplayReport, Window
from harness.traffic.spool import count_ended, remove_spool

if TYPE_CHECKING:
    from harness.traffic.records import Conversion

POLL_S = 0.2
STALL_MARGIN_S = 60.0
"""A client whose record doesn't grow for so long beyond the longest wait that the load allows is taken for stuck."""

LOCUST_TABLE = re.compile(
    r"Type  |POST  |--------|\s+Aggregated|Response time percentiles|Error report|# occurrences|\d+ +POST "
)

JOIN_S = 5.0
"""How long workers of other machines may take to join a cell by themselves before a person is told how it is done."""

WORKERS_READY_S = 120.0
"""How long client processes on this machine may take to get ready."""


def replay(
    load: Load,
    *,
    schedule_path: Path,
    base_url: str,
    out_dir: Path,
    env: Mapping[str, str],
    on_progress: Callable[[int, int], None],
    record_dir: Path | None = None,
    options: ClientOptions | None = None,
    say: Callable[[str], None] | None = None,
    stop: threading.Event | None = None,
) -> ReplayReport:
    """Play a schedule and write the spool (raw), `client.log` and `requests.parquet` into `out_dir`.

    Parameters
    ----------
    load : Load
        The load that the schedule was built from.
    schedule_path : Path
        What `build_schedule` wrote.
    base_url : str
        The server: `http://host:port`, `https://…` or `http+unix://…`. A key is taken from `KVMARK_API_KEY`.
    out_dir : Path
        The cell's folder; an earlier raw record there is replaced.
    env : mapping
        Variables for the client's processes, on top of ours.
    on_progress : callable
        Called with (requests ended, requests in all), warm-up included.
    record_dir : Path, optional
        Where `harness.guard` notes the processes, for the sweep of a later run.
    options : ClientOptions, optional
        How the client runs.
    say : callable, optional
        Told what a person must do: start workers on other machines.
    stop : threading.Event, optional
        Once set, the client ends: what is under way is recorded as `aborted`, the rest as `not_sent`, and that is no
        fault.

    Raises
    ------
    LaunchError
        When a port of the client's is taken, or the client died or got stuck. Its raw record and `requests.parquet`
        are kept, with what was under way as `client_lost`. One of several processes that is lost raises nothing:
        `ClientFacts.lost_workers`.
    StorageError
        When the record can't be written.
    """
    options = options or ClientOptions()
    playbook = Playbook(schedule_path)
    log_path, parquet = out_dir / "client.log", out_dir / "requests.parquet"
    _clear(out_dir)
    _need_ports(options)
    argv = _argv(options, schedule_path.resolve(), base_url, out_dir.resolve())
    try:
        with guarded(
            argv,
            env={"PYTHONPATH": _python_path(), **env},
            log_path=log_path,
            cwd=out_dir,
            cores=options.cores,
            record_dir=record_dir,
        ) as client:
            stuck_s = _follow(client, load, playbook, options, out_dir, on_progress, say, stop)
    except BaseException:
        # Whatever stopped us has stopped the client as well; its record is kept readable.
        with contextlib.suppress(Exception):
            _convert(out_dir, schedule_path, parquet)
        raise
    found = _convert(out_dir, schedule_path, parquet)
    code = client.poll()
    if code == EXIT_STORAGE:
        reason = _last_words(log_path, 1) or "the disk is full, for its log as well"
        raise StorageError(f"the load client can't write to {out_dir}: {reason}. What was measured before is intact.")
    if stuck_s is not None:
        raise LaunchError(f"the load client got stuck: no request ended for {stuck_s:.0f} s")
    lost = _lost_workers(out_dir)
    if stop is not None and stop.is_set():
        return _report(found, _attained(parquet, playbook), options, lost, code)
    if not lost and (code != 0 or not all(worker.client.get("complete") for worker in found.workers)):
        raise LaunchError(f"the load client died: {client.exit_reason()}\n{_last_words(log_path)}".rstrip())
    return _report(found, _attained(parquet, playbook), options, lost, code)


def _convert(folder: Path, schedule: Path, parquet: Path) -> "Conversion":
    """Rows out of the raw record. pyarrow is loaded here: its 40 MB are not taken while requests are under way."""
    from harness.traffic.records import convert

    return convert(folder, schedule, parquet, time.monotonic_ns())


def _attained(parquet: Path, playbook: Playbook) -> Attained:
    from harness.traffic.attained import attained

    return attained(parquet, playbook)


def how_to_join(options: ClientOptions) -> str:
    """What to type on the other machines."""
    address = _own_address() if options.bind_host == "*" else options.bind_host
    return (
        f"waiting for {options.workers} load workers, at most {options.workers_wait_s:.0f} s; on the other machines, "
        f"in KVMark's folder:  .venv/bin/python -m harness.traffic.worker {address}:{options.bind_port} --processes N"
    )


def _own_address() -> str:
    """The address by which others are likely to reach this machine; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # RFC 5737: an address that nobody has
            return str(sock.getsockname()[0])
        except OSError:
            return socket.gethostname()


def _need_ports(options: ClientOptions) -> None:
    """A port that is taken is named here: of Locust's own words the end of a traceback would be left."""
    wanted = [("web_port", "127.0.0.1", options.web_port)]
    if options.workers:
        wanted.append(("bind_port", "" if options.bind_host == "*" else options.bind_host, options.bind_port))
    for key, host, port in wanted:
        if port is None:
            continue
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((host, port))
            except OSError as error:
                raise LaunchError(f"client.{key}: can't listen on {host or '*'}:{port}: {error.strerror}") from error


def _clear(out_dir: Path) -> None:
    """Remove an earlier replay's record."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        remove_spool(out_dir)
        (out_dir / WORKERS_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(out_dir, error) from error


def _argv(options: ClientOptions, schedule: Path, base_url: str, record: Path) -> list[str]:
    argv = [
        sys.executable, "-m", "harness.traffic.locust_process",
        "--locustfile", str(Path(__file__).with_name("locustfile.py")),
        "--only-summary", "--loglevel", "WARNING",
        "--users", str(options.senders), "--spawn-rate", str(options.senders),
        "--host", base_url,
        "--schedule", str(schedule),
        "--record", str(record),
        "--transport", options.transport,
    ]  # fmt: skip
    if not options.keep_alive:
        argv.append("--no-keep-alive")
    if options.ca_file is not None:
        argv += ["--ca-file", str(Path(options.ca_file).resolve())]
    if not options.verify:
        argv.append("--no-verify")
    if options.web_port is None:
        argv.append("--headless")
    else:
        argv += ["--autostart", "--web-host", "127.0.0.1", "--web-port", str(options.web_port)]
    if options.workers:
        bind = [options.bind_host, str(options.bind_port)]
        argv += ["--master", "--expect-workers", str(options.workers)]
        argv += ["--expect-workers-max-wait", str(math.ceil(options.workers_wait_s))]
    elif options.processes > 1:
        bind = ["127.0.0.1", str(free_port())]
        argv += ["--processes", str(options.processes), "--master-host", bind[0], "--master-port", bind[1]]
        argv += ["--expect-workers-max-wait", str(math.ceil(WORKERS_READY_S))]
    else:
        return argv
    return [*argv, "--master-bind-host", bind[0], "--master-bind-port", bind[1]]


def _python_path() -> str:
    """So that the client finds this package wherever it lies."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


def _follow(
    client: Guarded,
    load: Load,
    playbook: Playbook,
    options: ClientOptions,
    folder: Path,
    on_progress: Callable[[int, int], None],
    say: Callable[[str], None] | None,
    stop: threading.Event | None,
) -> float | None:
    """Watch the client to its end; the seconds without a sign of life when it got stuck and had to be stopped."""
    total = playbook.all_requests
    longest_wait_s = load.timeout_s + STALL_MARGIN_S
    longest_wait_s += max(playbook.longest_think_ns, playbook.longest_gap_ns()) / 1e9
    start_s = STALL_MARGIN_S + max(WORKERS_READY_S, options.workers_wait_s if options.workers else 0.0)
    counts: dict[Path, tuple[int, int]] = {}
    done = 0
    last_sign = time.monotonic()
    on_progress(0, total)
    while True:
        ended = client.wait(POLL_S) is not None
        new = {path: count_ended(path, *counts.get(path, (0, 0))) for path in folder.glob("stream-*.bin")}
        if new != counts:
            last_sign = time.monotonic()
        counts = new
        if say is not None and options.workers and not counts and time.monotonic() - last_sign > JOIN_S:
            say(how_to_join(options))
            say = None
        if (new_done := sum(count for count, _ in counts.values())) != done:
            done = new_done
            on_progress(done, total)
        if not ended and stop is not None and stop.is_set():
            client.stop()
            ended = True
        if ended:
            return None
        quiet_s = time.monotonic() - last_sign
        if quiet_s > longest_wait_s + (0.0 if done else start_s):
            client.stop()
            return quiet_s


def _last_words(log_path: Path, lines: int = 15) -> str:
    """The end of the client's log without the tables that Locust prints at its end."""
    text = log_path.read_text(errors="replace") if log_path.exists() else ""
    return "\n".join([line for line in text.splitlines() if line.strip() and not LOCUST_TABLE.match(line)][-lines:])


def _lost_workers(folder: Path) -> tuple[dict[str, Any], ...]:
    """Those of several client processes that ended before their part did, while the others went on."""
    path = folder / WORKERS_FILE
    if not path.exists() or (found := read_json(path))["stopped"]:
        return ()
    return tuple(
        {key: one[key] for key in ("number", "host", "reason")}
        for one in found["workers"]
        if one["state"] in ("lost", "stopped")
    )


def _report(
    found: "Conversion", got: Attained, options: ClientOptions, lost: tuple[dict[str, Any], ...], exit_code: int | None
) -> ReplayReport:
    from harness.traffic.calibrate.ceiling import load_ceiling

    each = [{"worker": one.number, **one.hello, **one.client} for one in found.workers]

    def figures(key: str) -> list[float]:
        return [one[key] for one in each if one.get(key) is not None]

    shares = [one["cpu_s"] / one["wall_s"] for one in each if one.get("wall_s")]
    transports = sorted({one["transport"] for one in each if one.get("transport")})
    client = ClientFacts(
        **asdict(got),
        processes=options.senders,
        workers=options.workers,
        transport="+".join(transports) or None,
        cpu_s=sum(figures("cpu_s")) if figures("cpu_s") else None,
        wall_s=max(figures("wall_s"), default=None),
        cpu_share_max=max(shares, default=None),
        loop_lag_p99_ms=max(figures("loop_lag_p99_ms"), default=None),
        loop_lag_max_ms=max(figures("loop_lag_max_ms"), default=None),
        exit_code=exit_code,
        lost_workers=lost,
        each=tuple(each),
        ceiling=load_ceiling(transports[0], options.senders) if transports and not options.workers else None,
    )
    return ReplayReport(
        client=client,
        window=found.window and Window(*found.window),
        window_requests=found.window_requests,
        failed_requests=found.failed_requests,
        errors=found.errors,
        commonest_error=found.commonest_error,
        peak_context_tokens=found.peak_context_tokens,
    )
