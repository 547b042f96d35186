"""Framing against h11, for any split; and whatever comes, nothing is raised but what is meant to be."""

from collections.abc import Sequence
from typing import Any

import h11
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.traffic.wire.ending import HEAD_BYTES, Ending, Malformed
from harness.traffic.wire.framing import read_message

from .answers import answers, pieces


def by_h11(parts: Sequence[bytes], closed: bool) -> dict[str, Any]:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
    connection.send(h11.Request(method="POST", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    seen: dict[str, Any] = {"status": None, "headers": {}, "body": b"", "complete": False}
    for part in [*parts, *([b""] if closed else [])]:
        if seen["complete"]:
            break
        connection.receive_data(part)
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.Response):
                seen["status"] = event.status_code
                for name, value in event.headers:
                    key, text = name.decode(), value.decode("latin-1")
                    seen["headers"][key] = f"{seen['headers'][key]}, {text}" if key in seen["headers"] else text
            elif isinstance(event, h11.Data):
                seen["body"] += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                seen["complete"] = True
                break
    return seen


@given(answers(), st.lists(st.integers(0, 10_000), max_size=8))
def test_an_answer_is_read_as_h11_reads_it(answer: tuple[bytes, Any], cuts: list[int]) -> None:
    raw, _ = answer
    message = read_message(raw)
    assert message.error is None
    expected = by_h11(pieces(raw, cuts), closed=True)
    assert message.status == expected["status"]
    assert message.body == expected["body"]
    assert message.complete is expected["complete"] is True
    assert message.headers == expected["headers"]


@given(answers(), st.lists(st.integers(0, 10_000), max_size=12))
def test_the_end_is_the_same_for_any_split(answer: tuple[bytes, Any], cuts: list[int]) -> None:
    raw, _ = answer
    whole = Ending()
    whole.feed(raw)
    split = Ending()
    complete = [split.feed(part) for part in pieces(raw, cuts)]
    assert (split.head, split.starts, split.sizes) == (whole.head, whole.starts, whole.sizes)
    assert split.complete is whole.complete
    assert split.excess is whole.excess is False
    assert complete.count(True) <= 1, "it isn't complete before its last byte"


@given(answers(), st.binary(min_size=1, max_size=5))
def test_what_comes_after_the_end_is_noticed(answer: tuple[bytes, Any], more: bytes) -> None:
    raw, _ = answer
    ending = Ending()
    ending.feed(raw)
    if not ending.until_close:
        ending.feed(more)
        assert ending.complete and ending.excess


@given(answers())
def test_the_beginning_of_an_answer_is_never_an_error(answer: tuple[bytes, Any]) -> None:
    raw, _ = answer
    whole = read_message(raw)
    for length in range(len(raw)):
        message = read_message(raw[:length])
        assert message.error is None, raw[:length]
        assert whole.body.startswith(message.body)
        assert not message.complete or whole.headers.keys().isdisjoint({"transfer-encoding", "content-length"})


@given(answers(), st.integers(0, 10_000), st.binary(max_size=6), st.integers(0, 4), st.lists(st.integers(0, 10_000)))
def test_whatever_comes_is_read_alike_in_any_split(
    answer: tuple[bytes, Any], at: int, inserted: bytes, dropped: int, cuts: list[int]
) -> None:
    raw, _ = answer
    at %= len(raw)
    raw = raw[:at] + inserted + raw[at + dropped :]
    message = read_message(raw)
    ending, error = Ending(), None
    try:
        for part in pieces(raw, cuts):
            ending.feed(part)
    except Malformed:
        error = True
    assert (message.error is not None) == bool(error)
    assert message.status == (ending.head.status if ending.head else None)
    if error is None:
        assert message.complete == (ending.complete or ending.until_close)


@given(st.binary(max_size=200))
def test_noise_is_never_raised(raw: bytes) -> None:
    assert read_message(raw).complete is False
    assert read_message(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + raw).status == 200


@given(answers())
def test_every_byte_of_the_body_is_found_in_the_raw_bytes(answer: tuple[bytes, Any]) -> None:
    raw, _ = answer
    message = read_message(raw)
    positions = message.body_to_raw(np.arange(len(message.body)))
    assert bytes(raw[position] for position in positions) == message.body


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"\r\nHTTP/1.1 200 OK\r\n\r\n",
        b"ICY 200 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: first\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nname : blank\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: nameless\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: \x00\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_said(raw: bytes) -> None:
    assert read_message(raw).error


def test_equal_lengths_are_one_length() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2, 2\r\n\r\nok"
    assert (read_message(raw).body, read_message(raw).complete) == (b"ok", True)


def test_chunks_win_over_a_length() -> None:
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    assert (read_message(raw).body, read_message(raw).complete) == (b"ok", True)


@pytest.mark.parametrize(
    "start", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"]
)
def test_a_head_without_end_is_malformed_and_holds_no_memory(start: bytes) -> None:
    ending = Ending()
    ending.feed(start)
    with pytest.raises(Malformed, match="without an end"):
        for _ in range(HEAD_BYTES):
            ending.feed(b"x: y\r\n" * 10)
