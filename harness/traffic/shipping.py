"""Brings the record of a worker on another machine into the cell's folder while it is measured.

The worker writes the same spool as everybody, on its own disk, and sends what was added to it about once a second. Each
piece names its position and is sent again until the master has confirmed it: nothing is lost or doubled.
"""

import os
import struct
from pathlib import Path
from typing import Any

from harness.files import storage_error
from harness.traffic.spool import inflight_path, stream_path

PIECE_BYTES = 1 << 20
"""Most bytes in a message."""

_START = struct.Struct("<qqq")


class Outbox:
    """The worker's side.

    Parameters
    ----------
    folder : Path
        Where the worker's spool lies.
    worker : int
        Its number.
    """

    def __init__(self, folder: Path, worker: int) -> None:
        self._fd = os.open(stream_path(folder, worker), os.O_RDONLY)
        self._at = 0
        self._starts = bytearray()
        self._number = 0

    def start(self, ordinal: int, scheduled_ns: int | None, started_ns: int) -> None:
        """A request starts (as `Spool.start`)."""
        self._starts += _START.pack(ordinal, -1 if scheduled_ns is None else scheduled_ns, started_ns)

    def next(self) -> dict[str, Any] | None:
        """What to send next; None: all is there. The same again until it is `confirm`ed."""
        starts = bytes(self._starts[: PIECE_BYTES // _START.size * _START.size])
        data = os.pread(self._fd, PIECE_BYTES, self._at)
        if not starts and not data:
            return None
        return {"number": self._number, "starts": starts, "data": data, "at": self._at}

    def confirm(self, piece: dict[str, Any]) -> None:
        """The master has it."""
        del self._starts[: len(piece["starts"])]
        self._number += 1
        self._at += len(piece["data"])

    def close(self) -> None:
        """Close the spool's file."""
        os.close(self._fd)


class Inbox:
    """The master's side: one worker's spool in the cell's folder.

    Parameters
    ----------
    folder : Path
        The cell's folder.
    worker : int
        The worker's number.
    requests : int
        Requests in the whole schedule.

    Raises
    ------
    StorageError
        When there is no room.
    """

    def __init__(self, folder: Path, worker: int, requests: int) -> None:
        self._paths = inflight_path(folder, worker), stream_path(folder, worker)
        path = self._paths[0]
        try:
            self._inflight = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            os.posix_fallocate(self._inflight, 0, 16 * max(requests, 1))
            path = self._paths[1]
            self._stream = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise storage_error(path, error) from error

    def take(self, piece: dict[str, Any]) -> None:
        """Write what came; a piece that comes twice changes nothing."""
        path = self._paths[0]
        try:
            for ordinal, scheduled_ns, started_ns in _START.iter_unpack(piece["starts"]):
                os.pwrite(self._inflight, struct.pack("<qq", scheduled_ns, started_ns), 16 * ordinal)
            path, data, at = self._paths[1], memoryview(piece["data"]), piece["at"]
            while data:
                written = os.pwrite(self._stream, data, at)
                data, at = data[written:], at + written
        except OSError as error:
            raise storage_error(path, error) from error

    def close(self) -> None:
        """Close both files."""
        os.close(self._inflight)
        os.close(self._stream)
