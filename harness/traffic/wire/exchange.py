"""One request and all that came back. Errors are data here, never exceptions."""

from array import array
from dataclasses import dataclass, field

TRANSPORT_ERRORS = {
    "connect": "no connection: refused, unreachable, name unknown, or no local port or file descriptor left",
    "tls": "the TLS handshake failed (the certificate included), or an encrypted record could not be read",
    "timeout": "the answer had not ended when the request's time was over",
    "reset": "the connection was reset",
    "eof": "the server closed the connection before its message was complete",
    "malformed_http": "what came is not an HTTP/1.1 answer",
    "aborted": "the client was told to stop",
}
"""How a transport can end a request, and what each name means."""


def _times() -> "array[int]":
    return array("q")


def _sizes() -> "array[int]":
    return array("I")


@dataclass(slots=True)
class Exchange:
    """One request and all that came back, undecoded.

    Attributes
    ----------
    sent_ns : int or None
        When its first byte was handed to the socket of an open connection (monotonic clock); None: there was none.
    ended_ns : int
        When its end, error or timeout was seen. The end is the read that completed the HTTP message or brought
        `data: [DONE]`, whichever came first.
    read_ns : array of int64
        Arrival of each read.
    read_bytes : array of uint32
        Size of each read.
    raw : bytearray
        Everything received: status line, headers, chunk framing, body, trailers. Over TLS: the plain text.
    error : str or None
        A name of `TRANSPORT_ERRORS`; None: the HTTP message is complete, or `[DONE]` was seen.
    error_detail : str or None
        In words.
    reused : bool
        The connection had served another request before.
    resends : int
        Sent again on a fresh connection, because a kept one was found closed before any byte of the answer.
    """

    sent_ns: int | None = None
    ended_ns: int = 0
    read_ns: "array[int]" = field(default_factory=_times)
    read_bytes: "array[int]" = field(default_factory=_sizes)
    raw: bytearray = field(default_factory=bytearray)
    error: str | None = None
    error_detail: str | None = None
    reused: bool = False
    resends: int = 0

    def fail(self, error: str, detail: str, ended_ns: int) -> None:
        """End it with an error."""
        self.error = error
        self.error_detail = detail
        self.ended_ns = ended_ns
