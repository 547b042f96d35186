"""Where an HTTP/1.1 answer ends (RFC 9112): fed with what was read, in any pieces and as late as one likes."""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from harness.traffic.wire.transport import HEAD_BYTES

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_TEXT = rb"[\t\x20-\x7e\x80-\xff]*"
_VALUE = rb"%b(?:\r?\n[ \t]%b)*" % (_TEXT, _TEXT)  # a folded line starts with a blank

START = b"HTTP/1."
STATUS_LINE = re.compile(rb"HTTP/1\.([0-9]) ([1-9][0-9][0-9])(?: %b)?\r?\n" % _TEXT)
FIELD = re.compile(rb"(%b):(%b)\r?\n" % (_TOKEN, _VALUE))
FIELDS = re.compile(rb"(?:%b:%b\r?\n)*\r?\n" % (_TOKEN, _VALUE))
FOLD = re.compile(rb"[ \t]*\r?\n[ \t]+")
EMPTY_LINE = re.compile(rb"\n\r?\n")
CHUNK = re.compile(rb"\r?\n([0-9a-fA-F]{1,16})[ \t]*(?:;%b)?\r\n" % _TEXT)
"""The end of the line before (the head's or a chunk's), then size and extensions."""
PART_OF_CHUNK = re.compile(rb"\r?|\r?\n(?:[0-9a-fA-F]{1,16}(?:[ \t]*(?:;%b)?\r?)?)?" % _TEXT)

NEVER = 1 << 62


class Malformed(Exception):
    """What came is not an HTTP/1.1 answer; the text says where."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers.

    Attributes
    ----------
    status : int
        Its three digits.
    headers : dict
        Names in lower case; the values of a repeated name are joined by a comma.
    chunked : bool
        The body comes in chunks.
    length : int or None
        Size of a body that isn't chunked; None: it ends with the connection.
    keeps : bool
        The server doesn't announce to close the connection.
    """

    status: int
    headers: dict[str, str]
    chunked: bool
    length: int | None
    keeps: bool


@lru_cache(maxsize=256)
def parse_head(head: bytes) -> Head:
    """The head out of its bytes, the empty line included. Cached: a server's heads are mostly the same.

    Raises
    ------
    Malformed
        When it is none.
    """
    line = STATUS_LINE.match(head)
    if line is None:
        raise Malformed(f"status line {_quoted(head.splitlines()[0] if head else head)}")
    if (fields := FIELDS.match(head, line.end())) is None or fields.end() != len(head):
        raise Malformed(f"headers {_quoted(head[line.end() :], 120)}")
    headers: dict[str, str] = {}
    for raw_name, raw_value in FIELD.findall(head, line.end()):
        name, value = raw_name.decode().lower(), FOLD.sub(b" ", raw_value).decode("latin-1").strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    status = int(line[2])
    if status == 101:
        raise Malformed("status 101: the server changes to a protocol that was not asked for")
    coding = headers.get("transfer-encoding", "chunked").lower()
    if coding != "chunked":
        raise Malformed(f"transfer-encoding {_quoted(coding.encode('latin-1'))}: only chunked is allowed")
    chunked = "transfer-encoding" in headers
    options = [option.strip() for option in headers.get("connection", "").lower().split(",")]
    length = None if chunked else _content_length(headers)
    if status in (204, 304) or status < 200:
        chunked, length = False, 0
    keeps = line[1] != b"0" and "close" not in options and (chunked or length is not None)
    return Head(status, headers, chunked, length, keeps)


def _content_length(headers: dict[str, str]) -> int | None:
    if "content-length" not in headers:
        return None
    values = {value.strip(" \t") for value in headers["content-length"].split(",")}
    if len(values) > 1 or not re.fullmatch(r"[0-9]{1,18}", value := values.pop()):
        raise Malformed(f"content-length {headers['content-length']!r}")
    return int(value)


@dataclass(slots=True)
class Ending:
    """Follows one answer through its bytes; says when it is complete and where its body lies.

    Attributes
    ----------
    head : Head or None
        The answer's, once it is there; interim ones (1xx) are passed over.
    complete : bool
        All of the answer was fed. A body that ends with the connection never is.
    fed : int
        Bytes fed so far.
    starts, sizes : list of int
        Where each part of the body starts in the raw bytes, and how long it is, or will be.
    in_trailers : bool
        The last chunk was fed.
    """

    head: Head | None = None
    complete: bool = False
    fed: int = 0
    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    in_trailers: bool = False
    _at: int = 0
    """Raw position of what must be understood next; beyond `fed` within a body."""
    _held: bytearray = field(default_factory=bytearray)
    """Raw bytes from `_at` to `fed`."""

    @property
    def excess(self) -> bool:
        """Something came after the end."""
        return self.complete and self.fed > self._at

    @property
    def chunked(self) -> bool:
        """The body comes in chunks."""
        return self.head is not None and self.head.chunked

    @property
    def until_close(self) -> bool:
        """The body ends with the connection."""
        return self._at == NEVER

    def feed(self, data: bytes | bytearray | memoryview) -> bool:
        """Go on with `data`; returns `complete`.

        Raises
        ------
        Malformed
            When this can't be an answer.
        """
        self.fed += len(data)
        if self._at >= self.fed:
            self.complete = self._at == self.fed and self.head is not None and not self.head.chunked
            return self.complete
        held = self._held
        # Of data that begins within a body part, only what lies behind that part is of interest.
        held += data[self._at - self.fed :] if not held else data
        start = self.fed - len(held)
        while not self.complete and self._at < self.fed:
            if self.head is None:
                going_on = self._read_head(held, start)
            elif self.in_trailers:
                going_on = self._read_trailers(held, start)
            elif self.head.chunked:
                going_on = self._read_chunks(held, start)
            else:
                self.complete, going_on = True, False  # bytes behind a body of known length
            if not going_on:
                break
        del held[: max(0, self._at - start)]
        if len(held) > HEAD_BYTES and not self.complete:
            raise Malformed(f"more than {HEAD_BYTES} bytes without an end to the headers")
        return self.complete

    def _read_head(self, held: bytearray, start: int) -> bool:
        at = self._at - start
        if held[at : at + len(START)] != START[: len(held) - at]:
            raise Malformed(f"the answer starts with {_quoted(held[at:])}")
        found = EMPTY_LINE.search(held, at)
        if found is None:
            return False
        head = parse_head(bytes(held[at : found.end()]))
        end = start + found.end()
        if head.status < 200:
            self._at = end
            return True
        self.head = head
        if head.chunked:
            # The line end before the first chunk's size.
            self._at = end - (2 if held[found.end() - 2 : found.end()] == b"\r\n" else 1)
            return True
        self.starts.append(end)
        self.sizes.append(NEVER - end if head.length is None else head.length)
        self._at = NEVER if head.length is None else end + head.length
        self.complete = self._at <= self.fed
        return False

    def _read_chunks(self, held: bytearray, start: int) -> bool:
        match, add_start, add_size = CHUNK.match, self.starts.append, self.sizes.append
        at, end = self._at - start, len(held)
        while at < end:
            found = match(held, at)
            if found is None:
                if not PART_OF_CHUNK.fullmatch(held, at):
                    raise Malformed(f"chunk size {_quoted(held[at:])}")
                break
            body, size = found.end(), int(found[1], 16)
            if size == 0:
                self._at, self.in_trailers = start + body - 2, True
                return True
            add_start(start + body)
            add_size(size)
            at = body + size
        self._at = start + at
        return False

    def _read_trailers(self, held: bytearray, start: int) -> bool:
        at = self._at - start
        found = EMPTY_LINE.search(held, at)
        if found is None:
            return False
        if (fields := FIELDS.match(held, at + 2)) is None or fields.end() != found.end():
            raise Malformed(f"trailers {_quoted(held[at + 2 :], 120)}")
        self._at = start + found.end()
        self.complete = True
        return False


def _quoted(data: bytes | bytearray, length: int = 40) -> str:
    return repr(bytes(data[:length]))[1:] + ("…" if len(data) > length else "")
