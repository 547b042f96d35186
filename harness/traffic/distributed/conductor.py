"""The master's side: calls the workers, starts them at one moment, and sees all of them to the end."""

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.rpc import Message
from locust.runners import MasterRunner

from harness.clock import boot_id, clock
from harness.errors import KVMarkError, StorageError
from harness.files import write_json
from harness.traffic.distributed.messages import (
    ALIVE,
    DONE,
    FAILED,
    FETCH,
    GO,
    HELLO,
    KEPT,
    ORDERS,
    PIECE,
    PROTOCOL,
    READY,
    SHIP,
    SILENT_S,
    STOP,
    STOP_S,
    folder_identity,
    process_namespace,
)
from harness.traffic.distributed.processes import end_locust, is_alive, living_children, say
from harness.traffic.outcome import EXIT_FAULT, EXIT_STORAGE, WORKERS_FILE
from harness.traffic.playbook import Playbook
from harness.traffic.shipping import PIECE_BYTES, Inbox
from harness.traffic.stage import Orders, listen

START_DELAY_NS = 500_000_000
"""Time between all being ready and the start."""

CLOCKS_S = 2.0
"""How far the wall clocks of two hosts may differ."""


@dataclass
class Seat:
    """What the master knows of one worker.

    Attributes
    ----------
    is_local : bool
        It writes into the cell's folder itself.
    is_visible : bool
        Its process can be seen from here.
    state : str
        `called`, `ready`, `playing`; then `done`, `stopped` (before it had played all), `failed` or `lost`.
    """

    node: str
    number: int
    host: str
    pid: int
    boot_id: str
    clock: dict[str, int]
    is_local: bool
    is_visible: bool
    state: str = "called"
    reason: str | None = None
    heard: float = 0.0
    inbox: Inbox | None = None

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "stopped", "failed", "lost")

    def record(self) -> dict[str, Any]:
        """For `workers.json`."""
        left_out = ("node", "is_visible", "heard", "inbox")
        return {key: value for key, value in vars(self).items() if key not in left_out}


class Conductor:
    """The master's side: calls the workers, starts them at one moment, and sees all of them to the end.

    Parameters
    ----------
    environment : Environment
        Locust's.
    orders : Orders
        What is to be played.
    workers : int
        How many workers.
    wait_s : float
        How long to wait for them.
    is_forked : bool
        They are processes that this one forked.
    """

    def __init__(self, environment: Environment, orders: Orders, workers: int, wait_s: float, is_forked: bool) -> None:
        assert isinstance(environment.runner, MasterRunner)
        self._environment = environment
        self._runner = environment.runner
        self._orders = orders
        self._workers = workers
        self._is_forked = is_forked
        self._deadline = time.monotonic() + wait_s
        self._wait_s = wait_s
        self._seats: dict[str, Seat] = {}
        self._files = {"schedule": Path(orders.schedule)}
        playbook = Playbook(Path(orders.schedule))
        self._requests = playbook.all_requests
        tokenizer = Path(playbook.engine.tokenizer)
        tokenizer = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
        if tokenizer.is_file() and playbook.has_later_turns and playbook.api == "completions":
            self._files["tokenizer"] = tokenizer
        self._asked_to_start = Event()
        self._go: dict[str, Any] | None = None
        self._exit_code = 0
        self._is_stopped = False
        self._over = Event()
        for kind, handle in (
            (HELLO, self._on_hello), (FETCH, self._on_fetch), (READY, self._on_ready), (ALIVE, self._on_alive),
            (SHIP, self._on_ship), (DONE, self._on_done), (FAILED, self._on_failed),
        ):  # fmt: skip
            self._runner.register_message(kind, self._listener(handle))
        listen(environment.events.test_start, self._asked_to_start.set)
        listen(environment.events.test_stopping, self.stop)
        listen(environment.events.quitting, self.stop)
        gevent.spawn(self._conduct)

    def stop(self) -> None:
        """End the run, early where it isn't over: workers end their record and say so."""
        if self._over.is_set():
            return
        self._is_stopped = True
        deadline = time.monotonic() + STOP_S
        for seat in self._seats.values():
            if not seat.is_over:
                self._send(STOP, seat, None)
                if self._go is None:
                    seat.state = "stopped"
        if self._exit_code == EXIT_STORAGE:
            deadline = 0.0  # what they still have can't be kept
        while time.monotonic() < deadline and any(not seat.is_over for seat in self._seats.values()):
            gevent.sleep(0.05)
            self._find_lost()
        self._exit_code = self._exit_code or EXIT_FAULT
        self._finish()

    def _conduct(self) -> None:
        try:
            while not self._all(lambda seat: seat.state == "ready") and not self._over.is_set():
                self._give_up_waiting()
                gevent.sleep(0.05)
            self._asked_to_start.wait()
            if not self._over.is_set():
                self._start()
            while not self._over.is_set() and not self._all(lambda seat: seat.is_over):
                gevent.sleep(0.1)
                self._find_lost()
            if not self._over.is_set():
                self._finish()
        except KVMarkError as error:
            self._fail(EXIT_STORAGE if isinstance(error, StorageError) else EXIT_FAULT, str(error))
        except Exception:
            self._fail(EXIT_FAULT, traceback.format_exc())

    def _all(self, condition: Callable[[Seat], bool]) -> bool:
        return len(self._seats) == self._workers and all(map(condition, self._seats.values()))

    def _start(self) -> None:
        now = clock()
        self._go = {
            "boot_id": boot_id(),
            "origin_ns": now["monotonic_ns"] + START_DELAY_NS,
            "origin_wall_ns": now["wall_ns"] + START_DELAY_NS,
        }
        for seat in self._seats.values():
            if not seat.is_over:
                seat.state = "playing"
                self._send(GO, seat, self._go)

    def _give_up_waiting(self) -> None:
        self._find_lost()
        if lost := next((seat for seat in self._seats.values() if seat.is_over), None):
            self._fail(EXIT_FAULT, f"load worker {lost.number} on {lost.host} was lost before the start")
        elif self._is_forked and len(living_children()) < self._workers:
            self._fail(EXIT_FAULT, "a load worker ended before the start")
        elif time.monotonic() > self._deadline:
            self._fail(
                EXIT_FAULT, f"{len(self._seats)} of {self._workers} load workers came within {self._wait_s:.0f} s"
            )

    def _find_lost(self) -> None:
        now = time.monotonic()
        for seat in self._seats.values():
            if seat.is_over:
                continue
            if seat.is_visible and not is_alive(seat.pid):
                seat.state, seat.reason = "lost", "its process was killed"
            elif now - seat.heard > SILENT_S:
                seat.state, seat.reason = "lost", f"nothing was heard of it for {SILENT_S:.0f} s"

    def _finish(self) -> None:
        """Write what became of the workers, and end Locust."""
        if self._over.is_set():
            return
        self._over.set()
        if any(seat.state != "done" for seat in self._seats.values()):
            self._exit_code = self._exit_code or EXIT_FAULT
        for seat in self._seats.values():
            if seat.inbox is not None:
                seat.inbox.close()
        try:
            write_json(
                Path(self._orders.folder) / WORKERS_FILE,
                {
                    "schema_version": 1,
                    "asked": self._workers,
                    "stopped": self._is_stopped,
                    **(self._go or {}),
                    "workers": sorted((seat.record() for seat in self._seats.values()), key=lambda one: one["number"]),
                },
            )
        except StorageError as error:
            self._exit_code = EXIT_STORAGE
            say(str(error))
        self._environment.process_exit_code = self._exit_code
        if self._environment.parsed_options is not None:
            self._environment.parsed_options.expect_workers = 0  # Locust may still be waiting for them
        end_locust(self._environment)

    def _fail(self, code: int, reason: str) -> None:
        """A fault of the client itself: end the run everywhere."""
        if self._over.is_set() or self._exit_code:
            return
        self._exit_code = code
        say(reason)
        gevent.spawn(self.stop)

    # Messages.

    def _listener(self, handle: Callable[[Message], None]) -> Callable[..., None]:
        def listen(environment: Environment, msg: Message) -> None:
            if seat := self._seats.get(msg.node_id):
                seat.heard = time.monotonic()
            elif msg.type != HELLO:
                self._runner.send_message(STOP, None, msg.node_id)  # of a run whose master is gone
                return
            try:
                handle(msg)
            except StorageError as error:
                self._fail(EXIT_STORAGE, str(error))

        return listen

    def _send(self, kind: str, seat: Seat, data: dict[str, Any] | None) -> None:
        self._runner.send_message(kind, data, seat.node)

    def _on_hello(self, message: Message) -> None:
        said = message.data
        if message.node_id not in self._seats:
            if len(self._seats) == self._workers or self._over.is_set():
                return  # one too many: it waits for the next run
            if said["protocol"] != PROTOCOL:
                self._fail(EXIT_FAULT, f"the worker on {said['host']} runs another version of KVMark")
                return
            difference_s = (said["clock"]["wall_ns"] - time.time_ns()) / 1e9
            is_here = said["boot_id"] == boot_id()
            if not is_here and abs(difference_s) > CLOCKS_S:
                self._fail(
                    EXIT_FAULT,
                    f"the clock of {said['host']} is {difference_s:+.1f} s off this machine's; a common start needs "
                    f"clocks within {CLOCKS_S:.0f} s (NTP)",
                )
                return
            number = len(self._seats)
            seat = Seat(
                message.node_id, number, said["host"], said["pid"], said["boot_id"], said["clock"],
                is_local=is_here and said["sees"] == folder_identity(Path(self._orders.folder)),
                is_visible=is_here and said["processes"] == process_namespace(),
                heard=time.monotonic(),
            )  # fmt: skip
            if not seat.is_local:
                seat.inbox = Inbox(Path(self._orders.folder), number, self._requests)
            self._seats[seat.node] = seat
        seat = self._seats[message.node_id]
        self._send(
            ORDERS,
            seat,
            {
                "orders": asdict(replace(self._orders, worker=seat.number, workers=self._workers)),
                "is_local": seat.is_local,
                "files": {name: path.stat().st_size for name, path in self._files.items()},
            },
        )

    def _on_fetch(self, message: Message) -> None:
        what, at = message.data["what"], message.data["at"]
        with open(self._files[what], "rb") as file:
            file.seek(at)
            piece = {"what": what, "at": at, "data": file.read(PIECE_BYTES)}
        self._send(PIECE, self._seats[message.node_id], piece)

    def _on_ready(self, message: Message) -> None:
        seat = self._seats[message.node_id]
        if seat.state == "called":
            seat.state = "ready"
        elif seat.state == "playing" and self._go is not None:
            self._send(GO, seat, self._go)  # it did not hear it

    def _on_alive(self, message: Message) -> None:
        pass  # that it was heard is all

    def _on_ship(self, message: Message) -> None:
        seat = self._seats[message.node_id]
        if seat.inbox is not None and not self._over.is_set():
            seat.inbox.take(message.data)
            self._send(KEPT, seat, {"number": message.data["number"]})

    def _on_done(self, message: Message) -> None:
        seat = self._seats[message.node_id]
        if not seat.is_over:
            seat.state = "done" if message.data["complete"] else "stopped"
            seat.reason = None if message.data["complete"] else "it was told to stop"

    def _on_failed(self, message: Message) -> None:
        seat = self._seats[message.node_id]
        seat.state, seat.reason = "failed", message.data["reason"]
        self._fail(message.data["code"], f"load worker {seat.number} on {seat.host}: {seat.reason}")
