"""The client under Locust: plays a schedule against one server and spools what happened.

    locust -f harness/traffic/locustfile.py --headless --host URL --schedule schedule.jsonl --record FOLDER

It knows no engine: it composes bodies out of the schedule, posts them, and stores what arrives and when. Alone, as
`--processes N`, or as master and workers on several machines (`docs/load-client.md`); Locust's statistics and its web
page show what goes on. How many users Locust is asked for changes nothing: the schedule says who asks what, and when.

Exit codes: 0 all played, `EXIT_STORAGE` the record can't be written, `EXIT_FAULT` a fault of this client.
"""

import os
import time
import traceback
from argparse import ArgumentParser
from typing import Any

import gevent
from gevent.event import Event
from locust import User, constant, events, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

from harness.errors import KVMarkError, StorageError
from harness.traffic.client_options import TRANSPORTS
from harness.traffic.distributed.conductor import Conductor
from harness.traffic.distributed.member import Member
from harness.traffic.distributed.processes import await_children, end_locust, end_with_parent, say
from harness.traffic.locust_stats import PERIOD_S
from harness.traffic.outcome import EXIT_FAULT, EXIT_STORAGE
from harness.traffic.stage import Orders, listen, prepare

START_DELAY_NS = 200_000_000
"""Time between the client being ready and its start."""


class Solo:
    """The only client process."""

    def __init__(self, environment: Environment, orders: Orders) -> None:
        self._environment = environment
        self._prepared = prepare(environment, orders, _die)
        self._playing: gevent.Greenlet | None = None
        self.finished = Event()
        listen(environment.events.test_start, self.start)
        listen(environment.events.test_stopping, self.stop)
        listen(environment.events.quitting, self.stop)

    def start(self) -> None:
        """Play, once."""
        if self._playing is None:
            self._playing = gevent.spawn(self._play)
            gevent.spawn(self._tell)

    def stop(self) -> None:
        """End early: what is under way is recorded as aborted."""
        if not self.finished.is_set():
            self._environment.process_exit_code = EXIT_FAULT
            self._prepared.player.stop()

    def _play(self) -> None:
        player = self._prepared.player
        player.play(time.monotonic_ns() + START_DELAY_NS)
        self._prepared.tally.enter()
        self.finished.set()
        self._environment.process_exit_code = 0 if player.is_complete else EXIT_FAULT
        end_locust(self._environment)

    def _tell(self) -> None:
        while not self.finished.is_set():
            gevent.sleep(PERIOD_S)
            self._prepared.tally.enter()


class Client(User):
    """Locust's user: there is one a client process, and it is there as long as the process plays."""

    wait_time = constant(0)

    @task
    def play(self) -> None:
        """Wait for the end."""
        stage = STAGES.get(self.environment)
        if stage is not None:
            stage.finished.wait()
        raise StopUser


STAGES: dict[Environment, Solo | Member] = {}
"""Who plays in Locust's environment (one, but that Locust calls us without it)."""


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_arguments(parser: ArgumentParser) -> None:
    """Our options beside Locust's."""
    ours = parser.add_argument_group("KVMark")
    ours.add_argument("--schedule", help="schedule.jsonl to play (not on a worker of another machine)")
    ours.add_argument("--record", help="folder for the record")
    ours.add_argument("--transport", choices=TRANSPORTS, default="auto", help="how requests are sent")
    ours.add_argument("--no-keep-alive", action="store_true", help="a connection of its own for every request")
    ours.add_argument("--ca-file", help="certificates to trust at an https endpoint")
    ours.add_argument("--no-verify", action="store_true", help="don't check an https endpoint's certificate")
    ours.add_argument("--scratch", help="on a worker: folder for its record until the master has it")


@events.init.add_listener  # type: ignore[untyped-decorator]
def on_init(environment: Environment, **_: Any) -> None:
    """Make everything ready before anything is sent."""
    options = environment.parsed_options
    assert options is not None
    try:
        if isinstance(environment.runner, WorkerRunner):
            if options.processes:
                end_with_parent()
            STAGES[environment] = Member(environment, options.scratch, environment.host, options.record)
            return
        if not (options.schedule and options.record and environment.host):
            _die(EXIT_FAULT, "--schedule, --record and --host are needed")
        orders = Orders.of(options, str(environment.host))
        os.makedirs(orders.folder, exist_ok=True)
        if isinstance(environment.runner, MasterRunner):
            workers, wait_s = options.expect_workers, options.expect_workers_max_wait or float("inf")
            Conductor(environment, orders, workers, wait_s, is_forked=bool(options.processes))
        else:
            STAGES[environment] = Solo(environment, orders)
    except KVMarkError as error:
        _die(EXIT_STORAGE if isinstance(error, StorageError) else EXIT_FAULT, str(error))
    except OSError as error:
        _die(EXIT_STORAGE, str(error))
    except Exception:
        _die(EXIT_FAULT, traceback.format_exc())


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def on_quitting(environment: Environment, **_: Any) -> None:
    """After all else: forked workers end before their parent."""
    if isinstance(environment.runner, MasterRunner):
        await_children()


def _die(code: int, reason: str) -> None:
    """End at once, with the reason as the last words of the log."""
    say(reason)
    os._exit(code)
