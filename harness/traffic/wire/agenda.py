"""Calls at absolute times of the monotonic clock, out of gevent's hub, to some tens of microseconds.

libev's own timers are rounded up to milliseconds (epoll_wait's unit); a timerfd isn't. Whoever knows the time anyway
compares it with `next_ns` and runs what is due at once, even in the middle of many reads.
"""

import ctypes
import heapq
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

NEVER = 1 << 62

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_Itimerspec = ctypes.c_int64 * 4  # interval s, ns; value s, ns


class Agenda:
    """What to call when.

    Parameters
    ----------
    loop
        The hub's loop.

    Attributes
    ----------
    next_ns : int
        When the next call is due; a huge number where there is none.
    """

    def __init__(self, loop: Any) -> None:
        self.next_ns = NEVER
        self._calls: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._spec = _Itimerspec(0, 0, 0, 0)
        self._fd = _LIBC.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create: " + os.strerror(ctypes.get_errno()))
        self._watcher = loop.io(self._fd, 1, priority=loop.MAXPRI)
        self._watcher.start(self.run)

    def at(self, ns: int, call: Callable[[], None]) -> None:
        """Call `call` at `ns`; at the next turn of the loop where that is past."""
        if self._fd < 0:
            return
        heapq.heappush(self._calls, (ns, next(self._count), call))
        if ns < self.next_ns:
            self._set(ns)

    def run(self) -> None:
        """Call what is due."""
        calls = self._calls
        while calls and calls[0][0] <= time.monotonic_ns():
            heapq.heappop(calls)[2]()
        if self._fd >= 0:  # a call may have closed it
            self._set(calls[0][0] if calls else NEVER)

    def close(self) -> None:
        """Call nothing any more."""
        if self._fd < 0:
            return
        self._calls.clear()
        self._watcher.stop()
        self._watcher.close()
        os.close(self._fd)
        self._fd, self.next_ns = -1, NEVER

    def _set(self, ns: int) -> None:
        self.next_ns = ns
        spec = self._spec
        # All zero disarms it; either way the last expiry is no longer readable.
        spec[2], spec[3] = divmod(max(1, ns), 1_000_000_000) if ns < NEVER else (0, 0)
        _LIBC.timerfd_settime(self._fd, _ABSOLUTE, spec, None)
