"""A process in a sandbox: started with its limits, read with a limit, and ended with all that it left."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CPU_S = 10
WALL_S = 20.0
"""Twice the CPU time: on a busy machine a sound program must not fail for waiting."""
OUTPUT_BYTES = 2**20
SCRATCH_BYTES = 16 * 2**20
LIMITS: Mapping[str, int] = {
    "CPU": CPU_S,
    "AS": 2**30,
    "FSIZE": 2**20,
    "NOFILE": 64,
    "NPROC": 1,
    "CORE": 0,
    "MEMLOCK": 0,
    "MSGQUEUE": 0,
}
"""By the names of setrlimit(2); sizes in bytes."""
LIBRARIES = Path(sys.base_prefix) / "lib"
ENVIRONMENT: Mapping[str, str] = {
    "LD_LIBRARY_PATH": str(LIBRARIES),
    "PYTHONHASHSEED": "0",  # the order of a set must not decide whether an answer passes
    "PYTHONDONTWRITEBYTECODE": "1",
    "LC_ALL": "C.UTF-8",
}
"""All that the program's environment holds."""
_CONFINE = Path(__file__).with_name("confine.py")


def python() -> str:
    """The interpreter below any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@dataclass(frozen=True)
class Sandbox:
    """A way to run code.

    Attributes
    ----------
    name : str
        ``bubblewrap``, ``unshare``, or ``none``: limits of the process alone, for a user who insists.
    prefix : tuple of str
        Words before the program.
    """

    name: str
    prefix: tuple[str, ...] = ()

    @contextlib.contextmanager
    def started(
        self,
        script: str,
        *arguments: str,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = subprocess.DEVNULL,
        stderr: Any = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A process that runs a Python text; on leaving, it and all below it are ended.

        Parameters
        ----------
        script : str
            Python, of at most 128 KiB; the standard library is there.
        arguments : str
            `sys.argv[1:]` of the script.
        stdin, stdout, stderr
            As `subprocess.Popen` takes them.
        pass_fds : sequence of int
            Open files that it keeps, under the same numbers.
        """
        bare = self.name == "none"
        options = json.dumps({"limits": LIMITS, "filter": not bare})
        inner = [python(), "-s", "-S", "-P", "-c", _CONFINE.read_text(), options, script, *arguments]
        with contextlib.ExitStack() as stack:
            process = subprocess.Popen(
                [*self.prefix, *inner],
                cwd=stack.enter_context(tempfile.TemporaryDirectory(prefix="kvmark-code-")) if bare else "/",
                env=ENVIRONMENT if bare else {},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        with contextlib.suppress(OSError):
                            stream.close()

    def output(self, script: str, *arguments: str, wall_s: float = WALL_S, stderr: Any = subprocess.DEVNULL) -> bytes:
        """What a script wrote before it ended, or was ended: at most `OUTPUT_BYTES`, within `wall_s`."""
        with self.started(script, *arguments, stdout=subprocess.PIPE, stderr=stderr) as process:
            return read_limited(process, wall_s)


NONE = Sandbox("none")


def read_limited(process: subprocess.Popen[bytes], wall_s: float) -> bytes:
    """What a process writes until it closes its output, has written `OUTPUT_BYTES`, or time is up."""
    assert process.stdout is not None
    number = process.stdout.fileno()
    deadline = time.monotonic() + wall_s
    said = b""
    while len(said) < OUTPUT_BYTES and select.select([number], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = os.read(number, OUTPUT_BYTES - len(said))
        if not piece:
            break
        said += piece
    return said
