"""Reading a streamed answer: grammar and shapes, the careful way and the fast one, which must agree on every stream."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.traffic import bulk
from harness.traffic.bulk import read_body
from harness.traffic.stream import Answer, ServerEvent, read_answer, server_events


def text_event(text: str, finish: str | None = None, usage: int | None = None, **more: Any) -> str:
    event: dict[str, Any] = {"choices": [{"index": 0, "text": text, "finish_reason": finish, **more}]}
    if usage is not None:
        event["usage"] = {"completion_tokens": usage}
    return json.dumps(event, ensure_ascii=False)


def chat_event(finish: str | None = None, usage: int | None = None, **delta: Any) -> str:
    event: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    if usage is not None:
        event["usage"] = {"completion_tokens": usage}
    return json.dumps(event)


USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}})


def stream(*payloads: str, ends: str = "\n\n") -> bytes:
    return "".join(f"data: {payload}{ends}" for payload in payloads).encode()


def careful(body: bytes) -> Answer:
    return read_answer(server_events(body))


def answer_of(body: bytes) -> Answer:
    """Read, both ways."""
    answer = read_body(body)
    assert answer == careful(body)
    return answer


def events_at(body: bytes, answer: Answer) -> list[int]:
    """Which event of the body (from 0) each output is in."""
    ends = [event.end for event in server_events(body)]
    return [ends.index(end) for end in answer.ends]


# --- grammar ---


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[ServerEvent]]:
    """A stream with any line endings, comments and fields, and what must come out of it.

    An event is complete with the first byte that ends its blank line: the CR of a CRLF.
    """
    ending = st.sampled_from([b"\n", b"\r\n", b"\r"])
    payload = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=12).map(str.encode)
    data = b"\xef\xbb\xbf" if draw(st.booleans()) else b""
    events: list[ServerEvent] = []
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
        events.append(ServerEvent(len(data), b"\n".join(expected), name))
        data += blank
    return data, events


@given(streams())
def test_events_come_out_of_any_line_endings_comments_and_fields(case: tuple[bytes, list[ServerEvent]]) -> None:
    body, expected = case
    assert list(server_events(body)) == expected


def test_an_event_that_the_stream_ends_in_is_no_event() -> None:
    assert list(server_events(b"data: a\n\ndata: b\n")) == [ServerEvent(8, b"a")]


def test_done_without_a_last_line_ending_counts() -> None:
    assert answer_of(b"data: " + text_event("x", "stop").encode() + b"\n\ndata: [DONE]").done


@pytest.mark.parametrize(
    "done", [b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data:  [DONE] \n\n", b"data: [DONE]\r\n\r\n"]
)
def test_every_way_of_saying_done(done: bytes) -> None:
    answer = answer_of(stream(text_event("x", "stop"), USAGE) + done)
    assert (answer.done, answer.error, answer.text) == (True, None, "x")
    assert not answer_of(stream(text_event("x", "stop"), USAGE)).done


def test_nothing_after_done_counts() -> None:
    assert answer_of(stream(text_event("a", "stop"), "[DONE]", text_event("b"), "{broken")).text == "a"


# --- the fast way is the careful way ---

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("choices", "delta", "usage", "text", "index", "token_ids", "error", "object", "tool_calls", "x"),
                    *("function", "arguments", "name", "content", "reasoning", "reasoning_content", "function_call"),
                    *("finish_reason", "completion_tokens", "prompt_tokens", "prompt_tokens_details", "cached_tokens"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
"""Any JSON, rich in the names that are read."""

TEXT = st.sampled_from(["", " a", "é", "🙂", "\n", "data: [DONE]", "data:"]) | st.text(
    st.characters(codec="utf-8"), max_size=4
)
COUNT = st.sampled_from([*range(9), 0, 1, 2, 2, 3, None, 2**31, -1, 10**30])


def maybe(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def events(odd: int) -> st.SearchStrategy[Any]:
    """Events of any kind that servers send, some of whose fields (`odd` of 100) have a type that they shouldn't."""

    def field(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.sampled_from([usual] * (100 - odd) + [VALUES] * odd).flatmap(lambda kind: kind) if odd else usual

    function = maybe(name=field(TEXT), arguments=field(TEXT | st.none()))
    delta = maybe(
        role=st.just("assistant"),
        content=field(TEXT | st.none()),
        reasoning=field(TEXT | st.none()),
        reasoning_content=field(TEXT),
        tool_calls=field(st.none() | st.lists(maybe(index=st.just(0), function=field(function)), max_size=2)),
        function_call=field(function | st.none()),
    )
    choice = maybe(
        index=field(st.just(0)),
        text=field(TEXT),
        delta=field(delta),
        finish_reason=field(st.sampled_from([None, "", "stop", "length"])),
        token_ids=field(st.none() | st.lists(st.integers(0, 9), max_size=3)),
        logprobs=VALUES,
    )
    usage = maybe(
        prompt_tokens=field(COUNT),
        completion_tokens=field(COUNT),
        prompt_tokens_details=field(st.none() | maybe(cached_tokens=field(COUNT))),
    )
    return maybe(
        object=field(st.sampled_from(["text_completion", "chat.completion.chunk"])),
        choices=field(st.lists(field(choice), min_size=1, max_size=1) | st.lists(choice, max_size=2) | st.none()),
        usage=field(st.none() | usage),
        error=st.sampled_from([None, {}, "", "bad", {"message": "bad"}]) if odd else st.none(),
        timings=VALUES,
    )


def dumped(value: Any, ascii_only: bool) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")


USUAL = st.builds(dumped, events(odd=0), st.booleans()).map(lambda payload: b"data: " + payload + b"\n\n")
UNUSUAL = st.builds(dumped, events(odd=5), st.booleans())
ODD = st.sampled_from(
    [
        b"",
        b" ",
        b"{broken",
        b"[1]",
        b"null",
        b'"x"',
        b"[DONE]",
        b'{"text":"\xff"}',
        b'{"choices":[{"text":"\xff"}]}',
        b'{"choices":[{"text":"\\ud800"}]}',
        b'{"choices":[{"text":"a","text":"b"}],"choices":[{"text":"c"}]}',
        b'{"choices":',
        b'{"object":"\\u0065rror"}',
        b'{"logprob":NaN,"choices":[{"text":"n"}]}',
        b'{"logprob":-Infinity}',
        b'{"id":' + b"9" * 5000 + b"}",
        b'{"usage":{"prompt_tokens":' + b"9" * 5000 + b"}}",
        b"[" * 5000,
        b'{"x":' + b"[" * 100_000,
    ]
)
NOISE = st.sampled_from(
    [b": ping\n\n", b"\n", b"event: error\n", b"id: 1\n", b"retry: 5\n", b"x", b"\r", b"data\n\n", b"error: x\n\n"]
)
FIELD = st.sampled_from(
    [b"data: "] * 12 + [b"data:", b"data:  ", b"data:\t", b"data : ", b" data: ", b"\xef\xbb\xbfdata: "]
)
BLANK = st.sampled_from([b"\n\n"] * 20 + [b"\r\n\r\n", b"\n\r\n", b"\r\r", b"\n", b"\n\n\n", b"  \n\n"])
WILD = NOISE | st.tuples(FIELD, UNUSUAL | ODD, BLANK).map(b"".join)
END = st.sampled_from(
    [b"data: [DONE]\n\n"] * 4 + [b"", b"data:[DONE]\n\n", b"data: [DONE]", b"data: [DONE]\n", b"[DONE]\n\n"]
)


@given(st.lists(USUAL, max_size=8), st.lists(WILD, max_size=2), END, st.lists(WILD, max_size=1), st.randoms())
@example([b'data: {"choices":\n\n', b"data: []}\n\n"], [], b"", [], Random(0))
@example([b'data: {"choices":\n[]}\n\n'], [], b"", [], Random(0))
@example([b'data: {}\n\ndata: {"choices":\n\ndata: [{"text":"a"}]}\n\ndata: {},{}\n\n'], [], b"", [], Random(0))
def test_the_fast_way_says_what_the_careful_one_says(
    blocks: list[bytes], wild: list[bytes], end: bytes, after: list[bytes], random: Random
) -> None:
    for block in wild:
        blocks.insert(random.randint(0, len(blocks)), block)
    body = b"".join([*blocks, end, *after])
    answer = answer_of(body)
    assert answer.event_tokens is None or len(answer.event_tokens) == len(answer.ends)
    assert list(answer.ends) == sorted(answer.ends)
    answer.text.encode()  # can be stored


@st.composite
def completions(draw: st.DrawFn) -> tuple[list[tuple[str, int, int]], list[str]]:
    """What an engine generated, as (text, tokens, usage so far) an event, and the payloads that it might send of it."""
    chat, with_ids, continuous, total = (draw(st.booleans()) for _ in range(4))
    steps: list[tuple[str, int, int]] = []
    for text, tokens in draw(st.lists(st.tuples(st.sampled_from(["", "a", " é", "🙂"]), st.integers(0, 3)))):
        steps.append((text, tokens, tokens + (steps[-1][2] if steps else 0)))
    payloads = [chat_event(role="assistant", content="", usage=0 if continuous else None)] if chat else []
    for i, (text, tokens, so_far) in enumerate(steps):
        usage = so_far if continuous else None
        finish = "length" if i == len(steps) - 1 else None
        ids = {"token_ids": list(range(tokens))} if with_ids else {}
        delta = {draw(st.sampled_from(["content", "reasoning"])): text}
        payloads.append(chat_event(finish, usage, **delta) if chat else text_event(text, finish, usage, **ids))
    if total:
        count = steps[-1][2] if steps else 0
        payloads.append(json.dumps({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": count}}))
    return steps, [*payloads, "[DONE]"]


@given(completions())
def test_nothing_is_counted_twice_or_dropped(case: tuple[list[tuple[str, int, int]], list[str]]) -> None:
    steps, payloads = case
    body = stream(*payloads)
    answer = answer_of(body)
    first = "assistant" in payloads[0]
    where = events_at(body, answer)
    assert answer.text == "".join(text for text, _, _ in steps)
    assert {i - first for i in where} >= {i for i, (text, _, _) in enumerate(steps) if text}
    assert len(set(where)) == len(where) and {i - first for i in where} <= set(range(len(steps)))
    if answer.output_tokens is not None and where:
        assert answer.counted_tokens == answer.output_tokens
    if not answer.tokens_estimated and answer.event_tokens is not None:
        # What is not estimated is what was generated since the event before.
        before = 0
        for i, count in zip(where, answer.event_tokens, strict=True):
            assert count == steps[i - first][2] - before
            before = steps[i - first][2]


@given(st.lists(st.binary(max_size=40), max_size=8).map(b"".join))
def test_no_bytes_can_break_the_reader(body: bytes) -> None:
    answer_of(body)
    answer_of(b"data: " + body + b"\n\n")


@given(st.data(), st.booleans())
def test_a_stream_cut_anywhere_or_with_any_byte_changed_is_read_the_same_both_ways(
    data: st.DataObject, cut: bool
) -> None:
    body = stream(text_event("größe", token_ids=[1]), text_event("→🙂", "length", token_ids=[2, 3]), USAGE, "[DONE]")
    at = data.draw(st.integers(0, len(body) - 1))
    answer_of(body[:at] if cut else body[:at] + data.draw(st.binary(max_size=2)) + body[at + 1 :])


@pytest.mark.parametrize(
    "body",
    [
        stream(*[text_event("x", token_ids=[1])] * 2, text_event("x", "length", token_ids=[1]), USAGE, "[DONE]"),
        stream(chat_event(role="assistant", content=""), chat_event(content="é"), chat_event("stop"), USAGE, "[DONE]"),
        stream(*(text_event("x", usage=n) for n in (2, 3, 6)), USAGE, "[DONE]"),
        stream(chat_event(reasoning="x"), chat_event(tool_calls=[{"function": {"arguments": "{"}}]), "[DONE]"),
        stream('{"choices":[{"text":"x"}],"usage":null,"timings":{"predicted_per_token_ms":1.5}}', "[DONE]"),
        stream(text_event("cut off")),
        stream("[DONE]"),
    ],
)
def test_what_servers_usually_send_is_read_the_fast_way(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = careful(body)
    monkeypatch.delattr(bulk, "read_answer")
    assert read_body(body) == expected
    assert read_body(body.replace(b"data: ", b"data:")).text == expected.text


# --- what an event may hold ---


def test_role_delta_and_usage_chunk_carry_no_output() -> None:
    body = stream(
        chat_event(role="assistant", content=""), chat_event(content="hi"), chat_event("stop"), USAGE, "[DONE]"
    )
    answer = answer_of(body)
    assert events_at(body, answer) == [1]
    assert (answer.prompt_tokens, answer.output_tokens, answer.finish_reason) == (5, 3, "stop")


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"reasoning": "x", "reasoning_content": "x", "content": None},
        {"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "x", "arguments": ""}}]},
        {"function_call": {"arguments": "x"}},
        {"refusal": "x"},
        {"content": [{"type": "text", "text": "x"}]},
        {"content": [], "tool_calls": [{"function": {"name": "x", "arguments": {}}}]},
    ],
)
def test_every_kind_of_chat_delta_is_output_once(delta: dict[str, Any]) -> None:
    assert answer_of(stream(chat_event(**delta))).text == "x"


def test_arguments_may_be_an_object_and_an_index_null() -> None:
    call = {"index": 0, "function": {"arguments": {"city": "é"}}}
    assert answer_of(stream(chat_event(tool_calls=[call]))).text == '{"city": "é"}'
    assert answer_of(stream('{"choices": [{"index": null, "text": "a"}]}')).text == "a"


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"error": {"message": "no blocks"}}\n\n',
        b'data: {"error": "no blocks"}\n\n',
        b'event: error\ndata: {"message": "no blocks"}\n\n',
        b'event: error\ndata: {"error": {"message": "no blocks", "code": 500}}\n\n',
        b"event: error\ndata: no blocks\n\n",
        b'data: {"object": "error", "message": "no blocks"}\n\n',
        b'error: {"message": "no blocks"}\n\n',
        b"event: error\r\ndata: no blocks\r\n\r\n",
    ],
)
def test_an_error_inside_the_stream_is_named_with_its_message(data: bytes) -> None:
    answer = answer_of(stream(text_event("a")) + data + b"data: [DONE]\n\n")
    assert (answer.error, answer.error_detail) == ("error_event", "no blocks")


@pytest.mark.parametrize(
    "payload",
    [
        "{broken",
        "[1]",
        "null",
        '{"choices": 3}',
        '{"choices": ["x"]}',
        '{"choices": [{"text": 5}]}',
        '{"usage": []}',
        "[" * 100_000,
    ],
)
def test_an_event_of_another_shape_is_malformed(payload: str) -> None:
    answer = answer_of(stream(text_event("a", "stop"), payload, "[DONE]"))
    assert answer.error == "malformed_event"
    assert answer.text == "a"


@pytest.mark.parametrize(
    "payload",
    ["", " ", '{"choices": []}', '{"choices": null, "usage": null}', '{"type": "ping"}', '{"id": ' + "9" * 5000 + "}"],
)
def test_an_event_that_says_nothing_changes_nothing(payload: str) -> None:
    body = stream(text_event("a"), payload, text_event("b", "stop"), "[DONE]")
    answer = answer_of(body)
    assert (answer.error, answer.text, events_at(body, answer)) == (None, "ab", [0, 2])


@pytest.mark.parametrize("name", ["ping", "keepalive", "heartbeat"])
def test_a_ping_may_be_an_event_that_is_no_json(name: str) -> None:
    ping = f"event: {name}\r\ndata: 2026-01-01 10:00:00.123\r\n\r\n".encode()
    answer = answer_of(stream(text_event("a")) + ping + stream(text_event("b", "stop"), USAGE, "[DONE]"))
    assert (answer.error, answer.text, len(answer.ends)) == (None, "ab", 2)


def test_a_figure_that_is_no_number_is_no_reason_to_lose_the_text() -> None:
    payload = text_event("a", "stop")[:-1] + ', "logprob": NaN}'
    assert answer_of(stream(payload, "[DONE]")).text == "a"


def test_a_finish_reason_may_come_twice_or_empty() -> None:
    answer = answer_of(stream(text_event("a", ""), text_event("b", "length"), chat_event("length"), "[DONE]"))
    assert (answer.finish_reason, len(answer.ends)) == ("length", 2)


def test_other_choices_are_not_this_answer() -> None:
    body = stream(json.dumps({"choices": [{"index": 1, "text": "no"}, {"index": 0, "text": "yes"}]}), "[DONE]")
    assert answer_of(body).text == "yes"


# --- counting ---


def test_tokens_come_from_token_ids_also_where_an_event_has_no_text() -> None:
    payloads = [text_event("a", token_ids=[1]), text_event("", token_ids=[2]), text_event("é", "length", token_ids=[3])]
    answer = answer_of(stream(*payloads, USAGE, "[DONE]"))
    assert (answer.event_tokens, answer.tokens_estimated) == (None, False)
    assert answer.token_ids == [1, 2, 3]


def test_an_event_may_hold_several_tokens() -> None:
    answer = answer_of(stream(text_event("ab", token_ids=[1, 2]), text_event("c", token_ids=[3]), USAGE, "[DONE]"))
    assert (answer.event_tokens, answer.tokens_estimated, answer.counted_tokens) == ([2, 1], False, 3)


def test_tokens_come_from_continuous_usage() -> None:
    answer = answer_of(stream(*(text_event("x", usage=n) for n in (2, 3, 6)), "[DONE]"))
    assert (answer.event_tokens, answer.tokens_estimated) == ([2, 1, 3], False)


def test_continuous_usage_names_tokens_without_text_but_a_role_is_none() -> None:
    body = stream(
        chat_event(role="assistant", content="", usage=1),
        chat_event(content="a", usage=1),
        chat_event(content="", usage=2),
        chat_event(content="b", usage=4),
        chat_event("stop", usage=5),
        json.dumps({"choices": [], "usage": {"completion_tokens": 5}}),
        "[DONE]",
    )
    answer = answer_of(body)
    assert events_at(body, answer) == [1, 2, 3, 4]
    assert (answer.event_tokens, answer.tokens_estimated) == ([1, 1, 2, 1], False)


def test_usage_with_the_last_event_is_the_total_and_no_output() -> None:
    body = stream(chat_event(content="a"), chat_event(content="b"), chat_event("stop", usage=2), "[DONE]")
    answer = answer_of(body)
    assert (events_at(body, answer), answer.event_tokens, answer.tokens_estimated) == ([0, 1], None, False)


@pytest.mark.parametrize(
    ("events", "total", "counts", "estimated"),
    [
        (3, 3, None, False),
        (3, 6, [2, 2, 2], True),
        (3, 4, [1, 1, 2], True),
        (4, 2, [0, 1, 0, 1], True),
        (3, None, None, True),
        (0, 3, None, False),
        (1, 200_000, [200_000], True),
    ],
)
def test_without_token_ids_the_usage_total_is_spread_and_flagged(
    events: int, total: int | None, counts: list[int] | None, estimated: bool
) -> None:
    payloads = [text_event("x")] * events
    if total is not None:
        payloads.append(json.dumps({"choices": [], "usage": {"completion_tokens": total}}))
    answer = answer_of(stream(*payloads, "[DONE]"))
    assert (answer.event_tokens, answer.tokens_estimated) == (counts, estimated)


def test_token_ids_that_contradict_the_usage_total_are_not_believed() -> None:
    payloads = [text_event("a", token_ids=[1, 2]), text_event("b", "length", token_ids=[3, 4])]
    answer = answer_of(stream(*payloads, USAGE, "[DONE]"))
    assert (answer.event_tokens, answer.tokens_estimated) == ([1, 2], True)
    assert answer.token_ids is None


def test_a_count_may_be_written_with_a_point() -> None:
    answer = answer_of(stream(text_event("a", "stop"), '{"usage": {"prompt_tokens": 5.0, "completion_tokens": 1.0}}'))
    assert (answer.prompt_tokens, answer.output_tokens, answer.tokens_estimated) == (5, 1, False)


def test_usage_may_come_in_parts_and_the_last_of_each_holds() -> None:
    first = '{"choices": [], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}'
    answer = answer_of(stream(first, text_event("a", "stop", usage=1), '{"usage": {}}', "[DONE]"))
    assert (answer.prompt_tokens, answer.cached_prompt_tokens, answer.output_tokens) == (9, 4, 1)
