"""Azure's LLM inference traces, 2023 and 2024 (Azure/AzurePublicDataset, CC-BY 4.0).

A CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`. The times of 2023 are local and have seven decimals
(`2023-11-16 18:15:46.6805900`), those of 2024 have an offset (`2024-05-10 00:00:00.009930+00:00`) and no decimals on a
whole second. Also the same rows with the time as seconds: `arrival_s,context_tokens,generated_tokens`.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from harness.traffic.traces import Line, Row, field, trace_format


@trace_format("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens")
def published(line: Line, values: Mapping[str, Any]) -> Row:
    """A row as it is published."""
    return Row(
        _seconds(line, field(line, values, "TIMESTAMP")),
        line.tokens_of("ContextTokens", field(line, values, "ContextTokens")),
        line.tokens_of("GeneratedTokens", field(line, values, "GeneratedTokens")),
    )


@trace_format("azure", "arrival_s", "context_tokens", "generated_tokens")
def in_seconds(line: Line, values: Mapping[str, Any]) -> Row:
    """A row with its time in seconds."""
    return Row(
        line.number_of("arrival_s", field(line, values, "arrival_s")),
        line.tokens_of("context_tokens", field(line, values, "context_tokens")),
        line.tokens_of("generated_tokens", field(line, values, "generated_tokens")),
    )


def _seconds(line: Line, text: Any) -> float:
    try:
        at = datetime.fromisoformat(str(text).strip())
    except ValueError:
        raise line.error("TIMESTAMP", text, "a time such as 2023-11-16 18:15:46.6805900") from None
    # A time without an offset is taken as UTC: a local one would jump where this machine's clock changes.
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
