"""Any whole answer, and any way to cut it."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import strategies as st

names = st.text("abcXYZ09!#$%&'*+-.^_`|~", min_size=1, max_size=12)
values = st.text([chr(code) for code in (*range(0x21, 0x7F), *range(0x80, 0x100), 0x20, 0x09)], max_size=30)
bodies = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=40),
        st.sampled_from([b"\r\n", b"0\r\n\r\n", b"\r\n\r\n", b"data: [DONE]\n\n", "data: ö€😀\n\n".encode()]),
    ),
    max_size=6,
)
FRAMED = ("content-length", "transfer-encoding", "connection")


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, str]]]:
    """A whole answer, and its headers."""
    chunks = draw(bodies)
    body = b"".join(chunks)
    status = draw(st.sampled_from([200, 200, 200, 204, 304, 400, 429, 500, 599]))
    headers = [(name, value.strip(" \t")) for name, value in draw(st.lists(st.tuples(names, values), max_size=5))]
    headers = [(name, value) for name, value in headers if name.lower() not in FRAMED]
    bodiless = status in (204, 304)
    framing = draw(st.sampled_from(["none"] if bodiless else ["chunked", "chunked", "length", "close"]))
    if framing == "chunked":
        headers.append((draw(st.sampled_from(["Transfer-Encoding", "transfer-encoding"])), "chunked"))
    elif framing == "length":
        headers.append(("Content-Length", str(len(body))))
    interim = draw(
        st.lists(st.sampled_from([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 \r\nLink: x\r\n\r\n"]), max_size=2)
    )
    fold = draw(st.booleans())
    lines = [b"HTTP/1.1 %d OK" % status]
    for name, value in headers:
        said = value.encode("latin-1")
        if fold and " " in value and name.lower() not in FRAMED:
            said = said.replace(b" ", b"\r\n ", 1)
        lines.append(name.encode() + draw(st.sampled_from([b":", b": ", b":\t "])) + said)
    raw = b"".join(interim) + b"\r\n".join([*lines, b"", b""])
    if framing == "chunked":
        for chunk in chunks:
            extension = draw(st.sampled_from([b"", b"", b";a=b", b';q="x;y"']))
            size = b"%x" % len(chunk)
            raw += draw(st.sampled_from([size, size.upper(), b"00" + size])) + extension + b"\r\n" + chunk + b"\r\n"
        raw += draw(st.sampled_from([b"0\r\n\r\n", b"000\r\n\r\n", b"0\r\nX-Trailer: y\r\nZ:\r\n\r\n"]))
    elif not bodiless:
        raw += body
    return raw, headers


def pieces(raw: bytes, cuts: Sequence[int]) -> list[bytes]:
    borders = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[a:b] for a, b in pairwise(borders)]
