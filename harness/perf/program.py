"""Run a load client as a program of its own: its CPU time and memory, its whole process tree included.

CPU time counts from the first request's arrival at the server, so that imports, model loading and the making of
prompts are left out for all clients alike; what comes after the last answer (parsing, statistics, files) counts.
Orphans of the tree are adopted and counted too.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36
POLL_S = 0.002
SAMPLE_S = 0.1
ON_CORE = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execv(sys.argv[2], sys.argv[2:])"


@dataclass(frozen=True)
class Usage:
    """What a program took.

    Attributes
    ----------
    exit_code : int or None
        Of the program; None: it had to be ended for taking too long.
    cpu_s : float
        CPU time from the first request to the end of the last process.
    startup_cpu_s : float
        CPU time before.
    wall_s : float
        From start to end.
    peak_bytes : int or None
        Largest sum of the tree's memory (PSS: what is shared is divided among those who share it); None: not sampled.
    log : Path
        What it said.
    """

    exit_code: int | None
    cpu_s: float
    startup_cpu_s: float
    wall_s: float
    peak_bytes: int | None
    log: Path

    def tail(self, lines: int = 3) -> str:
        """Its last words."""
        text = self.log.read_text(errors="replace").replace("\r", "\n")
        return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:])[-400:]


def run_program(
    argv: Sequence[str],
    *,
    core: int,
    folder: Path,
    name: str,
    requests_seen: Callable[[], int],
    env: Mapping[str, str] | None = None,
    timeout_s: float = 180.0,
    sample_memory: bool = False,
    tries_before: int = 0,
) -> Usage:
    """Run a program to its end on one core.

    Parameters
    ----------
    requests_seen : callable
        How many requests the server has seen.
    tries_before : int
        Requests that the program sends before its run, to see whether the server is there.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    log = folder / f"{name}.log"
    started = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", ON_CORE, str(core), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    ended = threading.Event()
    before = [0.0]
    peak = [0]
    watcher = threading.Thread(target=_watch_start, args=(process.pid, requests_seen, tries_before, before, ended))
    watcher.start()
    sampler = threading.Thread(target=_watch_memory, args=(process.pid, peak, ended))
    if sample_memory:
        sampler.start()
    timer = threading.Timer(timeout_s, _end_session, (process.pid,))
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    in_time = timer.is_alive()
    timer.cancel()
    ended.set()
    watcher.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    total = usage.ru_utime + usage.ru_stime + _reap(process.pid)
    if sample_memory:
        sampler.join()
    return Usage(
        exit_code=process.returncode if in_time else None,
        cpu_s=total - before[0],
        startup_cpu_s=before[0],
        wall_s=time.monotonic() - started,
        peak_bytes=peak[0] if sample_memory else None,
        log=log,
    )


def _watch_start(pid: int, seen: Callable[[], int], tries: int, before: list[float], ended: threading.Event) -> None:
    """Note the tree's CPU time when the first request of the run is seen."""
    while seen() <= tries:
        if ended.wait(POLL_S):
            return
    before[0] = tree_cpu_s(pid)


def _watch_memory(pid: int, peak: list[int], ended: threading.Event) -> None:
    while not ended.wait(SAMPLE_S):
        peak[0] = max(peak[0], tree_bytes(pid))


def _tree(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def tree_cpu_s(pid: int) -> float:
    """CPU time so far of a process, of those that it and its descendants have waited for, and of those that live."""
    total = 0.0
    for process in _tree(pid):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def tree_bytes(pid: int) -> int:
    """Memory of a process and its descendants: each one's proportional share (PSS)."""
    total = 0
    for process in _tree(pid):
        with contextlib.suppress(psutil.Error, AttributeError):
            total += int(process.memory_full_info().pss)
    return total


def _end_session(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _reap(group: int) -> float:
    """End what is left of the program's group, and return the CPU time of those whom nobody else waited for."""
    _end_session(group)
    total = 0.0
    with contextlib.suppress(ChildProcessError):
        while True:
            _, _, usage = os.wait4(-group, 0)
            total += usage.ru_utime + usage.ru_stime
    return total
