"""Does generated code pass its test? Runs it: a process of its own with limits, which is no sandbox."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

TIMEOUT_S = 10.0
MEMORY_BYTES = 2**30
FILE_BYTES = 2**20


_RUNNER = f"""
import resource, runpy, sys
for what, limit in (("CPU", {int(TIMEOUT_S)}), ("AS", {MEMORY_BYTES}), ("FSIZE", {FILE_BYTES}), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + what), (limit, limit))
runpy.run_path(sys.argv[1])
"""


def passes(program: str, test: str, entry_point: str) -> bool:
    """Whether `program` defines `entry_point` such that `test`'s `check` passes; a crash or a timeout is a no."""
    with tempfile.TemporaryDirectory(prefix="kvmark-code-") as folder:
        script = Path(folder) / "candidate.py"
        script.write_text(f"{program}\n\n{test}\n\ncheck({entry_point})\nprint('passed all checks')\n")
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _RUNNER, str(script)],
            cwd=folder,
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            output = b""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # The code may exit early with 0: only the line behind `check` tells.
        return process.returncode == 0 and output.endswith(b"passed all checks\n")
