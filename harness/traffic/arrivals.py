"""When sessions start: offsets from the start of the cell, computed before anything is sent, equal for equal seeds."""

import math
import random
from collections.abc import Callable

from harness.errors import ConfigError
from harness.traffic.load import Arrival

Offsets = Callable[[Arrival, int, random.Random], list[int | None]]

ARRIVALS: dict[str, Offsets] = {}
"""Arrival processes by name."""

NS_PER_S = 1_000_000_000


def arrival(kind: str) -> Callable[[Offsets], Offsets]:
    """Decorator: make an arrival process known under `kind`."""

    def register(offsets: Offsets) -> Offsets:
        ARRIVALS[kind] = offsets
        return offsets

    return register


def offsets_ns(process: Arrival, sessions: int, seed: int) -> list[int | None]:
    """When each session is due, in ns after the start; None: as soon as a place is free (closed loop).

    Raises
    ------
    ConfigError
        When the process is unknown.
    """
    if process.kind not in ARRIVALS:
        raise ConfigError(f"arrival.kind: '{process.kind}' is unknown; allowed: {', '.join(sorted(ARRIVALS))}")
    return ARRIVALS[process.kind](process, sessions, random.Random(f"arrivals-{seed}"))


@arrival("closed")
def closed(process: Arrival, sessions: int, rng: random.Random) -> list[int | None]:
    """`concurrency` sessions at a time; the next starts when one ends."""
    return [None] * sessions


@arrival("constant")
def constant(process: Arrival, sessions: int, rng: random.Random) -> list[int | None]:
    """A session every 1 / `rate_rps` seconds."""
    assert process.rate_rps
    return [round(i * NS_PER_S / process.rate_rps) for i in range(sessions)]


@arrival("poisson")
def poisson(process: Arrival, sessions: int, rng: random.Random) -> list[int | None]:
    """Independent arrivals: exponential gaps of mean 1 / `rate_rps` seconds, also before the first."""
    assert process.rate_rps
    out: list[int | None] = []
    at_s = 0.0
    for _ in range(sessions):
        at_s += -math.log(1.0 - rng.random()) / process.rate_rps
        out.append(round(at_s * NS_PER_S))
    return out
