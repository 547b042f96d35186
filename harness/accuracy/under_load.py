"""A load that goes on beside the questions: replayed until they are answered, then stopped.

So batching, preemption and eviction are in play while the engine answers what it is scored on. What the load sends
differs from round to round, and from what any cell sends; it is the same for all deployments of a block, as far as
they get with it. Its records are kept, but they are no cell.
"""

import contextlib
import hashlib
import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.accuracy.load_evidence import Reading, evidence, sent_by
from harness.errors import ConfigError, KVMarkError, LaunchError, StorageError
from harness.files import sha256_of
from harness.traffic.load import Load
from harness.traffic.replay import replay
from harness.traffic.schedule import build_schedule
from harness.traffic.spool import count_ended, count_started

if TYPE_CHECKING:
    from harness.cell import Served

SCHEDULE = "schedule.jsonl"
UNDER_WAY_S = 300.0
"""How long a load may take until its first request is under way."""
POLL_S = 0.1
READING_S = 0.2
"""Time between two readings of the engine's counters."""
ROUND_REQUESTS, ROUND_REQUESTS_MAX = 2048, 65536
"""Requests of the first round, and beyond which none is made longer: between two rounds nothing is under way."""
IDLE_S = 60.0
"""How long an engine may take to drop what the load had under way at its end."""


@dataclass
class Rounds:
    """A load while it is played, and what it came to.

    Attributes
    ----------
    name : str
        The load's, as in the configuration.
    load : Load
        As it is played, but for its length.
    folders : list of Path
        A folder a round.
    readings : list of Reading
        The engine's counters meanwhile.
    error : str or None
        What ended it before it was told to end.
    """

    name: str
    load: Load
    folders: list[Path] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    error: str | None = None

    def evidence(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """How far the questions met the load; for the task's record, once the load has ended."""
        return {
            "load": self.name,
            "rounds": len(self.folders),
            **evidence(samples, sent_by(self.folders), self.readings),
            "error": self.error,
        }


@dataclass(frozen=True)
class BackgroundLoad:
    """A load to be played beside a task's questions.

    Attributes
    ----------
    name : str
        Its name in the configuration.
    load : Load
        A load at one rate or concurrency.
    served : Served
        The server.
    seed : int
        The block's.
    """

    name: str
    load: Load
    served: "Served"
    seed: int

    @property
    def sha256(self) -> str:
        """Hash of what decides its traffic: equal for all deployments of a block."""
        return sha256_of((asdict(self.load), self.seed))

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Rounds]:
        """Play the load while the context is open; it is under way when the context begins, and gone when it ends.

        Parameters
        ----------
        folder : Path
            Takes the records of every round. Its parent's name, the task's, is part of the seed.

        Raises
        ------
        LaunchError
            The load didn't get under way. What goes wrong with it later is told by `Rounds.error`.
        StorageError
            Its records can't be written.
        """
        rounds = Rounds(self.name, self.load)
        over = threading.Event()
        full: list[StorageError] = []
        # Daemons: the harness may end without waiting for them, and then the guard ends the client.
        player = threading.Thread(target=self._play, args=(rounds, folder, over, full), name="load", daemon=True)
        reader = threading.Thread(target=self._read, args=(rounds, over), name="load-state", daemon=True)
        player.start()
        reader.start()
        try:
            self._wait_until_under_way(rounds, player)
            self._take_reading(rounds)
            yield rounds
        finally:
            over.set()
            player.join()
            reader.join()
        if full:
            raise full[0]
        with contextlib.suppress(OSError):  # a server that is gone has nothing under way
            _wait_until_idle(self.served)

    def _play(self, rounds: Rounds, folder: Path, over: threading.Event, full: list[StorageError]) -> None:
        try:
            for number in itertools.count():
                self._round(rounds, number, folder, over)
                if over.is_set() or rounds.error is not None:
                    return
        except StorageError as error:
            full.append(error)
            rounds.error = str(error)
        except KVMarkError as error:
            rounds.error = str(error)
        except Exception as error:
            rounds.error = f"{type(error).__name__}: {error}"

    def _round(self, rounds: Rounds, number: int, parent: Path, over: threading.Event) -> None:
        folder = parent / f"{number:03d}"
        load = self._scheduled(number, f"under-load/{self.seed}/{parent.parent.name}/{number}", folder)
        rounds.folders.append(folder)
        report = replay(
            load,
            schedule_path=folder / SCHEDULE,
            base_url=self.served.server.base_url,
            out_dir=folder,
            env={},
            on_progress=lambda done, total: None,
            record_dir=self.served.record_dir,
            options=self.served.client,
            say=self.served.watch.say,
            stop=over,
        )
        if not over.is_set() and report.failed_requests >= report.window_requests > 0:
            rounds.error = f"all {report.window_requests} requests of a round failed: {report.commonest_error}"

    def _scheduled(self, number: int, seed: str, folder: Path) -> Load:
        """Write a round's schedule, and return what it plays."""
        choices = _of_round(self.load, number)
        for load in choices:
            try:
                build_schedule(
                    load,
                    model=self.served.model,
                    served_name=self.served.server.served_name,
                    request_extras=self.served.backend.request_extras,
                    context_tokens=self.served.context_tokens,
                    seed=int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big"),
                    path=folder / SCHEDULE,
                )
                return load
            except ConfigError:  # a file of conversations may hold too little for a longer round
                if load is choices[-1]:
                    raise
        raise AssertionError("the last one was played or raised")

    def _read(self, rounds: Rounds, over: threading.Event) -> None:
        while not over.wait(READING_S):
            self._take_reading(rounds)

    def _take_reading(self, rounds: Rounds) -> None:
        with contextlib.suppress(OSError):
            rounds.readings.append(Reading(time.monotonic_ns(), self.served.state()))

    def _wait_until_under_way(self, rounds: Rounds, player: threading.Thread) -> None:
        """Until a request was sent, and the engine says that it runs one, where it says so."""
        deadline = time.monotonic() + UNDER_WAY_S
        while not self._is_under_way(rounds):
            if not player.is_alive():
                raise LaunchError(f"load {self.name} did not get under way: {rounds.error}")
            self.served.server.check()
            if time.monotonic() > deadline:
                raise LaunchError(f"load {self.name} did not get under way within {UNDER_WAY_S:.0f} s")
            time.sleep(POLL_S)

    def _is_under_way(self, rounds: Rounds) -> bool:
        folders = list(rounds.folders)
        if not any(count_started(folder) for folder in folders):
            return False
        ended = any(count_ended(path)[0] for folder in folders for path in folder.glob("stream-*.bin"))
        return ended or self.served.state().requests_running != 0


def _of_round(load: Load, number: int) -> list[Load]:
    """What a round may play, the preferred first: longer than the load is as a cell, and each longer than the last."""
    if number:
        load = replace(load, warmup_requests=0)
    longer = min(ROUND_REQUESTS << min(number, 16), ROUND_REQUESTS_MAX)
    return [load.with_requests(longer), load] if longer > load.requests else [load]


def _wait_until_idle(served: "Served") -> None:
    from harness.saturation import wait_until_idle  # it needs cells, and they need this package

    wait_until_idle(served, IDLE_S)
