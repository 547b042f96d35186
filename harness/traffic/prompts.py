"""Bodies of requests: slices of the schedule's corpus joined to JSON, with no work per token.

A prompt is kept as the JSON that goes into the body. A later turn's prompt is the one before, what was generated, and
what the user adds.
"""

import json
from array import array
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from harness.traffic.playbook import Engine, Playbook, Segment, Turn
from harness.traffic.text import encode, load_tokenizer


class Answered(Protocol):
    """What was generated."""

    @property
    def text(self) -> str: ...

    @property
    def token_ids(self) -> list[int] | None: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as JSON without its brackets, and its length: in tokens, or in messages of a chat."""

    json: bytes
    length: int


class Composer(Protocol):
    """Makes prompts and bodies for one API."""

    path: str

    def prepare_later_turns(self) -> None:
        """Load what is needed to continue a prompt."""
        ...

    def first(self, turn: Turn) -> Prompt:
        """The prompt of a session's first turn."""
        ...

    def following(self, prompt: Prompt, turn: Turn, following: Turn, answer: Answered) -> Prompt:
        """The next turn's prompt after `turn` was answered (in part, or not at all, where it failed)."""
        ...

    def body(self, prompt: Prompt, turn: Turn) -> tuple[bytes, bytes, bytes]:
        """The body of a request, in pieces."""
        ...


class Completions:
    """Prompts of token ids (`/v1/completions`).

    A later turn's prompt is exactly as long as planned. Generated tokens are those that the engine names; else its text
    is tokenised again, which may give a few more or less than were generated: cut, or filled up from the user's next
    words. A failed turn is filled up whole.
    """

    path = "/v1/completions"

    def __init__(self, engine: Engine, corpus: bytes, tokenizer: str) -> None:
        self._corpus = corpus
        commas = np.flatnonzero(np.frombuffer(corpus, np.uint8) == ord(","))
        self._starts = array("q", np.concatenate(([0], commas + 1, [len(corpus) + 1])).astype(np.int64).tobytes())
        self._head, self._tails = _around(engine, "prompt")
        self._tokenizer_path = tokenizer
        self._tokenizer: Tokenizer | None = None

    def prepare_later_turns(self) -> None:
        self._tokenizer = load_tokenizer(self._tokenizer_path)

    def first(self, turn: Turn) -> Prompt:
        return Prompt(self._ids(turn.new), turn.prompt_tokens)

    def following(self, prompt: Prompt, turn: Turn, following: Turn, answer: Answered) -> Prompt:
        generated = list(answer.token_ids or (self._encode(answer.text) if answer.text else ()))
        new = self._ids(following.new)
        new_tokens = _count(new)
        if new_tokens > following.prompt_tokens:
            new, new_tokens = _first(new, following.prompt_tokens), following.prompt_tokens
        before, room = prompt.json, following.prompt_tokens - new_tokens - prompt.length
        if room < 0:
            before = _first(before, prompt.length + room)
        del generated[max(0, min(room, turn.output_tokens)) :]
        filler = b""
        if (missing := room - len(generated)) > 0:
            source = new or self._corpus
            filler = _first(b",".join([source] * (missing // _count(source) + 1)), missing)
        pieces = [before, ",".join(map(str, generated)).encode(), filler, new]
        return Prompt(b",".join(filter(None, pieces)), following.prompt_tokens)

    def body(self, prompt: Prompt, turn: Turn) -> tuple[bytes, bytes, bytes]:
        return self._head, prompt.json, self._tails[turn.output_tokens]

    def _ids(self, segments: list[Segment]) -> bytes:
        starts, corpus = self._starts, self._corpus
        return b",".join(
            segment.encode() if isinstance(segment, str) else corpus[starts[segment[0]] : starts[sum(segment)] - 1]
            for segment in segments
        )

    def _encode(self, text: str) -> list[int]:
        assert self._tokenizer is not None
        return encode(self._tokenizer, text)


class Chat:
    """Prompts of messages (`/v1/chat/completions`): the user's texts as planned, the assistant's as generated."""

    path = "/v1/chat/completions"

    def __init__(self, engine: Engine) -> None:
        self._head, self._tails = _around(engine, "messages")

    def prepare_later_turns(self) -> None:
        """Nothing is needed: an answer is sent back as text."""

    def first(self, turn: Turn) -> Prompt:
        return Prompt(_message("user", turn.text or ""), 1)

    def following(self, prompt: Prompt, turn: Turn, following: Turn, answer: Answered) -> Prompt:
        said = _message("assistant", answer.text)
        return Prompt(b",".join((prompt.json, said, _message("user", following.text or ""))), prompt.length + 2)

    def body(self, prompt: Prompt, turn: Turn) -> tuple[bytes, bytes, bytes]:
        return self._head, prompt.json, self._tails[turn.output_tokens]


def _message(role: str, text: str) -> bytes:
    return json.dumps({"role": role, "content": text}).encode()


def _around(engine: Engine, key: str) -> tuple[bytes, dict[int, bytes]]:
    """What stands before a prompt in the body, and after it by output length."""
    tails: dict[int, bytes] = {}
    for tokens, extras in engine.extras.items():
        rest: dict[str, Any] = {
            "max_tokens": int(tokens),
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **extras,
        }
        tails[int(tokens)] = b"]," + json.dumps(rest).encode()[1:]
    return f'{{"model":{json.dumps(engine.model)},"{key}":['.encode(), tails


def _count(ids: bytes) -> int:
    return ids.count(b",") + 1 if ids else 0


def _first(ids: bytes, count: int) -> bytes:
    """The first tokens of some JSON."""
    if count <= 0:
        return b""
    return b",".join(ids.split(b",", count)[:count])


def composer(playbook: Playbook, tokenizer: str | None = None) -> Composer:
    """The composer for a schedule's API; `tokenizer`: where it lies, if not where the schedule says."""
    if playbook.api == "chat":
        return Chat(playbook.engine)
    return Completions(playbook.engine, playbook.corpus, tokenizer or playbook.engine.tokenizer)
