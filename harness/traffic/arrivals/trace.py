"""The times of a trace."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from harness.errors import ConfigError
from harness.traffic.arrivals import Arrival, arrival
from harness.traffic.arrivals.steady import Constant
from harness.traffic.parameters import need


@arrival("trace")
@dataclass(frozen=True)
class Trace(Arrival):
    """When the trace's own sessions started; for workloads that know such times.

    Attributes
    ----------
    scale : float
        The rate is so many times the trace's, > 0: 2 halves the time between two starts.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        need(0 < self.scale < math.inf, f"scale: {self.scale} must be > 0")

    def with_times(self, starts_s: Sequence[float | None]) -> Arrival:
        times = [at for at in starts_s if at is not None]
        if len(times) < len(starts_s) or not times:
            raise ConfigError(
                "arrival.kind: 'trace' needs a workload that knows when its sessions started; this has none"
            )
        first = min(times)
        return Timetable(tuple((at - first) / self.scale for at in sorted(times)))

    def summary(self) -> str:
        return "at the trace's times" if self.scale == 1 else f"at {self.scale:g} × the trace's rate"


@dataclass(frozen=True)
class Timetable(Arrival):
    """Given times; rising, the first 0."""

    times_s: tuple[float, ...]
    kind: ClassVar[str] = "trace"

    def offsets_s(self, rng: random.Random) -> Iterator[float]:
        return iter(self.times_s)

    def seconds(self, sessions: int) -> float:
        known = len(self.times_s)
        return self.times_s[sessions - 1] if sessions <= known else self.times_s[-1] * sessions / known

    def in_flight(self, sessions: int, session_s: float) -> float:
        peak = first = 0
        times = self.times_s[:sessions]
        for index, at in enumerate(times):
            while at - times[first] >= session_s:
                first += 1
            peak = max(peak, index + 1 - first)
        return peak

    def steady(self) -> Arrival:
        return Constant(len(self.times_s) / self.times_s[-1] if self.times_s[-1] else 1.0)
