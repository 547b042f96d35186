"""Real conversations of a file, and files that are not what they should be."""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.model import Model
from harness.traffic.conversations import Exchange, read_conversations
from harness.traffic.segments import Literal
from harness.traffic.text import encode, load_tokenizer
from harness.traffic.workloads import Drawn, draw, workload_of

LONG = "a statement of some length that is more than four tokens"


def said(*messages: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": sender, "value": value} for sender, value in messages]}


ENTRIES = [
    said(("human", f"{LONG} 1"), ("gpt", f"{LONG} 2"), ("human", f"{LONG} 3"), ("gpt", f"{LONG} 4")),
    said(("human", "x"), ("gpt", f"{LONG} 5")),
    said(("human", f"{LONG} 6"), ("gpt", f"{LONG} 7"), ("human", f"{LONG} 8")),
    said(),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sharegpt.json"


def drawn(model: Model, path: Path, requests: int, context_tokens: int = 4096, seed: int = 1, **keys: Any) -> Drawn:
    return draw(
        workload_of({"kind": "sharegpt-file", "path": str(path), **keys}),
        requests=requests,
        context_tokens=context_tokens,
        seed=seed,
        tokenizer=lambda: load_tokenizer(model.path),
    )


def test_text_is_the_file_s_and_outputs_are_as_long_as_its_answers(model: Model, path: Path) -> None:
    path.write_text(json.dumps(ENTRIES))
    tokens = [tuple(encode(load_tokenizer(model.path), f"{LONG} {i}")) for i in range(9)]
    sessions = drawn(model, path, 3)
    long, short = sorted(sessions, key=lambda session: -len(session.turns))
    assert [turn.new for turn in long.turns] == [(Literal(tokens[1]),), (Literal(tokens[3]),)]
    assert [turn.output_tokens for turn in long.turns] == [len(tokens[2]), len(tokens[4])]
    assert long.turns[1].prompt_tokens == len(tokens[1] + tokens[2] + tokens[3])
    assert [turn.new for turn in short.turns] == [(Literal(tokens[6]),)]
    assert set(sessions.changes) <= {"dropped_filtered"}


def test_single_turns_have_all_that_was_said_in_their_prompt(model: Model, path: Path) -> None:
    path.write_text(json.dumps(ENTRIES[:1]))
    tokens = [tuple(encode(load_tokenizer(model.path), f"{LONG} {i}")) for i in range(5)]
    first, second = drawn(model, path, 2, mode="single-turns")
    assert first.turns[0].new == (Literal(tokens[1]),)
    assert second.turns[0].new == (Literal(tokens[1] + tokens[2] + tokens[3]),)


def test_outputs_of_a_given_length_need_no_answer(model: Model, path: Path) -> None:
    path.write_text(json.dumps([ENTRIES[2]]))
    (session,) = drawn(model, path, 2, output_tokens=3)
    assert [turn.output_tokens for turn in session.turns] == [3, 3]


def test_requests_that_are_too_long_end_their_conversation(model: Model, path: Path) -> None:
    path.write_text(json.dumps(ENTRIES[:1]))
    first = len(encode(load_tokenizer(model.path), f"{LONG} 1"))
    sessions = drawn(model, path, 1, tokens_max=2 * first + 1)
    assert [len(session.turns) for session in sessions] == [1]
    sessions = drawn(model, path, 1, mode="first-turns")
    assert [len(session.turns) for session in sessions] == [1]
    with pytest.raises(ConfigError, match=r"^workload\.path: .* holds 0 requests for the window .*; 1 are asked for"):
        drawn(model, path, 1, input_tokens_max=first - 1)


def test_the_order_is_the_seed_s(model: Model, files: Path) -> None:
    path = files / "sharegpt.json"
    assert drawn(model, path, 30, seed=1) == drawn(model, path, 30, seed=1) != drawn(model, path, 30, seed=2)


def test_shapes_of_files_and_names_of_senders(path: Path) -> None:
    entries = [
        said(("system", "Be brief."), ("user", "One?"), ("assistant", "Yes."), ("assistant", "Really.")),
        said(("gpt", "Left out."), ("human", "Two?"), ("chatgpt", "No."), ("tool", "3"), ("human", "Three?")),
    ]
    expected = (
        (Exchange("Be brief.\nOne?", "Yes.\nReally."),),
        (Exchange("Two?", "No."), Exchange("3\nThree?", None)),
    )
    whole = json.dumps(entries, indent=1).encode()
    by_line = "\n\n".join(json.dumps(entry) for entry in entries).encode()
    for content in (whole, by_line, gzip.compress(whole), gzip.compress(by_line), b"\xef\xbb\xbf" + whole):
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        assert read_conversations(str(path)) == expected


@pytest.mark.parametrize("by_line", [False, True])
def test_a_text_that_was_cut_within_an_emoji_is_read(path: Path, by_line: bool) -> None:
    entries = [said(("human", "One? 🙂\ud83d"), ("gpt", "\ude42 Yes. 🙂"))]
    path.write_text(json.dumps(entries[0] if by_line else entries))
    assert read_conversations(str(path)) == ((Exchange("One? 🙂?", "? Yes. 🙂"),),)


GOOD = json.dumps(ENTRIES[0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'[{GOOD}, {{"id": 1}}]', r", entry 1, conversations: Object missing required field `conversations`"),
        (f'[{GOOD}, {{"conversations": {{}}}}]', r", entry 1, conversations: Expected `array`, got `object`"),
        (
            f'[{GOOD}, {{"conversations": [{{"from": "human"}}]}}]',
            r", entry 1, conversations\[0\]\.value: Object missing",
        ),
        (
            f'[{GOOD}, {{"conversations": [{{"from": "human", "value": 3}}]}}]',
            r", entry 1, conversations\[0\]\.value: Expected `str`, got `int`",
        ),
        (
            f'[{GOOD}, {{"conversations": [{{"from": "humn", "value": "x"}}]}}]',
            r", entry 1, conversations\[0\]\.from: 'humn' is unknown\. Did you mean 'human'\?",
        ),
        (f"[{GOOD}, 3]", r", entry 1, the entry: Expected `object`, got `int`"),
        (f"[{GOOD},\n\n{{]", r", line 3: is not JSON"),
        (f"[{GOOD}", r", line 1: is not JSON"),
        (
            f'{GOOD}\n{{"conversations": [{{"from": "human", "value": null}}]}}',
            r", line 2, conversations\[0\]\.value: Expe",
        ),
        (f"{GOOD}\n\n{{]\n", r", line 3: is not JSON"),
        ("[]", r": has no conversation with a question"),
        ("", r": has no conversation with a question"),
        ("hello", r", line 1: is not JSON"),
    ],
)
def test_what_is_wrong_is_named_with_file_entry_and_field(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"^workload\.path: {path}{message}"):
        workload_of({"kind": "sharegpt-file", "path": str(path)})


@pytest.mark.parametrize(
    "content",
    [
        b'[{"conversations": [{"from": "human", "value": "\xff"}]}]',
        gzip.compress(b"[]")[:-9],
        gzip.compress(b"[]" * 99)[:10] + b"\xff" * 30,
    ],
)
def test_what_is_no_text_is_named(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"^workload\.path: {path}"):
        workload_of({"kind": "sharegpt-file", "path": str(path)})


pieces = st.sampled_from(["1", '"', ",", "\n", "{", "}", "[", "]", "null", "x", ":", "\\", "\\ud800", "\x00"])


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 20), pieces), max_size=3))
def test_whatever_is_in_a_file_it_is_read_or_refused(edits: list[tuple[int, int, str]]) -> None:
    text = json.dumps(ENTRIES[:2])
    for at, length, piece in edits:
        text = text[:at] + piece + text[at + length :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sharegpt.json"
        path.write_text(text)
        try:
            assert read_conversations(str(path))
        except ConfigError as error:
            assert str(path) in str(error)
