"""BurstGPT (HPMLL/BurstGPT; arXiv:2401.17644): 121 days of GPT-3.5 and GPT-4 calls.

A CSV with `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`; the third part also has `Session ID`
and `Elapsed time`. Timestamps are seconds from the first day's midnight; a call that failed has 0 response tokens.
"""

from collections.abc import Mapping
from typing import Any

from harness.traffic.traces import Line, Row, field, trace_format


@trace_format("burstgpt", "Timestamp", "Request tokens", "Response tokens")
def burstgpt(line: Line, values: Mapping[str, Any]) -> Row:
    """A row; its session isn't used, as nothing says what a session's requests have in common."""
    return Row(
        line.number_of("Timestamp", field(line, values, "Timestamp")),
        line.tokens_of("Request tokens", field(line, values, "Request tokens")),
        line.tokens_of("Response tokens", field(line, values, "Response tokens")),
    )
