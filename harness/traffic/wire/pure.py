"""The transport in Python: each socket has a callback in gevent's hub, which does next to nothing per read.

A read is received, stamped, stored, and its last bytes are looked at; the posting greenlet is switched to once, at the
end, after the hub has received everything that is there. Requests are sent out of the hub too, at their time.
"""

import time
from collections import deque
from typing import Any

import gevent

from harness.traffic.wire.agenda import NEVER, Agenda
from harness.traffic.wire.connection import Connection
from harness.traffic.wire.dialer import Dialer, DialError
from harness.traffic.wire.endpoint import Endpoint
from harness.traffic.wire.exchange import Exchange
from harness.traffic.wire.transport import IDLE_S, Message

IDLE_NS = int(IDLE_S * 1e9)

LEAD_NS = 250_000_000
"""How long before its time a request gets its connection."""


class PureTransport:
    """Connections to one endpoint, under gevent.

    Parameters
    ----------
    endpoint : Endpoint
        Where to.
    keep_alive : bool
        Use connections again.

    Raises
    ------
    ConfigError
        When the endpoint's CA file can't be read.
    """

    name = "pure"

    def __init__(self, endpoint: Endpoint, keep_alive: bool = True) -> None:
        self.keep_alive = keep_alive
        self.hub: Any = None  # that of the first post, which may be another process's
        self._dialer = Dialer(endpoint)
        self._connections: set[Connection] = set()
        self._kept: deque[Connection] = deque()
        """Idle ones; the one that is so for longest first."""
        self._dialing: set[Any] = set()
        """Greenlets whose request has no connection yet."""
        self._next_sweep_ns = NEVER
        self._stopped = False

    def post(self, message: Message, exchange: Exchange) -> None:
        """See `Transport`."""
        if self.hub is None and not self._stopped:
            self.hub = gevent.get_hub()
            self.agenda = Agenda(self.hub.loop)
        now = time.monotonic_ns()
        due_ns = now if message.due_ns is None else message.due_ns
        deadline_ns = due_ns + int(message.timeout_s * 1e9)
        try:
            while True:
                connection = self._connection(due_ns - LEAD_NS, deadline_ns)
                if connection.carry(message, exchange, due_ns, deadline_ns):
                    return
        except _Stopped:
            exchange.fail("aborted", "the client was told to stop", time.monotonic_ns())
        except DialError as error:
            exchange.fail(error.name, str(error), time.monotonic_ns())

    def abort(self) -> None:
        """See `Transport`."""
        self._stopped = True
        if self._dialing:
            self.hub.loop.run_callback(self._stop_dialing)
        for connection in list(self._connections):
            connection.fail("aborted", "the client was told to stop")

    def close(self) -> None:
        """See `Transport`."""
        self.abort()
        if self.hub is not None:
            self.agenda.close()

    def _connection(self, not_before_ns: int, deadline_ns: int) -> Connection:
        """A kept connection, or a new one."""
        greenlet = gevent.getcurrent()
        self._dialing.add(greenlet)
        try:
            if (early_ns := not_before_ns - time.monotonic_ns()) > 0:
                gevent.sleep(early_ns / 1e9)
            if self._stopped:
                raise _Stopped
            self._close_old()
            if self._kept:
                return self._kept.pop()
            sock, tls = self._dialer.dial(deadline_ns)
        finally:
            self._dialing.discard(greenlet)
        connection = Connection(self, sock, tls)
        self._connections.add(connection)
        return connection

    def _stop_dialing(self) -> None:
        for greenlet in list(self._dialing):
            greenlet.throw(_Stopped)

    # For connections.

    def watch(self, deadline_ns: int) -> None:
        """A connection has a request that must end before `deadline_ns`."""
        if deadline_ns < self._next_sweep_ns:
            self._next_sweep_ns = deadline_ns
            self.agenda.at(deadline_ns, self._sweep)

    def keep(self, connection: Connection) -> None:
        """It can be used again."""
        self._close_old()
        self._kept.append(connection)

    def forget(self, connection: Connection) -> None:
        """It is closed."""
        self._connections.discard(connection)
        if connection in self._kept:
            self._kept.remove(connection)

    def stop_keeping(self) -> None:
        """The endpoint closes connections that it said it would keep: from now on, none is used twice."""
        self.keep_alive = False
        while self._kept:
            self._kept.pop().close()

    def _close_old(self) -> None:
        oldest_ns = time.monotonic_ns() - IDLE_NS
        while self._kept and self._kept[0].idle_since_ns < oldest_ns:
            self._kept.popleft().close()

    def _sweep(self) -> None:
        """End what is over its time. Seldom: when the earliest of the deadlines that there were is reached."""
        now = time.monotonic_ns()
        for connection in [each for each in self._connections if each.deadline_ns <= now]:
            connection.expire()
        self._next_sweep_ns = NEVER
        self.watch(min((each.deadline_ns for each in self._connections), default=NEVER))


class _Stopped(BaseException):
    """Thrown into greenlets that have no connection yet."""
