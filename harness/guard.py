"""Start a program so that its whole process tree ends with it, with us, or when told: whatever kills whom.

Between the harness and the program stands `harness/guardian.py`, in a session of its own (so that a terminal's Ctrl-C
reaches only the harness). Each link of the chain is covered: the guardian sees the harness end; the kernel ends the
program when the guardian dies; the harness then ends what is left, found by session, by an environment marker and by
the processes seen before. If both are killed, the next run ends the leftovers from the record on disk (`sweep`).
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import psutil

from harness import guardian
from harness.clock import boot_id
from harness.errors import ConfigError, LaunchError

MARKER = "KVMARK_LAUNCH"
"""Environment variable that every guarded process inherits (an engine may overwrite its own copy)."""

RECORD_NAME = "process-{pid}.json"


@dataclass(frozen=True)
class ProcessId:
    """A process that can't be mistaken for a later one with the same number.

    Attributes
    ----------
    pid : int
        Its number.
    started : int
        When it started, in clock ticks since boot (field 22 of `/proc/<pid>/stat`), which never step.
    session : int
        Its session.
    """

    pid: int
    started: int
    session: int


def identify(pid: int) -> ProcessId | None:
    """Identity of a living process; None when there is none, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else ProcessId(pid, int(fields[19]), int(fields[3]))


def _all_processes() -> list[ProcessId]:
    return [found for pid in psutil.pids() if (found := identify(pid)) is not None]


def _has_marker(pid: int, marker: str) -> bool:
    try:
        return f"{MARKER}={marker}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _leftovers(seen: Iterable[ProcessId], marker: str) -> list[ProcessId]:
    """Living processes that belong to a launch whose guardian is gone.

    A session's number isn't given out again while it has members (setsid(2)), so whoever is in the session of a
    process seen before, and did not start earlier than it, belongs to it.
    """
    known = set(seen)
    sessions = {process.session: process.started for process in sorted(known, key=lambda one: -one.started)}
    found = _all_processes()
    heads = {process.pid: process for process in found}

    def ours(process: ProcessId) -> bool:
        if process in known or _has_marker(process.pid, marker):
            return True
        if process.session not in sessions or process.started < sessions[process.session]:
            return False
        head = heads.get(process.session)
        return head is None or head in known

    return [process for process in found if process.pid != os.getpid() and ours(process)]


def _kill_leftovers(seen: Iterable[ProcessId], marker: str) -> list[ProcessId]:
    """SIGKILL what is left of a launch, until nothing is; what was killed."""
    known = set(seen)
    killed: set[ProcessId] = set()
    for _ in range(100):
        left = _leftovers(known, marker)
        if not left:
            break
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
        killed.update(left)
        known.update(left)
        time.sleep(0.02)
    return sorted(killed, key=lambda process: process.pid)


def describe_exit(returncode: int | None, by_us: bool = False) -> str:
    """How a program ended, in words; `by_us`: a signal needs no guess at its cause."""
    if returncode is None:
        return "ended in an unknown way"
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" and not by_us else "")


class Guarded:
    """A guarded program; `guarded` makes one. A context manager: leaving it ends the tree."""

    def __init__(self, process: subprocess.Popen[bytes], pid: int, marker: str, record: Path | None) -> None:
        self.pid = pid
        self._guardian = process
        self._marker = marker
        self._record = record
        self._seen: set[ProcessId] = set()
        self._ended = threading.Event()
        self._returncode: int | None = None
        self._reason: str | None = None
        self._stopping = False
        self.pids()
        self._write_record()
        self._watcher = threading.Thread(target=self._watch, name=f"guard-{pid}", daemon=True)
        self._watcher.start()

    def _write_record(self) -> None:
        if self._record is None:
            return
        processes = [vars(one) for one in sorted(self._seen, key=lambda one: one.pid)]
        record = {"boot": boot_id(), "marker": self._marker, "harness_pid": os.getpid(), "processes": processes}
        temporary = self._record.with_suffix(".tmp")
        with contextlib.suppress(
            OSError
        ):  # a safety net for later runs; on a full disk this one ends for better reasons
            temporary.write_text(json.dumps(record))
            temporary.replace(self._record)

    def _watch(self) -> None:
        """Wait for the guardian's last word, or for its death without one."""
        line = _readline(self._guardian.stdout)
        self._guardian.wait()
        report: dict[str, Any] = json.loads(line) if line else {}
        if report:
            self._returncode = report["returncode"]
            by_us = report["stopped_by"] is not None
            self._reason = describe_exit(self._returncode, by_us)
            if by_us:
                self._reason = f"ended by us: {self._reason}"
            elif report["left_behind"]:
                self._reason += f"; {report['left_behind']} of its processes lived on and were ended"
        else:
            killed = _kill_leftovers(self._seen, self._marker)
            self._reason = f"its guardian was killed; {len(killed)} processes that were left are ended"
        with contextlib.suppress(OSError):
            if self._record is not None:
                self._record.unlink(missing_ok=True)
        self._ended.set()

    def pids(self) -> list[int]:
        """Living processes of the tree, the program first; the guardian is none of them."""
        below = [found for pid in guardian.descendants(self._guardian.pid) if (found := identify(pid)) is not None]
        first = not self._seen
        if new := set(below) - self._seen:
            self._seen = self._seen | new  # rebound, not changed: other threads may be reading it
            if not first:
                with contextlib.suppress(OSError):
                    self._write_record()
        return sorted((process.pid for process in below), key=lambda pid: (pid != self.pid, pid))

    def poll(self) -> int | None:
        """Exit code of the program (negative: the signal), None while it runs. -9 where only its guardian knew."""
        if not self._ended.is_set():
            return None
        return -int(signal.SIGKILL) if self._returncode is None else self._returncode

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the whole tree's end; the exit code, or None when it still runs after `timeout_s`."""
        self._ended.wait(timeout_s)
        return self.poll()

    def exit_reason(self) -> str | None:
        """How the program ended, in words; None while it runs."""
        return self._reason if self._ended.is_set() else None

    def stop(self, grace_s: float = 10.0) -> int | None:
        """End the tree: SIGTERM to the program, SIGKILL to all that is left after `grace_s`. Safe to call again."""
        if not self._ended.is_set():
            self.pids()
            if not self._stopping:
                self._stopping = True
                with contextlib.suppress(OSError, ValueError):
                    _stdin(self._guardian).write(f"stop {grace_s}\n".encode())
                    _stdin(self._guardian).flush()
            if not self._ended.wait(grace_s + 15.0):
                self._guardian.kill()  # the watcher then ends what is left
                self._ended.wait(15.0)
        with contextlib.suppress(OSError):
            _stdin(self._guardian).close()
        self._watcher.join(1.0)
        if self._guardian.stdout is not None and not self._watcher.is_alive():
            self._guardian.stdout.close()
        return self.poll()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def guarded(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    log_path: Path,
    cwd: Path | None = None,
    cores: Sequence[int] | None = None,
    record_dir: Path | None = None,
) -> Guarded:
    """Start a program under guard.

    Parameters
    ----------
    argv : sequence of str
        Program and arguments.
    env : mapping, optional
        Variables on top of our own environment.
    log_path : Path
        File that takes its stdout and stderr (appended).
    cwd : Path, optional
        Its working directory.
    cores : sequence of int, optional
        CPU cores that it and its descendants may use.
    record_dir : Path, optional
        Folder that remembers the processes while they live, for `sweep` in a later run.

    Raises
    ------
    LaunchError
        When the program can't be started.
    ConfigError
        When a core isn't there.
    """
    allowed = os.sched_getaffinity(0)
    if cores is not None and not set(cores) <= allowed:
        raise ConfigError(f"cores: {sorted(set(cores) - allowed)} can't be used; allowed: {sorted(allowed)}")
    marker = uuid.uuid4().hex
    request = {
        "argv": [str(word) for word in argv],
        "env": {**os.environ, **(env or {}), MARKER: marker},
        "log_path": str(log_path),
        "cwd": str(cwd) if cwd else None,
        "cores": sorted(cores) if cores else None,
        "harness_pid": os.getpid(),
    }
    log_path.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guardian.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )
    try:
        _stdin(process).write(json.dumps(request).encode() + b"\n")
        line = _readline(process.stdout)
    except OSError:
        line = b""
    report: dict[str, Any] = json.loads(line) if line else {"error": "its guardian did not start"}
    if report.get("event") != "started":
        process.kill()
        process.wait()
        raise LaunchError(f"{argv[0]} can't be started: {report.get('error')}")
    record = None
    if record_dir is not None:
        record_dir.mkdir(parents=True, exist_ok=True)
        record = record_dir / RECORD_NAME.format(pid=report["pid"])
    return Guarded(process, report["pid"], marker, record)


def sweep(record_dir: Path, say: Callable[[str], None] | None = None) -> int:
    """End what an earlier, killed run left behind, by its records in `record_dir`; the number of processes ended.

    Records of a run whose harness still lives are left alone. A process is ended only if it is the one recorded
    (number and start time, same boot), carries the launch's marker, or lives in its session.
    """
    ended = 0
    for path in sorted(record_dir.glob(RECORD_NAME.format(pid="*"))):
        try:
            record = json.loads(path.read_text())
            seen = [ProcessId(**one) for one in record["processes"]]
        except (ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
            continue
        if record["boot"] == boot_id():
            guardian_alive = [one for one in seen if identify(one.pid) == one and _guardian_of(one.pid) is not None]
            if guardian_alive:
                continue
            killed = _kill_leftovers(seen, record["marker"])
            ended += len(killed)
            if killed and say is not None:
                pids = ", ".join(str(one.pid) for one in killed)
                say(f"ended {len(killed)} processes that an earlier run left: {pids}")
        path.unlink(missing_ok=True)
    return ended


def _guardian_of(pid: int) -> int | None:
    """The guardian above a process, if one still lives (it does the ending itself)."""
    with contextlib.suppress(psutil.Error):
        for parent in psutil.Process(pid).parents():
            if guardian.__file__ in parent.cmdline():
                return parent.pid
    return None


def _stdin(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def _readline(stream: IO[bytes] | None) -> bytes:
    assert stream is not None
    return stream.readline()
