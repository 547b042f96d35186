"""What a transport is: one blocking call that sends a message at its time and fills an exchange as bytes arrive."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from harness.errors import ConfigError
from harness.traffic.wire.endpoint import Endpoint
from harness.traffic.wire.exchange import Exchange

SPILL_BYTES = 64 * 1024
"""An exchange that holds more than this is spilled, where a message says how."""

IDLE_S = 2.0
"""A kept connection that was idle for longer is not used again: uvicorn closes them after 5 s."""

FINISH_S = 0.01
"""How long `post` waits after `[DONE]` for the HTTP message to be complete, so that the connection can be kept."""

DRAIN_S = 1.0
"""How long after `[DONE]` a connection whose message isn't complete stays open, in the background."""

HEAD_BYTES = 64 * 1024
"""An answer's head (or trailers) longer than this is malformed."""


@dataclass(frozen=True, slots=True)
class Message:
    """What to send.

    Attributes
    ----------
    head : bytes
        Request line and headers, complete (`Endpoint.head`). May hold an API key: not in `repr`.
    body : tuple of bytes
        Pieces, sent in order.
    due_ns : int or None
        When to send it (absolute, monotonic clock); None: now.
    timeout_s : float
        From `due_ns` (from the call, where that is None) to the end of the answer.
    spill : callable or None
        Called with the exchange whenever it holds more than `SPILL_BYTES`; takes away and clears its reads and raw
        bytes.
    """

    head: bytes = field(repr=False)
    body: tuple[bytes, ...]
    due_ns: int | None
    timeout_s: float
    spill: Callable[[Exchange], None] | None = None


class Transport(Protocol):
    """Connections to one endpoint.

    Kept connections: one whose answer was complete and announced no close serves another request, after at most
    `IDLE_S` of idleness. One that turns out to be closed by the server before any byte of an answer came is replaced
    and the request is sent again (`Exchange.resends`), and from then on every request gets a connection of its own:
    llama.cpp announces keep-alive and closes after every stream.

    The end: the answer's HTTP message is complete, or `data: [DONE]` at the start of a line was read. `post` returns
    when the message is complete, at most `FINISH_S` after `[DONE]`.
    """

    @property
    def name(self) -> str:
        """`pure` or `compiled`."""
        ...

    def post(self, message: Message, exchange: Exchange) -> None:
        """Send and read the answer to its end; blocks the calling greenlet only. Fills `exchange` as bytes arrive."""
        ...

    def abort(self) -> None:
        """End everything under way with `aborted`; later posts end so at once."""
        ...

    def close(self) -> None:
        """Close every connection; what is still under way ends as aborted."""
        ...


Kind = Literal["auto", "pure", "compiled"]


def open_transport(endpoint: Endpoint, kind: Kind = "auto", keep_alive: bool = True) -> Transport:
    """The transport for an endpoint: `compiled` where the extension was built and speaks the scheme, else `pure`.

    Raises
    ------
    ConfigError
        When `compiled` is asked for and can't be had, or the endpoint's CA file can't be read.
    """
    if kind != "pure" and endpoint.scheme != "https":
        from harness.traffic.wire import compiled

        if compiled.built():
            return compiled.CompiledTransport(endpoint, keep_alive)
    if kind == "compiled":
        why = "it speaks no https" if endpoint.scheme == "https" else "its extension was not built: run `make setup`"
        raise ConfigError(f"transport: compiled is not to be had ({why}); pure and auto are")
    from harness.traffic.wire.pure import PureTransport

    return PureTransport(endpoint, keep_alive)
