"""What a streamed answer says: server-sent events, and the completion that they carry. Pure functions over a body.

Grammar: WHATWG HTML, "Server-sent events". Payloads: OpenAI's completions and chat shapes as engines really send them.
Where something lies is said as an offset into the body; when it came is found by that (`records.py`), so reading is the
same however the bytes were split over reads. This is the careful way, which takes whatever comes; `bulk.py` is the fast
one, for what usually comes.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

DONE = b"[DONE]"

PINGS = {"ping", "keepalive", "keep-alive", "heartbeat"}
"""Names of events that keep a connection open, whatever they hold: sse-starlette's held a date."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a stream.

    Attributes
    ----------
    end : int
        Offset of the byte that completed it: the first of its blank line's ending.
    data : bytes
        Its data lines, joined by line feeds.
    name : str
        Its `event:` field; empty when there is none.
    """

    end: int
    data: bytes
    name: str = ""


def server_events(body: bytes) -> Iterator[ServerEvent]:
    """Events of a body.

    Lines end in CR, LF or CRLF; comments (pings) and unknown fields are skipped. An event that the body ends in is no
    event, but for an unterminated `[DONE]`, which some servers send as their last bytes.
    """
    data: list[bytes] = []
    name = ""
    for end, line in _lines(body):
        if not line:
            if data:
                yield ServerEvent(end, b"\n".join(data), name)
            data, name = [], ""
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode(errors="replace")
        elif field == b"error":  # llama.cpp before 2025 sent a failure as a field of its own
            data.append(value)
            name = "error"
    if b"\n".join(data).strip() == DONE:
        yield ServerEvent(len(body) - 1, DONE, name)


def _lines(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Lines, each with the offset of the byte that completed it; at the end also an unterminated one."""
    at = len(b"\xef\xbb\xbf") if body.startswith(b"\xef\xbb\xbf") else 0
    for ending in _LINE_END.finditer(body, at):
        yield ending.start(), body[at : ending.start()]
        at = ending.end()
    if at < len(body):
        yield len(body) - 1, body[at:]


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer, read.

    Attributes
    ----------
    ends : sequence of int
        Offset of the byte that completed each event with output: text (content, reasoning, tool calls) or token ids,
        or, where the engine reports usage all along, more output tokens than before.
    event_tokens : sequence of int or None
        Tokens in each; None: one each.
    tokens_estimated : bool
        They are a guess (`count_tokens`).
    text : str
        The whole output text.
    token_ids : list of int or None
        The generated token ids; None unless the engine sent all of them.
    finish_reason : str or None
        As given.
    done : bool
        Whether `[DONE]` came.
    prompt_tokens, cached_prompt_tokens, output_tokens : int or None
        The server's usage.
    error, error_detail : str or None
        `error_event` or `malformed_event`, the first that came.
    """

    ends: Sequence[int] = ()
    event_tokens: Sequence[int] | None = None
    tokens_estimated: bool = False
    text: str = ""
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    done: bool = False
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    error_detail: str | None = None

    @property
    def counted_tokens(self) -> int:
        """Sum of `event_tokens`."""
        return len(self.ends) if self.event_tokens is None else sum(self.event_tokens)


class Pieces:
    """What the events of a stream carried, collected in columns: a row for each choice of each event.

    Attributes
    ----------
    ends : list of int
        The event's `ServerEvent.end`.
    texts : list of str
        Its text.
    ids : list of sequence of int
        Its token ids.
    totals : list of int or None
        Output tokens so far, where the event says so.
    """

    __slots__ = ("ends", "ids", "texts", "totals")

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.texts: list[str] = []
        self.ids: list[Sequence[int]] = []
        self.totals: list[int | None] = []

    def answer(self, output_tokens: int | None, **rest: Any) -> Answer:
        """The answer that these make, with what else is known of it."""
        if not all(self.texts):
            self._drop_empty()
        counts, estimated = count_tokens(self.ids, self.totals, output_tokens)
        token_ids = [token for ids in self.ids for token in ids]
        return Answer(
            ends=self.ends,
            event_tokens=counts,
            tokens_estimated=estimated,
            text="".join(self.texts),
            token_ids=token_ids if token_ids and len(token_ids) == (output_tokens or len(token_ids)) else None,
            output_tokens=output_tokens,
            **rest,
        )

    def _drop_empty(self) -> None:
        """Keep what carried output. Before the first text there is none, whatever usage says: a role is no token."""
        carries = [bool(text or ids) for text, ids in zip(self.texts, self.ids, strict=True)]
        totals = list(compress(self.totals, carries))
        if len(totals) > 1 and None not in totals:
            before = 0
            for i in range(carries.index(True), len(carries)):
                total = self.totals[i] or 0
                carries[i] = carries[i] or total > before
                before = max(before, total)
        self.ends = list(compress(self.ends, carries))
        self.texts = list(compress(self.texts, carries))
        self.ids = list(compress(self.ids, carries))
        self.totals = list(compress(self.totals, carries))


def count_tokens(
    ids: Sequence[Sequence[int]], totals: Sequence[int | None], output_tokens: int | None
) -> tuple[list[int] | None, bool]:
    """Tokens in each event with output (None: one each), and whether they are an estimate.

    From token ids, else from usage that every event reports, where these sum to the usage total. Else an event is a
    token; when the usage total says otherwise, the total is spread evenly over the events, and the counts are an
    estimate. So they are without a usage total.
    """
    events = len(ids)
    counts = list(map(len, ids))
    if not any(counts) or output_tokens not in (None, sum(counts)):
        counts = _from_totals(totals)
    if counts and output_tokens in (None, sum(counts)):
        return (None if counts.count(1) == events else counts), False
    if output_tokens == events or not events:
        return None, False
    if output_tokens is None:
        return None, True
    return [(i + 1) * output_tokens // events - i * output_tokens // events for i in range(events)], True


def _from_totals(totals: Sequence[int | None]) -> list[int]:
    counts: list[int] = []
    before = 0
    for now in totals:
        if now is None or now < before:
            return []
        counts.append(now - before)
        before = now
    # Usage on the last event alone is the usual total, not a count of that event.
    return counts if len(counts) > 1 else []


def read_answer(events: Iterable[ServerEvent]) -> Answer:
    """Interpret the events of one streamed completion, text or chat."""
    pieces = Pieces()
    finish_reason: str | None = None
    prompt = cached = output = None
    done = False
    errors: list[tuple[str, str]] = []
    for event in events:
        data = event.data.strip()
        if data == DONE:
            done = True
            break
        if not data or event.name in PINGS:  # says nothing: kept alive
            continue
        try:
            payload = _payload(data, event.name)
            if payload.get("error") or payload.get("object") == "error":
                errors.append(("error_event", _message(payload)))
                continue
            usage = _dict(payload.get("usage"))
            total = _count(usage.get("completion_tokens"))
            details = _dict(usage.get("prompt_tokens_details"))
            output = _or(total, output)
            prompt = _or(_count(usage.get("prompt_tokens")), prompt)
            cached = _or(_count(details.get("cached_tokens")), cached)
            for item in _list(payload.get("choices")):
                choice = _dict(item)
                if (choice.get("index") or 0) != 0:
                    continue
                finish_reason = _string(choice.get("finish_reason")) or finish_reason
                text, ids = _text(choice), [int(token) for token in _list(choice.get("token_ids"))]
                pieces.ends.append(event.end)
                pieces.texts.append(text)
                pieces.ids.append(ids)
                pieces.totals.append(total)
        except (TypeError, ValueError, OverflowError, RecursionError) as fault:
            errors.append(("malformed_event", f"{fault}: {data[:200].decode(errors='replace')!r}"))
    error, detail = errors[0] if errors else (None, None)
    return pieces.answer(
        output,
        finish_reason=finish_reason,
        done=done,
        prompt_tokens=prompt,
        cached_prompt_tokens=cached,
        error=error,
        error_detail=detail,
    )


def _payload(data: bytes, name: str) -> dict[str, Any]:
    """The object that an event holds; of an error event whatever it holds, as its error."""
    text = data.decode(errors="replace")
    try:
        payload = json.loads(text, parse_int=_int)
    except ValueError:
        if name != "error":
            raise
        payload = text
    if name == "error":
        return payload if isinstance(payload, dict) and payload.get("error") else {"error": payload or text}
    if not isinstance(payload, dict):
        raise TypeError(f"expected an object, got {type(payload).__name__}")
    return payload


def _or(value: int | None, other: int | None) -> int | None:
    return other if value is None else value


def _text(choice: dict[str, Any]) -> str:
    """All text of a choice: completion text, or a chat delta's reasoning, content, refusal and tool calls."""
    delta = _dict(choice.get("delta"))
    pieces = [choice.get("text"), delta.get("reasoning_content") or delta.get("reasoning")]
    pieces += [delta.get("content"), delta.get("refusal")]
    for call in [*_list(delta.get("tool_calls")), {"function": delta.get("function_call")}]:
        function = _dict(_dict(call).get("function"))
        pieces += [function.get("name"), function.get("arguments")]
    return _clean("".join(map(_said, pieces)))


def _said(piece: Any) -> str:
    """Text as a string, or in the other shapes that it comes in: parts of a content, arguments as an object."""
    if isinstance(piece, str):
        return piece
    if isinstance(piece, list):
        return "".join(_said(_dict(part).get("text")) for part in piece)
    if isinstance(piece, dict):
        return json.dumps(piece, ensure_ascii=False) if piece else ""
    if piece is not None:
        raise TypeError(f"expected text, got {type(piece).__name__}")
    return ""


def _message(payload: dict[str, Any]) -> str:
    error = payload.get("error") or payload
    message = error.get("message", error) if isinstance(error, dict) else error
    return _clean(str(message)[:500])


def _clean(text: str) -> str:
    """Text that can be written as UTF-8: JSON may escape half a surrogate pair."""
    return text.encode(errors="replace").decode()


def _int(digits: str) -> int | float:
    """A JSON integer; one of thousands of digits is no reason to lose an event (Python refuses to read it)."""
    return int(digits) if len(digits) < 100 else float(digits)


def _count(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _string(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"expected a string, got {type(value).__name__}")
    return value and _clean(value)


def _dict(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return value


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return value
