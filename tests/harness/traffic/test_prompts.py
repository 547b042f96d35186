import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from harness.model import Model
from harness.traffic.playbook import Engine, Turn
from harness.traffic.prompts import Chat, Completions, Prompt
from harness.traffic.text import encode, load_tokenizer

from .schedules import CORPUS

ENGINE = Engine("m", "none", {str(count): {"min_tokens": count} for count in range(1, 40)})
TEXT = ",".join(map(str, CORPUS)).encode()


@dataclass
class Answer:
    text: str = ""
    token_ids: list[int] | None = None


def completions(tokenizer: str = "none") -> Completions:
    return Completions(ENGINE, TEXT, tokenizer)


def ids(prompt: Prompt) -> list[int]:
    found: list[int] = json.loads(b"[" + prompt.json + b"]")
    assert prompt.length == len(found)
    return found


def body(composer: Completions | Chat, prompt: Prompt, turn: Turn) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b"".join(composer.body(prompt, turn)))
    return found


def test_a_first_prompt_is_its_segments() -> None:
    turn = Turn([(0, 2), "7,8", (198, 2), (50, 1)], 7, 3)
    prompt = completions().first(turn)
    assert ids(prompt) == [1000, 1001, 7, 8, 1198, 1199, 1050]
    assert body(completions(), prompt, turn) == {
        "model": "m", "prompt": [1000, 1001, 7, 8, 1198, 1199, 1050], "max_tokens": 3, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True}, "min_tokens": 3,
    }  # fmt: skip


def test_a_later_prompt_continues_with_what_was_generated() -> None:
    first, following = Turn([(0, 3)], 3, 2), Turn([(10, 2)], 7, 2)
    composer = completions()
    prompt = composer.following(composer.first(first), first, following, Answer(token_ids=[91, 92]))
    assert ids(prompt) == [1000, 1001, 1002, 91, 92, 1010, 1011]


def test_a_failed_turn_is_filled_up_from_the_users_words() -> None:
    first, following = Turn([(0, 3)], 3, 5), Turn([(10, 2)], 10, 2)
    composer = completions()
    prompt = composer.following(composer.first(first), first, following, Answer(token_ids=[91]))
    assert ids(prompt) == [1000, 1001, 1002, 91, 1010, 1011, 1010, 1011, 1010, 1011]


def test_text_is_tokenised_where_the_engine_names_no_ids(model: Model) -> None:
    composer = completions(str(Path(model.path)))
    composer.prepare_later_turns()
    first, following = Turn([(0, 3)], 3, 5), Turn([(10, 2)], 10, 2)
    text = "the class statement"
    prompt = composer.following(composer.first(first), first, following, Answer(text))
    assert ids(prompt)[3:8] == (encode(load_tokenizer(model.path), text) + [1010, 1011] * 3)[:5]


@given(
    st.integers(1, 30),
    st.integers(1, 12),
    st.integers(0, 30),
    st.integers(1, 80),
    st.lists(st.integers(0, 99), max_size=20),
)
def test_a_later_prompt_is_always_as_long_as_planned(
    before: int, output: int, new: int, planned: int, generated: list[int]
) -> None:
    composer = completions()
    first, following = Turn([(0, before)], before, output), Turn([(100, new)] if new else [], planned, 2)
    prompt = composer.following(composer.first(first), first, following, Answer(token_ids=generated))
    found = ids(prompt)
    assert len(found) == planned
    kept = min(new, planned)
    assert found[planned - kept :] == CORPUS[100 : 100 + kept], "the user's words are never cut for the model's"
    assert found[: min(before, planned - kept)] == CORPUS[: min(before, planned - kept)]


def test_a_chat_is_sent_as_messages_with_what_was_said() -> None:
    composer = Chat(ENGINE)
    first = Turn([(0, 3)], 3, 5, text='Say "é"')
    prompt = composer.first(first)
    assert body(composer, prompt, first)["messages"] == [{"role": "user", "content": 'Say "é"'}]
    following = Turn([(3, 2)], 10, 2, text="And now?")
    prompt = composer.following(prompt, first, following, Answer("é!\n"))
    assert body(composer, prompt, following)["messages"] == [
        {"role": "user", "content": 'Say "é"'},
        {"role": "assistant", "content": "é!\n"},
        {"role": "user", "content": "And now?"},
    ]
