"""The requests of a schedule, one after the other, without their text: what the records hold of the plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Planned:
    """One request of the schedule.

    Attributes
    ----------
    ordinal : int
        Its position.
    phase, session_id, turn, tenant
        As in the schedule; no tenant is None.
    prompt_tokens, output_tokens : int
        Asked.
    closed : bool
        Whether it belongs to a closed loop.
    """

    ordinal: int
    phase: str
    session_id: str
    turn: int
    tenant: str | None
    prompt_tokens: int
    output_tokens: int
    closed: bool


class _Turn(msgspec.Struct):
    prompt_tokens: int
    output_tokens: int


class _Session(msgspec.Struct):
    session_id: str
    phase: str
    first_request: int
    turns: list[_Turn]
    tenant: str = ""


class _Load(msgspec.Struct):
    requests: int
    warmup_requests: int
    groups: dict[str, dict[str, Any]]


class Plan:
    """The requests of a schedule in order, read lazily.

    Parameters
    ----------
    schedule : Path
        What `build_schedule` wrote.
    """

    def __init__(self, schedule: Path) -> None:
        self._path = schedule
        with open(schedule, "rb") as file:
            file.readline()
            load = msgspec.json.decode(file.readline(), type=_Load)
        self.requests = load.requests + load.warmup_requests
        self._closed = {tenant: group["kind"] == "closed" for tenant, group in load.groups.items()}

    def __iter__(self) -> Iterator[Planned]:
        decode = msgspec.json.Decoder(_Session).decode
        with open(self._path, "rb") as file:
            file.readline()
            file.readline()
            for line in file:
                session = decode(line)
                closed = self._closed[session.tenant]
                for index, turn in enumerate(session.turns):
                    yield Planned(
                        session.first_request + index,
                        session.phase,
                        session.session_id,
                        index,
                        session.tenant or None,
                        turn.prompt_tokens,
                        turn.output_tokens,
                        closed,
                    )
