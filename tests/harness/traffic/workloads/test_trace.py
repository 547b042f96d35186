"""A trace's requests: their times, their shared blocks, and what is done to those that don't fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.traffic.segments import Fresh, Part, Shared
from harness.traffic.workloads import Drawn, draw, workload_of

Row = tuple[float, int, int, list[int]]
"""Milliseconds, prompt, output, blocks of 512 tokens."""

ROWS: list[Row] = [
    (1000, 1100, 50, [0, 1, 2]),
    (1500, 1024, 20, [0, 1]),
    (3000, 3000, 400, [0, 3, 4, 5, 6, 7]),
    (3250, 600, 0, [0, 8]),
    (4000, 513, 10, [0, 9]),
]


def drawn(folder: Path, rows: list[Row] = ROWS, requests: int = 4, context_tokens: int = 4096, **keys: Any) -> Drawn:
    path = folder / "trace.jsonl"
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    workload = workload_of({"kind": "trace", "path": str(path), **keys})

    def none() -> Any:
        raise AssertionError("a trace needs no tokenizer")

    return draw(workload, requests=requests, context_tokens=context_tokens, seed=1, tokenizer=none)


def blocks(*counts: tuple[int, int]) -> tuple[Part, ...]:
    return tuple(Shared(f"block-{block}", count) for block, count in counts)


def test_each_block_is_shared_by_its_id_and_the_last_is_as_long_as_it_is(tmp_path: Path) -> None:
    sessions = drawn(tmp_path)
    assert sessions[0].turns[0].new == blocks((0, 512), (1, 512), (2, 76))
    assert sessions[1].turns[0].new == blocks((0, 512), (1, 512))
    assert sessions[3].turns[0].new == blocks((0, 512), (9, 1))


def test_times_count_from_the_first_request_and_failed_ones_are_left_out(tmp_path: Path) -> None:
    sessions = drawn(tmp_path)
    assert [session.start_s for session in sessions] == [0, 0.5, 2, 3]
    assert [(s.turns[0].prompt_tokens, s.turns[0].output_tokens) for s in sessions][-1] == (513, 10)
    assert sessions.changes == {"dropped_empty": 1}


def test_a_window_of_the_trace(tmp_path: Path) -> None:
    assert [s.start_s for s in drawn(tmp_path, requests=2, from_s=0.5, to_s=2.1)] == [0, 1.5]
    assert [s.start_s for s in drawn(tmp_path, requests=2, skip_rows=1, rows_max=2)] == [0, 1.5]
    with pytest.raises(ConfigError, match=r"^workload\.path: .* holds 2 requests .*; 3 are asked for"):
        drawn(tmp_path, requests=3, from_s=0.5, to_s=2.1)


def test_a_last_block_that_the_trace_leaves_out_is_text_of_its_own(tmp_path: Path) -> None:
    [session] = drawn(tmp_path, [(0, 1100, 50, [0, 1])], requests=1)
    assert session.turns[0].new == (*blocks((0, 512), (1, 512)), Fresh(76))


def test_cut_takes_the_end_of_the_prompt(tmp_path: Path) -> None:
    sessions = drawn(tmp_path, context_tokens=2000)
    assert sessions[2].turns[0].new == blocks((0, 512), (3, 512), (4, 512), (5, 64))
    assert sessions.changes == {"dropped_empty": 1, "cut": 1}


def test_cut_takes_the_output_s_too_where_it_takes_more_than_half(tmp_path: Path) -> None:
    [session] = drawn(tmp_path, [(0, 1100, 900, [0, 1, 2])], requests=1, context_tokens=1000)
    assert (session.turns[0].prompt_tokens, session.turns[0].output_tokens) == (500, 500)


def test_drop_leaves_out_what_is_too_long(tmp_path: Path) -> None:
    sessions = drawn(tmp_path, requests=3, context_tokens=2000, fit="drop")
    assert [session.turns[0].prompt_tokens for session in sessions] == [1100, 1024, 513]
    assert sessions.changes == {"dropped_empty": 1, "dropped_long": 1}


def test_scale_keeps_what_is_shared(tmp_path: Path) -> None:
    sessions = drawn(tmp_path, context_tokens=1700, fit="scale")  # half of 3,400
    assert sessions[0].turns[0].new == blocks((0, 256), (1, 256), (2, 38))
    assert sessions[2].turns[0].prompt_tokens == 5 * 256 + 220
    assert sessions[2].turns[0].output_tokens == 200
    assert sessions.changes == {"dropped_empty": 1, "scaled": 4}


def test_a_scale_of_its_own_comes_first(tmp_path: Path) -> None:
    sessions = drawn(tmp_path, length_scale=0.25)
    assert sessions[0].turns[0].new == blocks((0, 128), (1, 128), (2, 19))
    assert [session.turns[0].output_tokens for session in sessions] == [12, 5, 100, 2]


@pytest.mark.parametrize("fit", ["cut", "scale"])
@pytest.mark.parametrize("context_tokens", [2, 3, 17, 600])
def test_whatever_the_context_everything_fits(tmp_path: Path, fit: str, context_tokens: int) -> None:
    for session in drawn(tmp_path, context_tokens=context_tokens, fit=fit):
        (turn,) = session.turns
        assert turn.prompt_tokens == turn.new_tokens >= 1 and turn.output_tokens >= 1
        assert turn.prompt_tokens + turn.output_tokens <= context_tokens


def test_a_trace_without_blocks_shares_nothing(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("arrival_s,context_tokens,generated_tokens\n0,300,4\n1.5,200,5\n")
    workload = workload_of({"kind": "trace", "path": str(path), "format": "azure"})
    sessions = draw(workload, requests=2, context_tokens=4096, seed=1, tokenizer=lambda: None)  # type: ignore[arg-type]
    assert [session.turns[0].new for session in sessions] == [(Fresh(300),), (Fresh(200),)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"fit": "crop"}, r"^workload\.fit: 'crop' is unknown\. Did you mean 'drop'\? Allowed: cut, scale, drop"),
        (
            {"format": "moon"},
            r"^workload\.format: 'moon' is unknown\..* Allowed: auto, azure, burstgpt, mooncake, qwen-b",
        ),
        ({"format": "azure"}, r"^workload\.path: .*, line 1: has no '.*', which the format azure needs"),
        ({"to_s": 1, "from_s": 2}, r"^workload\.to_s: 1.0 must be > from_s \(2.0\)"),
        ({"length_scale": 0}, r"^workload\.length_scale: 0.0 must be > 0"),
        ({"length_scale": 1e308}, r"^workload\.length_scale: 1e\+308 must be > 0 and <= 1e\+06"),
        ({"block_tokens": 100}, r"^workload\.path: .*, line 1, hash_ids: 3 blocks for a prompt of 1100 tokens; at 100"),
        ({"skip_rows": 9}, r"^workload\.path: .*: has no rows after skip_rows \(9\)"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_drawn(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        drawn(tmp_path, **keys)


def test_a_trace_needs_a_path() -> None:
    with pytest.raises(ConfigError, match=r"^workload\.path: is missing"):
        workload_of({"kind": "trace"})
    with pytest.raises(ConfigError, match=r"^workload\.path: /nowhere/x\.csv: can't be read: No such file"):
        workload_of({"kind": "trace", "path": "/nowhere/x.csv"})
