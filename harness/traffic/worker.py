"""What is typed on another machine that is to send load: `python -m harness.traffic.worker MASTER[:PORT] --processes N`

It joins the run whose master awaits workers there, plays its part of every cell of it, and waits for the next, until
Ctrl-C. Nothing but this folder and its environment is needed: schedule and record travel over Locust's own channel.
"""

import argparse
import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

PAUSE_S = 1.0
"""Between the end of one cell's process and the next, so that a failing one doesn't spin."""

MASTER_PORT = 5557


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.traffic.worker",
        description="Send load for the run whose master awaits workers, cell after cell, until Ctrl-C.",
    )
    parser.add_argument("master", help="address of the measuring machine, with :port where it isn't 5557")
    parser.add_argument("--processes", type=int, default=1, help="client processes here, one a core (default: 1)")
    parser.add_argument("--host", help="URL of the server as this machine reaches it (default: as the master says)")
    parser.add_argument("--scratch", help="folder for records until the master has them (default: the system's)")
    parser.add_argument("--once", action="store_true", help="end after one cell")
    options = parser.parse_args(words)
    if options.processes < 1:
        parser.error(f"--processes: {options.processes} must be >= 1")
    return options


def command(options: argparse.Namespace) -> list[str]:
    """Locust's command line for one cell."""
    host, colon, port = options.master.rpartition(":")
    if not colon or not port.isdigit():
        host, port = options.master, str(MASTER_PORT)
    argv = [
        sys.executable, "-m", "harness.traffic.locust_process",
        "--locustfile", str(Path(__file__).with_name("locustfile.py")),
        "--worker", "--master-host", host.strip("[]"), "--master-port", port,
        "--loglevel", "WARNING",
    ]  # fmt: skip
    if options.processes > 1:
        argv += ["--processes", str(options.processes)]
    for key in ("host", "scratch"):
        if value := getattr(options, key):
            argv += [f"--{key}", value]
    return argv


def main() -> int:
    """Take part in cell after cell."""
    options = arguments()
    argv = command(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(f"waiting for cells of {options.master}; Ctrl-C ends", flush=True)
    while True:
        with subprocess.Popen(argv, cwd=Path(__file__).parents[2]) as process:
            try:
                code = process.wait()
            except BaseException as stop:  # Ctrl-C has reached the process as well: it ends its record
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                process.kill()
                if isinstance(stop, KeyboardInterrupt):
                    return 130
                raise
        print(f"a cell is over (exit code {code})", flush=True)
        if options.once:
            return code
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
