"""Plays a client process's part of a schedule: sends every request at its time and spools what comes back.

Closed loop: each place plays one session after the other. Open loop: every session starts at its own time on an
absolute clock, prepared ahead so that the transport only has to send it. A failed turn does not end its session: the
requests asked are the requests made.
"""

import gc
import resource
import time
import traceback
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import gevent
from gevent.event import Event

from harness.traffic.bulk import read_exchange
from harness.traffic.outcome import EXIT_FAULT, EXIT_STORAGE
from harness.traffic.playbook import Group, Playbook, Session
from harness.traffic.prompts import Composer, Prompt
from harness.traffic.spool import Spool
from harness.traffic.wire.endpoint import Endpoint
from harness.traffic.wire.exchange import Exchange
from harness.traffic.wire.transport import Message, Transport

AHEAD_NS = 75_000_000
"""How long before its time a request is handed to the transport."""

LATE_IN_A_ROW = 16
"""After so many arrivals without a pause, others get their turn."""

READY_BYTES = 64 << 20
"""Bodies that are held ready for the start of a closed loop, at most."""

LAG_PERIOD_NS = 20_000_000
"""How often the event loop's lag is sampled."""

COLLECT_EVERY = 50
"""Young garbage is collected once in so many samples; the rest stays frozen while we measure."""

STOP_S = 5.0
"""How long requests under way may take to end when the client is told to stop."""

Fault = Callable[[int, str], None]
"""What to do about a fault of the client itself: exit code and reason."""


class Player:
    """Plays one playbook.

    Parameters
    ----------
    playbook : Playbook
        What to play.
    composer : Composer
        Makes the bodies.
    endpoint : Endpoint
        Where to.
    transport : Transport
        Over what.
    spool : Spool
        Where the record goes.
    on_fault : callable
        A fault of ours must end the client, so that it can't pass for a slow server.
    on_end : callable
        Told of every request that ended: milliseconds, bytes, and how it failed.
    on_start : callable or None
        Told of every request that starts: ordinal, due time and start, as in the spool.
    keep_alive : bool
        Whether connections are used again.
    """

    def __init__(
        self,
        playbook: Playbook,
        composer: Composer,
        endpoint: Endpoint,
        transport: Transport,
        spool: Spool,
        *,
        on_fault: Fault,
        on_end: Callable[[float, int, str | None], None],
        on_start: Callable[[int, int | None, int], None] | None = None,
        keep_alive: bool = True,
    ) -> None:
        self._playbook = playbook
        self._endpoint = endpoint
        self._transport = transport
        self._spool = spool
        self._on_fault = on_fault
        self._on_end = on_end
        self._on_start = on_start
        self._keep_alive = keep_alive
        self._composer = composer
        if playbook.has_later_turns:
            composer.prepare_later_turns()
        # vLLM takes the id that we send for its own, and must not meet one of an earlier cell again.
        self._tag = uuid4().hex[:8]
        self._playing = False
        self._stopped = False
        self._under_way = 0
        self._ended = 0
        self._lag_us = array("L")
        self._facts: dict[str, Any] = {}
        self._queues = [_Queue(group, self._prepare) for group in playbook.groups.values() if group.places]
        self._sessions_left = sum(len(group.offsets) for group in playbook.groups.values())
        self._done = Event()
        self._finished = Event()

    @property
    def is_complete(self) -> bool:
        """Whether every request of the playbook has ended, none because we were told to stop."""
        return self._ended == self._playbook.requests and not self._stopped

    def play(self, origin_ns: int) -> None:
        """Play from a moment of the monotonic clock on, to the end or to `stop`; blocks the calling greenlet."""
        self._playing = True
        for queue in self._queues:
            self._guard(queue.fill)
        gc.collect()
        gc.freeze()  # what there is now is never garbage: keep the collector from walking it while we measure
        gc.disable()
        started_ns, started_cpu_s = time.monotonic_ns(), _cpu_s()
        sampler = gevent.spawn(self._sample_lag)
        gevent.spawn(self._arrivals, origin_ns)
        for queue in self._queues:
            for _ in range(queue.places):
                gevent.spawn(self._place, queue, origin_ns)
        if self._sessions_left:
            self._done.wait()
        sampler.kill()
        gc.enable()
        lag_us = sorted(self._lag_us)
        self._facts = {
            "transport": self._transport.name,
            "cpu_s": _cpu_s() - started_cpu_s,
            "wall_s": (time.monotonic_ns() - started_ns) / 1e9,
            "loop_lag_p99_ms": lag_us[int(0.99 * len(lag_us))] / 1e3 if lag_us else None,
            "loop_lag_max_ms": lag_us[-1] / 1e3 if lag_us else None,
            "origin_ns": origin_ns,
            "requests": self._playbook.requests,
            "ended": self._ended,
            "complete": self.is_complete,
        }
        self._guard(self._close)
        self._finished.set()

    def stop(self) -> None:
        """End what is under way as `aborted`, start nothing more, and return when the record is whole."""
        self._stopped = True
        self._transport.abort()
        deadline = time.monotonic() + STOP_S
        while self._under_way and time.monotonic() < deadline:
            gevent.sleep(0.01)
        self._done.set()  # places and sessions that wait for their time wait on: the process is about to end
        if self._playing:
            self._finished.wait(STOP_S)

    def _close(self) -> None:
        self._spool.client(self._facts)
        self._spool.close()
        self._transport.close()

    def _guard(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Do something that must not fail."""
        try:
            return act(*arguments)
        except OSError as error:
            self._on_fault(EXIT_STORAGE, f"the record can't be written: {error.strerror or error}")
        except Exception:
            self._on_fault(EXIT_FAULT, traceback.format_exc())
        return None

    def _prepare(self, offset: int) -> "_Ready":
        session = self._playbook.session(offset)
        prompt = self._composer.first(session.turns[0])
        return _Ready(session, prompt)

    def _place(self, queue: "_Queue", origin_ns: int) -> None:
        _sleep_until(origin_ns)
        while not self._stopped and (ready := self._guard(queue.take)) is not None:
            self._play(ready, None)

    def _arrivals(self, origin_ns: int) -> None:
        late = 0
        for due, offset in self._playbook.arrivals():
            due_ns = origin_ns + due
            ready = self._guard(self._prepare, offset)
            late = 0 if _sleep_until(due_ns - AHEAD_NS) else late + 1
            if late % LATE_IN_A_ROW == LATE_IN_A_ROW - 1:
                gevent.sleep(0)  # behind, or a burst: those under way must be read all the same
            if self._stopped:
                return
            gevent.spawn(self._play, ready, due_ns)

    def _play(self, ready: "_Ready", due_ns: int | None) -> None:
        self._guard(self._session, ready, due_ns)
        self._sessions_left -= 1
        if not self._sessions_left:
            self._done.set()

    def _session(self, ready: "_Ready", due_ns: int | None) -> None:
        session, prompt = ready.session, ready.prompt
        turns = session.turns
        last = len(turns) - 1
        for index, turn in enumerate(turns):
            if self._stopped:
                return
            answer = _Answer(self._spool, session.first_request + index, keep=index < last)
            exchange = self._ask(session, index, self._composer.body(prompt, turn), due_ns, answer)
            if index < last:
                following = turns[index + 1]
                due_ns = exchange.ended_ns + following.think_ns
                prompt = self._composer.following(prompt, turn, following, read_exchange(answer.whole(exchange)))
                _sleep_until(due_ns - AHEAD_NS)

    def _ask(
        self, session: Session, index: int, body: tuple[bytes, ...], due_ns: int | None, answer: "_Answer"
    ) -> Exchange:
        exchange = Exchange()
        head = self._endpoint.head(
            self._composer.path, sum(map(len, body)), f"{session.session_id}-{index}.{self._tag}", self._keep_alive
        )
        now = time.monotonic_ns()
        start_ns = now if due_ns is None else max(now, due_ns)
        self._spool.start(answer.ordinal, due_ns, start_ns)
        if self._on_start is not None:
            self._on_start(answer.ordinal, due_ns, start_ns)
        self._under_way += 1
        self._transport.post(Message(head, body, due_ns, self._playbook.timeout_s, answer.spill), exchange)
        self._under_way -= 1
        if answer.error is not None:
            raise answer.error
        self._spool.end(answer.ordinal, due_ns, exchange)
        self._ended += 1
        took_ms = (exchange.ended_ns - (exchange.sent_ns or exchange.ended_ns)) / 1e6
        self._on_end(took_ms, answer.size + len(exchange.raw), exchange.error or answer.http_error(exchange))
        return exchange

    def _sample_lag(self) -> None:
        period_s = LAG_PERIOD_NS / 1e9
        sample = 0
        while True:
            before = time.monotonic_ns()
            sample += 1
            if sample % COLLECT_EVERY == 0:
                gc.collect(1)
            gevent.sleep(period_s)
            self._lag_us.append(max(0, time.monotonic_ns() - before - LAG_PERIOD_NS) // 1000)


class _Ready:
    """A session whose first prompt is made."""

    __slots__ = ("prompt", "session")

    def __init__(self, session: Session, prompt: Prompt) -> None:
        self.session = session
        self.prompt = prompt


class _Queue:
    """The sessions of a closed loop; the first ones are made before the start."""

    def __init__(self, group: Group, prepare: Callable[[int], _Ready]) -> None:
        self.places = min(group.places, len(group.offsets))
        self._prepare = prepare
        self._left: Iterator[int] = iter(group.offsets)
        self._ready: deque[_Ready] = deque()

    def fill(self) -> None:
        """Make the first sessions ready, as far as memory allows."""
        size = 0
        while len(self._ready) < self.places and size < READY_BYTES:
            ready = self._prepare(next(self._left))
            size += len(ready.prompt.json)
            self._ready.append(ready)

    def take(self) -> _Ready | None:
        """The next session; None: there is none left."""
        if self._ready:
            return self._ready.popleft()
        offset = next(self._left, None)
        return None if offset is None else self._prepare(offset)


class _Answer:
    """What of an answer has gone to the spool before its end."""

    __slots__ = ("_kept", "_spool", "_status", "error", "ordinal", "size")

    def __init__(self, spool: Spool, ordinal: int, keep: bool) -> None:
        self.ordinal = ordinal
        self.size = 0
        self.error: OSError | None = None
        self._spool = spool
        self._status = b""
        self._kept = bytearray() if keep else None

    def spill(self, exchange: Exchange) -> None:
        """Move what came so far to the spool; an error is kept, since a transport would take it for the network's."""
        if not self.size:
            self._status = bytes(exchange.raw[9:12])
        self.size += len(exchange.raw)
        if self._kept is not None:
            self._kept += exchange.raw
        try:
            self._spool.part(self.ordinal, exchange)
        except OSError as error:
            self.error = self.error or error
            del exchange.read_ns[:], exchange.read_bytes[:], exchange.raw[:]

    def whole(self, exchange: Exchange) -> Exchange:
        """All that came (of a turn that another follows)."""
        return exchange if self._kept is None or not self.size else Exchange(raw=self._kept + exchange.raw)

    def http_error(self, exchange: Exchange) -> str | None:
        """Another status than 200, in words."""
        status = self._status or bytes(exchange.raw[9:12])
        return None if status == b"200" else f"http_status {status.decode('latin-1')}"


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _sleep_until(at_ns: int) -> bool:
    """Sleep, unless it is later already; whether it wasn't."""
    slept = False
    while (left := at_ns - time.monotonic_ns()) > 0:
        gevent.sleep(left / 1e9)
        slept = True
    return slept
