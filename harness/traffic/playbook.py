"""A schedule as a client process plays it: its own sessions, read one at a time, each in the order of its group.

Only positions and due times of the own sessions are held; the file is mapped, so that its pages are the system's.
"""

import mmap
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from harness.errors import ConfigError
from harness.traffic.partition import split

_NONE = np.empty(0, np.int64)

Segment = tuple[int, int] | str
"""A piece of a prompt: (start, count) of the corpus, or token ids as `"12,99,3"`."""


class Turn(msgspec.Struct, frozen=True, gc=False):
    """One request as planned; `text` only in chats."""

    new: list[Segment]
    prompt_tokens: int
    output_tokens: int
    think_ns: int = 0
    text: str | None = None


class Session(msgspec.Struct, frozen=True, gc=False):
    """A session as planned; `first_request`: ordinal of its first turn."""

    session_id: str
    phase: str
    first_request: int
    turns: list[Turn]
    tenant: str = ""
    due_ns: int | None = None


class Engine(msgspec.Struct, frozen=True):
    """How to ask this engine."""

    model: str
    tokenizer: str
    extras: dict[str, dict[str, Any]]


class _Group(msgspec.Struct, frozen=True):
    kind: Literal["closed", "open"]
    concurrency: int | None = None


class _Load(msgspec.Struct, frozen=True):
    load: dict[str, Any]
    requests: int
    warmup_requests: int
    corpus: str
    groups: dict[str, _Group]
    api: Literal["completions", "chat"] = "completions"


class _Pause(msgspec.Struct, frozen=True, gc=False):
    think_ns: int = 0


class _Place(msgspec.Struct, frozen=True, gc=False):
    """What the index needs of a session."""

    turns: list[_Pause]
    tenant: str = ""
    due_ns: int | None = None


@dataclass
class Group:
    """The own sessions of one tenant.

    Attributes
    ----------
    places : int
        Sessions at a time; 0: an open loop.
    offsets : array of int
        Where each session lies in the file, in the order to play them.
    due_ns : array of int
        When each is due after the start (open loop).
    """

    places: int
    offsets: "array[int]"
    due_ns: "array[int]"


class Playbook:
    """The own part of a schedule.

    Parameters
    ----------
    schedule : Path
        What `build_schedule` wrote.
    worker, workers : int
        Number of this client process and how many there are: the own part is the same wherever it is computed.

    Raises
    ------
    ConfigError
        When the file can't be read, or isn't a whole schedule.
    """

    def __init__(self, schedule: Path, worker: int = 0, workers: int = 1) -> None:
        try:
            self._read(schedule, worker, workers)
        except OSError as error:
            raise ConfigError(f"schedule {schedule} can't be read: {error.strerror}") from error
        except (ValueError, KeyError) as error:  # no JSON, an empty file, a tenant that no line has named
            raise ConfigError(f"{schedule} is not a schedule: {error}") from error

    def _read(self, schedule: Path, worker: int, workers: int) -> None:
        with open(schedule, "rb") as file:
            self._file = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.engine = msgspec.json.decode(self._file.readline(), type=Engine)
        facts = msgspec.json.decode(self._file.readline(), type=_Load)
        self.api = facts.api
        self.timeout_s = float(facts.load["timeout_s"])
        self.corpus = facts.corpus.encode()
        self.all_requests = facts.requests + facts.warmup_requests
        """Requests of the whole schedule."""
        self.requests = 0
        """Requests of the own part."""
        self.has_later_turns = False
        self.longest_think_ns = 0
        self.asked_concurrency = sum(group.concurrency or 0 for group in facts.groups.values())
        """Of the whole schedule's closed loops."""
        self.open_groups = frozenset(name for name, group in facts.groups.items() if group.kind == "open")
        self.groups: dict[str, Group] = {}
        self._decode = msgspec.json.Decoder(Session).decode
        self._index(self._file.tell(), facts, worker, workers)

    def session(self, offset: int) -> Session:
        """The session at a position."""
        return self._decode(self._file[offset : self._file.find(b"\n", offset)])

    def arrivals(self) -> Iterator[tuple[int, int]]:
        """(due_ns, offset) of the own sessions of all open loops, by due time."""
        groups = [group for group in self.groups.values() if not group.places]
        due = np.concatenate([_NONE, *(np.frombuffer(group.due_ns, np.int64) for group in groups)])
        offsets = np.concatenate([_NONE, *(np.frombuffer(group.offsets, np.int64) for group in groups)])
        order = np.argsort(due, kind="stable")
        return zip(array("q", due[order].tobytes()), array("q", offsets[order].tobytes()), strict=True)

    def longest_gap_ns(self) -> int:
        """The longest time without an arrival in the open loops, before the first one as well."""
        due = np.fromiter((due_ns for due_ns, _ in self.arrivals()), np.int64)
        return int(np.diff(due, prepend=0).max()) if len(due) else 0

    def _index(self, at: int, facts: _Load, worker: int, workers: int) -> None:
        found = {name: _Found() for name in facts.groups}
        decode = msgspec.json.Decoder(_Place).decode
        while line := self._file.readline():
            place = decode(line)
            found[place.tenant].add(at, place)
            at += len(line)
        held = sum(sum(one.turns) for one in found.values())
        if held != self.all_requests:
            raise ValueError(f"it holds {held} of its {self.all_requests} requests")
        concurrency = {name: group.concurrency for name, group in facts.groups.items()}
        counts = {name: len(one.offsets) for name, one in found.items()}
        for name, part in split(concurrency, counts, workers)[worker].items():
            one = found[name]
            own = np.isin(np.arange(counts[name]) % part.dealt, sorted(part.own))
            offsets, due_ns, turns, think_ns = (np.frombuffer(values, np.int64)[own] for values in one.columns())
            self.groups[name] = Group(part.places, array("q", offsets.tobytes()), array("q", due_ns.tobytes()))
            self.requests += int(turns.sum())
            self.has_later_turns |= bool(turns.max() > 1)
            self.longest_think_ns = max(self.longest_think_ns, int(think_ns.max()))


class _Found:
    """What the index holds of a group's sessions, until its own ones are known."""

    def __init__(self) -> None:
        self.offsets, self.due_ns, self.turns, self.think_ns = (array("q") for _ in range(4))

    def add(self, offset: int, place: _Place) -> None:
        self.offsets.append(offset)
        self.due_ns.append(place.due_ns or 0)
        self.turns.append(len(place.turns))
        self.think_ns.append(max(turn.think_ns for turn in place.turns))

    def columns(self) -> "tuple[array[int], ...]":
        return self.offsets, self.due_ns, self.turns, self.think_ns
