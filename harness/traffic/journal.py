"""The client's append-only record (`stream.jsonl`): a line when a request starts, one when it ends, one for the client.

Whole lines in one write each, so that what a killed client leaves can be read up to its last word.
"""

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.traffic.client import Exchange

START, END, CLIENT = "start", "end", "client"
END_MARK = b'{"kind": "end"'
"""How the line of an ended request begins; progress is counted by it."""

EXIT_STORAGE = 74
"""Exit code of a client that could not write its record (`EX_IOERR` of sysexits)."""

EXIT_FAULT = 70
"""Exit code of a client that was stopped early or is at fault itself (`EX_SOFTWARE` of sysexits)."""


class Journal:
    """Writer of the record; any failure to write is the caller's to act on (`OSError`)."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def start(self, request_id: str, facts: dict[str, Any]) -> None:
        """A request is about to be sent: all that its record needs if nothing more is ever heard of it."""
        self._line({"kind": START, "request_id": request_id, **facts})

    def end(self, request_id: str, exchange: Exchange) -> None:
        """A request ended, one way or another."""
        origin = exchange.sent_ns or 0
        self._line(
            {
                "kind": END,
                "request_id": request_id,
                "sent_ns": exchange.sent_ns,
                "ended_ns": exchange.ended_ns,
                "status": exchange.status,
                "headers": exchange.headers,
                "error": exchange.error,
                "error_detail": exchange.error_detail,
                "read_ns": [ns - origin for ns, _ in exchange.reads],
                "read_bytes": [len(data) for _, data in exchange.reads],
                "body": base64.b64encode(b"".join(data for _, data in exchange.reads)).decode(),
            }
        )

    def client(self, facts: dict[str, Any]) -> None:
        """The client's own figures, at its end."""
        self._line({"kind": CLIENT, **facts})

    def _line(self, value: dict[str, Any]) -> None:
        line = memoryview(json.dumps(value).encode() + b"\n")
        while line:
            line = line[os.write(self._fd, line) :]


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a record, as written; a last line that was cut off is left out."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict) and line.endswith(b"\n"):
                yield value


def exchange_of(line: dict[str, Any]) -> Exchange:
    """The exchange that an `end` line holds."""
    origin = line["sent_ns"] or 0
    body = base64.b64decode(line["body"])
    reads: list[tuple[int, bytes]] = []
    at = 0
    for ns, size in zip(line["read_ns"], line["read_bytes"], strict=True):
        reads.append((ns + origin, body[at : at + size]))
        at += size
    return Exchange(
        sent_ns=line["sent_ns"],
        ended_ns=line["ended_ns"],
        status=line["status"],
        headers=line["headers"],
        reads=reads,
        error=line["error"],
        error_detail=line["error_detail"],
    )
