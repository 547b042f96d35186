"""What the client leaves behind: raw bytes and arrival times, streamed to disk by each client process as they come.

`stream-<worker>.bin` is append-only, one write a frame: what a killed client leaves can be read up to its last whole
frame. A frame is `<u32 length><u8 kind>` and a body of that length, little-endian:

    HELLO   JSON: worker, pid, boot_id, clock, and what the client says of itself; the first frame
    PART    ordinal, sent_ns, previous, reads, and their times, sizes and bytes: of an answer that goes on
    END     ordinal, scheduled_ns, sent_ns, ended_ns, previous, reused, resends, error, detail, reads … of a request
    CLIENT  JSON: the client's own figures and a second clock, at its end

`previous` is the position of the same request's last PART (0: there is none), so a reader finds an answer's parts
without holding an index of them. A time that there is not is -1. `ordinal` counts all requests in schedule order.

`inflight-<worker>.bin` is a memory map, 16 bytes a request: `scheduled_ns` (-1: none) and `started_ns`
(0: not started). Two stores to memory, which outlive a killed process, tell what it had under way.
"""

import json
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.clock import boot_id, clock
from harness.files import storage_error
from harness.traffic.wire.exchange import Exchange

HELLO, PART, END, CLIENT = range(1, 5)

_FRAME = struct.Struct("<IB")
_PART = struct.Struct("<IqqI")
_END = struct.Struct("<IqqqqBHHHI")
_INFLIGHT = struct.Struct("<qq")
_DETAIL_BYTES = 4096


class Spool:
    """Writer of one client process.

    Parameters
    ----------
    folder : Path
        The cell's folder.
    worker : int
        Number of this process, 0 where there is only one.
    requests : int
        Requests in the whole schedule, those of other processes included.
    hello : dict
        What the client says of itself (JSON), e.g. its transport.

    Raises
    ------
    StorageError
        When there is no room. Once made, a frame that can't be written is an `OSError`, the caller's to act on.
    """

    def __init__(self, folder: Path, worker: int, requests: int, hello: dict[str, Any]) -> None:
        path = inflight_path(folder, worker)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                size = max(requests, 1) * _INFLIGHT.size
                os.posix_fallocate(fd, 0, size)  # a full disk shows now, not as a SIGBUS later
                self._inflight = mmap.mmap(fd, size)
            finally:
                os.close(fd)
            path = stream_path(folder, worker)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
            self._at = 0
            self._last_part: dict[int, int] = {}
            own = {"worker": worker, "pid": os.getpid(), "boot_id": boot_id(), "clock": clock()}
            self._write(HELLO, [json.dumps({**hello, **own}).encode()])
        except OSError as error:
            raise storage_error(path, error) from error

    def start(self, ordinal: int, scheduled_ns: int | None, started_ns: int) -> None:
        """A request is about to be sent."""
        at = ordinal * _INFLIGHT.size
        _INFLIGHT.pack_into(self._inflight, at, -1 if scheduled_ns is None else scheduled_ns, started_ns)

    def part(self, ordinal: int, exchange: Exchange) -> None:
        """What came of an answer so far; takes it out of the exchange."""
        sent_ns = -1 if exchange.sent_ns is None else exchange.sent_ns
        at = self._at
        head = _PART.pack(ordinal, sent_ns, self._last_part.get(ordinal, 0), len(exchange.read_ns))
        self._write(PART, [head, exchange.read_ns, exchange.read_bytes, exchange.raw])
        self._last_part[ordinal] = at
        # Emptied, not replaced: the transport goes on filling the same objects.
        del exchange.read_ns[:], exchange.read_bytes[:], exchange.raw[:]

    def end(self, ordinal: int, scheduled_ns: int | None, exchange: Exchange) -> None:
        """A request ended, one way or another."""
        error = (exchange.error or "").encode()
        detail = (exchange.error_detail or "").encode(errors="replace")[:_DETAIL_BYTES]
        head = _END.pack(
            ordinal,
            -1 if scheduled_ns is None else scheduled_ns,
            -1 if exchange.sent_ns is None else exchange.sent_ns,
            exchange.ended_ns,
            self._last_part.pop(ordinal, 0),
            exchange.reused,
            exchange.resends,
            len(error),
            len(detail),
            len(exchange.read_ns),
        )
        self._write(END, [head, error, detail, exchange.read_ns, exchange.read_bytes, exchange.raw])

    def client(self, facts: dict[str, Any]) -> None:
        """The client's own figures, at its end."""
        self._write(CLIENT, [json.dumps({**facts, "clock": clock()}).encode()])

    def close(self) -> None:
        """Close both files."""
        self._inflight.close()
        os.close(self._fd)

    def _write(self, kind: int, pieces: list[Any]) -> None:
        length = sum(memoryview(piece).nbytes for piece in pieces)
        frame = [_FRAME.pack(length, kind), *pieces]
        written = os.writev(self._fd, frame)
        self._at += _FRAME.size + length
        if written < _FRAME.size + length:  # interrupted, or a disk that fills up: the next write says so
            rest = memoryview(b"".join(bytes(piece) for piece in frame))[written:]
            while rest:
                rest = rest[os.write(self._fd, rest) :]


def stream_path(folder: Path, worker: int) -> Path:
    """Frames of one client process."""
    return folder / f"stream-{worker}.bin"


def inflight_path(folder: Path, worker: int) -> Path:
    """Started requests of one client process."""
    return folder / f"inflight-{worker}.bin"


def remove_spool(folder: Path) -> None:
    """Remove what an earlier replay left in a cell's folder."""
    for pattern in ("stream-*.bin", "inflight-*.bin"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def count_ended(path: Path, done: int = 0, at: int = 0) -> tuple[int, int]:
    """Ended requests in a stream file and the position after its last whole frame, going on from an earlier count.

    Parameters
    ----------
    path : Path
        A `stream-<worker>.bin`; may not be there yet.
    done, at : int
        What the call before returned.
    """
    for kind, _, end in _frames(path, at):
        done += kind == END
        at = end
    return done, at


def count_started(folder: Path) -> int:
    """Requests that the client processes of a cell have begun to send."""
    times = [np.fromfile(path, np.int64) for path in folder.glob("inflight-*.bin")]
    return sum(int((one[1::2] > 0).sum()) for one in times)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is known of one request; all times are those of its process's own clock.

    Attributes
    ----------
    worker : int
        The client process that had it.
    scheduled_ns : int or None
        When it was due.
    started_ns : int
        When it was handed over to be sent.
    exchange : Exchange
        What came back. Where the process died with the request under way: what it had written of it until then, with
        error `client_lost` and no end.
    """

    worker: int
    scheduled_ns: int | None
    started_ns: int
    exchange: Exchange


@dataclass(frozen=True)
class Worker:
    """One client process.

    Attributes
    ----------
    number : int
        As in the names of its files.
    hello, client : dict
        What it said at its start and at its end; empty where it didn't come to it.
    """

    number: int
    hello: dict[str, Any]
    client: dict[str, Any]


class SpoolReader:
    """What all client processes of a cell left, by request; holds an index of it, never the bytes themselves.

    Parameters
    ----------
    folder : Path
        The cell's folder.
    requests : int
        Requests in the whole schedule.
    """

    def __init__(self, folder: Path, requests: int) -> None:
        self.workers: list[Worker] = []
        self._files: dict[int, int] = {}
        self._inflight: dict[int, npt.NDArray[np.int64]] = {}
        self._worker = np.full(requests, -1, np.int32)
        self._frame = np.zeros(requests, np.int64)
        """Position of a request's END, or of its last PART where there is none."""
        for path in sorted(folder.glob("stream-*.bin")):
            self._index(int(path.stem.rpartition("-")[2]), path)
        for number, path in sorted((int(p.stem.rpartition("-")[2]), p) for p in folder.glob("inflight-*.bin")):
            times = np.fromfile(path, np.int64, count=path.stat().st_size // _INFLIGHT.size * 2).reshape(-1, 2)
            self._inflight[number] = times[:requests]
            started = np.flatnonzero(self._inflight[number][:, 1])
            self._worker[started[self._worker[started] < 0]] = number

    def read(self, ordinal: int) -> Recorded | None:
        """What is known of a request; None: it was never started."""
        number = int(self._worker[ordinal])
        if number < 0:
            return None
        scheduled_ns, started_ns = -1, 0
        if number in self._inflight and ordinal < len(self._inflight[number]):
            scheduled_ns, started_ns = self._inflight[number][ordinal].tolist()
        exchange = Exchange(error="client_lost")
        at = int(self._frame[ordinal])
        parts: list[tuple[memoryview, int]] = []
        if at:
            kind, body = self._body(number, at)
            if kind == END:
                scheduled_ns, at, skip = _read_end(body, exchange)
                parts.append(skip)
        while at:
            _, body = self._body(number, at)
            _, sent_ns, at, reads = _PART.unpack_from(body)
            exchange.sent_ns = exchange.sent_ns if sent_ns < 0 else sent_ns
            parts.append((body[_PART.size :], reads))
        for rest, reads in reversed(parts):
            exchange.read_ns.frombytes(rest[: 8 * reads])
            exchange.read_bytes.frombytes(rest[8 * reads : 12 * reads])
            exchange.raw += rest[12 * reads :]
        return Recorded(number, None if scheduled_ns < 0 else scheduled_ns, started_ns, exchange)

    def close(self) -> None:
        """Close the files."""
        for fd in self._files.values():
            os.close(fd)

    def _index(self, number: int, path: Path) -> None:
        hello: dict[str, Any] = {}
        client: dict[str, Any] = {}
        self._files[number] = fd = os.open(path, os.O_RDONLY)
        for kind, at, end in _frames(path, 0):
            if kind in (PART, END):
                ordinal = int.from_bytes(os.pread(fd, 4, at + _FRAME.size), "little")
                if ordinal < len(self._frame):
                    self._frame[ordinal], self._worker[ordinal] = at, number
            else:
                facts = json.loads(os.pread(fd, end - at - _FRAME.size, at + _FRAME.size))
                hello, client = (facts, client) if kind == HELLO else (hello, facts)
        self.workers.append(Worker(number, hello, client))

    def _body(self, number: int, at: int) -> tuple[int, memoryview]:
        length, kind = _FRAME.unpack(os.pread(self._files[number], _FRAME.size, at))
        return kind, memoryview(os.pread(self._files[number], length, at + _FRAME.size))


def _read_end(body: memoryview, exchange: Exchange) -> tuple[int, int, tuple[memoryview, int]]:
    """Fill an exchange from an END frame: its due time, the position of its last PART, and its own reads."""
    _, scheduled_ns, sent_ns, ended_ns, previous, reused, resends, error, detail, reads = _END.unpack_from(body)
    at = _END.size
    exchange.sent_ns = None if sent_ns < 0 else sent_ns
    exchange.ended_ns = ended_ns
    exchange.reused, exchange.resends = bool(reused), resends
    exchange.error = str(body[at : at + error], "utf-8") or None
    exchange.error_detail = str(body[at + error : at + error + detail], "utf-8", "replace") or None
    return scheduled_ns, previous, (body[at + error + detail :], reads)


def _frames(path: Path, at: int) -> Iterator[tuple[int, int, int]]:
    """Kind, position and end of the whole frames from a position on."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        size = os.fstat(fd).st_size
        while at + _FRAME.size <= size:
            length, kind = _FRAME.unpack(os.pread(fd, _FRAME.size, at))
            end = at + _FRAME.size + length
            if end > size:
                return
            yield kind, at, end
            at = end
    finally:
        os.close(fd)
