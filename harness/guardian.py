"""The small process between the harness and a server: it ends the server's whole tree, however the harness ends.

Runs as a script on the standard library alone (`harness.guard` starts it). It is a child subreaper (prctl(2)), so a
process whose parent dies stays below it and can't get away. It reads one JSON line on stdin, then waits for: the
word `stop`, the end of stdin or another parent (the harness is gone), or the end of the program that it started.
On stdout it writes one JSON object a line: `started`, `failed` or `ended`.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ORPHAN_GRACE_S = 1.0
"""How long processes get after SIGTERM whose program is gone already."""
GONE_GRACE_S = 3.0
"""How long the tree gets after SIGTERM when nobody is left to say how long."""


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def parents() -> dict[int, int]:
    """Parent of every process that can be seen, zombies left out."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b") ")[2].split(b" ", 2)[:2]
                if state not in (b"Z", b"X"):
                    found[int(name)] = int(parent)
    return found


def descendants(root: int) -> list[int]:
    """Living processes below `root`."""
    parent_of = parents()
    below: list[int] = []
    layer = {root}
    while layer:
        layer = {pid for pid, parent in parent_of.items() if parent in layer}
        below.extend(layer)
    return below


class Tree:
    """The started program and everything that it leaves behind."""

    def __init__(self, child: int) -> None:
        self.child = child
        self.status: int | None = None
        self.empty = False

    def reap(self) -> None:
        """Take the ended ones; `empty` when no child is left.

        Only that proves an empty tree, since every orphan becomes our child: a walk over /proc misses a process whose
        parent dies between two reads.
        """
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.child:
                    self.status = status
        except ChildProcessError:
            self.empty = True

    def signal_all(self, number: int) -> None:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def wait(self, seconds: float, whole: bool) -> bool:
        """Whether the program (`whole`: and all below it) ended in time."""
        deadline = time.monotonic() + seconds
        while True:
            self.reap()
            if self.empty or (self.status is not None and not whole):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)

    def end(self, grace_s: float) -> None:
        """SIGTERM to the program, then to what it leaves, and SIGKILL to all that doesn't heed it."""
        deadline = time.monotonic() + grace_s
        self.reap()
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGTERM)
            self.wait(grace_s, whole=False)
        if self.status is not None and not self.empty:
            self.signal_all(signal.SIGTERM)
            self.wait(min(ORPHAN_GRACE_S, max(0.0, deadline - time.monotonic())), whole=True)
        for _ in range(200):  # a dying tree may still fork: look again until it is empty
            self.signal_all(signal.SIGKILL)
            if self.wait(0.05, whole=True):
                return


def _start(request: dict[str, Any]) -> int:
    """Fork and execute the program; a failure comes back through a pipe that execve closes."""
    read_end, write_end = os.pipe()
    guardian = os.getpid()
    log = os.open(request["log_path"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guardian:
                os._exit(1)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            if request["cores"]:
                os.sched_setaffinity(0, request["cores"])
            if request["cwd"]:
                os.chdir(request["cwd"])
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.execvpe(request["argv"][0], request["argv"], request["env"])
        except BaseException as failure:  # the forked child must never return into the guardian's code
            os.write(write_end, f"{type(failure).__name__}: {failure}".encode())
        finally:
            os._exit(127)
    os.close(write_end)
    os.close(log)
    error = os.read(read_end, 4096).decode()
    os.close(read_end)
    if error:
        os.waitpid(pid, 0)
        raise OSError(error)
    return pid


def _say(**what: object) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(what).encode() + b"\n")


def _first_line() -> str:
    """The request, read byte by byte off the descriptor: nothing may stay in a buffer that select can't see."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            break
        line += piece
    return line.decode()


def main() -> None:
    """Guard one program from start to end."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C is for the harness, which then says `stop`
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked_to_end.append(number))
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    line = _first_line()
    if not line:
        return
    request = json.loads(line)
    try:
        tree = Tree(_start(request))
    except OSError as error:
        _say(event="failed", error=str(error))
        return
    _say(event="started", pid=tree.child)
    stopped_by = None
    grace_s = GONE_GRACE_S
    while stopped_by is None:
        tree.reap()
        if tree.status is not None:
            break
        if os.getppid() != request["harness_pid"] or asked_to_end:
            stopped_by = "signal" if asked_to_end else "harness gone"
        elif select.select([0], [], [], 0.2)[0]:
            words = os.read(0, 4096).decode().split()
            stopped_by = "harness" if words else "harness gone"
            if len(words) == 2:
                grace_s = float(words[1])
    left = len(descendants(os.getpid())) if stopped_by is None else 0
    tree.end(grace_s)
    status = tree.status
    code = None if status is None else os.waitstatus_to_exitcode(status)
    _say(event="ended", returncode=code, stopped_by=stopped_by, left_behind=left)


if __name__ == "__main__":
    main()
    sys.exit(0)
