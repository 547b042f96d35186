"""What a streamed answer says: server-sent events over timed reads, and the completion that they carry. Pure functions.

Grammar: WHATWG HTML, "Server-sent events". Payloads: OpenAI's completions and chat shapes as engines really send them.
An event is stamped by the read that completed it.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

DONE = "[DONE]"


@dataclass(frozen=True)
class ServerEvent:
    """One event of a stream.

    Attributes
    ----------
    ns : int
        Arrival of the read that completed it.
    data : bytes
        Its data lines, joined by line feeds.
    name : str
        Its `event:` field; empty when there is none.
    """

    ns: int
    data: bytes
    name: str = ""


def server_events(reads: Iterable[tuple[int, bytes]]) -> Iterator[ServerEvent]:
    """Events out of (arrival, bytes) reads.

    Lines end in CR, LF or CRLF; comments (pings) and unknown fields are skipped; events may be split over reads or
    joined in one. An event that the stream ends in is no event, but for an unterminated `[DONE]`, which some servers
    send as their last bytes.
    """
    data: list[bytes] = []
    name = ""
    ns = 0
    for ns, line in _lines(reads):
        if not line:
            if data:
                yield ServerEvent(ns, b"\n".join(data), name)
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
    if b"\n".join(data).strip() == DONE.encode():
        yield ServerEvent(ns, DONE.encode(), name)


def _lines(reads: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Complete lines with the arrival of their last byte; at the end of the stream also an unterminated `data` line."""
    rest = b""
    ns = 0
    after_cr = False
    first = True
    for ns, read in reads:
        if not read:
            continue
        # A CRLF may be split over reads: the line is out at its CR already.
        chunk = read[1:] if after_cr and read.startswith(b"\n") else read
        after_cr = chunk.endswith(b"\r")
        lines = (rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield ns, line.removeprefix(b"\xef\xbb\xbf") if first else line
            first = False
    if rest:
        yield ns, rest.removeprefix(b"\xef\xbb\xbf") if first else rest


@dataclass(frozen=True)
class Output:
    """One event that carried output.

    Attributes
    ----------
    ns : int
        Its arrival.
    text : str
        Its text: content, reasoning or tool-call arguments. May be empty when token ids came.
    token_ids : tuple of int
        Its token ids, where the engine sends them.
    usage_tokens : int or None
        Output tokens so far, where the engine reports usage continuously.
    """

    ns: int
    text: str
    token_ids: tuple[int, ...] = ()
    usage_tokens: int | None = None


@dataclass(frozen=True)
class Answer:
    """A streamed answer, read.

    Attributes
    ----------
    outputs : tuple of Output
        The events that carried output, in order of arrival.
    finish_reason : str or None
        As given.
    done : bool
        Whether `[DONE]` came.
    prompt_tokens, cached_prompt_tokens, output_tokens : int or None
        The server's usage.
    error, error_detail : str or None
        `error_event` or `malformed_event`, the first that came.
    """

    outputs: tuple[Output, ...] = ()
    finish_reason: str | None = None
    done: bool = False
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None
    error_detail: str | None = None

    @property
    def text(self) -> str:
        """The whole output text."""
        return "".join(output.text for output in self.outputs)

    @property
    def token_ids(self) -> list[int] | None:
        """The generated token ids; None unless the engine sent all of them."""
        ids = [token for output in self.outputs for token in output.token_ids]
        return ids if ids and len(ids) == (self.output_tokens or len(ids)) else None


def read_answer(events: Iterable[ServerEvent]) -> Answer:
    """Interpret the events of one streamed completion, text or chat."""
    outputs: list[Output] = []
    finish_reason: str | None = None
    usage: dict[str, Any] = {}
    done = False
    error: tuple[str, str] | None = None
    for event in events:
        if event.data.strip() == DONE.encode():
            done = True
            break
        try:
            payload = json.loads(event.data)
        except ValueError:
            error = error or ("malformed_event", f"no JSON: {event.data[:200].decode(errors='replace')!r}")
            continue
        if not isinstance(payload, dict):
            error = error or ("malformed_event", f"no JSON object: {event.data[:200].decode(errors='replace')!r}")
            continue
        if event.name == "error" or payload.get("error") or payload.get("object") == "error":
            error = error or ("error_event", _message(payload))
            continue
        try:
            usage = _dict(payload.get("usage")) or usage
            for item in _list(payload.get("choices")):
                choice = _dict(item)
                if choice.get("index", 0) != 0:
                    continue
                finish_reason = _string(choice.get("finish_reason")) or finish_reason
                output = Output(
                    event.ns,
                    _text(choice),
                    tuple(int(token) for token in _list(choice.get("token_ids"))),
                    _count(_dict(payload.get("usage")).get("completion_tokens")),
                )
                if output.text or output.token_ids:
                    outputs.append(output)
        except (TypeError, ValueError, OverflowError) as fault:
            error = error or ("malformed_event", f"{fault}: {event.data[:200].decode(errors='replace')!r}")
    return Answer(
        outputs=tuple(outputs),
        finish_reason=finish_reason,
        done=done,
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_prompt_tokens=_count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        error=error[0] if error else None,
        error_detail=error[1] if error else None,
    )


def token_counts(answer: Answer) -> tuple[list[int], bool]:
    """Tokens in each output event, and whether they are an estimate.

    From token ids, else from continuous usage, where these sum to the usage total. Else an event is a token; when the
    usage total says otherwise, the total is spread evenly over the events, and the counts are an estimate. So they are
    without a usage total.
    """
    total = answer.output_tokens
    reported = _from_token_ids(answer.outputs) or _from_continuous_usage(answer.outputs)
    if reported and (total is None or sum(reported) == total):
        return reported, False
    events = len(answer.outputs)
    if total is None:
        return [1] * events, True
    return [(i + 1) * total // events - i * total // events for i in range(events)], total != events


def _from_token_ids(outputs: Sequence[Output]) -> list[int] | None:
    counts = [len(output.token_ids) for output in outputs]
    return counts if any(counts) else None


def _from_continuous_usage(outputs: Sequence[Output]) -> list[int] | None:
    totals = [output.usage_tokens for output in outputs]
    counts: list[int] = []
    before = 0
    for now in totals:
        if now is None or now < before:
            return None
        counts.append(now - before)
        before = now
    # Usage on the last output event alone is the usual total, not a count of that event.
    return counts if len(counts) > 1 else None


def _text(choice: dict[str, Any]) -> str:
    """All text of a choice: completion text, or a chat delta's reasoning, content and tool calls."""
    delta = _dict(choice.get("delta"))
    pieces = [choice.get("text"), delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content")]
    for call in [*_list(delta.get("tool_calls")), {"function": delta.get("function_call")}]:
        function = _dict(_dict(call).get("function"))
        pieces += [function.get("name"), function.get("arguments")]
    return _clean("".join(piece for piece in pieces if isinstance(piece, str)))


def _message(payload: dict[str, Any]) -> str:
    error = payload.get("error") or payload
    message = error.get("message", error) if isinstance(error, dict) else error
    return _clean(str(message)[:500])


def _clean(text: str) -> str:
    """Text that can be written as UTF-8: JSON may escape half a surrogate pair."""
    return text.encode(errors="replace").decode()


def _count(value: object) -> int | None:
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
