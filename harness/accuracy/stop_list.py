"""Where an answer ends: the same list for all deployments, as a completion or as a chat."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.accuracy.chat import ChatTemplate

_ANSWER = "kvmark-answer"
_RUNS_ON = re.compile(r"[^\W_]")


@dataclass(frozen=True)
class Stop:
    """What ends an answer.

    Attributes
    ----------
    texts : tuple of str
        Sent as `stop`.
    token_ids : tuple of int
        Sent as `stop_token_ids`: an engine that leaves special tokens out of its text never finds theirs in it.
    """

    texts: tuple[str, ...]
    token_ids: tuple[int, ...] = ()

    def cut(self, text: str) -> str:
        """The answer up to the first stop text, for engines that go on, or return the stop text itself."""
        ends = [at for stop in self.texts if (at := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else text


def stop_of_completion(until: Sequence[str], tokenizer: Any) -> Stop:
    """The task's own `until`, and the end of text (lm-eval adds it to sequential requests only)."""
    return Stop(_distinct([*until, tokenizer.eos_token]))


def stop_of_chat(until: Sequence[str], tokenizer: Any, template: ChatTemplate) -> Stop:
    """The template's end of turn and the end of text; of the task's own `until` what can't stand in a chat's answer.

    `until` tells where a completion runs on into a next example. A chat ends its turn by itself, and may well begin
    with a line break or a sentence: a line break or punctuation, alone or before something else, would cut the answer
    off. Texts that begin with a word, such as `Question:`, stay.
    """
    end_of_turn = _end_of_turn(tokenizer, template)
    texts = [end_of_turn, tokenizer.eos_token, *(one for one in until if _RUNS_ON.match(one))]
    ids = [_token_id(tokenizer, one) for one in (end_of_turn, tokenizer.eos_token)]
    return Stop(_distinct(texts), tuple(dict.fromkeys(one for one in ids if one is not None)))


def _end_of_turn(tokenizer: Any, template: ChatTemplate) -> str | None:
    """The special token that the template writes behind an answer; None: it writes none."""
    turns = [{"role": "user", "content": "kvmark-question"}, {"role": "assistant", "content": _ANSWER}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, **template.arguments)
    ids = tokenizer(text.partition(_ANSWER)[2], add_special_tokens=False).input_ids
    special = set(tokenizer.added_tokens_decoder)
    return next((tokenizer.convert_ids_to_tokens(one) for one in ids if one in special), None)


def _token_id(tokenizer: Any, text: str | None) -> int | None:
    ids = tokenizer(text, add_special_tokens=False).input_ids if text else []
    return int(ids[0]) if len(ids) == 1 else None


def _distinct(texts: Sequence[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text))
