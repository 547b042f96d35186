"""A lean HTTP/1.1 client for streamed answers: while it reads, it stores (monotonic ns, bytes) per read and no more.

h11 does the framing; what the bytes mean is found out later (`stream.py`). Plain sockets: under Locust they are
gevent's. One `Exchange` a request, whatever happens: errors are data here, never exceptions.
"""

import contextlib
import socket
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

from harness.errors import ConfigError

READ_BYTES = 65536


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
    """Posts to one server, keeping idle connections for reuse.

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
        self._idle: list[tuple[socket.socket, h11.Connection]] = []

    def post(self, path: str, body: bytes, request_id: str, timeout_s: float, exchange: Exchange) -> None:
        """Send `body` as JSON to `path` and read the answer to its end into `exchange` (filled as bytes arrive).

        `request_id` goes along as `X-Request-Id`, so that a server's log can be joined to the records.
        """
        deadline = time.monotonic() + timeout_s
        sock: socket.socket | None = None
        reusable = False
        try:
            sock, http = self._connection(deadline)
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
            reusable = http.our_state is h11.DONE and http.their_state is h11.DONE and not http.trailing_data[0]
            if reusable:
                http.start_next_cycle()
                self._idle.append((sock, http))
        except TimeoutError:
            _fail(exchange, "timeout", f"no end after {timeout_s:g} s")
        except h11.RemoteProtocolError as error:
            _fail(exchange, "malformed_http", str(error))
        except OSError as error:
            _fail(exchange, "connect" if exchange.sent_ns is None else "reset", _words(error))
        finally:
            if sock is not None and not reusable:
                sock.close()

    def _connection(self, deadline: float) -> tuple[socket.socket, h11.Connection]:
        while self._idle:
            sock, http = self._idle.pop()
            if _is_quiet(sock):
                return sock, http
            sock.close()
        sock = socket.create_connection(self._address, timeout=_left_s(deadline))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock, h11.Connection(our_role=h11.CLIENT)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop()[0].close()


def _read_answer(sock: socket.socket, http: h11.Connection, deadline: float, exchange: Exchange) -> None:
    while True:
        sock.settimeout(_left_s(deadline))
        data = sock.recv(READ_BYTES)
        now = time.monotonic_ns()
        body = b""
        ended = False
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
                    ended = True
                    break
        except h11.RemoteProtocolError as error:
            if data:
                raise
            name = "truncated_stream" if exchange.status else "reset"
            _fail(exchange, name, f"the server closed early: {error}", now)
            return
        finally:
            if body:
                exchange.reads.append((now, bytes(body)))
        if ended:
            exchange.ended_ns = now
            return


def _fail(exchange: Exchange, error: str, detail: str, ended_ns: int | None = None) -> None:
    exchange.error = error
    exchange.error_detail = detail
    exchange.ended_ns = ended_ns or time.monotonic_ns()


def _is_quiet(sock: socket.socket) -> bool:
    """Whether an idle connection is still open: one that can be read was closed, or holds what nobody asked for."""
    try:
        sock.settimeout(0)
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _left_s(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _words(error: OSError) -> str:
    return f"{type(error).__name__}: {error}"
