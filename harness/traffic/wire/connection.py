"""One connection and the request that it carries, driven by callbacks out of gevent's hub."""

import _socket
import re
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gevent.hub import Waiter

from harness.traffic.wire.agenda import NEVER
from harness.traffic.wire.dialer import READ_BYTES, READABLE, WRITABLE, words
from harness.traffic.wire.ending import Ending, Malformed
from harness.traffic.wire.exchange import Exchange
from harness.traffic.wire.tls import Tls
from harness.traffic.wire.transport import DRAIN_S, FINISH_S, IDLE_S, SPILL_BYTES, Message

if TYPE_CHECKING:
    from harness.traffic.wire.pure import PureTransport

PIECES = 512
"""Pieces of a request handed over at once; Linux takes up to 1,024."""

BURST_BYTES = 1024 * 1024
"""After so much of a long request the others have their turn, even if the socket would take more."""

LAST_EVENT = re.compile(rb"[\r\n]data: ?\[DONE\]")
"""What ends an answer, even where the server then keeps the connection open. In a text, its line feed is escaped."""

DONE = b"[DONE]"
LAST_CHUNK = b"\r\n0"
"""How the last chunk starts, and hardly anything else."""
END = b"\r\n0\r\n\r\n"

MARK_BYTES = 16
"""No mark is longer."""

FINISH_NS, DRAIN_NS, IDLE_NS = int(FINISH_S * 1e9), int(DRAIN_S * 1e9), int(IDLE_S * 1e9)

SMALL = 64
"""Reads of fewer bytes may be chunks into which a mark was cut; events are longer."""

CHUNK_HEAD = re.compile(rb"\r\n[0-9a-fA-F]+(?:[ \t;][^\r\n]*)?\r\n")
PIECEMEAL_BYTES = 256
"""What a mark takes whose every byte is a chunk, and more: looked at again, for one that is split over reads."""

_NO_MESSAGE, _NO_EXCHANGE = Message(b"", (), None, 0.0), Exchange()
"""What an idle connection holds: nothing, so that an answer's bytes live no longer than its exchange."""

_clock = time.monotonic_ns


class Connection:
    """One connection.

    Each read goes to `_consume`: one of the methods `_in_…`, which say where in its life the connection is.

    Attributes
    ----------
    deadline_ns : int
        When its request must have ended.
    idle_since_ns : int
        When its last request ended.
    """

    __slots__ = (
        "_agenda", "_consume", "_ending", "_exchange", "_failed_send", "_fed", "_message", "_note_size",
        "_note_time", "_owner", "_raw", "_reader", "_receive", "_requests", "_sock", "_tail", "_tls", "_unsent",
        "_waiter", "_writer", "deadline_ns", "idle_since_ns",
    )  # fmt: skip

    def __init__(self, owner: "PureTransport", sock: _socket.socket, tls: Tls | None) -> None:
        self._owner = owner
        self._agenda = owner.agenda
        self._sock = sock
        self._tls = tls
        self._receive = sock.recv
        self._requests = 0
        self._exchange: Exchange | None = None
        self._unsent: list[bytes | memoryview] = []
        self._failed_send: OSError | None = None
        self._consume: Callable[[bytes, int], None] = self._in_idle
        self._writer: Any = None
        self.deadline_ns = NEVER
        self.idle_since_ns = 0
        loop: Any = owner.hub.loop
        # Watched as long as it is open: an idle connection's end is seen, and a request costs no system call for it.
        self._reader = loop.io(sock.fileno(), READABLE)
        self._reader.start(self._on_readable if tls is None else self._on_encrypted)

    def carry(self, message: Message, exchange: Exchange, due_ns: int, deadline_ns: int) -> bool:
        """Send at `due_ns` and wait for the end; False: the server had closed this kept connection."""
        self._message, self._exchange, self.deadline_ns = message, exchange, deadline_ns
        self._hold(exchange)
        self._ending, self._fed, self._tail = Ending(), 0, b""
        exchange.reused = self._requests > 0
        self._requests += 1
        self._owner.watch(deadline_ns)
        waiter = self._waiter = Waiter(self._owner.hub)
        if due_ns > _clock():
            self._agenda.at(due_ns, partial(self._send, exchange))
        else:
            self._send(exchange)
        try:
            carried: bool = waiter.get()
        finally:
            if self._exchange is exchange:  # the greenlet was killed
                self.fail("aborted", "the client was told to stop")
        return carried

    def fail(self, error: str, detail: str) -> None:
        """End the request, if there is one, with an error; its answer is not complete, so the connection goes."""
        if self._exchange is not None and not self._exchange.ended_ns:
            self._exchange.fail(error, detail, _clock())
        self.close()
        self._release(True)

    def expire(self) -> None:
        """The request's time is over."""
        if self._understood() and not self._ended(_clock()):
            self.fail("timeout", f"no end after {self._message.timeout_s:g} s")

    def close(self) -> None:
        """Close the socket."""
        if self._reader is None:
            return
        self._owner.forget(self)
        for watcher in (self._reader, self._writer):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        self._reader = self._writer = None
        self._consume = _ignore
        self._unsent.clear()
        self._sock.close()

    # Sending.

    def _send(self, exchange: Exchange) -> None:
        if self._exchange is not exchange or self._reader is None:
            return
        pieces: Sequence[bytes] = (self._message.head, *self._message.body)
        if self._tls is None and exchange.reused and self._has_unread():
            # It was closed, or sent more than the answer before: neither is this request's.
            self.close()
            self._release(False)
            return
        if self._tls is not None:
            self._tls.encrypt(pieces)
            pieces = [self._tls.encrypted()]
        self._consume = self._in_head
        exchange.sent_ns = _clock()
        self._write(pieces)

    def _has_unread(self) -> bool:
        try:
            self._sock.recv(1, _socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _write(self, pieces: Sequence[bytes]) -> None:
        self._unsent.extend(pieces)
        self._on_writable()

    def _on_writable(self) -> None:
        unsent, burst = self._unsent, 0
        try:
            while unsent and burst < BURST_BYTES:
                sent = self._sock.sendmsg(unsent[:PIECES])
                burst += sent
                whole = 0
                while whole < len(unsent) and sent >= len(unsent[whole]):
                    sent -= len(unsent[whole])
                    whole += 1
                del unsent[:whole]
                if sent:
                    unsent[0] = memoryview(unsent[0])[sent:]
        except BlockingIOError:
            pass
        except OSError as error:
            # A server may answer (429, 413) and close before it has read the whole request: its answer is still read.
            self._failed_send = error
            unsent.clear()
        if unsent and self._writer is None:
            self._writer = self._owner.hub.loop.io(self._sock.fileno(), WRITABLE)
            self._writer.start(self._on_writable)
        elif not unsent and self._writer is not None:
            self._writer.stop()
            self._writer.close()
            self._writer = None

    # Receiving.

    def _on_readable(self) -> None:
        try:
            data = self._receive(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._closed(error)
            return
        now = _clock()
        if data:
            self._consume(data, now)
        else:
            self._closed(None)
        if now >= self._agenda.next_ns:
            self._agenda.run()

    def _on_encrypted(self) -> None:
        tls = self._tls
        assert tls is not None
        try:
            encrypted = self._receive(READ_BYTES)
            for data in tls.decrypt(encrypted) if encrypted else (b"",):
                if data:
                    self._consume(data, _clock())
                else:
                    self._closed(None)
            if answer := tls.encrypted():  # its own messages, like a change of keys
                self._write([answer])
        except BlockingIOError:
            return
        except ssl.SSLError as error:
            self.fail("tls", words(error))
        except OSError as error:
            self._closed(error)

    def _in_idle(self, data: bytes, now: int) -> None:
        """No request was sent: this can only be the server's farewell."""
        self._closed(None)

    def _in_head(self, data: bytes, now: int) -> None:
        self._store(data, now)
        if not self._understood():
            return
        if self._ending.head is not None:
            self._consume = self._in_chunks if self._ending.chunked else self._in_body
            self._look(len(data), now)

    def _in_chunks(self, data: bytes, now: int) -> None:
        """The hot path: nothing is looked through, unless the last bytes may be the end."""
        size = len(data)
        self._note_time(now)
        self._note_size(size)
        raw = self._raw
        raw += data
        at = -size - MARK_BYTES
        if size < SMALL or raw.rfind(LAST_CHUNK, at) >= 0 or raw.find(DONE, at) >= 0:  # rfind: 0.2 µs, find 0.7
            self._look(size, now)
        if len(raw) > SPILL_BYTES:
            self._spill()

    def _in_body(self, data: bytes, now: int) -> None:
        """Everything is looked through: a body that isn't chunked, trailers, the first bytes after a spill."""
        self._store(data, now)
        if not self._understood():
            return
        self._look(len(data), now)
        if len(self._raw) > SPILL_BYTES:
            self._spill()
        elif self._exchange is not None and len(self._raw) > PIECEMEAL_BYTES:
            self._tail = b""
            if self._ending.chunked and not self._ending.in_trailers:
                self._consume = self._in_chunks

    def _in_drain(self, data: bytes, now: int) -> None:
        """The request has ended with `[DONE]`; its message goes on."""
        try:
            if self._ending.feed(data):
                self._keep()
        except Malformed:
            self.close()

    # What a read means.

    def _hold(self, exchange: Exchange) -> None:
        self._raw = exchange.raw
        self._note_time = exchange.read_ns.append
        self._note_size = exchange.read_bytes.append

    def _store(self, data: bytes, now: int) -> None:
        self._note_time(now)
        self._note_size(len(data))
        self._raw += data

    def _understood(self) -> bool:
        """Look through what was not looked through yet; False: it is no HTTP, and the request has failed of it."""
        raw, fed = self._raw, self._fed
        if fed < len(raw):
            self._fed = len(raw)
            try:
                self._ending.feed(raw[fed:] if fed else raw)
            except Malformed as error:
                self.fail("malformed_http", str(error))
                return False
        return True

    def _look(self, size: int, now: int) -> None:
        """The last `size` bytes may be the end."""
        exchange, raw, ending = self._exchange, self._raw, self._ending
        assert exchange is not None
        done = False
        if not exchange.ended_ns:
            seen = (self._tail + raw if self._tail else raw)[-size - PIECEMEAL_BYTES :]
            # A chunk's border is no line's: a text may say the same at the start of a chunk.
            done = LAST_EVENT.search(CHUNK_HEAD.sub(b"", seen) if ending.chunked else seen) is not None
            if done:
                exchange.ended_ns = now
        if ending.chunked:
            if exchange.ended_ns and raw.endswith(END):
                # After the last event this can be nothing else: no need to walk through all the chunks.
                self._finish(now)
                return
            if raw.rfind(LAST_CHUNK, -size - MARK_BYTES) >= 0:
                if not self._understood():
                    return
                if ending.in_trailers:
                    self._consume = self._in_body
        if ending.complete or (ending.until_close and exchange.ended_ns):
            self._finish(now)
        elif done:
            self._agenda.at(now + FINISH_NS, partial(self._finish_late, exchange))

    def _finish(self, now: int) -> None:
        """The answer is whole."""
        exchange = self._exchange
        assert exchange is not None
        exchange.ended_ns = exchange.ended_ns or now
        self._keep()
        self._release(True)

    def _finish_late(self, exchange: Exchange) -> None:
        """`[DONE]` was a while ago and the message isn't complete: the request ends, the connection may still do so."""
        if self._exchange is exchange and self._understood():
            self._consume = self._in_drain
            self._release(True)
            self._agenda.at(_clock() + DRAIN_NS, partial(self._end_drain, self._requests))

    def _end_drain(self, requests: int) -> None:
        if self._requests == requests and self._consume == self._in_drain:
            self.close()

    def _keep(self) -> None:
        head, ending = self._ending.head, self._ending
        if (
            self._owner.keep_alive and head is not None and head.keeps and not ending.excess
            and not self._unsent and self._failed_send is None
        ):  # fmt: skip
            self._consume = self._in_idle
            self.idle_since_ns = _clock()
            self._owner.keep(self)
        else:
            self.close()

    def _release(self, carried: bool) -> None:
        """Switch to the greenlet, once everything that has arrived is read."""
        if self._exchange is not None:
            self._let_go()
            self._owner.hub.loop.run_callback(self._waiter.switch, carried)

    def _let_go(self) -> None:
        self._exchange, self._message, self.deadline_ns = None, _NO_MESSAGE, NEVER
        self._hold(_NO_EXCHANGE)

    def _closed(self, error: OSError | None) -> None:
        """The server has closed or reset the connection."""
        exchange, now = self._exchange, _clock()
        if exchange is None:
            if self._consume == self._in_idle and now - self.idle_since_ns < IDLE_NS:
                self._owner.stop_keeping()
            self.close()
        elif exchange.reused and not exchange.read_ns and not self._ending.fed:
            self._owner.stop_keeping()
            exchange.resends += exchange.sent_ns is not None
            exchange.sent_ns = None
            self.close()
            self._release(False)
        elif self._understood() and not self._ended(now, by_close=error is None):
            error = error or (self._failed_send if not self._ending.fed else None)
            if error is not None:
                self.fail("reset", words(error))
            elif exchange.sent_ns is None:
                self.fail("eof", "the server closed the connection before the request was sent")
            else:
                where = "in the middle of its answer" if self._ending.fed else "without an answer"
                self.fail("eof", f"the server closed the connection {where}")

    def _ended(self, now: int, by_close: bool = False) -> bool:
        """Whether the answer had ended before the connection did, or with it."""
        exchange, ending = self._exchange, self._ending
        assert exchange is not None
        if not (exchange.ended_ns or ending.complete or (by_close and ending.until_close)):
            return False
        exchange.ended_ns = exchange.ended_ns or now
        self.close()
        self._release(True)
        return True

    def _spill(self) -> None:
        """Have what was received taken away."""
        exchange = self._exchange
        if exchange is None or self._message.spill is None or not self._understood():
            return
        self._tail = bytes(self._raw[-PIECEMEAL_BYTES:])
        try:
            self._message.spill(exchange)
        except Exception as error:  # a full disk is for the one who posted, not for the hub
            self._let_go()
            self.close()
            self._owner.hub.loop.run_callback(self._waiter.throw, error)
            return
        self._hold(exchange)
        self._fed = len(self._raw)
        self._consume = self._in_body


def _ignore(data: bytes, now: int) -> None:
    """The connection is closed. No method of it, so that nothing holds it any more."""
