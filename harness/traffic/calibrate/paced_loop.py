"""The paced server's loop in Python: epoll, one thread, answers made beforehand, every send at its absolute time.

What `_paced.c` does faster where the package was built with a compiler; both write the same log and are met by the same
tests. A token is stamped just before it is handed to the socket; a request's arrival is the kernel's stamp of its last
bytes, so that the time which it waits for this server to read it counts as the server's.
"""

import contextlib
import heapq
import mmap
import os
import re
import select
import signal
import socket
import struct
import time
from dataclasses import dataclass, field

from harness.traffic.calibrate.answers import LAST_CHUNK, Answers, Shape, usage_chunk
from harness.traffic.calibrate.server_log import ABORTED, BLOCKED, FRAME, HEAD

READ_BYTES = 262_144
SENDS_BETWEEN_POLLS = 16
"""A new request waits for so many sends at most before it is read."""

SPIN_S = 100e-6
"""The last stretch before a due send is spun: sleeping would wake late."""

IDLE_S = 0.05
"""How long it sleeps at most."""

TIMESTAMPNS = 35
"""`SO_TIMESTAMPNS` and `SCM_TIMESTAMPNS`: asks for the kernel's stamp of what is read, and names it."""

CONTROL_BYTES = 64
_TIMESPEC = struct.Struct("=qq")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
_ID = re.compile(rb"\r\nx-request-id: *([^\r]*)", re.I)
_CLOSE = re.compile(rb"\r\nconnection: *close", re.I)
_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": *(\d+)')
_TRUE = {name: re.compile(rb'"%s": *true' % name.encode()) for name in ("stream", "return_token_ids", "include_usage")}
_PROMPT = re.compile(rb'"prompt": *\[([^\]]*)')
_STARTED, _ENDED, _TOKENS_SENT, _BLOCKED = range(3, 7)


@dataclass(slots=True)
class _Connection:
    sock: socket.socket
    number: int
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    open: bool = True
    answering: bool = False
    closes: bool = False
    flags: int = 0
    id: bytes = b""
    asked: int = 0
    prompt_tokens: int = 0
    stamp_ns: int = 0
    usage: bool = False
    shape: Shape | None = None
    arrived_ns: int = 0
    first_due_ns: int = 0
    sends: list[int] = field(default_factory=list)


def _stamp_ns(said: list[tuple[int, int, bytes]]) -> int:
    """When the kernel got what was read, on the monotonic clock: it stamps with the wall clock. 0: not said."""
    for level, kind, value in said:
        if level == socket.SOL_SOCKET and kind == TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(value)
            waited = time.time_ns() - seconds * 1_000_000_000 - nanoseconds
            return time.monotonic_ns() - waited if 0 <= waited < 10_000_000_000 else 0
    return 0


class _Loop:
    def __init__(
        self, listener: int, log: int, counts: mmap.mmap, answers: Answers, ttft_ns: int, itl_ns: int, lockstep: bool
    ) -> None:
        self.listener = socket.socket(fileno=os.dup(listener))
        self.log, self.counts, self.answers = log, counts, answers
        self.ttft_ns, self.itl_ns, self.lockstep = ttft_ns, itl_ns, lockstep
        self.epoll = select.epoll()
        self.epoll.register(self.listener, select.EPOLLIN)
        self.connections: dict[int, _Connection] = {}
        self.made = 0
        self.due: list[tuple[int, int, _Connection]] = []
        self.numbers = list(HEAD.unpack_from(counts))
        self.stopping = False

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
        ):  # an exception of a handler could fall between a send and its log
            signal.signal(number, self.stop)
        while not self.stopping:
            more = self.send_due()
            for fd, events in self.epoll.poll(0 if more else self.wait_s()):
                if fd == self.listener.fileno():
                    self.accept()
                elif (connection := self.connections.get(fd)) is None:
                    continue
                elif events & select.EPOLLOUT:
                    self.write_rest(connection)
                else:
                    self.read(connection)
            HEAD.pack_into(self.counts, 0, *self.numbers)

    def stop(self, *_: object) -> None:
        self.stopping = True

    def wait_s(self) -> float:
        if not self.due:
            return IDLE_S
        left = (self.due[0][0] - time.monotonic_ns()) / 1e9 - SPIN_S
        return min(max(left, 0.0), IDLE_S)

    def accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            for _ in range(64):
                sock, _address = self.listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections[sock.fileno()] = _Connection(sock, self.made)
                self.made += 1
                self.epoll.register(sock, select.EPOLLIN)

    def read(self, connection: _Connection) -> None:
        try:
            data, said, _flags, _address = connection.sock.recvmsg(READ_BYTES, CONTROL_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data, said = b"", []
        if not data:
            self.close(connection)
            return
        connection.received += data
        connection.stamp_ns = _stamp_ns(said)
        self.answer_next(connection)

    def answer_next(self, connection: _Connection) -> None:
        """Answer what has been read, if it is a whole request and none is being answered."""
        while connection.open and not connection.answering and not connection.unsent and connection.received:
            end = connection.received.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            head = bytes(connection.received[:end])
            length = _LENGTH.search(head)
            whole = end + (int(length[1]) if length else 0)
            if len(connection.received) < whole:
                return
            connection.arrived_ns = connection.stamp_ns or time.monotonic_ns()
            connection.stamp_ns = 0
            body = bytes(connection.received[end:whole])
            del connection.received[:whole]
            self.answer(connection, head, body)

    def answer(self, connection: _Connection, head: bytes, body: bytes) -> None:
        connection.closes = _CLOSE.search(head) is not None
        tokens = _TOKENS.search(body)
        connection.asked = int(tokens[1]) if tokens else 0
        if not head.startswith(b"POST "):
            self.answer_whole(connection, self.answers.models)
        elif not _TRUE["stream"].search(body):
            self.answer_whole(connection, self.answers.whole)
        elif not connection.asked:
            self.answer_whole(connection, self.answers.refused)
        else:
            self.answer_stream(connection, head, body)

    def answer_whole(self, connection: _Connection, data: bytes) -> None:
        if not self.hand_over(connection, data) or (connection.closes and not connection.unsent):
            self.close(connection)

    def answer_stream(self, connection: _Connection, head: bytes, body: bytes) -> None:
        request_id, prompt = _ID.search(head), _PROMPT.search(body)
        connection.id = request_id[1][:255] if request_id else b""
        if b"/chat/completions" in head.partition(b"\r\n")[0]:
            connection.shape = self.answers.chat
        else:
            ids = _TRUE["return_token_ids"].search(body)
            connection.shape = self.answers.completion_ids if ids else self.answers.completion
        connection.usage = _TRUE["include_usage"].search(body) is not None
        connection.prompt_tokens = prompt[1].count(b",") + 1 if prompt else len(body) // 4 + 1
        connection.first_due_ns = due_ns = self.first_due_ns(connection.arrived_ns)
        connection.sends, connection.flags, connection.answering = [], 0, True
        self.numbers[_STARTED] += 1
        if due_ns > connection.arrived_ns:
            if not self.hand_over(connection, self.head(connection)):
                self.close(connection)
                return
        else:
            self.send_token(connection, self.head(connection))
            due_ns += self.itl_ns
        if connection.answering:
            heapq.heappush(self.due, (due_ns, connection.number, connection))

    def head(self, connection: _Connection) -> bytes:
        return self.answers.head_close if connection.closes else self.answers.head

    def first_due_ns(self, arrived_ns: int) -> int:
        due_ns = arrived_ns + self.ttft_ns
        if not self.lockstep or not self.itl_ns:
            return due_ns
        return due_ns + -due_ns % self.itl_ns

    def send_due(self) -> bool:
        """Send what is due, at most a few at a time; whether more is due already."""
        for _ in range(SENDS_BETWEEN_POLLS):
            if not self.due or self.due[0][0] > time.monotonic_ns():
                return False
            due_ns, number, connection = self.due[0]
            if not connection.open:
                heapq.heappop(self.due)
                continue
            if len(connection.sends) + 1 < connection.asked:
                heapq.heapreplace(self.due, (due_ns + self.itl_ns, number, connection))
            else:
                heapq.heappop(self.due)
            self.send_token(connection, b"")
            self.answer_next(connection)
        return True

    def send_token(self, connection: _Connection, before: bytes) -> None:
        """Send one token's event; with the last one all that ends the answer."""
        shape = connection.shape
        assert shape is not None
        sent = len(connection.sends)
        if not sent:
            before += shape.opening
        last = sent + 1 >= connection.asked
        if last:
            data = before + shape.final
            if connection.usage:
                data += usage_chunk(shape, connection.prompt_tokens, connection.asked)
            data += self.answers.done + LAST_CHUNK
        else:
            data = before + shape.tokens[sent % len(shape.tokens)]
        now = time.monotonic_ns()
        if not self.hand_over(connection, data):
            self.close(connection)
            return
        connection.sends.append(now)
        self.numbers[_TOKENS_SENT] += 1
        if last:
            self.write_log(connection, 0)
            if connection.closes and not connection.unsent:
                self.close(connection)

    def hand_over(self, connection: _Connection, data: bytes) -> bool:
        """Give bytes to the socket; what it won't take is kept and goes first next time. False: the client is gone."""
        taken = 0
        if not connection.unsent:
            try:
                taken = connection.sock.send(data)
            except BlockingIOError:
                pass
            except OSError:
                return False
            if taken == len(data):
                return True
            self.epoll.modify(connection.sock, select.EPOLLIN | select.EPOLLOUT)
        connection.unsent += data[taken:]
        connection.flags |= BLOCKED
        self.numbers[_BLOCKED] += 1
        return True

    def write_rest(self, connection: _Connection) -> None:
        try:
            del connection.unsent[: connection.sock.send(connection.unsent)]
        except BlockingIOError:
            return
        except OSError:
            self.close(connection)
            return
        if connection.unsent:
            return
        if connection.closes and not connection.answering:
            self.close(connection)
            return
        self.epoll.modify(connection.sock, select.EPOLLIN)
        self.answer_next(connection)

    def close(self, connection: _Connection) -> None:
        if not connection.open:
            return
        if connection.answering:
            self.write_log(connection, ABORTED)
        connection.open = False
        del self.connections[connection.sock.fileno()]
        connection.sock.close()

    def write_log(self, connection: _Connection, flags: int) -> None:
        connection.answering = False
        name = connection.id + bytes(-len(connection.id) % 8)
        sends = connection.sends
        frame = FRAME.pack(
            FRAME.size + len(name) + 8 * len(sends),
            len(connection.id),
            flags | connection.flags,
            connection.arrived_ns,
            connection.first_due_ns,
            time.monotonic_ns(),
            connection.asked,
            len(sends),
        )
        os.write(self.log, frame + name + b"".join(at.to_bytes(8, "little") for at in sends))
        self.numbers[_ENDED] += 1


def serve(
    listener: int, log: int, counts: mmap.mmap, answers: Answers, ttft_ns: int, itl_ns: int, lockstep: bool
) -> None:
    """Serve until SIGTERM or SIGINT; `listener` and `log` are descriptors."""
    _Loop(listener, log, counts, answers, ttft_ns, itl_ns, lockstep).run()
