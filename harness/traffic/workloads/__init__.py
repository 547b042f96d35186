"""The registry of workloads: every module of this package, and whatever registers the entry point `kvmark.workloads`.

A workload draws sessions: lengths, which texts are shared with whom, and a trace's times. It knows no engine, and no
text unless the text is in a file of the user's.
"""

import importlib
import pkgutil
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from tokenizers import Tokenizer

from harness.errors import ConfigError
from harness.traffic.parameters import checked, unknown
from harness.traffic.segments import Session

DEFAULT_KIND = "sharegpt"


class Drawn(list[Session]):
    """Sessions, and what had to be done to them.

    Attributes
    ----------
    changes : dict
        How many requests were dropped, cut and so on, by what was done (`statistics.CHANGES`); empty where nothing was.
    """

    def __init__(self, sessions: Iterable[Session], changes: Mapping[str, int] | None = None) -> None:
        super().__init__(sessions)
        self.changes = {name: count for name, count in (changes or {}).items() if count}


@dataclass(frozen=True)
class Wanted:
    """What is to be drawn.

    Attributes
    ----------
    requests : int
        Turns of all sessions together, >= 1.
    context_tokens : int
        Longest sequence (prompt + output) that the server takes.
    phase : str
        ``window`` or ``warmup``: what draws from a file gives the two nothing in common.
    rng : random.Random
        The only source of chance.
    tokenizer : callable
        The model's tokenizer, for text of a file.
    """

    requests: int
    context_tokens: int
    phase: str
    rng: random.Random
    tokenizer: Callable[[], Tokenizer]


Draw = Callable[[Any, Wanted], Drawn]


@dataclass(frozen=True)
class Kind:
    """A kind of workload: the dataclass of its keys, and what draws its sessions."""

    name: str
    parameters: type
    draw: Draw


_REGISTRY: dict[str, Kind] = {}

D = TypeVar("D", bound=Callable[..., Drawn])


def workload(name: str, parameters: type) -> Callable[[D], D]:
    """Decorator: make a kind of workload known under `name`, its keys in YAML being the fields of `parameters`."""

    def register(draw: D) -> D:
        _REGISTRY[name] = Kind(name, parameters, draw)
        return draw

    return register


@cache
def workloads() -> dict[str, Kind]:
    """All known kinds by name, sorted."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    for entry in entry_points(group="kvmark.workloads"):
        entry.load()
    return dict(sorted(_REGISTRY.items()))


@dataclass(frozen=True)
class Workload:
    """One workload of a load: its kind, and the kind's own keys, checked.

    Attributes
    ----------
    kind : Kind
    parameters : dataclass
        An instance of `kind.parameters`. Where it names a file, the file has been read and found good.
    """

    kind: Kind
    parameters: Any

    def record(self) -> dict[str, Any]:
        """As YAML has it, every key with its value."""
        return {"kind": self.kind.name, **asdict(self.parameters)}


def keys_of_others(kind: str) -> set[str]:
    """Keys that other kinds have and this one doesn't."""
    keys = {name: {spec.name for spec in fields(each.parameters)} for name, each in workloads().items()}
    return set().union(*keys.values()) - keys[kind]


def workload_of(values: Mapping[str, Any], where: str = "workload") -> Workload:
    """The workload that a mapping of a YAML stands for; reads a file that it names. A key of another kind may stand
    there as null.

    Raises
    ------
    ConfigError
        Naming the key (or the file, line and field) that is wrong, and what is allowed.
    """
    name = values.get("kind", DEFAULT_KIND)
    if name not in workloads():
        raise ConfigError(f"{where}.kind: {unknown(str(name), workloads())}")
    kind = workloads()[name]
    elsewhere = keys_of_others(str(name))
    given = {k: v for k, v in values.items() if k != "kind" and (v is not None or k not in elsewhere)}
    parameters: Any = checked(kind.parameters, given, where)
    return Workload(kind, parameters)


def draw(
    what: Workload,
    *,
    requests: int,
    context_tokens: int,
    seed: int | str,
    phase: str = "window",
    tokenizer: Callable[[], Tokenizer],
    where: str = "workload",
) -> Drawn:
    """Sessions with exactly `requests` turns in total, equal for equal seeds.

    Raises
    ------
    ConfigError
        When the lengths can't be met within the context, or a file holds too little.
    """
    if requests == 0:
        return Drawn([])
    # A string seed is hashed by SHA-512, the same on every Python version and platform.
    rng = random.Random(f"{what.kind.name}-{phase}-{seed}")
    try:
        return what.kind.draw(what.parameters, Wanted(requests, context_tokens, phase, rng, tokenizer))
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from error


def cut_to_total(turns: Iterable[int], total: int) -> list[int]:
    """The first counts that sum to `total`, the last of them cut to fit."""
    out: list[int] = []
    left = total
    for count in turns:
        if left == 0:
            break
        out.append(min(count, left))
        left -= out[-1]
    return out


def tally(*changes: Mapping[str, int]) -> dict[str, int]:
    """Changes of several draws together."""
    total: Counter[str] = Counter()
    for each in changes:
        total.update(each)
    return dict(total)
