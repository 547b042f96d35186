"""The client's processes: how they end, and whether they live."""

import contextlib
import ctypes
import signal
import sys
import time

import gevent
import psutil
from locust.env import Environment

from harness.guardian import PR_SET_PDEATHSIG


def end_locust(environment: Environment) -> None:
    """End Locust's process in good order; where somebody started it on the web page, only the run, so that it stays."""
    options = environment.parsed_options

    def end() -> None:
        assert environment.runner is not None
        if environment.web_ui is not None and not (options and options.autostart):
            environment.runner.stop()
            return
        environment.runner.quit()
        if environment.web_ui is not None:
            environment.web_ui.stop()  # type: ignore[no-untyped-call]

    gevent.spawn(end)


def end_with_parent() -> None:
    """A forked worker gets SIGTERM when its parent dies, however that dies (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def await_children(seconds: float = 5.0) -> None:
    """Wait until the forked workers have ended."""
    deadline = time.monotonic() + seconds
    while living_children() and time.monotonic() < deadline:
        gevent.sleep(0.02)


def living_children() -> list[int]:
    return [child.pid for child in psutil.Process().children() if is_alive(child.pid)]


def is_alive(pid: int) -> bool:
    """Whether a process of this host lives; a zombie doesn't."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def say(reason: str) -> None:
    """The last words of the log, if it can be written."""
    with contextlib.suppress(OSError):  # the log may lie on a full disk
        sys.stderr.write(reason.rstrip() + "\n")
        sys.stderr.flush()
