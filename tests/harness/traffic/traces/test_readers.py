"""Rows of traces, in each format as it is published; and files that are not what they should be."""

import gzip
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.traffic.traces import Trace, format_names, read

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2225670,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
2024-05-10 00:00:01.500000+00:00,76,15
"""
SECONDS = "arrival_s,context_tokens,generated_tokens\n0.000000,374,44\n4.314579,396,109\n"
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,API log
118,GPT-4,417,276,693,Conversation log
"""
BURSTGPT_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5.5,7f2c,1.2,ChatGPT,472,18,490,Conversation log
45.0,7f2c,2.5,ChatGPT,1087,230,1317,Conversation log
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2353]}
{"timestamp": 30535, "input_length": 1024, "output_length": 26, "hash_ids": [46, 47]}
"""
MOONCAKE_RANGES = """timestamp_ms,input_length,output_length,hash_id_ranges
27482,1100,52,46-47 2353
30535,1024,26,46-47
"""
BAILIAN = "\n".join(
    json.dumps({"chat_id": chat, "parent_chat_id": parent, "timestamp": at, "input_length": tokens, "output_length": 9,
                "type": "text", "turn": turn, "hash_ids": ids})
    for chat, parent, at, tokens, turn, ids in [(159, -1, 61.114, 40, 1, [1, 2, 3]), (160, 159, 63.5, 48, 2, [1, 2, 4])]
)  # fmt: skip


def rows(path: Path, **options: int) -> list[tuple[float, int, int]]:
    trace = read(str(path), **options)
    return list(zip((round(at, 6) for at in trace.at_s), trace.prompt_tokens, trace.output_tokens, strict=True))


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        (AZURE_2023, "azure", [(0, 374, 44), (4.314579, 396, 109), (4.541977, 879, 55)]),
        (AZURE_2024, "azure", [(0, 2162, 5), (0.99007, 2399, 6), (1.49007, 76, 15)]),
        (SECONDS, "azure", [(0, 374, 44), (4.314579, 396, 109)]),
        (BURSTGPT, "burstgpt", [(0, 472, 18), (40, 1087, 0), (113, 417, 276)]),
        (BURSTGPT_SESSIONS, "burstgpt", [(0, 472, 18), (39.5, 1087, 230)]),
        (MOONCAKE, "mooncake", [(0, 1100, 52), (3.053, 1024, 26)]),
        (MOONCAKE_RANGES, "mooncake", [(0, 1100, 52), (3.053, 1024, 26)]),
        (BAILIAN, "qwen-bailian", [(0, 40, 9), (2.386, 48, 9)]),
    ],
)
def test_every_format_is_read_and_recognised(
    trace_file: Path, text: str, name: str, expected: list[tuple[float, int, int]]
) -> None:
    assert name in format_names()
    for content in (text.encode(), gzip.compress(text.encode()), b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()):
        trace_file.unlink(missing_ok=True)
        trace_file.write_bytes(content)
        assert read(str(trace_file)).format == read(str(trace_file), name).format == name
        assert rows(trace_file) == expected


@pytest.mark.parametrize("text", [MOONCAKE, MOONCAKE_RANGES])
def test_blocks_are_kept(trace_file: Path, text: str) -> None:
    trace_file.write_text(text)
    trace = read(str(trace_file))
    assert (trace.block_tokens, trace.blocks) == (512, ((46, 47, 2353), (46, 47)))


def test_rows_are_skipped_and_limited_and_put_in_order(trace_file: Path) -> None:
    trace_file.write_text("arrival_s,context_tokens,generated_tokens\n9,1,1\n5,2,2\n3,3,3\n4,4,4\n1,5,5\n")
    assert rows(trace_file, skip_rows=1, rows_max=3) == [(0, 3, 3), (1, 4, 4), (2, 2, 2)]
    assert read(str(trace_file)).reordered == 3


def test_a_file_that_has_changed_is_read_again(trace_file: Path) -> None:
    trace_file.write_text(SECONDS)
    assert len(rows(trace_file)) == 2
    trace_file.write_text(SECONDS + "5,1,1\n")
    assert len(rows(trace_file)) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (AZURE_2023.replace("396", "39x6"), r"line 3, ContextTokens: '39x6' must be a number"),
        (AZURE_2023.replace("879", "-1"), r"line 4, ContextTokens: '-1' must be a whole number from 0"),
        (AZURE_2023.replace(",44", ",4.5"), r"line 2, GeneratedTokens: '4.5' must be a whole number"),
        (AZURE_2023.replace(",44", ","), r"line 2, GeneratedTokens: '' must be a number"),
        (
            AZURE_2023.replace("2023-11-16 18:15:50.9951690", "later"),
            r"line 3, TIMESTAMP: 'later' must be a time such as",
        ),
        (AZURE_2023.replace(",44", ""), r"line 2: 2 cells for 3 columns"),
        (
            AZURE_2023.replace("ContextTokens", "Tokens"),
            r"line 2: has no 'ContextTokens', which the format azure needs",
        ),
        (BURSTGPT.replace("1087,0", "nan,0"), r"line 3, Request tokens: 'nan' must be a number"),
        (BURSTGPT.replace("118", ""), r"line 4, Timestamp: '' must be a number"),
        (MOONCAKE.replace('"output_length": 26, ', ""), r"line 2, output_length: is missing"),
        (MOONCAKE.replace("1024", '"many"'), r"line 2, input_length: 'many' must be a number"),
        (MOONCAKE.replace("1024", "true"), r"line 2, input_length: 'true' must be a number"),
        (MOONCAKE.replace("[46, 47]", "[46]"), r"line 2, hash_ids: 1 blocks for a prompt of 1024 tokens; .* it has 2"),
        (MOONCAKE.replace("[46, 47]", "[46, 47, 48]"), r"line 2, hash_ids: 3 blocks for a prompt of 1024 tokens"),
        (
            MOONCAKE.replace("[46, 47]", "[46, null]"),
            r"line 2, hash_ids: '\[46, null\]' must be a list of whole numbers",
        ),
        (MOONCAKE.replace("[46, 47]}", "[46, 47]"), r"line 2: is not JSON"),
        (MOONCAKE + "[1]\n", r"line 3: is not a JSON object"),
        (MOONCAKE_RANGES.replace("46-47\n", "46-\n"), r"line 3, hash_id_ranges: '46-' must be an id or first-last"),
        (MOONCAKE_RANGES.replace("46-47\n", "47-46\n"), r"line 3, hash_id_ranges: '47-46' must be"),
        (MOONCAKE_RANGES.replace("46-47\n", "46-" + "9" * 5000 + "\n"), r"line 3, hash_id_ranges: '46-9+' must be"),
        (
            MOONCAKE_RANGES.replace("46-47\n", "1-9 46-99999999999\n"),
            r"line 3, hash_id_ranges: '46-99999999999' must be at most 10000000 blocks",
        ),
        (
            MOONCAKE.replace("hash_ids", "hash_id_ranges").replace("timestamp", "timestamp_ms"),
            r"line 1, hash_id_ranges: '\[46, 47, 2353\]' must be a text",
        ),
        ("[" + MOONCAKE.replace("\n", ",\n").rstrip(",\n") + "]\n", r"line 1: is a JSON list; write one object a line"),
        (BAILIAN.replace("[1, 2, 4]", "[1]"), r"line 2, hash_ids: 1 blocks for a prompt of 48 tokens; at 16 tokens"),
        ("", r"has no rows"),
        ("arrival_s,context_tokens,generated_tokens\n", r"has no rows"),
        ("one,two\n1,2\n", r"line 2: has no '.*'.* it has one, two"),
    ],
)
def test_what_is_wrong_is_named_with_file_line_and_field(trace_file: Path, text: str, message: str) -> None:
    trace_file.write_text(text)
    with pytest.raises(ConfigError, match=f"^{trace_file}.*{message}"):
        read(str(trace_file))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"arrival_s,context_tokens,generated_tokens\n1,2,3\n1,\xff,3\n", r"line 3: is not UTF-8 text"),
        (
            b"arrival_s,context_tokens,generated_tokens\n" + b"1,2,3\n" * 9000 + b"\xff\n",
            r"line 9002: is not UTF-8 text",
        ),
        (gzip.compress(AZURE_2023.encode())[:30] + b"\xff" * 99, r"line 1: can't be read: Error -3"),
        (gzip.compress(AZURE_2023.encode())[:-5], r"line 5: can't be read: Compressed file ended"),
    ],
)
def test_what_is_no_text_is_named(trace_file: Path, content: bytes, message: str) -> None:
    trace_file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{trace_file}.*{message}"):
        read(str(trace_file))


def test_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv: can't be read: No such file"):
        read(str(tmp_path / "none.csv"))


def test_other_sizes_of_blocks(trace_file: Path) -> None:
    trace_file.write_text('{"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [1, 2, 3, 4]}\n')
    trace: Trace = read(str(trace_file), block_tokens=32)
    assert trace.block_tokens == 32


pieces = st.sampled_from(
    ["1", "-1", "1e999", '"', ",", "\n", "{", "}", "[", "]", "null", "true", "x", ":", "\x00", "\u2028"]
)
GOOD = (AZURE_2023, BURSTGPT, MOONCAKE, MOONCAKE_RANGES, BAILIAN)


@given(st.sampled_from(GOOD), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 20), pieces), max_size=3))
def test_whatever_is_in_a_file_it_is_read_or_refused(good: str, edits: list[tuple[int, int, str]]) -> None:
    for at, length, piece in edits:
        good = good[:at] + piece + good[at + length :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace"
        path.write_text(good)
        try:
            trace = read(str(path))
        except ConfigError as error:
            assert str(path) in str(error)
        else:
            assert len(trace.at_s) >= 1 and trace.at_s[0] == 0
