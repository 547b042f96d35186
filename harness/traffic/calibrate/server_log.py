"""The paced server's log: when each request came, and when each of its tokens was really sent.

One page of counts, kept up to date while the server runs, then one frame a request, written when it ends. Numbers are
little-endian; times are monotonic nanoseconds of this host.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.errors import DamagedFile

MAGIC = b"KVPACED1"
PAGE = 4096
HEAD = struct.Struct("<8s6Q")
"""Magic, port, ITL, requests started, requests ended, tokens sent, sends that the socket didn't take at once."""

FRAME = struct.Struct("<IHHQQQII")
"""Size of the whole frame, size of the request's id, flags, arrival, first token due, end, tokens asked and sent; then
the id, zeros up to a multiple of 8, and a u64 a token."""

ABORTED, BLOCKED = 1, 2


@dataclass(frozen=True)
class Counts:
    """What a running server has done so far."""

    port: int
    itl_ns: int
    started: int
    ended: int
    tokens: int
    blocked: int


@dataclass(frozen=True)
class ServerLog:
    """Every request that ended, in the order of their ends.

    Attributes
    ----------
    itl_ns : int
        Time between two tokens that the server was told to keep.
    ids : list of str
        `X-Request-Id` as received.
    flags : array
        Sum of `ABORTED` (the client hung up) and `BLOCKED` (the client didn't read fast enough for the socket).
    arrived_ns, first_due_ns, ended_ns : array
        When the host had the whole request, when its first token was to be sent, when its last one had been.
    asked, sent : array
        Tokens.
    sent_ns : array
        All tokens' send times, one request after the other.
    starts : array
        Where each request's begin in `sent_ns`; one more than requests.
    """

    itl_ns: int
    ids: list[str]
    flags: NDArray[np.int64]
    arrived_ns: NDArray[np.int64]
    first_due_ns: NDArray[np.int64]
    ended_ns: NDArray[np.int64]
    asked: NDArray[np.int64]
    sent: NDArray[np.int64]
    sent_ns: NDArray[np.int64]
    starts: NDArray[np.int64]

    def lateness_ns(self) -> NDArray[np.int64]:
        """How much later than it was due each token was sent: the server's own fault."""
        position = np.arange(len(self.sent_ns)) - np.repeat(self.starts[:-1], self.sent)
        result: NDArray[np.int64] = self.sent_ns - np.repeat(self.first_due_ns, self.sent) - position * self.itl_ns
        return result


def create(path: Path, port: int, itl_ns: int) -> tuple[int, mmap.mmap]:
    """Make a log; its descriptor, at the first frame's place, and its counts."""
    with open(path, "w+b") as file:
        file.write(HEAD.pack(MAGIC, port, itl_ns, 0, 0, 0, 0).ljust(PAGE, b"\0"))
        file.flush()
        counts = mmap.mmap(file.fileno(), PAGE)
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), counts


def read_counts(path: Path) -> Counts | None:
    """What a running server has done so far; None before it has begun."""
    try:
        with open(path, "rb") as file:
            data = file.read(HEAD.size)
    except OSError:
        return None
    if len(data) < HEAD.size:
        return None
    magic, *numbers = HEAD.unpack(data)
    return Counts(*numbers) if magic == MAGIC else None


def read_log(path: Path) -> ServerLog:
    """Read a log; the last frame may be cut."""
    data = path.read_bytes()
    counts = read_counts(path)
    if counts is None:
        raise DamagedFile(f"{path} is no log of the paced server")
    ids, rows, sends = [], [], []
    at = PAGE
    while at + FRAME.size <= len(data):
        size, id_size, *row = FRAME.unpack_from(data, at)
        if size != FRAME.size + -(-id_size // 8) * 8 + 8 * row[5]:
            raise DamagedFile(f"{path} is damaged at byte {at}")
        if at + size > len(data):
            break
        ids.append(data[at + FRAME.size : at + FRAME.size + id_size].decode("latin-1"))
        rows.append(row)
        sends.append(np.frombuffer(data, dtype="<i8", count=row[5], offset=at + size - 8 * row[5]))
        at += size
    flags, arrived_ns, first_due_ns, ended_ns, asked, sent = np.array(rows, dtype=np.int64).reshape(len(rows), 6).T
    starts = np.concatenate([[0], np.cumsum(sent)]).astype(np.int64)
    sent_ns = np.concatenate(sends).astype(np.int64) if sends else np.zeros(0, dtype=np.int64)
    return ServerLog(counts.itl_ns, ids, flags, arrived_ns, first_due_ns, ended_ns, asked, sent, sent_ns, starts)
