"""Reading a streamed answer: grammar, shapes, and every way of splitting it over reads."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.traffic.stream import ServerEvent, read_answer, server_events, token_counts


def text_event(text: str, finish: str | None = None, **more: Any) -> str:
    return json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}, ensure_ascii=False)


USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}})


def stream(*payloads: str, ends: str = "\n\n") -> bytes:
    return "".join(f"data: {payload}{ends}" for payload in payloads).encode()


def answer_of(data: bytes, at_ns: int = 1) -> Any:
    return read_answer(server_events([(at_ns, data)]))


@st.composite
def split_streams(draw: st.DrawFn) -> tuple[list[tuple[int, bytes]], list[ServerEvent]]:
    """A stream with any line endings, comments and fields, cut anywhere; and what must come out of it.

    An event is complete with the first byte that ends its blank line: the CR of a CRLF.
    """
    ending = st.sampled_from([b"\n", b"\r\n", b"\r"])
    payload = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12).map(str.encode)
    data = b"\xef\xbb\xbf" if draw(st.booleans()) else b""
    complete: list[tuple[int, bytes, str]] = []
    for _ in range(draw(st.integers(1, 5))):
        lines = draw(st.lists(payload, min_size=1, max_size=3))
        name = draw(st.sampled_from(["", "message", "error"]))
        fields = [b"data:" + draw(st.sampled_from([b"", b" "])) + line for line in lines]
        expected = [field.removeprefix(b"data:").removeprefix(b" ") for field in fields]
        noise = draw(st.lists(st.sampled_from([b": ping", b":", b"id: 7", b"retry: 10", b"unknown: x"]), max_size=2))
        block = [*noise, *([b"event: " + name.encode()] if name else []), *fields]
        for line in block:
            data += line + draw(ending)
        # After a CR, an LF would be the second half of that ending and no blank line.
        blank = draw(ending.filter(lambda kind, data=data: not (data.endswith(b"\r") and kind == b"\n")))
        complete.append((len(data), b"\n".join(expected), name))
        data += blank
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    edges = [0, *cuts, len(data)]
    reads = [(i + 1, data[a:b]) for i, (a, b) in enumerate(pairwise(edges))]
    stamps = {byte: i + 1 for i, (a, b) in enumerate(pairwise(edges)) for byte in range(a, b)}
    return reads, [ServerEvent(stamps[at], expected, name) for at, expected, name in complete]


@given(split_streams())
def test_every_split_gives_the_same_events_each_stamped_by_the_read_that_completed_it(
    case: tuple[list[tuple[int, bytes]], list[ServerEvent]],
) -> None:
    reads, expected = case
    assert list(server_events(reads)) == expected


@given(st.lists(st.integers(0, 400), max_size=6))
def test_multi_byte_text_survives_any_cut(cuts: list[int]) -> None:
    data = stream(text_event("größer → 🙂"), text_event("漢字", "length"), "[DONE]")
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reads = [(i, data[a:b]) for i, (a, b) in enumerate(pairwise(edges))]
    answer = read_answer(server_events(reads))
    assert answer.text == "größer → 🙂漢字"
    assert answer.done and answer.error is None


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_no_bytes_can_break_the_reader(chunks: list[bytes]) -> None:
    answer = read_answer(server_events(enumerate(chunks)))
    assert len(token_counts(answer)[0]) == len(answer.outputs)


KEYS = st.sampled_from(["choices", "delta", "usage", "text", "index", "token_ids", "error", "tool_calls", "function"])
PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(PAYLOADS)
def test_no_payload_can_break_the_reader(payload: Any) -> None:
    answer = answer_of(stream(json.dumps(payload), text_event("after", "stop"), "[DONE]"))
    assert answer.text.endswith("after")
    assert answer.done


def test_an_event_that_the_stream_ends_in_is_no_event() -> None:
    assert list(server_events([(1, b"data: a\n\ndata: b\n")])) == [ServerEvent(1, b"a")]


def test_done_without_a_last_line_ending_counts() -> None:
    assert answer_of(b"data: " + text_event("x", "stop").encode() + b"\n\ndata: [DONE]").done


def test_nothing_after_done_counts() -> None:
    assert answer_of(stream(text_event("a", "stop"), "[DONE]", text_event("b"))).text == "a"


def test_role_delta_and_usage_chunk_carry_no_output() -> None:
    role = json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    word = json.dumps({"choices": [{"index": 0, "delta": {"content": "hi"}}]})
    end = json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    reads = [(ns, stream(payload)) for ns, payload in enumerate([role, word, end, USAGE, "[DONE]"], start=1)]
    answer = read_answer(server_events(reads))
    assert [output.ns for output in answer.outputs] == [2]
    assert (answer.prompt_tokens, answer.output_tokens, answer.finish_reason) == (5, 3, "stop")


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]},
        {"function_call": {"arguments": "x"}},
    ],
)
def test_every_kind_of_chat_delta_is_output(delta: dict[str, Any]) -> None:
    assert answer_of(stream(json.dumps({"choices": [{"index": 0, "delta": delta}]}))).text == "x"


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"error": {"message": "no blocks"}}\n\n',
        b'event: error\ndata: {"message": "no blocks"}\n\n',
        b'data: {"object": "error", "message": "no blocks"}\n\n',
        b'error: {"message": "no blocks"}\n\n',
    ],
)
def test_an_error_inside_the_stream_is_named_with_its_message(data: bytes) -> None:
    answer = answer_of(stream(text_event("a")) + data + b"data: [DONE]\n\n")
    assert (answer.error, answer.error_detail) == ("error_event", "no blocks")


@pytest.mark.parametrize("payload", ["{broken", "[1]", '{"choices": 3}', '{"choices": ["x"]}', '{"usage": []}'])
def test_an_event_of_another_shape_is_malformed(payload: str) -> None:
    answer = answer_of(stream(text_event("a", "stop"), payload, "[DONE]"))
    assert answer.error == "malformed_event"
    assert answer.text == "a"


def test_tokens_come_from_token_ids_also_where_an_event_has_no_text() -> None:
    payloads = [text_event("a", token_ids=[1]), text_event("", token_ids=[2]), text_event("é", "length", token_ids=[3])]
    answer = answer_of(stream(*payloads, USAGE, "[DONE]"))
    assert token_counts(answer) == ([1, 1, 1], False)
    assert answer.token_ids == [1, 2, 3]


def test_tokens_come_from_continuous_usage() -> None:
    payloads = [
        json.dumps({"choices": [{"index": 0, "text": "x"}], "usage": {"completion_tokens": n}}) for n in (2, 3, 6)
    ]
    assert token_counts(answer_of(stream(*payloads, "[DONE]"))) == ([2, 1, 3], False)


@pytest.mark.parametrize(
    ("events", "total", "counts", "estimated"),
    [
        (3, 3, [1, 1, 1], False),
        (3, 6, [2, 2, 2], True),
        (3, 4, [1, 1, 2], True),
        (4, 2, [0, 1, 0, 1], True),
        (3, None, [1, 1, 1], True),
    ],
)
def test_without_token_ids_the_usage_total_is_spread_and_flagged(
    events: int, total: int | None, counts: list[int], estimated: bool
) -> None:
    payloads = [text_event("x")] * events
    if total is not None:
        payloads.append(json.dumps({"choices": [], "usage": {"completion_tokens": total}}))
    assert token_counts(answer_of(stream(*payloads, "[DONE]"))) == (counts, estimated)


def test_token_ids_that_contradict_the_usage_total_are_not_believed() -> None:
    payloads = [text_event("a", token_ids=[1, 2]), text_event("b", "length", token_ids=[3, 4])]
    answer = answer_of(stream(*payloads, USAGE, "[DONE]"))
    assert token_counts(answer) == ([1, 2], True)
    assert answer.token_ids is None
