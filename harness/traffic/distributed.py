"""Several client processes play one schedule: Locust's master conducts, its workers play.

Locust's channel between master and workers carries these messages of ours:

    worker                              master
    hello: host, boot, clock        →
                                    ←   orders: number, how many, endpoint, where schedule and record lie
    fetch: a piece of a file        →   only where the worker has not the master's folders
                                    ←   piece
    ready                           →
                                    ←   go: the one start moment, by the monotonic and by the wall clock
    alive, once a second            →
    ship: what was recorded since   →   only where the worker has not the master's folders
                                    ←   kept
    done, or failed: code, reason   →
                                    ←   stop, where the run must end early

A worker takes its part of the schedule by its number: the same file and numbers give the same parts everywhere. The
monotonic clock is one for all processes of a host; another host starts by its own wall clock, and both are recorded.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import gevent
import psutil
from gevent.event import Event
from gevent.queue import Empty, Queue
from locust.env import Environment
from locust.rpc import Message
from locust.runners import MasterRunner, WorkerRunner

from harness.clock import boot_id, clock
from harness.errors import KVMarkError, StorageError
from harness.files import storage_error, write_json
from harness.guardian import PR_SET_PDEATHSIG
from harness.traffic.locust_stats import PERIOD_S
from harness.traffic.playbook import Playbook
from harness.traffic.player import EXIT_FAULT, EXIT_STORAGE
from harness.traffic.shipping import PIECE_BYTES, Inbox, Outbox
from harness.traffic.stage import Orders, Prepared, listen, prepare

PROTOCOL = 1
"""Of the messages above; master and workers must have the same."""

HELLO, ORDERS, FETCH, PIECE = "kvmark_hello", "kvmark_orders", "kvmark_fetch", "kvmark_piece"
READY, GO, ALIVE, SHIP, KEPT = "kvmark_ready", "kvmark_go", "kvmark_alive", "kvmark_ship", "kvmark_kept"
DONE, FAILED, STOP = "kvmark_done", "kvmark_failed", "kvmark_stop"

WORKERS_FILE = "workers.json"
"""In the cell's folder: what became of each worker."""

START_DELAY_NS = 500_000_000
"""Time between all being ready and the start."""

BEAT_S = 1.0
"""How often a worker says that it lives, and ships its record."""

SILENT_S = 15.0
"""A worker or master of whom nothing was heard for so long is lost."""

ASK_AGAIN_S = 2.0
"""When a message without answer is sent again."""

CLOCKS_S = 2.0
"""How far the wall clocks of two hosts may differ."""

STOP_S = 8.0
"""How long workers may take to end their record when the run must end early."""


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
        elif self._is_forked and len(_living_children()) < self._workers:
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
            if seat.is_visible and not _is_alive(seat.pid):
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
            _say(str(error))
        self._environment.process_exit_code = self._exit_code
        if self._environment.parsed_options is not None:
            self._environment.parsed_options.expect_workers = 0  # Locust may still be waiting for them
        end_locust(self._environment)

    def _fail(self, code: int, reason: str) -> None:
        """A fault of the client itself: end the run everywhere."""
        if self._over.is_set() or self._exit_code:
            return
        self._exit_code = code
        _say(reason)
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
                is_local=is_here and said["sees"] == _identity(Path(self._orders.folder)),
                is_visible=is_here and said["processes"] == _processes(),
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


class Member:
    """A worker's side: gets its orders, plays its part, and delivers its record.

    Parameters
    ----------
    environment : Environment
        Locust's.
    folder : str or None
        The cell's folder as this process was told it, where it was started with the master.
    scratch : str or None
        Folder for the schedule and the record until the master has them: this machine has not the master's folders.
    base_url : str or None
        The endpoint as this machine reaches it; None: as the master says.
    """

    def __init__(self, environment: Environment, scratch: str | None, base_url: str | None, folder: str | None) -> None:
        assert isinstance(environment.runner, WorkerRunner)
        self._environment = environment
        self._runner = environment.runner
        self._scratch = scratch
        self._base_url = base_url
        self._folder = folder
        self._replies: Queue[tuple[str, dict[str, Any]]] = Queue()
        self._heard = float("inf")
        self._prepared: Prepared | None = None
        self._outbox: Outbox | None = None
        self._is_failing = False
        self._given_up = float("inf")
        self.finished = Event()
        for kind in (ORDERS, PIECE, GO, KEPT):
            self._runner.register_message(kind, self._keep_reply)
        self._runner.register_message(STOP, lambda **_: gevent.spawn(self.stop))
        listen(environment.events.heartbeat_received, self._on_heartbeat)
        listen(environment.events.test_stopping, self.stop)
        listen(environment.events.quitting, self.stop)
        gevent.spawn(self._take_part)

    def stop(self) -> None:
        """End early: what is under way is recorded as aborted, and the record delivered."""
        self._given_up = min(self._given_up, time.monotonic() + STOP_S / 2)
        if self._prepared is not None and not self.finished.is_set():
            self._prepared.player.stop()
            self.finished.wait(STOP_S)

    def _take_part(self) -> None:
        try:
            self._run()
        except (KVMarkError, OSError) as error:
            self._on_fault(EXIT_STORAGE if isinstance(error, OSError | StorageError) else EXIT_FAULT, str(error))
        except Exception:
            self._on_fault(EXIT_FAULT, traceback.format_exc())
        self.finished.set()

    def _run(self) -> None:
        said = {"protocol": PROTOCOL, "host": socket.gethostname(), "pid": os.getpid(), "boot_id": boot_id()}
        said |= {"processes": _processes(), "sees": _identity(Path(self._folder)) if self._folder else None}
        called = self._ask(HELLO, lambda: {**said, "clock": clock()}, ORDERS, patience_s=float("inf"))
        orders, tokenizer = Orders(**called["orders"]), None
        own: Path | None = None
        if not called["is_local"]:
            own = Path(tempfile.mkdtemp(prefix="kvmark-worker-", dir=self._scratch))
            files = {name: self._fetch(name, size, own / name) for name, size in called["files"].items()}
            orders = replace(orders, schedule=str(files["schedule"]), folder=str(own))
            tokenizer = str(files["tokenizer"]) if "tokenizer" in files else None
            orders = replace(orders, base_url=self._base_url or orders.base_url)
        prepared = prepare(
            self._environment, orders, self._on_fault, tokenizer=tokenizer, on_start=self._on_start,
            hello={"host": said["host"], "workers": orders.workers},
        )  # fmt: skip
        if own is not None:
            self._outbox = Outbox(own, orders.worker)
        self._prepared = prepared
        go = self._ask(READY, {}, GO, patience_s=float("inf"), again_s=10.0)
        if self._given_up < float("inf"):
            prepared.player.stop()
        playing = gevent.spawn(prepared.player.play, self._origin_ns(go))
        beat = 0
        while not playing.ready():
            gevent.sleep(PERIOD_S)
            prepared.tally.enter()
            beat += 1
            if beat % round(BEAT_S / PERIOD_S) == 0:
                self._send(ALIVE, {})
                self._ship()
                if time.monotonic() - self._heard > SILENT_S:
                    raise ConnectionError(f"nothing was heard of the master for {SILENT_S:.0f} s")
        prepared.tally.enter()
        self._ship()
        self._send(DONE, {"complete": prepared.player.is_complete})
        if self._outbox is not None and own is not None:
            self._outbox.close()
            shutil.rmtree(own, ignore_errors=True)

    def _origin_ns(self, go: dict[str, Any]) -> int:
        """The start by this host's monotonic clock."""
        if go["boot_id"] == boot_id():
            return int(go["origin_ns"])
        now = clock()
        return int(go["origin_wall_ns"] - now["wall_ns"] + now["monotonic_ns"])

    def _on_start(self, ordinal: int, scheduled_ns: int | None, started_ns: int) -> None:
        if self._outbox is not None:
            self._outbox.start(ordinal, scheduled_ns, started_ns)

    def _ship(self) -> None:
        while self._outbox is not None and (piece := self._outbox.next()) is not None:
            self._ask(SHIP, piece, KEPT, {"number": piece["number"]})
            self._outbox.confirm(piece)

    def _fetch(self, what: str, size: int, path: Path) -> Path:
        try:
            with open(path, "wb") as file:
                while (at := file.tell()) < size:
                    wanted = {"what": what, "at": at}
                    file.write(self._ask(FETCH, wanted, PIECE, wanted)["data"])
        except OSError as error:
            raise storage_error(path, error) from error
        return path

    def _on_fault(self, code: int, reason: str) -> None:
        """Tell the master, who ends the run; end anyway when it doesn't."""
        _say(reason)
        if not self._is_failing:
            self._is_failing = True
            with contextlib.suppress(Exception):
                self._send(FAILED, {"code": code, "reason": reason})
            gevent.spawn_later(STOP_S, os._exit, code)
        self.finished.set()
        gevent.sleep(2 * STOP_S)

    # Messages.

    def _send(self, kind: str, data: dict[str, Any]) -> None:
        self._runner.send_message(kind, data)

    def _keep_reply(self, environment: Environment, msg: Message) -> None:
        self._replies.put((msg.type, msg.data))

    def _on_heartbeat(self) -> None:
        self._heard = time.monotonic()

    def _ask(
        self,
        kind: str,
        data: dict[str, Any] | Callable[[], dict[str, Any]],
        reply_kind: str,
        reply_to: dict[str, Any] | None = None,
        patience_s: float = SILENT_S,
        again_s: float = ASK_AGAIN_S,
    ) -> dict[str, Any]:
        """Send a message until its answer comes: of a kind, and with the values of `reply_to`."""
        given_up = time.monotonic() + patience_s
        while time.monotonic() < min(given_up, self._given_up):
            self._send(kind, data if isinstance(data, dict) else data())
            again = min(time.monotonic() + again_s, self._given_up)
            while (left := again - time.monotonic()) > 0:
                try:
                    reply: dict[str, Any]
                    got, reply = self._replies.get(timeout=left)
                except Empty:
                    break
                if got == reply_kind and (reply_to or {}).items() <= reply.items():
                    return reply
        raise ConnectionError(f"the master does not answer ({kind})")


def end_locust(environment: Environment) -> None:
    """End Locust's process in good order; where somebody started it on the web page, only the run, so that it stays."""
    options = environment.parsed_options

    def end() -> None:
        assert environment.runner is not None
        if environment.web_ui is not None and not (options and options.autostart):
            environment.runner.stop()
            return
        environment.runner.quit()
        if environment.web_ui is not None:
            environment.web_ui.stop()  # type: ignore[no-untyped-call]

    gevent.spawn(end)


def end_with_parent() -> None:
    """A forked worker gets SIGTERM when its parent dies, however that dies (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def await_children(seconds: float = 5.0) -> None:
    """Wait until the forked workers have ended."""
    deadline = time.monotonic() + seconds
    while _living_children() and time.monotonic() < deadline:
        gevent.sleep(0.02)


def _living_children() -> list[int]:
    return [child.pid for child in psutil.Process().children() if _is_alive(child.pid)]


def _is_alive(pid: int) -> bool:
    """Whether a process of this host lives; a zombie doesn't."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def _processes() -> str:
    """The namespace of this process's number: it means nothing in another (a container's)."""
    return os.readlink("/proc/self/ns/pid")


def _identity(path: Path) -> list[int] | None:
    """Which folder of this host a path is."""
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_dev, found.st_ino]


def _say(reason: str) -> None:
    with contextlib.suppress(OSError):  # the log may lie on a full disk
        sys.stderr.write(reason.rstrip() + "\n")
        sys.stderr.flush()
