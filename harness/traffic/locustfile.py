"""The client process: Locust plays a schedule against one server and writes what happened to `stream.jsonl`.

    locust -f harness/traffic/locustfile.py --headless --host URL --schedule schedule.jsonl --journal stream.jsonl

It knows no engine: it composes bodies out of the schedule, posts them, and stores what arrives and when. Closed loop:
each Locust user plays one session after the other. Open loop: one user starts every session at its own time, on an
absolute clock. A failed turn does not end its session: the requests asked are the requests made.

Exit codes: 0 all played, `EXIT_STORAGE` the record can't be written, `EXIT_FAULT` a fault of this client.
"""

import contextlib
import gc
import json
import os
import resource
import sys
import time
import traceback
from argparse import ArgumentParser
from collections import deque
from pathlib import Path
from typing import Any
from uuid import uuid4

import gevent
from gevent.pool import Group
from locust import User, constant, events, task
from locust.env import Environment
from locust.exception import StopUser

from harness.traffic.client import Client, Exchange
from harness.traffic.journal import EXIT_FAULT, EXIT_STORAGE, Journal
from harness.traffic.stream import read_answer, server_events
from harness.traffic.text import encode, load_tokenizer

COMPLETIONS = "/v1/completions"
LAG_PERIOD_S = 0.02
"""How often the loop's lag is sampled."""

START_DELAY_NS = 200_000_000
"""Time between the client being ready and the first arrival of an open loop."""


class Player:
    """Plays the sessions of a schedule."""

    def __init__(self, environment: Environment, schedule: Path, journal: Journal, base_url: str) -> None:
        lines = [json.loads(line) for line in schedule.read_bytes().splitlines()]
        self.engine, facts = lines[0], lines[1]
        self.load: dict[str, Any] = facts["load"]
        self.prefixes: dict[str, list[int]] = facts["prefixes"]
        self.waiting = deque(lines[2:])
        self.unfinished = len(self.waiting)
        self.environment = environment
        self.client = Client(base_url)
        self.journal = journal
        self.in_flight: dict[str, Exchange] = {}
        self.closed = False
        # vLLM takes the id that we send for its own, and must not meet one of an earlier cell again.
        self.tag = uuid4().hex[:8]
        self.send_lag_ns = 0
        self.loop_lag_ns = 0
        self._tokenizer: Any = None
        if any(len(session["turns"]) > 1 for session in self.waiting):
            self._tokenizer = load_tokenizer(self.engine["tokenizer"])
        gc.collect()
        gc.freeze()  # the schedule is never garbage: keep the collector from walking it while we measure
        self.started_ns = time.monotonic_ns()
        self.started_cpu_s = _cpu_s()
        gevent.spawn(self._sample_loop_lag)

    @property
    def is_closed_loop(self) -> bool:
        return bool(self.load["arrival"]["kind"] == "closed")

    def play_next(self) -> bool:
        """Play the next session to its end; False when there is none left."""
        if not self.waiting:
            return False
        self.play(self.waiting.popleft(), None)
        return True

    def play_at_due_times(self) -> None:
        """Start every session when it is due, however many are under way."""
        origin = time.monotonic_ns() + START_DELAY_NS
        running = Group()
        while self.waiting:
            session = self.waiting.popleft()
            due_ns = origin + session["due_ns"]
            body = self.body(session, 0, self.first_prompt(session))  # composed ahead, not when it is due
            _sleep_until(due_ns)
            running.spawn(self.play, session, due_ns, body)
        running.join()

    def play(self, session: dict[str, Any], due_ns: int | None, body: bytes | None = None) -> None:
        """Play one session; a fault of ours ends the process, so that it can't pass for a slow server."""
        try:
            self._play(session, due_ns, body)
        except OSError as error:
            _die(EXIT_STORAGE, f"the record can't be written: {error.strerror or error}")
        except Exception:
            _die(EXIT_FAULT, traceback.format_exc())
        self.unfinished -= 1
        if self.unfinished == 0:
            self.finish(0)

    def _play(self, session: dict[str, Any], due_ns: int | None, body: bytes | None) -> None:
        prompt = self.first_prompt(session)
        think_ns = round(self.load["think_time_s"] * 1e9)
        last = len(session["turns"]) - 1
        for index, turn in enumerate(session["turns"]):
            body = body or self.body(session, index, prompt)
            if due_ns is not None and index:
                _sleep_until(due_ns)
            exchange = self._ask(session, index, due_ns, body)
            body = None
            if index < last:
                prompt = self.continued(prompt, turn, session["turns"][index + 1], exchange)
            due_ns = exchange.ended_ns + think_ns

    def _ask(self, session: dict[str, Any], index: int, due_ns: int | None, body: bytes) -> Exchange:
        if self.closed:
            raise gevent.GreenletExit
        turn = session["turns"][index]
        request_id = f"{session['session_id']}-{index}"
        exchange = Exchange()
        self.in_flight[request_id] = exchange
        self.journal.start(
            request_id,
            {
                "phase": session["phase"],
                "session_id": session["session_id"],
                "turn": index,
                "scheduled_ns": due_ns,
                "started_ns": time.monotonic_ns(),
                "planned_prompt_tokens": turn["prompt_tokens"],
                "planned_output_tokens": turn["output_tokens"],
            },
        )
        self.client.post(COMPLETIONS, body, f"{request_id}.{self.tag}", self.load["timeout_s"], exchange)
        if due_ns is not None and exchange.sent_ns is not None and session["phase"] == "window":
            self.send_lag_ns = max(self.send_lag_ns, exchange.sent_ns - due_ns)
        del self.in_flight[request_id]
        if not self.closed:
            self.journal.end(request_id, exchange)
        self._tell_locust(exchange)
        return exchange

    def _tell_locust(self, exchange: Exchange) -> None:
        """For Locust's own statistics and listeners."""
        failed = exchange.error or (None if exchange.status == 200 else f"http_status {exchange.status}")
        self.environment.events.request.fire(  # type: ignore[no-untyped-call]
            request_type="POST",
            name=COMPLETIONS,
            response_time=(exchange.ended_ns - (exchange.sent_ns or exchange.ended_ns)) / 1e6,
            response_length=sum(len(data) for _, data in exchange.reads),
            exception=RuntimeError(failed) if failed else None,
            context={},
        )

    def first_prompt(self, session: dict[str, Any]) -> list[int]:
        """Token ids of a session's first prompt."""
        return [*self.prefixes.get(session["phase"], []), *session["turns"][0]["new_token_ids"]]

    def continued(
        self, prompt: list[int], turn: dict[str, Any], following: dict[str, Any], exchange: Exchange
    ) -> list[int]:
        """The next turn's prompt: this one, what was generated, and what the user adds; exactly as long as planned.

        Generated tokens are those the engine names; else its text is tokenised again, which may give a few more or
        less than were generated: cut, or filled up from the user's next words. A failed turn is filled up whole.
        """
        answer = read_answer(server_events(exchange.reads))
        generated = answer.token_ids or (encode(self._tokenizer, answer.text) if answer.text else [])
        generated = generated[: turn["output_tokens"]]
        new = following["new_token_ids"]
        missing = following["prompt_tokens"] - len(prompt) - len(generated) - len(new)
        return [*prompt, *generated, *(new[i % len(new)] for i in range(missing)), *new]

    def body(self, session: dict[str, Any], index: int, prompt: list[int]) -> bytes:
        """The request's JSON."""
        tokens = session["turns"][index]["output_tokens"]
        return json.dumps(
            {
                "model": self.engine["model"],
                "prompt": prompt,
                "max_tokens": tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
                **self.engine["extras"][str(tokens)],
            }
        ).encode()

    def finish(self, exit_code: int) -> None:
        """Write the last lines, those of requests under way included, and end Locust."""
        if self.closed:
            return
        self.closed = True
        now = time.monotonic_ns()
        try:
            for request_id, exchange in self.in_flight.items():
                exchange.error, exchange.error_detail, exchange.ended_ns = "aborted", "the client was told to stop", now
                self.journal.end(request_id, exchange)
            self.journal.client(
                {
                    "cpu_s": _cpu_s() - self.started_cpu_s,
                    "wall_s": (now - self.started_ns) / 1e9,
                    "loop_lag_max_ms": self.loop_lag_ns / 1e6,
                    "send_lag_max_ms": self.send_lag_ns / 1e6,
                    "complete": self.unfinished == 0,
                }
            )
        except OSError as error:
            _die(EXIT_STORAGE, f"the record can't be written: {error.strerror or error}")
        self.environment.process_exit_code = exit_code
        if self.unfinished == 0 and self.environment.runner is not None:
            gevent.spawn(self.environment.runner.quit)

    def _sample_loop_lag(self) -> None:
        while not self.closed:
            before = time.monotonic_ns()
            gevent.sleep(LAG_PERIOD_S)
            self.loop_lag_ns = max(self.loop_lag_ns, time.monotonic_ns() - before - round(LAG_PERIOD_S * 1e9))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _sleep_until(due_ns: int) -> None:
    while (left := due_ns - time.monotonic_ns()) > 0:
        gevent.sleep(left / 1e9)


def _die(code: int, reason: str) -> None:
    """End at once, with the reason as the last words of the log."""
    with contextlib.suppress(OSError):  # the log may lie on the same full disk
        sys.stderr.write(reason.rstrip() + "\n")
        sys.stderr.flush()
    os._exit(code)


class Sessions(User):
    """A Locust user: in a closed loop, one place of `concurrency`."""

    wait_time = constant(0)

    @task
    def play(self) -> None:
        """Play sessions until there are none left."""
        player = PLAYERS[self.environment]
        if player.is_closed_loop:
            while player.play_next():
                pass
        elif player.waiting:
            player.play_at_due_times()
        raise StopUser


PLAYERS: dict[Environment, Player] = {}
"""The player of Locust's environment (one, but that Locust calls us without it)."""


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: ArgumentParser) -> None:
    """Our options beside Locust's."""
    parser.add_argument("--schedule", required=True, help="schedule.jsonl to play")
    parser.add_argument("--journal", required=True, help="stream.jsonl to append to")


@events.init.add_listener  # type: ignore[untyped-decorator]
def on_init(environment: Environment, **_: Any) -> None:
    """Read the schedule before anything is sent."""
    options = environment.parsed_options
    assert options is not None and environment.host is not None
    try:
        journal = Journal(Path(options.journal))
        PLAYERS[environment] = Player(environment, Path(options.schedule), journal, environment.host)
    except OSError as error:
        _die(EXIT_STORAGE, f"{error}")
    except Exception:
        _die(EXIT_FAULT, traceback.format_exc())


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def on_quitting(environment: Environment, **_: Any) -> None:
    """SIGTERM or Ctrl-C: requests under way are recorded as aborted."""
    player = PLAYERS[environment]
    player.finish(0 if player.unfinished == 0 else EXIT_FAULT)
