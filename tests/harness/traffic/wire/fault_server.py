"""A completions server that behaves as it is told, byte by byte: `python fault_server.py ADDRESS LOG [CERT KEY]`.

ADDRESS is a TCP port of 127.0.0.1 (0: any) or the path of a Unix socket; the port is printed. With CERT and KEY it
speaks TLS.

The first part of a request's path names the behaviour (`/slow/v1/completions`), or several, taken in turn by the
requests (`/short,reset/v1/completions`); none (`/v1/…`) is a healthy engine. A behaviour is a generator: it yields
bytes to send (each is one packet), seconds to wait, or what to do with the connection. `cut@N` and `reset@N` send the
first N bytes of the healthy answer and then close or reset; `cut-…@N` those of another behaviour.

Every request leaves a line in LOG. A process of its own, so that its truth shares nothing with the client but
CLOCK_MONOTONIC.
"""

import itertools
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

LOCK = threading.Lock()
REQUESTS = itertools.count()
CONNECTIONS = itertools.count()


class Act(Enum):
    CLOSE = "close the connection"
    RESET = "reset it"
    HALF_CLOSE = "send no more, but go on reading"


Step = bytes | float | Act


@dataclass
class Request:
    """What was asked, and the log's line about it."""

    body: dict[str, Any]
    entry: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return int(self.body.get("max_tokens", 4))

    @property
    def chat(self) -> bool:
        return "messages" in self.body

    def sent(self, data: bytes) -> bytes:
        """`data`, with the present as the time at which it was sent."""
        self.entry["sent_ns"].append(time.monotonic_ns())
        return data


Behaviour = Callable[[Request], Iterator[Step]]
BEHAVIOURS: dict[str, Behaviour] = {}


def behaviour(function: Behaviour) -> Behaviour:
    BEHAVIOURS[function.__name__.replace("_", "-")] = function
    return function


# What an answer is made of.


def head(
    status: str = "200 OK", kind: str | None = "text/event-stream", *more: str, framing: int | str | None = "chunked"
) -> bytes:
    lines = [f"HTTP/1.1 {status}"]
    if kind is not None:
        lines.append(f"Content-Type: {kind}")
    if framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
    elif framing is not None:
        lines.append(f"Content-Length: {framing}")
    return "\r\n".join([*lines, *more, "", ""]).encode("latin-1")


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


END = chunk(b"")


def event(payload: dict[str, Any] | str) -> bytes:
    text = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def choice(request: Request, text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    said = {"delta": {"content": text}} if request.chat else {"text": text}
    return {"choices": [{"index": 0, **said, "finish_reason": finish, **more}]}


def usage(request: Request, tokens: int) -> bytes:
    prompt = len(request.body.get("prompt", ()))
    figures = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    return event({"choices": [], "usage": {**figures, "prompt_tokens_details": {"cached_tokens": 7}}})


def events(
    request: Request, *, tokens: int | None = None, ids: bool = True, finish: bool = True, done: bool = True,
    word: str = " w{}",
) -> list[bytes]:  # fmt: skip
    """The events of a healthy answer: one token each, then usage, then `[DONE]`."""
    count = request.tokens if tokens is None else tokens
    words = [word.replace("{}", str(i)) for i in range(count)]
    out = []
    for i, text in enumerate(words):
        last = finish and i == count - 1
        out.append(
            event(choice(request, text, "length" if last else None, **({"token_ids": [100 + i]} if ids else {})))
        )
    request.entry["text"] = "".join(words)
    return [*out, usage(request, count), *([event("[DONE]")] if done else [])]


def streamed(request: Request, parts: Iterable[bytes], gap_s: float = 0.003) -> Iterator[Step]:
    """Each part in a chunk, with its time in the log."""
    for i, part in enumerate(parts):
        if i:
            yield gap_s
        yield request.sent(chunk(part))


def answer(request: Request, parts: Iterable[bytes], gap_s: float = 0.003) -> Iterator[Step]:
    yield head()
    yield from streamed(request, parts, gap_s)
    yield END


# Healthy, in every form.


@behaviour
def v1(request: Request) -> Iterator[Step]:
    yield from answer(request, events(request))


@behaviour
def at_once(request: Request) -> Iterator[Step]:
    yield head() + b"".join(chunk(request.sent(part)) for part in events(request)) + END


@behaviour
def text_only(request: Request) -> Iterator[Step]:
    yield from answer(request, events(request, ids=False))


@behaviour
def slow(request: Request) -> Iterator[Step]:
    yield from answer(request, events(request), 0.25)


@behaviour
def packed(request: Request) -> Iterator[Step]:
    """Two tokens an event, without ids."""
    pairs = [event(choice(request, f" a{i} b{i}")) for i in range(0, request.tokens, 2)]
    yield from answer(
        request, [*pairs, event(choice(request, "", "length")), usage(request, request.tokens), event("[DONE]")]
    )


@behaviour
def buffered(request: Request) -> Iterator[Step]:
    """A proxy that holds everything back."""
    yield head()
    yield 0.02
    yield request.sent(chunk(b"".join(events(request))))
    yield END


@behaviour
def carriage_returns(request: Request) -> Iterator[Step]:
    yield from answer(request, [part.replace(b"\n", b"\r") for part in events(request)])


@behaviour
def crlf(request: Request) -> Iterator[Step]:
    yield from answer(request, [part.replace(b"\n", b"\r\n") for part in events(request)])


@behaviour
def pings(request: Request) -> Iterator[Step]:
    yield head()
    for part in events(request):
        yield chunk(b": ping\r\n\r\n")
        yield request.sent(chunk(b"id: 7\r\nevent: message\r\nretry: 10\r\n" + part.replace(b"\n\n", b"\r\n\r\n")))
        yield 0.002
    yield END


@behaviour
def tight(request: Request) -> Iterator[Step]:
    """No space after `data:`."""
    yield from answer(request, [part.replace(b"data: ", b"data:") for part in events(request)])


@behaviour
def split(request: Request) -> Iterator[Step]:
    """Every few bytes in a chunk of their own, characters of several bytes among them."""
    stream = b"".join(events(request, word=" wört€😀{}"))
    yield head()
    for at in range(0, len(stream), 7):
        yield request.sent(chunk(stream[at : at + 7]))
    yield END


@behaviour
def drip(request: Request) -> Iterator[Step]:
    """Every byte in a packet of its own, the head's too."""
    whole = head() + b"".join(map(chunk, events(request, tokens=2, word=" ö€😀{}"))) + END
    for at in range(len(whole)):
        yield whole[at : at + 1]
        yield 0.0002


@behaviour
def processing(request: Request) -> Iterator[Step]:
    """Interim answers first, trailers last."""
    yield b"HTTP/1.1 100 Continue\r\n\r\n"
    yield b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n"
    yield head()
    yield from streamed(request, events(request))
    yield b"0\r\nX-Trailer: yes\r\nX-Other: no\r\n\r\n"


@behaviour
def late_trailers(request: Request) -> Iterator[Step]:
    yield head("200 OK", "text/event-stream", "Trailer: X-Trailer")
    yield from streamed(request, events(request))
    yield b"0\r\nX-Tra"
    yield 0.001
    yield b"iler: yes\r\n\r"
    yield 0.001
    yield b"\n"


@behaviour
def long_trailers(request: Request) -> Iterator[Step]:
    """Packet by packet, without `[DONE]`."""
    yield head()
    yield from streamed(request, events(request, done=False))
    yield b"0"
    yield 0.002
    yield b";last\r\n"
    for i in range(5):
        yield 0.002
        yield f"X-Trailer-{i}: {'x' * 100}\r\n".encode()
    yield 0.002
    yield b"\r\n"


@behaviour
def more_after_the_end(request: Request) -> Iterator[Step]:
    """Bytes that belong to nothing, in the packet of the end; no `[DONE]`."""
    yield head()
    yield from streamed(request, events(request, done=False))
    yield 0.003
    yield END + b"something else that is long enough for nobody to take it for a piece of the end: " + b"x" * 100


@behaviour
def more_after_the_last_event(request: Request) -> Iterator[Step]:
    yield head()
    *parts, last = events(request)
    yield from streamed(request, parts)
    yield 0.003
    yield request.sent(chunk(last)) + END + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@behaviour
def extensions(request: Request) -> Iterator[Step]:
    yield head()
    for part in events(request):
        yield request.sent(chunk(part, b' ;name="a;b" ; other'))
    yield b"000;last\r\n\r\n"


@behaviour
def content_length(request: Request) -> Iterator[Step]:
    parts = events(request)
    yield head(framing=sum(map(len, parts)))
    for part in parts:
        yield request.sent(part)
        yield 0.002


@behaviour
def close_delimited(request: Request) -> Iterator[Step]:
    """Neither chunked nor with a length: the end is the connection's end."""
    yield head(framing=None)
    for part in events(request):
        yield request.sent(part)
    yield Act.CLOSE


@behaviour
def close_delimited_silent(request: Request) -> Iterator[Step]:
    """As before, without `[DONE]`: nothing but the close says that this is all."""
    yield head(framing=None)
    for part in events(request, done=False):
        yield request.sent(part)
    yield Act.CLOSE


@behaviour
def http_1_0(request: Request) -> Iterator[Step]:
    yield b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    for part in events(request):
        yield request.sent(part)
    yield Act.CLOSE


@behaviour
def close_announced(request: Request) -> Iterator[Step]:
    yield head("200 OK", "text/event-stream", "Connection: close")
    yield from streamed(request, events(request))
    yield END
    yield Act.CLOSE


@behaviour
def answers_twice(request: Request) -> Iterator[Step]:
    """A second answer that nobody asked for, well after the first."""
    yield from answer(request, events(request))
    yield 0.02
    yield from answer(request, events(request))


@behaviour
def keep_alive_lie(request: Request) -> Iterator[Step]:
    """Announces to keep the connection and closes it (llama.cpp)."""
    yield head("200 OK", "text/event-stream", "Connection: keep-alive", "Keep-Alive: timeout=5, max=100")
    yield from streamed(request, events(request))
    yield END
    yield Act.CLOSE


@behaviour
def closes_idle(request: Request) -> Iterator[Step]:
    """Keeps the connection for 3 s of idleness: see `Client.serve`."""
    yield from answer(request, events(request), 0.01)


@behaviour
def closes_when_asked_again(request: Request) -> Iterator[Step]:
    """The first request of a connection is answered; the second meets a close."""
    if request.entry["nth"]:
        yield Act.CLOSE
    yield from answer(request, events(request))


@behaviour
def resets_when_asked_again(request: Request) -> Iterator[Step]:
    if request.entry["nth"]:
        yield Act.RESET
    yield from answer(request, events(request))


@behaviour
def held_open(request: Request) -> Iterator[Step]:
    """Says `[DONE]` and keeps the connection."""
    yield head()
    yield from streamed(request, events(request))
    yield 3.0
    yield END


@behaviour
def split_held_open(request: Request) -> Iterator[Step]:
    """As before, with every few bytes in a chunk and a packet of their own."""
    stream = b"".join(events(request))
    yield head()
    for at in range(0, len(stream), 7):
        yield request.sent(chunk(stream[at : at + 7]))
        yield 0.0002
    yield 3.0


@behaviour
def held_open_without_length(request: Request) -> Iterator[Step]:
    yield head(framing=None)
    for part in events(request):
        yield request.sent(part)
    yield 3.0
    yield Act.CLOSE


@behaviour
def late_end(request: Request) -> Iterator[Step]:
    """The message's end comes well after `[DONE]`."""
    yield head()
    yield from streamed(request, events(request))
    yield 0.1
    yield END


@behaviour
def folded(request: Request) -> Iterator[Step]:
    """Obsolete folded headers, blanks around values, odd but allowed names."""
    yield (
        b"HTTP/1.1 200\r\nX-Folded: one\r\n   two\r\n\tthree\r\ncontent-TYPE:text/event-stream;\r\n charset=utf-8\r\n"
        b"X_!#$%&'*+-.^`|~:  \t value\t \r\nX-Empty:\r\nTRANSFER-encoding:  Chunked \r\nX-Latin: caf\xe9\r\n\r\n"
    )
    yield from streamed(request, events(request))
    yield END


@behaviour
def bare_line_feeds(request: Request) -> Iterator[Step]:
    """A head whose lines end in LF alone."""
    yield b"HTTP/1.1 200 OK\nContent-Type: text/event-stream\nTransfer-Encoding: chunked\n\n"
    yield from streamed(request, events(request))
    yield END


@behaviour
def no_content_type(request: Request) -> Iterator[Step]:
    yield head(kind=None)
    yield from streamed(request, events(request))
    yield END


@behaviour
def slow_head(request: Request) -> Iterator[Step]:
    start = head()
    for at in range(0, len(start), 20):
        yield start[at : at + 20]
        yield 0.01
    yield from streamed(request, events(request))
    yield END


@behaviour
def large_head(request: Request) -> Iterator[Step]:
    """Large, and within what clients take."""
    yield head("200 OK", "text/event-stream", *(f"X-Filler-{i}: {'x' * 500}" for i in range(80)))
    yield from streamed(request, events(request))
    yield END


@behaviour
def half_closed(request: Request) -> Iterator[Step]:
    """Nothing more to say after the answer, but open for reading."""
    yield head()
    yield from streamed(request, events(request))
    yield END
    yield Act.HALF_CLOSE
    yield 0.2


@behaviour
def tempting(request: Request) -> Iterator[Step]:
    """What looks like the end and isn't: marks inside texts, empty lines and a zero alone on its line."""
    word = '"}\r\n\r\ndata: [DONE]\r\n0\r\n\r\n{}'
    for part in (head(), *map(chunk, events(request, word=word))):
        yield part
        yield 0.002
    yield END


@behaviour
def tempting_lines(request: Request) -> Iterator[Step]:
    """Chunks that end as a whole answer does, packet by packet, before the last event."""
    yield head()
    for part in events(request):
        yield chunk(b": 1\r\n0\r\n\r\n")[:-2]
        yield 0.003
        yield b"\r\n"
        yield request.sent(chunk(part))
        yield 0.003
    yield END


@behaviour
def long_answer(request: Request) -> Iterator[Step]:
    """Hundreds of kilobytes."""
    word = " w{}" + "x" * 600
    yield from answer(request, events(request, tokens=400, word=word), 0.0)


@behaviour
def long_split(request: Request) -> Iterator[Step]:
    """Hundreds of kilobytes in packets whose borders fall anywhere."""
    whole = head() + b"".join(map(chunk, events(request, tokens=400, word=" w{}" + "x" * 600))) + END
    for at in range(0, len(whole), 8191):
        yield whole[at : at + 8191]


@behaviour
def scripted(request: Request) -> Iterator[Step]:
    """What the request's body says: hexadecimal bytes, seconds, or the name of an `Act`."""
    for step in request.body["script"]:
        if isinstance(step, str):
            yield Act[step] if step.isupper() else bytes.fromhex(step)
        else:
            yield float(step)


def around_a_border(request: Request, whole: Callable[[int], bytes]) -> Iterator[Step]:
    """Clients put parts aside at 64 KiB: so much and one byte, then `max_tokens` bytes, each a packet of its own."""
    border = 64 * 1024 + 1
    answer = whole(border + request.tokens - len(whole(border)) + border)
    yield answer[:border]
    yield 0.02
    for at in range(border, len(answer)):
        yield answer[at : at + 1]


@behaviour
def spill_chunked(request: Request) -> Iterator[Step]:
    def whole(size: int) -> bytes:
        return head() + b"%08x\r\n%b\r\n" % (size, b":" * size) + chunk(b"\n\ndata: [DONE]\n\n") + END

    yield from around_a_border(request, whole)


@behaviour
def spill_length(request: Request) -> Iterator[Step]:
    yield from around_a_border(request, lambda size: head(framing=size + 16) + b":" * size + b"\n\ndata: [DONE]\n\n")


# Faulty.


@behaviour
def short(request: Request) -> Iterator[Step]:
    """One token fewer than asked."""
    yield from answer(request, events(request, tokens=request.tokens - 1))


@behaviour
def no_done(request: Request) -> Iterator[Step]:
    yield from answer(request, events(request, done=False))


@behaviour
def no_finish(request: Request) -> Iterator[Step]:
    yield from answer(request, events(request, finish=False))


@behaviour
def truncated(request: Request) -> Iterator[Step]:
    """The connection ends in the middle of the body."""
    yield head()
    yield from streamed(request, events(request)[:3])
    yield Act.CLOSE


@behaviour
def half_closed_early(request: Request) -> Iterator[Step]:
    yield head()
    yield from streamed(request, events(request)[:3])
    yield Act.HALF_CLOSE
    yield 0.5


@behaviour
def reset(request: Request) -> Iterator[Step]:
    yield head()
    yield from streamed(request, events(request)[:3])
    yield Act.RESET


@behaviour
def hang_up(request: Request) -> Iterator[Step]:
    """Closes without a word."""
    yield Act.CLOSE


@behaviour
def error_event(request: Request) -> Iterator[Step]:
    failure = event({"error": {"message": "engine ran out of blocks", "code": 500}})
    yield from answer(request, [*events(request)[:2], failure, event("[DONE]")])


@behaviour
def error_field(request: Request) -> Iterator[Step]:
    """A failure as a field of its own (llama.cpp before 2025)."""
    yield from answer(request, [*events(request)[:2], b'error: {"message": "no slot", "code": 500}\n\n'])


@behaviour
def bad_json(request: Request) -> Iterator[Step]:
    first, *others = events(request)
    yield from answer(request, [first, b"data: {broken\n\n", *others])


@behaviour
def empty(request: Request) -> Iterator[Step]:
    yield from answer(request, [event(choice(request, "", "length")), event("[DONE]")])


@behaviour
def no_content(request: Request) -> Iterator[Step]:
    yield head("204 No Content", None, framing=None)


@behaviour
def server_error(request: Request) -> Iterator[Step]:
    yield head("500 Internal Server Error", "application/json")
    yield chunk(b'{"error": {"message": "no such model"}}')
    yield END


@behaviour
def server_error_length(request: Request) -> Iterator[Step]:
    said = b'{"error": {"message": "no such model"}}'
    yield head("500 Internal Server Error", "application/json", framing=len(said))
    yield said


@behaviour
def too_many(request: Request) -> Iterator[Step]:
    said = b'{"error": "slow down"}\r\n\r\n'
    yield head("429 Too Many Requests", "application/json", "Retry-After: 1", framing=len(said)) + said


@behaviour
def too_many_chunked(request: Request) -> Iterator[Step]:
    yield head("429 Too Many Requests", "application/json", "Retry-After: 1")
    yield chunk(b'{"error": "slow down"}\r\n\r\n') + END


@behaviour
def not_streamed(request: Request) -> Iterator[Step]:
    said = json.dumps({"choices": [{"text": "all at once"}]}).encode()
    yield head("200 OK", "application/json", framing=len(said)) + said


@behaviour
def gzip(request: Request) -> Iterator[Step]:
    yield head("200 OK", "text/event-stream", "Content-Encoding: gzip")
    yield chunk(b"\x1f\x8b nonsense")
    yield END


@behaviour
def no_http(request: Request) -> Iterator[Step]:
    yield b"\x00\x01 hello\r\n\r\n"
    yield 0.2


@behaviour
def bad_status(request: Request) -> Iterator[Step]:
    yield b"HTTP/1.1 abc OK\r\n\r\n"
    yield 0.2


@behaviour
def bad_header(request: Request) -> Iterator[Step]:
    yield b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n"
    yield 0.2


@behaviour
def bad_chunk_size(request: Request) -> Iterator[Step]:
    yield head()
    yield chunk(events(request)[0])
    yield b"xyz\r\nhello\r\n\r\n"
    yield 0.2


@behaviour
def negative_chunk_size(request: Request) -> Iterator[Step]:
    yield head()
    yield b"-5\r\nhello\r\n\r\n"
    yield 0.2


@behaviour
def wrong_chunk_size(request: Request) -> Iterator[Step]:
    """A chunk that is longer than it says."""
    yield head()
    yield b"5\r\nhello world\r\n0\r\n\r\n"
    yield 0.2


@behaviour
def bad_trailer(request: Request) -> Iterator[Step]:
    yield head()
    yield chunk(events(request)[0])
    yield b"0\r\nno colon here\r\n\r\n"
    yield 0.2


@behaviour
def two_lengths(request: Request) -> Iterator[Step]:
    yield head("200 OK", "text/event-stream", "Content-Length: 7", framing=5) + b"1234567"


@behaviour
def bad_length(request: Request) -> Iterator[Step]:
    yield head("200 OK", "text/event-stream", framing="-1")
    yield 0.2


@behaviour
def other_coding(request: Request) -> Iterator[Step]:
    yield head("200 OK", "text/event-stream", "Transfer-Encoding: gzip, chunked", framing=None)
    yield 0.2


@behaviour
def other_protocol(request: Request) -> Iterator[Step]:
    yield b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    yield 0.2


@behaviour
def endless_head(request: Request) -> Iterator[Step]:
    yield b"HTTP/1.1 200 OK\r\n"
    for i in range(400):
        yield f"X-Filler-{i}: {'x' * 500}\r\n".encode()
    yield 0.5


@behaviour
def silent(request: Request) -> Iterator[Step]:
    """Accepts and never answers."""
    yield 30.0


@behaviour
def silent_after_head(request: Request) -> Iterator[Step]:
    yield head()
    yield 30.0


@behaviour
def silent_in_the_middle(request: Request) -> Iterator[Step]:
    yield head()
    yield from streamed(request, events(request)[:2])
    yield 30.0


@behaviour
def early_close(request: Request) -> Iterator[Step]:
    """413 and a close, while the request is still being sent (its body is not read)."""
    said = b'{"error": "too long"}'
    yield head("413 Content Too Large", "application/json", "Connection: close", framing=len(said)) + said
    yield 0.05
    yield Act.CLOSE


@behaviour
def early_reset(request: Request) -> Iterator[Step]:
    """Closed while the request is still being sent, without an answer."""
    yield 0.02
    yield Act.RESET


@behaviour
def early_answer(request: Request) -> Iterator[Step]:
    """A whole answer before the body is read; the connection stays open."""
    said = b'{"error": "bad"}'
    yield head("400 Bad Request", "application/json", framing=len(said)) + said
    yield 0.5


@behaviour
def deaf(request: Request) -> Iterator[Step]:
    """Never reads the body."""
    yield 30.0


@behaviour
def late_reader(request: Request) -> Iterator[Step]:
    """Lets a long request wait before it reads on: see `read_request`."""
    yield from answer(request, events(request))


EARLY = {"early-close", "early-reset", "early-answer", "deaf"}
"""These act before they have read the body."""


def cut(name: str, then: Act, request: Request) -> Iterator[Step]:
    """The first bytes of another behaviour's answer."""
    which, _, at = name.partition("@")
    left = int(at)
    for step in BEHAVIOURS[which.partition("-")[2] or "at-once"](request):
        if isinstance(step, bytes):
            if left:
                yield step[:left]
            left -= min(left, len(step))
        if left == 0:
            break
    yield then


# The server.


class Client:
    """One connection."""

    def __init__(self, sock: socket.socket, log: Path) -> None:
        self.sock, self.log = sock, log
        self.number = next(CONNECTIONS)
        self.buffer = b""
        self.nth = 0
        self.closes_idle = False

    def serve(self) -> None:
        try:
            while self.answer():
                self.nth += 1
                self.sock.settimeout(3.0 if self.closes_idle else None)
        except OSError:
            pass  # clients that hang up are part of the tests
        finally:
            self.sock.close()

    def answer(self) -> bool:
        """Answer one request; whether another may follow."""
        if (start := self.until(b"\r\n\r\n")) is None:
            return False
        arrived_ns = time.monotonic_ns()
        lines = start.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        names = lines[0].split(" ")[1].split("/")[1].split(",")
        with LOCK:
            name = names[next(REQUESTS) % len(names)]
        body: dict[str, Any] = {}
        self.closes_idle = name == "closes-idle"
        if name == "late-reader":
            time.sleep(0.2)
        if name not in EARLY:
            data = self.exactly(int(headers["content-length"]))
            if data is None:
                return False
            body = json.loads(data)
        request = Request(body)
        request.entry = {
            "arrived_ns": arrived_ns, "read_ns": time.monotonic_ns(), "behaviour": name, "body": body, "sent_ns": [],
            "text": "", "accept_encoding": headers.get("accept-encoding"), "headers": headers,
            "request_id": headers.get("x-request-id", "").partition(".")[0], "connection": self.number, "nth": self.nth,
        }  # fmt: skip
        try:
            return self.play(self.steps(name, request)) and headers.get("connection", "").lower() != "close"
        finally:
            request.entry["ended_ns"] = time.monotonic_ns()
            with LOCK, self.log.open("a") as log:
                log.write(json.dumps(request.entry) + "\n")

    def steps(self, name: str, request: Request) -> Iterator[Step]:
        if name.startswith("cut"):
            return cut(name, Act.CLOSE, request)
        if name.startswith("reset") and "@" in name:
            return cut(name, Act.RESET, request)
        return BEHAVIOURS[name](request)

    def play(self, steps: Iterator[Step]) -> bool:
        for step in steps:
            if isinstance(step, bytes):
                self.sock.sendall(step)
            elif isinstance(step, float):
                time.sleep(step)
            elif step is Act.HALF_CLOSE:
                self.sock.shutdown(socket.SHUT_WR)
            else:
                if step is Act.RESET:
                    self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return False
        return True

    def until(self, mark: bytes) -> bytes | None:
        while mark not in self.buffer:
            if not self.more():
                return None
        start, _, self.buffer = self.buffer.partition(mark)
        return start

    def exactly(self, size: int) -> bytes | None:
        parts = bytearray(self.buffer)
        while len(parts) < size:
            data = self.sock.recv(1 << 16)
            if not data:
                return None
            parts += data
        self.buffer = bytes(parts[size:])
        return bytes(parts[:size])

    def more(self) -> bool:
        data = self.sock.recv(1 << 16)
        self.buffer += data
        return bool(data)


def serve(sock: socket.socket, log: Path, context: ssl.SSLContext | None) -> None:
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        try:
            sock = context.wrap_socket(sock, server_side=True)
        except OSError:
            return sock.close()
    return Client(sock, log).serve()


def main(address: str, log: str, *certificate: str) -> None:
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    if address.isdigit():
        listener = socket.create_server(("127.0.0.1", int(address)), backlog=512)
        print(listener.getsockname()[1], flush=True)
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen(512)
        print(0, flush=True)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=serve, args=(sock, Path(log), context), daemon=True).start()


if __name__ == "__main__":
    threading.stack_size(256 * 1024)
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        os._exit(0)
