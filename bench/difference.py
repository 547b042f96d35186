"""One thing that isn't the same on two sides, and what it stands in the way of."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SPEED, ACCURACY, MEMORY = "speed", "accuracy", "memory"
ALL = (SPEED, ACCURACY, MEMORY)
Values = tuple[Any, Any]
"""A's and B's."""

_LABELS = ("title",)
"""Keys of a configuration that mean nothing."""


@dataclass(frozen=True)
class Difference:
    """One thing that isn't the same on both sides.

    Attributes
    ----------
    topic : str
        What it belongs to: record, blocks, state, hardware, model, settings, engine, code, client, data, traffic,
        questions.
    what : str
        The field, in words and with its key.
    a, b : object
        Its two values; None: the record doesn't say.
    voids : tuple of str
        What can't be compared for it: `SPEED`, `ACCURACY`, `MEMORY`; empty: it is named, and allowed.
    scope : str or None
        The one load or task that it concerns.
    """

    topic: str
    what: str
    a: Any
    b: Any
    voids: tuple[str, ...] = ()
    scope: str | None = None

    @property
    def text(self) -> str:
        return f"{self.what}: {short(self.a)} against {short(self.b)}"


def differing(
    topic: str, what: str, values: Values, voids: tuple[str, ...] = (), scope: str | None = None
) -> Iterator[Difference]:
    """The difference, where there is one."""
    if values[0] != values[1]:
        yield Difference(topic, what, *values, voids=voids, scope=scope)


def each(
    topic: str,
    what: str,
    values: tuple[Mapping[str, Any], Mapping[str, Any]],
    voids: tuple[str, ...] = (),
    scope: str | None = None,
) -> Iterator[Difference]:
    """Every key that both have and that differs, nested ones by their path; labels for people left out."""
    mine, theirs = values
    for key in sorted(mine.keys() & theirs.keys()):
        left, right = mine[key], theirs[key]
        if key in _LABELS:
            continue
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from each(topic, f"{what}: {key}", (left, right), voids, scope)
        else:
            yield from differing(topic, f"{what}: {key}", (left, right), voids, scope)


def voiding(differences: Iterable[Difference], what: str, scope: str | None = None) -> list[Difference]:
    """Those that stand in the way of comparing `what` under one load or task."""
    return [d for d in differences if what in d.voids and d.scope in (None, scope)]


def reason(differences: Iterable[Difference]) -> str:
    """Why two can't be compared, in one line."""
    return "; ".join(d.text for d in differences)


def short(value: Any) -> str:
    """A value for people; a hash by its beginning."""
    text = "not recorded" if value is None else str(value)
    is_hash = len(text) == 64 and set(text) <= set("0123456789abcdef")
    return text[:12] + "…" if is_hash else text
