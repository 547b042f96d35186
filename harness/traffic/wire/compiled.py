"""The transport in C: a thread without the GIL sends, stamps and stores; Python is woken once a request.

The extension (`_receiver.c`, `_loop.c`, `_framing.c`) is built by `make setup` where there is a C compiler. It speaks
TCP and Unix sockets.
"""

import importlib
import logging
import os
import socket
import sys
import time
import weakref
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import gevent
from gevent.lock import Semaphore

from harness.traffic.wire.endpoint import Endpoint
from harness.traffic.wire.exchange import Exchange
from harness.traffic.wire.transport import DRAIN_S, FINISH_S, HEAD_BYTES, IDLE_S, SPILL_BYTES, Message

READABLE = 1
MOST_ADDRESSES = 8
STOPPED = "the client was told to stop"

_log = logging.getLogger(__name__)


@cache
def _extension() -> ModuleType | None:
    try:
        return importlib.import_module("harness.traffic.wire._receiver")
    except ImportError as error:
        _log.warning("no compiled client, using the pure-Python one: %s", error)
        return None


def built() -> bool:
    """Whether the extension is there."""
    return _extension() is not None


class CompiledTransport:
    """Connections to one endpoint, held by a thread that is started with the first request.

    Belongs to the gevent hub (and so to the Python thread) that posts first.

    Parameters
    ----------
    endpoint : Endpoint
        Where to; `http` or `http+unix`.
    keep_alive : bool
        Use connections again.
    """

    name = "compiled"

    def __init__(self, endpoint: Endpoint, keep_alive: bool = True) -> None:
        self._endpoint = endpoint
        self._asked_keep_alive = keep_alive
        self._starting = Semaphore()
        self._stopped = False
        self._receiver: Any = None
        self._hub: Any = None
        self._watcher: Any = None
        self._under_way = 0
        self._spills: dict[Any, Callable[[Exchange], None]] = {}
        self._failures: dict[Any, Exception] = {}
        """By request: what takes parts of its answer away, and how that failed."""
        _open.add(self)

    @property
    def keep_alive(self) -> bool:
        """Whether connections are used again: not after the server closed one although it had said to keep it."""
        return self._asked_keep_alive if self._receiver is None else self._receiver.keep_alive

    def post(self, message: Message, exchange: Exchange) -> None:
        """See `Transport`."""
        due_ns = message.due_ns
        timeout_ns = int(message.timeout_s * 1e9)
        deadline_ns = (time.monotonic_ns() if due_ns is None else due_ns) + timeout_ns
        if (self._receiver is None or self._stopped) and not self._start(exchange):
            return
        spill = message.spill
        request = self._receiver.submit(
            gevent.getcurrent(),
            exchange,
            message.head,
            message.body,
            due_ns or 0,
            deadline_ns,
            0 if spill is None else SPILL_BYTES,
        )
        if not self._under_way:
            self._watcher.ref = True
        self._under_way += 1
        if spill is not None:
            self._spills[request] = spill
        try:
            while not request.ended:  # whoever else switches to this greenlet doesn't end the request
                self._hub.switch()
        finally:
            if not request.ended:
                self._receiver.cancel(request)
            self._under_way -= 1
            if not self._under_way and self._watcher is not None:
                self._watcher.ref = False
            if spill is not None:
                del self._spills[request]
            failure = self._failures.pop(request, None)
        if exchange.error == "timeout":
            exchange.error_detail = f"no end after {message.timeout_s:g} s"
        if failure is not None:
            raise failure

    def abort(self) -> None:
        """See `Transport`."""
        self._stopped = True
        if self._receiver is not None:
            self._receiver.abort()

    def close(self) -> None:
        """See `Transport`."""
        self._stopped = True
        _open.discard(self)
        if self._receiver is not None and self._watcher is not None:
            self._receiver.close()
            self._watcher.stop()
            self._watcher.close()
            self._watcher = None
            if self._under_way:
                self._hub.loop.run_callback(self._deliver)

    def _start(self, exchange: Exchange) -> bool:
        """The first post's work; `exchange` ends where there is nobody to talk to."""
        with self._starting:
            if self._stopped:
                exchange.fail("aborted", STOPPED, time.monotonic_ns())
                return False
            if self._receiver is not None:
                return True
            extension = _extension()
            assert extension is not None
            try:
                addresses = _addresses(self._endpoint)
                receiver = extension.Receiver(
                    addresses,
                    keep_alive=self._asked_keep_alive,
                    idle_ns=int(IDLE_S * 1e9),
                    finish_ns=int(FINISH_S * 1e9),
                    drain_ns=int(DRAIN_S * 1e9),
                    head_bytes=HEAD_BYTES,
                )
            except OSError as error:  # the name is unknown, or there is no file descriptor left
                exchange.fail("connect", f"{type(error).__name__}: {error}", time.monotonic_ns())
                return False
            if self._stopped:  # while the name was looked up
                exchange.fail("aborted", STOPPED, time.monotonic_ns())
                return False
            self._hub = gevent.get_hub()
            self._watcher = self._hub.loop.io(receiver.fileno(), READABLE, ref=False)
            self._watcher.start(self._on_signal)
            self._receiver = receiver
            return True

    def _on_signal(self) -> None:
        self._receiver.gather()
        self._deliver()

    def _deliver(self) -> None:
        """In the hub: hand parts to who takes them, and wake those whose request has ended."""
        take = self._receiver.take
        while (request := take()) is not None:
            if not request.ended and not self._spill(request):
                continue
            try:
                request.greenlet.switch()
            except BaseException:  # as gevent's own waiters do
                self._hub.handle_error(request.greenlet.switch, *sys.exc_info())

    def _spill(self, request: Any) -> bool:
        """Hand a part over; whether that ended the request, because it failed."""
        try:
            self._spills[request](request.exchange)
        except Exception as error:  # for the one who posted
            self._failures[request] = error
            self._receiver.cancel(request)
        return bool(request.ended)

    def _forget(self) -> None:
        """In a child of fork: the thread and its connections are the parent's."""
        if self._receiver is not None:
            self._receiver.close()
            self._watcher.stop()
        self._receiver = self._watcher = self._hub = None
        self._under_way = 0
        self._spills, self._failures = {}, {}


def _addresses(endpoint: Endpoint) -> list[tuple[int, bytes, bytes]]:
    if endpoint.scheme == "http+unix":
        return [(socket.AF_UNIX, os.fsencode(endpoint.host), b"")]
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    numeric = [(int(family), str(address[0]).encode(), str(address[1]).encode()) for family, _, _, _, address in found]
    return list(dict.fromkeys(numeric))[:MOST_ADDRESSES]


_open: "weakref.WeakSet[CompiledTransport]" = weakref.WeakSet()


def _forget_all() -> None:
    for transport in list(_open):
        transport._forget()


os.register_at_fork(after_in_child=_forget_all)
