"""An HTTP answer out of its raw bytes, after the measurement: status, headers, body, and where each body byte lay."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.traffic.wire.ending import Ending, Malformed


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """An answer, or as much of it as came.

    Attributes
    ----------
    status : int or None
        None: no complete head came.
    headers : dict
        Names in lower case.
    body : bytes
        Without chunk framing.
    complete : bool
        It is whole. One whose body ends with the connection always counts as that: the bytes can't tell.
    error : str or None
        Why it is no HTTP/1.1 answer; what came before that is kept.
    chunk_raw_starts : sequence of int
        Where each part of the body starts in the raw bytes.
    chunk_body_ends : sequence of int
        Where each part ends in `body`.
    """

    status: int | None
    headers: dict[str, str]
    body: bytes
    complete: bool
    error: str | None
    chunk_raw_starts: Sequence[int]
    chunk_body_ends: Sequence[int]

    def body_to_raw(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Raw positions of the bytes at `offsets` of the body (each < len(body))."""
        ends = np.asarray(self.chunk_body_ends, dtype=np.int64)
        part = np.searchsorted(ends, offsets, side="right")
        begins = np.concatenate((np.zeros(1, np.int64), ends))
        starts = np.asarray(self.chunk_raw_starts, dtype=np.int64)
        positions: NDArray[np.int64] = starts[part] + (offsets - begins[part])
        return positions


def read_message(raw: bytes | bytearray) -> HttpMessage:
    """The answer that `raw` is, or the beginning of. Never raises."""
    ending, error = Ending(), None
    try:
        ending.feed(raw)
    except Malformed as malformed:
        error = str(malformed)
    parts, ends, length = [], [], 0
    for start, size in zip(ending.starts, ending.sizes, strict=True):
        part = raw[start : start + size]
        length += len(part)
        parts.append(part)
        ends.append(length)
    return HttpMessage(
        status=ending.head.status if ending.head else None,
        headers=ending.head.headers if ending.head else {},
        body=b"".join(parts),
        complete=ending.complete or ending.until_close,
        error=error,
        chunk_raw_starts=ending.starts,
        chunk_body_ends=ends,
    )
