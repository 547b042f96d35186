"""Opens connections: addresses, non-blocking connects, TLS handshakes. Blocks the calling greenlet only."""

import _socket
import errno
import os
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any

import gevent
import gevent.socket
from gevent.lock import Semaphore

from harness.traffic.wire.endpoint import Endpoint
from harness.traffic.wire.tls import Tls, tls_context

READ_BYTES = 64 * 1024
UNIX_RETRY_S = 0.002
"""A Unix socket whose queue is full says so at once, where TCP waits."""

READABLE, WRITABLE = 1, 2


class DialError(Exception):
    """No connection; `name` is the error of the exchange."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(detail)
        self.name = name


@dataclass(frozen=True, slots=True)
class _Address:
    family: int
    address: Any


class Dialer:
    """Opens connections to one endpoint.

    The sockets are the interpreter's own: gevent's would go through its hub at each read.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._context = tls_context(endpoint) if endpoint.scheme == "https" else None
        self._addresses: list[_Address] = []
        self._resolving = Semaphore()

    def dial(self, deadline_ns: int) -> tuple[_socket.socket, Tls | None]:
        """An open connection.

        Raises
        ------
        DialError
            With the name `connect`, `tls` or `timeout`.
        """
        sock = self._connect(deadline_ns)
        if self._context is None:
            return sock, None
        try:
            return sock, self._handshake(sock, self._context, deadline_ns)
        except BaseException:
            sock.close()
            raise

    def _connect(self, deadline_ns: int) -> _socket.socket:
        error = DialError("connect", f"{self._endpoint.host} has no address")
        for address in self._resolved(deadline_ns):
            try:
                sock = _connected(address, deadline_ns)
            except OSError as failure:
                error = DialError("connect", words(failure))
                continue
            if address is not self._addresses[0]:  # the one that answers is asked first from now on
                self._addresses = [address, *(other for other in self._addresses if other is not address)]
            return sock
        raise error

    def _resolved(self, deadline_ns: int) -> list[_Address]:
        if not self._addresses:
            if self._endpoint.scheme == "http+unix":
                self._addresses = [_Address(socket.AF_UNIX, self._endpoint.host)]
            else:
                try:
                    with _limit(deadline_ns), self._resolving:
                        self._addresses = self._addresses or self._resolve()
                except OSError as error:
                    raise DialError("connect", words(error)) from error
        return self._addresses

    def _resolve(self) -> list[_Address]:
        where = (self._endpoint.host, self._endpoint.port)
        try:  # digits need no thread to wait for an answer
            found = _socket.getaddrinfo(*where, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except OSError:
            found = gevent.socket.getaddrinfo(*where, type=socket.SOCK_STREAM)
        return [_Address(family, address) for family, _, _, _, address in found]

    def _handshake(self, sock: _socket.socket, context: ssl.SSLContext, deadline_ns: int) -> Tls:
        tls = Tls(context, self._endpoint.host)
        data = b""
        try:
            while not tls.handshake(data):
                _send(sock, tls.encrypted(), deadline_ns)
                _wait(sock, READABLE, deadline_ns)
                data = sock.recv(READ_BYTES)
                if not data:
                    raise DialError("tls", "the server closed the connection during the handshake")
            _send(sock, tls.encrypted(), deadline_ns)
        except OSError as error:  # an SSLError is one
            raise DialError("tls", words(error)) from error
        return tls


def words(error: OSError) -> str:
    """An error of the system or of TLS in words."""
    return f"{type(error).__name__}: {error}"


def _connected(address: _Address, deadline_ns: int) -> _socket.socket:
    sock = _socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if address.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(address.address)
        while code == errno.EAGAIN:
            with _limit(deadline_ns):
                gevent.sleep(UNIX_RETRY_S)
            code = sock.connect_ex(address.address)
        if code == errno.EINPROGRESS:
            _wait(sock, WRITABLE, deadline_ns)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock


def _send(sock: _socket.socket, data: bytes, deadline_ns: int) -> None:
    while data:
        try:
            data = data[sock.send(data) :]
        except BlockingIOError:
            _wait(sock, WRITABLE, deadline_ns)


def _wait(sock: _socket.socket, events: int, deadline_ns: int) -> None:
    hub: Any = gevent.get_hub()
    watcher = hub.loop.io(sock.fileno(), events)
    try:
        with _limit(deadline_ns):
            hub.wait(watcher)
    finally:
        watcher.close()


def _limit(deadline_ns: int) -> Any:
    left_s = max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)
    return gevent.Timeout(left_s, DialError("timeout", "no connection within the request's time"))
