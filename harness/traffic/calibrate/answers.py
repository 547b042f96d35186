"""The bytes that the paced server answers with: vLLM's shapes, chunked, made before anything is sent.

A token's event is about 270 bytes long, as vLLM 0.32 sends it with `return_token_ids`. The words differ, some of them
hold multi-byte characters, and the first one of an answer comes after the head, as with every server of this kind.
"""

import json
from dataclasses import dataclass
from typing import Any

MODEL = "paced"
VARIANTS = 64
WORDS = ("the", "cache", "of", "keys", "größer", "values", "naïve", "下一个", "token", "quotéd", "feed", "and")
_CREATED = 1_790_000_000
_HEAD = (
    "HTTP/1.1 200 OK\r\ndate: Sun, 01 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n"
    "content-type: text/event-stream; charset=utf-8\r\n{connection}transfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True)
class Shape:
    """One kind of streamed answer; every piece is a whole chunk but for the usage event's parts.

    Attributes
    ----------
    opening : bytes
        What goes before the first token: chat's role delta.
    tokens : tuple of bytes
        Events of one token each, used in turn.
    final : bytes
        The event of the last token, with its finish reason.
    usage : tuple of bytes
        The usage event's payload, cut where the counts of prompt, all and generated tokens go.
    """

    opening: bytes
    tokens: tuple[bytes, ...]
    final: bytes
    usage: tuple[bytes, bytes, bytes, bytes]


@dataclass(frozen=True)
class Answers:
    """Everything that the server can say."""

    head: bytes
    head_close: bytes
    done: bytes
    models: bytes
    whole: bytes
    refused: bytes
    completion: Shape
    completion_ids: Shape
    chat: Shape


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def usage_chunk(shape: Shape, prompt_tokens: int, output_tokens: int) -> bytes:
    """The usage event with its numbers."""
    before, total, output, after = shape.usage
    numbers = (before, prompt_tokens, total, prompt_tokens + output_tokens, output, output_tokens, after)
    return chunk(b"%s%d%s%d%s%d%s" % numbers)


def answers() -> Answers:
    """Make all pieces."""
    return Answers(
        head=_HEAD.format(connection="").encode(),
        head_close=_HEAD.format(connection="connection: close\r\n").encode(),
        done=chunk(b"data: [DONE]\n\n"),
        models=_whole(200, "OK", {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "kvmark"}]}),
        whole=_whole(200, "OK", _unstreamed()),
        refused=_whole(400, "Bad Request", {"error": {"message": "not a request that this server reads", "code": 400}}),
        completion=_completion(ids=False),
        completion_ids=_completion(ids=True),
        chat=_chat(),
    )


def _whole(status: int, reason: str, value: dict[str, Any]) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _unstreamed() -> dict[str, Any]:
    choice = {
        "index": 0,
        "text": " the",
        "message": {"role": "assistant", "content": " the"},
        "finish_reason": "length",
    }
    usage = {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1}
    return {"id": "cmpl-0", "object": "text_completion", "model": MODEL, "choices": [choice], "usage": usage}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def _word(index: int) -> str:
    return f" {WORDS[index % len(WORDS)]}"


def _completion(ids: bool) -> Shape:
    def event(index: int, finish: str | None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "text": _word(index), "logprobs": None}
        choice |= {"finish_reason": finish, "stop_reason": None}
        if ids:
            choice |= {"token_ids": [1000 + index], "prompt_logprobs": None, "prompt_token_ids": None}
        return chunk(_event({**common, "choices": [choice], "usage": None}))

    common = {"id": "cmpl-7c0a4f0e4d1b4f6c9a52a1c3d0b7e911-0", "object": "text_completion"}
    common |= {"created": _CREATED, "model": MODEL}  # type: ignore[dict-item]
    tokens = tuple(event(index, None) for index in range(VARIANTS))
    return Shape(b"", tokens, event(VARIANTS, "length"), _usage_parts(common))


def _chat() -> Shape:
    def event(delta: dict[str, str], finish: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
        return chunk(_event({**common, "choices": [choice]}))

    common = {"id": "chatcmpl-7c0a4f0e4d1b4f6c9a52a1c3d0b7e911", "object": "chat.completion.chunk"}
    common |= {"created": _CREATED, "model": MODEL}  # type: ignore[dict-item]
    tokens = tuple(event({"content": _word(index)}, None) for index in range(VARIANTS))
    opening = event({"role": "assistant", "content": ""}, None)
    return Shape(opening, tokens, event({"content": _word(VARIANTS)}, "length"), _usage_parts(common))


def _usage_parts(common: dict[str, Any]) -> tuple[bytes, bytes, bytes, bytes]:
    usage = {"prompt_tokens": "@", "total_tokens": "@", "completion_tokens": "@", "prompt_tokens_details": None}
    before, total, output, after = _event({**common, "choices": [], "usage": usage}).split(b'"@"')
    return before, total, output, after
