"""A whole stream read at once: what `stream.py` would say, several times faster, for streams as they usually come.

Usual: each event is one `data:` line, a line feed and an empty line, and its payload has the types that it should have.
Anything else is left to the careful way, for the whole stream.
"""

from typing import Annotated, Literal

import msgspec
import numpy as np

from harness.traffic.stream import DONE, Answer, Pieces, read_answer, server_events
from harness.traffic.wire.exchange import Exchange
from harness.traffic.wire.framing import read_message

_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


# Only what is read is declared, and all that is read: an unexpected type anywhere in it is an error, thus unusual.
class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, gc=False):
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct, gc=False):
    index: Literal[0] = 0
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _PromptTokens(msgspec.Struct, gc=False):
    cached_tokens: _Count | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptTokens | None = None


class _Event(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: None = None
    object: Literal["text_completion", "chat.completion.chunk"] | None = None


_decode = msgspec.json.Decoder(_Event).decode


def read_body(body: bytes) -> Answer:
    """The answer that an event stream's body holds."""
    return _usual(body) or read_answer(server_events(body))


def _usual(body: bytes) -> Answer | None:
    """The answer, where the whole stream is a usual one."""
    if not body.startswith(b"data:") or not body.endswith(b"\n\n") or b"\r" in body:
        return None
    line_feeds = np.flatnonzero(np.frombuffer(body, np.uint8) == ord("\n"))
    payloads = body[len(b"data:") : -2].split(b"\n\ndata:")
    if len(line_feeds) != 2 * len(payloads):  # there are others than those that end events
        return None
    done = payloads[-1].strip() == DONE
    if done:
        payloads.pop()
    try:
        events = [_decode(payload) for payload in payloads]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return _collect(events, line_feeds[1::2].tolist(), done)


def _collect(events: list[_Event], ends: list[int], done: bool) -> Answer:
    pieces = Pieces()
    add_end, add_text, add_ids, add_total = (
        pieces.ends.append,
        pieces.texts.append,
        pieces.ids.append,
        pieces.totals.append,
    )
    finish_reason: str | None = None
    prompt = cached = output = None
    for event, end in zip(events, ends, strict=False):
        total = None
        if (usage := event.usage) is not None:
            total = usage.completion_tokens
            output = output if total is None else total
            prompt = prompt if usage.prompt_tokens is None else usage.prompt_tokens
            details = usage.prompt_tokens_details
            cached = cached if details is None or details.cached_tokens is None else details.cached_tokens
        for choice in event.choices or ():
            delta = choice.delta
            add_text((choice.text or "") if delta is None else _text(choice.text, delta))
            add_ids(choice.token_ids or ())
            add_end(end)
            add_total(total)
            if choice.finish_reason:
                finish_reason = choice.finish_reason
    return pieces.answer(
        output,
        finish_reason=finish_reason,
        done=done,
        prompt_tokens=prompt,
        cached_prompt_tokens=cached,
    )


def _text(text: str | None, delta: _Delta) -> str:
    reasoning = delta.reasoning_content or delta.reasoning
    if not (text or reasoning or delta.refusal or delta.tool_calls or delta.function_call):
        return delta.content or ""
    pieces = [text, reasoning, delta.content, delta.refusal]
    for function in (*(call.function for call in delta.tool_calls or ()), delta.function_call):
        if function:
            pieces += [function.name, function.arguments]
    return "".join(filter(None, pieces))


def read_exchange(exchange: Exchange) -> Answer:
    """The answer that an exchange brought, for what is asked next; of an unsuccessful one whatever came."""
    return read_body(read_message(exchange.raw).body)
