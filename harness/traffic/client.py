"""A lean HTTP/1.1 client for streamed answers: while it reads, it stores (monotonic ns, bytes) per read and no more.

h11 does the framing; what the bytes mean is found out later (`stream.py`). Plain sockets: under Locust they are
gevent's. One `Exchange` a request, whatever happens: errors are data here, never exceptions.

One connection a request: engines close kept ones without saying so (llama.cpp after every stream, although it announces
keep-alive; uvicorn after 5 idle seconds), and a request that meets such a close looks like the server's failure. The
connection stands before `sent_ns` is taken.
"""

import contextlib
import re
import socket
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

from harness.errors import ConfigError

READ_BYTES = 65536

LAST_EVENT = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")
"""What ends an answer, even where the server then keeps the connection open. In a text, its line feed is escaped."""

TAIL_BYTES = 16
"""Bytes of the last read that are looked at again: the mark may be split."""

DRAIN_S = 1.0
"""How long a server may take to finish its HTTP message after `[DONE]`."""


@dataclass
class Exchange:
    """One request and what came back.

    Attributes
    ----------
    sent_ns : int or None
        When the request's first byte was handed to the socket; None when there was no connection.
    ended_ns : int
        When its end, error or timeout was seen.
    status : int or None
        HTTP status.
    headers : dict
        `content-type` and `content-encoding` of the answer, where given.
    reads : list of (int, bytes)
        Arrival time and body bytes (chunk framing removed) of each read that brought some.
    error : str or None
        `connect`, `timeout`, `reset`, `truncated_stream`, `malformed_http` or `aborted`; None: it came whole.
    error_detail : str or None
        In words.
    """

    sent_ns: int | None = None
    ended_ns: int = 0
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    error: str | None = None
    error_detail: str | None = None


class Client:
    """Posts to one server.

    Parameters
    ----------
    base_url : str
        `http://host:port`, with a path before `/v1` where the server has one.

    Raises
    ------
    ConfigError
        When the address isn't one that this client speaks.
    """

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        if parts.scheme != "http" or not parts.hostname:
            raise ConfigError(f"base_url: '{base_url}' is not of the form http://host:port")
        self._address = (parts.hostname, parts.port or 80)
        self._host_header = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/")

    def post(self, path: str, body: bytes, request_id: str, timeout_s: float, exchange: Exchange) -> None:
        """Send `body` as JSON to `path` and read the answer to its end into `exchange` (filled as bytes arrive).

        `request_id` goes along as `X-Request-Id`, so that a server's log can be joined to the records.
        """
        deadline = time.monotonic() + timeout_s
        sock: socket.socket | None = None
        try:
            sock = socket.create_connection(self._address, timeout=_left_s(deadline))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            http = h11.Connection(our_role=h11.CLIENT)
            head = http.send(
                h11.Request(
                    method="POST",
                    target=self._path + path,
                    headers=[
                        ("Host", self._host_header),
                        ("Content-Type", "application/json"),
                        ("Content-Length", str(len(body))),
                        ("Accept", "text/event-stream"),
                        ("Accept-Encoding", "identity"),
                        ("X-Request-Id", request_id),
                        ("Connection", "close"),
                    ],
                )
            )
            message = (head or b"") + (http.send(h11.Data(data=body)) or b"")
            http.send(h11.EndOfMessage())
            sock.settimeout(_left_s(deadline))
            exchange.sent_ns = time.monotonic_ns()
            # A server may answer (429, 413) and close before it has read the whole body: its answer is still read.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(message)
            _read_answer(sock, http, deadline, exchange)
        except TimeoutError:
            _fail(exchange, "timeout", f"no end after {timeout_s:g} s")
        except h11.RemoteProtocolError as error:
            _fail(exchange, "malformed_http", str(error))
        except OSError as error:
            _fail(exchange, "connect" if exchange.sent_ns is None else "reset", _words(error))
        finally:
            if sock is not None:
                sock.close()


def _read_answer(sock: socket.socket, http: h11.Connection, deadline: float, exchange: Exchange) -> None:
    tail = b""
    while not exchange.ended_ns:
        sock.settimeout(_left_s(deadline))
        data = sock.recv(READ_BYTES)
        now = time.monotonic_ns()
        body = b""
        try:
            http.receive_data(data)
            while (event := http.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
                if isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.Response):
                    exchange.status = event.status_code
                    wanted = (b"content-type", b"content-encoding")
                    exchange.headers = {k.decode(): v.decode("latin-1") for k, v in event.headers if k in wanted}
                elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    exchange.ended_ns = now
                    return
        except h11.RemoteProtocolError:
            if data:
                raise
            if exchange.status is None:
                _fail(exchange, "reset", "the server closed the connection without an answer", now)
            else:
                _fail(exchange, "truncated_stream", "the server closed the connection in the middle of its answer", now)
            return
        finally:
            if body:
                exchange.reads.append((now, bytes(body)))
        tail = (tail + body)[-len(body) - TAIL_BYTES :]
        if b"[DONE]" in tail and LAST_EVENT.search(tail):
            exchange.ended_ns = now
            _drain(sock, http, min(deadline, time.monotonic() + DRAIN_S))
        tail = tail[-TAIL_BYTES:]


def _drain(sock: socket.socket, http: h11.Connection, deadline: float) -> None:
    """Let the server finish its message after `[DONE]`; what it does then is no part of the answer."""
    with contextlib.suppress(OSError, h11.RemoteProtocolError):
        while http.their_state is h11.SEND_BODY:
            sock.settimeout(_left_s(deadline))
            http.receive_data(sock.recv(READ_BYTES))
            while http.their_state is h11.SEND_BODY and http.next_event() is not h11.NEED_DATA:
                pass


def _fail(exchange: Exchange, error: str, detail: str, ended_ns: int | None = None) -> None:
    exchange.error = error
    exchange.error_detail = detail
    exchange.ended_ns = ended_ns or time.monotonic_ns()


def _left_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _words(error: OSError) -> str:
    return f"{type(error).__name__}: {error}"
