"""A worker's side: gets its orders, plays its part, and delivers its record."""

import contextlib
import os
import shutil
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from gevent.queue import Empty, Queue
from locust.env import Environment
from locust.rpc import Message
from locust.runners import WorkerRunner

from harness.clock import boot_id, clock
from harness.errors import KVMarkError, StorageError
from harness.files import storage_error
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
from harness.traffic.distributed.processes import say
from harness.traffic.locust_stats import PERIOD_S
from harness.traffic.outcome import EXIT_FAULT, EXIT_STORAGE
from harness.traffic.shipping import Outbox
from harness.traffic.stage import Orders, Prepared, listen, prepare

BEAT_S = 1.0
"""How often a worker says that it lives, and ships its record."""

ASK_AGAIN_S = 2.0
"""When a message without answer is sent again."""


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
        said |= {
            "processes": process_namespace(),
            "sees": folder_identity(Path(self._folder)) if self._folder else None,
        }
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
        say(reason)
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
