"""Open loops whose rate changes over time.

The arrivals are those of a rate of one a second, stretched: the n-th is where the integral of the rate reaches what it
was for the n-th of that one (time rescaling), so the rate is exact at all times.
"""

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

from harness.errors import ConfigError
from harness.traffic.arrivals import Arrival, arrival
from harness.traffic.arrivals.steady import Constant, evenly, exponential, need_rate
from harness.traffic.parameters import checked, need, unknown

SPACINGS = ("poisson", "even")


class Varying(Arrival):
    """An open loop whose rate changes over time."""

    spacing: str

    def when(self, count: float) -> float:
        """The time at which the integral of the rate reaches `count`."""
        raise NotImplementedError

    def rate_at(self, seconds: float) -> float:
        """The rate at a time."""
        raise NotImplementedError

    def turning_points(self, seconds: float) -> Iterator[float]:
        """Times up to `seconds` at which the rate may be at its highest."""
        raise NotImplementedError

    def offsets_s(self, rng: random.Random) -> Iterator[float]:
        gaps = exponential(rng) if self.spacing == "poisson" else evenly()
        return map(self.when, itertools.accumulate(gaps))

    def seconds(self, sessions: int) -> float:
        return self.when(sessions)

    def in_flight(self, sessions: int, session_s: float) -> float:
        peak_rps = max(map(self.rate_at, self.turning_points(self.seconds(sessions))))
        return min(sessions, max(1.0, peak_rps * session_s))

    def steady(self) -> Arrival:
        return Constant(self.rate_at(0.0) or self.rate_at(self.when(1.0)))

    def _need_spacing(self) -> None:
        need(self.spacing in SPACINGS, f"spacing: {unknown(self.spacing, SPACINGS)}")


class _Piecewise(Varying):
    """A rate that is linear between given times, and holds its last value after them."""

    @cached_property
    def _points(self) -> list[tuple[float, float, float]]:
        """(time, sessions started until then, rate from then on) at each beginning of a piece."""
        raise NotImplementedError

    @cached_property
    def _counts(self) -> list[float]:
        return [count for _, count, _ in self._points]

    @cached_property
    def _times(self) -> list[float]:
        return [time for time, _, _ in self._points]

    def _slope(self, piece: int) -> float:
        """Change of the rate a second."""
        return 0.0

    def when(self, count: float) -> float:
        at = bisect_right(self._counts, count) - 1
        time, before, rate = self._points[at]
        left, slope = count - before, self._slope(at)
        if left <= 0:
            return time
        # The root of slope/2 t² + rate t = left, in the form that doesn't cancel.
        return time + 2 * left / (rate + math.sqrt(max(0.0, rate * rate + 2 * slope * left)))

    def rate_at(self, seconds: float) -> float:
        at = bisect_right(self._times, seconds) - 1
        time, _, rate = self._points[at]
        return rate + self._slope(at) * (seconds - time)

    def turning_points(self, seconds: float) -> Iterator[float]:
        yield from (time for time in self._times if time <= seconds)
        yield seconds


@arrival("ramp")
@dataclass(frozen=True)
class Ramp(_Piecewise):
    """The rate goes evenly from one value to another, and stays there for as many sessions as are left.

    Attributes
    ----------
    from_rps, to_rps : float
        Session starts a second at first, >= 0, and at last, > 0.
    duration_s : float
        How long it takes to get there, > 0.
    spacing : str
        ``poisson``: independent arrivals; ``even``: no randomness.
    """

    from_rps: float
    to_rps: float
    duration_s: float
    spacing: str = "poisson"

    def __post_init__(self) -> None:
        need(0 <= self.from_rps < math.inf, f"from_rps: {self.from_rps} must be >= 0")
        need_rate("to_rps", self.to_rps)
        need(0 < self.duration_s < math.inf, f"duration_s: {self.duration_s} must be > 0")
        self._need_spacing()

    @cached_property
    def _points(self) -> list[tuple[float, float, float]]:
        count = (self.from_rps + self.to_rps) / 2 * self.duration_s
        return [(0.0, 0.0, self.from_rps), (self.duration_s, count, self.to_rps)]

    def _slope(self, piece: int) -> float:
        return (self.to_rps - self.from_rps) / self.duration_s if piece == 0 else 0.0

    def summary(self) -> str:
        return f"ramp from {self.from_rps:g}/s to {self.to_rps:g}/s in {self.duration_s:g} s"


@dataclass(frozen=True)
class Stage:
    """A stretch of one rate.

    Attributes
    ----------
    rate_rps : float
        Session starts a second, >= 0; 0 is a pause.
    duration_s : float
        How long, > 0.
    """

    rate_rps: float
    duration_s: float

    def __post_init__(self) -> None:
        need(0 <= self.rate_rps < math.inf, f"rate_rps: {self.rate_rps} must be >= 0")
        need(0 < self.duration_s < math.inf, f"duration_s: {self.duration_s} must be > 0")


@arrival("stages")
@dataclass(frozen=True)
class Stages(_Piecewise):
    """One rate after the other, in steps; the last one stays for as many sessions as are left.

    Attributes
    ----------
    stages : tuple of Stage
        Rates and durations; the last rate is > 0.
    spacing : str
        ``poisson``: independent arrivals; ``even``: no randomness.
    """

    stages: tuple[Stage, ...]
    spacing: str = "poisson"

    def __post_init__(self) -> None:
        listed = isinstance(self.stages, list | tuple) and len(self.stages) > 0
        need(listed, f"stages: {self.stages!r} must be a list of {{rate_rps, duration_s}}")
        read = []
        for index, stage in enumerate(self.stages):
            mapping = stage if isinstance(stage, Mapping) else asdict(stage) if isinstance(stage, Stage) else None
            if mapping is None:
                raise ConfigError(f"stages[{index}]: {stage!r} must be {{rate_rps, duration_s}}")
            read.append(checked(Stage, mapping, f"stages[{index}]"))
        object.__setattr__(self, "stages", tuple(read))
        need(self.stages[-1].rate_rps > 0, "stages: the last rate_rps must be > 0, it stays to the end")
        self._need_spacing()

    @cached_property
    def _points(self) -> list[tuple[float, float, float]]:
        points, time, count = [], 0.0, 0.0
        for stage in self.stages:
            points.append((time, count, stage.rate_rps))
            time, count = time + stage.duration_s, count + stage.rate_rps * stage.duration_s
        return points

    def steady(self) -> Arrival:
        return Constant(next(stage.rate_rps for stage in self.stages if stage.rate_rps))

    def summary(self) -> str:
        return "stages of " + ", ".join(f"{stage.rate_rps:g}/s" for stage in self.stages)


@arrival("sine")
@dataclass(frozen=True)
class Sine(Varying):
    """The rate swings about a mean: rate_rps + amplitude_rps × sin(2π t / period_s).

    Attributes
    ----------
    rate_rps : float
        Mean of the session starts a second, > 0.
    amplitude_rps : float
        How far the rate swings, from 0 to `rate_rps`.
    period_s : float
        Time of one swing, > 0.
    spacing : str
        ``poisson``: independent arrivals; ``even``: no randomness.
    """

    rate_rps: float
    amplitude_rps: float
    period_s: float
    spacing: str = "poisson"

    def __post_init__(self) -> None:
        need_rate("rate_rps", self.rate_rps)
        fits = 0 <= self.amplitude_rps <= self.rate_rps
        need(fits, f"amplitude_rps: {self.amplitude_rps} must lie between 0 and rate_rps ({self.rate_rps})")
        need(0 < self.period_s < math.inf, f"period_s: {self.period_s} must be > 0")
        self._need_spacing()

    def when(self, count: float) -> float:
        swing = self.amplitude_rps * self.period_s / (2 * math.pi)
        turn = 2 * math.pi / self.period_s
        low, high = max(0.0, count - 2 * swing) / self.rate_rps, count / self.rate_rps
        at = high
        for _ in range(100):  # Newton's steps, kept inside the shrinking bracket
            over = self.rate_rps * at + swing * (1 - math.cos(turn * at)) - count
            low, high = (low, at) if over > 0 else (at, high)
            rate = self.rate_at(at)
            step = at - over / rate if rate > 0 else -1.0
            following = step if low < step < high else (low + high) / 2
            if abs(following - at) <= 1e-12 * max(1.0, at):
                return following
            at = following
        return at

    def rate_at(self, seconds: float) -> float:
        return self.rate_rps + self.amplitude_rps * math.sin(2 * math.pi * seconds / self.period_s)

    def turning_points(self, seconds: float) -> Iterator[float]:
        yield from (0.0, min(seconds, self.period_s / 4), seconds)

    def steady(self) -> Arrival:
        return Constant(self.rate_rps)

    def summary(self) -> str:
        return f"sine {self.rate_rps:g}/s ± {self.amplitude_rps:g}/s every {self.period_s:g} s"
