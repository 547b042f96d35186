"""What a client process is told, and how it gets ready to play: the same alone and as one of several."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from locust.env import Environment

from harness.traffic.client_options import API_KEY
from harness.traffic.locust_stats import Tally
from harness.traffic.playbook import Playbook
from harness.traffic.player import Fault, Player
from harness.traffic.prompts import composer
from harness.traffic.spool import Spool
from harness.traffic.wire.endpoint import parse_endpoint
from harness.traffic.wire.transport import Kind, open_transport


@dataclass(frozen=True)
class Orders:
    """What one client process plays.

    Attributes
    ----------
    schedule, folder : str
        The schedule's file, and the folder for the record.
    base_url : str
        The endpoint; its key is the process's own `KVMARK_API_KEY`.
    worker, workers : int
        Number of this process, and how many there are.
    """

    schedule: str
    folder: str
    base_url: str
    worker: int = 0
    workers: int = 1
    transport: str = "auto"
    keep_alive: bool = True
    ca_file: str | None = None
    verify: bool = True

    @classmethod
    def of(cls, options: Any, base_url: str) -> Self:
        """Out of the command line."""
        return cls(
            schedule=str(Path(options.schedule).resolve()),
            folder=str(Path(options.record).resolve()),
            base_url=base_url,
            transport=options.transport,
            keep_alive=not options.no_keep_alive,
            ca_file=options.ca_file,
            verify=not options.no_verify,
        )


def listen(hook: Any, act: Callable[[], object]) -> None:
    """Call `act` at an event of Locust's."""
    hook.add_listener(lambda **_: act())


@dataclass(frozen=True)
class Prepared:
    """A player that is ready, and Locust's statistics of it."""

    playbook: Playbook
    player: Player
    tally: Tally


def prepare(
    environment: Environment,
    orders: Orders,
    on_fault: Fault,
    *,
    on_start: Callable[[int, int | None, int], None] | None = None,
    tokenizer: str | None = None,
    hello: dict[str, Any] | None = None,
) -> Prepared:
    """Read the own part of the schedule and make everything ready before anything is sent.

    Raises
    ------
    ConfigError
        When the endpoint or the transport can't be had.
    StorageError
        When there is no room for the record.
    """
    endpoint = parse_endpoint(
        orders.base_url,
        api_key=os.environ.get(API_KEY) or None,
        ca_file=Path(orders.ca_file) if orders.ca_file else None,
        verify=orders.verify,
    )
    playbook = Playbook(Path(orders.schedule), orders.worker, orders.workers)
    prompts = composer(playbook, tokenizer)
    transport = open_transport(endpoint, cast(Kind, orders.transport), orders.keep_alive)
    tally = Tally(environment, prompts.path)
    spool = Spool(
        Path(orders.folder), orders.worker, playbook.all_requests, {"transport": transport.name, **(hello or {})}
    )
    player = Player(
        playbook,
        prompts,
        endpoint,
        transport,
        spool,
        on_fault=on_fault,
        on_end=tally.add,
        on_start=on_start,
        keep_alive=orders.keep_alive,
    )
    return Prepared(playbook, player, tally)
