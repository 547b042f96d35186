"""When sessions start: offsets from the start of the cell, computed before anything is sent, equal for equal seeds.

One class a kind, in the modules of this package. Only `random.Random.random` is drawn from, whose sequence for a seed
Python keeps over its versions.
"""

import importlib
import itertools
import pkgutil
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from typing import Any, ClassVar, TypeVar

from harness.errors import ConfigError
from harness.traffic.parameters import checked, unknown

NS_PER_S = 1_000_000_000
DEFAULT_KIND = "closed"

LATEST_S = 100 * 365 * 86_400.0
"""A session that would start later than that is a slip of the rate; records keep times as 64 bits of nanoseconds."""


class Arrival:
    """A process of arrivals: when so many sessions start."""

    kind: ClassVar[str] = ""

    @property
    def places(self) -> int | None:
        """Sessions at a time of a closed loop; None: an open loop."""
        return None

    def offsets_s(self, rng: random.Random) -> Iterator[float]:
        """When the sessions start, in seconds; never falls, never ends."""
        raise NotImplementedError

    def seconds(self, sessions: int) -> float:
        """How long it is expected to take until the last of so many sessions starts; 0 for a closed loop."""
        raise NotImplementedError

    def in_flight(self, sessions: int, session_s: float) -> float:
        """Sessions under way at the peak, of so many, if each takes `session_s`."""
        raise NotImplementedError

    def summary(self) -> str:
        """In a few words."""
        raise NotImplementedError

    def steady(self) -> "Arrival":
        """What warm-up requests follow: the process itself where it is the same at all times."""
        return self

    @property
    def mean_rps(self) -> float | None:
        """The rate, where it is the same at all times."""
        return None

    def with_times(self, starts_s: Sequence[float | None]) -> "Arrival":
        """The process for sessions that may have times of their own; only a trace's looks at them."""
        return self


_REGISTRY: dict[str, type[Arrival]] = {}

A = TypeVar("A", bound=type[Arrival])


def arrival(kind: str) -> Callable[[A], A]:
    """Class decorator: make an arrival process known under `kind`."""

    def register(cls: A) -> A:
        cls.kind = kind
        _REGISTRY[kind] = cls
        return cls

    return register


@cache
def arrivals() -> dict[str, type[Arrival]]:
    """All known processes by name, sorted."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def arrival_of(values: Mapping[str, Any], where: str = "arrival") -> Arrival:
    """The process that a mapping of a YAML stands for; a key of another kind may stand there as null.

    Raises
    ------
    ConfigError
        Naming the key that is wrong and what is allowed.
    """
    kind = values.get("kind", DEFAULT_KIND)
    if kind not in arrivals():
        raise ConfigError(f"{where}.kind: {unknown(str(kind), arrivals())}")
    elsewhere = keys_of_others(kind)
    given = {
        key: value for key, value in values.items() if key != "kind" and (value is not None or key not in elsewhere)
    }
    process = checked(arrivals()[kind], given, where)
    assert isinstance(process, Arrival)
    return process


def keys_of_others(kind: str) -> set[str]:
    """Keys that other kinds have and this one doesn't."""
    keys = {name: {spec.name for spec in fields(cls)} for name, cls in arrivals().items()}  # type: ignore[arg-type]
    return set().union(*keys.values()) - keys[kind]


def arrival_values(process: Arrival) -> dict[str, Any]:
    """The mapping that `arrival_of` reads, with every key."""
    return {"kind": process.kind, **asdict(process)}  # type: ignore[call-overload]


def due_ns(
    process: Arrival, warmup: int, starts_s: Sequence[float | None], seed: int | str
) -> tuple[list[int | None], list[int | None]]:
    """When each session of the warm-up and of the window is due, in ns after the start; None: when a place is free.

    The warm-up comes first, at a steady rate, and the window goes on from there: a profile or a trace begins with it.

    Parameters
    ----------
    process : Arrival
        The process.
    warmup : int
        Sessions of the warm-up.
    starts_s : sequence
        Of each session of the window, its own time in a trace, or None.
    seed : int or str
        Equal seeds give equal times.

    Raises
    ------
    ConfigError
        When the last would start more than a century after the first.
    """
    process = process.with_times(starts_s)
    if process.places is not None:
        return [None] * warmup, [None] * len(starts_s)
    rng = random.Random(f"arrivals-{seed}")
    steady = process.steady()
    if steady is process:
        every = _whole_ns(itertools.islice(process.offsets_s(rng), warmup + len(starts_s)))
        return every[:warmup], every[warmup:]
    before = list(itertools.islice(steady.offsets_s(rng), warmup + 1 if warmup else 0))
    origin = before.pop() if before else 0.0
    window = itertools.islice(process.offsets_s(rng), len(starts_s))
    return _whole_ns(before), _whole_ns(origin + at for at in window)


def _whole_ns(times_s: Iterable[float]) -> list[int | None]:
    times: list[int | None] = []
    for at in times_s:
        if not at <= LATEST_S:
            raise ConfigError(
                f"arrival: session {len(times) + 1} would start {at:.3g} s after the first, more than a century; ask a "
                "higher rate"
            )
        times.append(round(at * NS_PER_S))
    return times
