"""What `make perf` writes: figures with what they are held against."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bar:
    """What a figure must reach.

    Attributes
    ----------
    of : str
        ``value``, or ``ratio``: value ÷ the peer's value.
    at_most, at_least : float or None
        The limits, both included.
    """

    of: str = "value"
    at_most: float | None = None
    at_least: float | None = None

    def __str__(self) -> str:
        parts = [f"{self.of} >= {self.at_least:g}"] if self.at_least is not None else []
        parts += [f"{self.of} <= {self.at_most:g}"] if self.at_most is not None else []
        return " and ".join(parts)

    def holds(self, number: float) -> bool:
        """Whether a number lies within the limits; NaN does not."""
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return low <= number <= high


@dataclass(frozen=True)
class Figure:
    """One line of `perf.json`.

    Attributes
    ----------
    name : str
        What was measured, and how.
    value : float or None
        Ours; None: it could not be measured.
    unit : str
        Of the values.
    peer : str or None
        What it is compared with, with its version.
    peer_value : float or None
        The peer's, in the same run; None: it could not be measured.
    bar : Bar or None
        What it must reach; None: reported only.
    note : str
        Why a value is missing, or what else must be known.
    """

    name: str
    value: float | None
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    bar: Bar | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours ÷ the peer's."""
        return self.value / self.peer_value if self.value is not None and self.peer_value else None

    @property
    def holds(self) -> bool | None:
        """Whether the bar is reached; None: there is no bar, or what it is of could not be measured."""
        number = self.ratio if self.bar is not None and self.bar.of == "ratio" else self.value
        return None if self.bar is None or number is None else self.bar.holds(number)

    def record(self) -> dict[str, Any]:
        """As it stands in `perf.json`."""
        return {
            "name": self.name,
            "value": _rounded(self.value),
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": _rounded(self.peer_value),
            "ratio": _rounded(self.ratio),
            "bar": str(self.bar) if self.bar else None,
            "holds": self.holds,
            "note": self.note,
        }


def missed(figures: Iterable[Figure]) -> list[Figure]:
    """Figures that don't reach their bar, or whose own value could not be measured although a bar is set."""
    return [one for one in figures if one.bar is not None and (one.holds is False or one.value is None)]


def table(figures: Sequence[Figure]) -> str:
    """The figures for a terminal."""
    rows = [["figure", "ours", "unit", "peer", "peer's", "ratio", "bar", "holds"]]
    for one in figures:
        holds = {True: "yes", False: "NO", None: "" if one.bar is None else "?"}[one.holds]
        numbers = [_short(one.value), one.unit, one.peer or "", _short(one.peer_value), _short(one.ratio)]
        rows.append([one.name, *numbers, str(one.bar or ""), holds])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = {1, 4, 5}
    lines = []
    for cells, note in zip(rows, ["", *(one.note for one in figures)], strict=True):
        padded = [c.rjust(w) if n in right else c.ljust(w) for n, (c, w) in enumerate(zip(cells, widths, strict=True))]
        lines.append("  ".join(padded).rstrip())
        if note:
            lines.append(f"    {note}")
    return "\n".join(lines)


Row = Callable[["Any"], Iterable[Figure]]
"""Measures some figures that belong together; told where and with what (`harness.perf.rig.Rig`)."""

ROWS: dict[str, Row] = {}
"""All rows by name, in the order of the table."""


def row(name: str) -> Callable[[Row], Row]:
    """Decorator: make a row known as `name`."""

    def register(measure: Row) -> Row:
        ROWS[name] = measure
        return measure

    return register


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _short(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
