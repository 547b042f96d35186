"""Mooncake's traces (kvcache-ai/Mooncake, Apache-2.0; FAST'25).

JSONL with `timestamp` in milliseconds, `input_length`, `output_length` and `hash_ids`: a block is 512 tokens, and an id
stands for the block and all before it. Also the same as a CSV whose `hash_id_ranges` writes consecutive ids
`first-last`, parted by spaces.
"""

import re
from collections.abc import Mapping
from typing import Any

from harness.traffic.traces import TOKENS_MAX, Line, Row, blocks_of, field, trace_format

BLOCK_TOKENS = 512

BLOCKS_MAX = TOKENS_MAX
"""Ids of a request that are more are a fault of the file: a block has at least one token."""


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
    if not isinstance(ranges, str):
        raise line.error("hash_id_ranges", ranges, "a text of ids and first-last")
    ids: list[int] = []
    for text in ranges.split():
        found = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", text)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if last < first:
            raise line.error("hash_id_ranges", text, "an id or first-last")
        if len(ids) + last - first >= BLOCKS_MAX:
            raise line.error("hash_id_ranges", text, f"at most {BLOCKS_MAX} blocks in all")
        ids += range(first, last + 1)
    return Row(
        line.number_of("timestamp_ms", field(line, values, "timestamp_ms")) / 1000,
        line.tokens_of("input_length", field(line, values, "input_length")),
        line.tokens_of("output_length", field(line, values, "output_length")),
        tuple(ids),
    )
