"""Mooncake's traces (kvcache-ai/Mooncake, Apache-2.0; FAST'25).

JSONL with `timestamp` in milliseconds, `input_length`, `output_length` and `hash_ids`: a block is 512 tokens, and an id
stands for the block and all before it. Also the same as a CSV whose `hash_id_ranges` writes consecutive ids
`first-last`, parted by spaces.
"""

from collections.abc import Mapping
from typing import Any

from harness.traffic.traces import Line, Row, blocks_of, field, trace_format

BLOCK_TOKENS = 512


@trace_format("mooncake", "timestamp", "input_length", "output_length", "hash_ids", block_tokens=BLOCK_TOKENS)
def published(line: Line, values: Mapping[str, Any]) -> Row:
    """A row as it is published."""
    return Row(
        line.number_of("timestamp", field(line, values, "timestamp")) / 1000,
        line.tokens_of("input_length", field(line, values, "input_length")),
        line.tokens_of("output_length", field(line, values, "output_length")),
        blocks_of(line, values, "hash_ids"),
    )


@trace_format("mooncake", "timestamp_ms", "input_length", "output_length", "hash_id_ranges", block_tokens=BLOCK_TOKENS)
def in_ranges(line: Line, values: Mapping[str, Any]) -> Row:
    """A row with its ids as ranges."""
    ranges = field(line, values, "hash_id_ranges")
    ids: list[int] = []
    for text in ranges.split():
        first, dash, last = text.partition("-")
        if not first.isdecimal() or (dash and not (last.isdecimal() and int(last) >= int(first))):
            raise line.error("hash_id_ranges", text, "an id or first-last")
        ids += range(int(first), int(last or first) + 1)
    return Row(
        line.number_of("timestamp_ms", field(line, values, "timestamp_ms")) / 1000,
        line.tokens_of("input_length", field(line, values, "input_length")),
        line.tokens_of("output_length", field(line, values, "output_length")),
        tuple(ids),
    )
