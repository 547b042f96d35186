"""Qwen-Bailian's traces (alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0; ATC'25, arXiv:2506.02634).

JSONL with `chat_id`, `parent_chat_id` (-1: none), `timestamp` in seconds, `input_length`, `output_length`, `type`,
`turn` and `hash_ids`: a block is 16 tokens.
"""

from collections.abc import Mapping
from typing import Any

from harness.traffic.traces import Line, Row, blocks_of, field, trace_format

BLOCK_TOKENS = 16


@trace_format(
    "qwen-bailian", "chat_id", "timestamp", "input_length", "output_length", "hash_ids", block_tokens=BLOCK_TOKENS
)
def qwen_bailian(line: Line, values: Mapping[str, Any]) -> Row:
    """A row; a later turn's earlier blocks are its parent's, so the ids say all that the parent would."""
    return Row(
        line.number_of("timestamp", field(line, values, "timestamp")),
        line.tokens_of("input_length", field(line, values, "input_length")),
        line.tokens_of("output_length", field(line, values, "output_length")),
        blocks_of(line, values, "hash_ids"),
    )
