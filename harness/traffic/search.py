"""How the highest load that still meets an SLA is found: bracketing by doubling, then bisection, each value repeated.

Pure: what to ask next follows from what was answered. `harness.saturation` asks real servers.
"""

import math
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field

from harness.errors import ConfigError

OVER = ("rate_rps", "concurrency")
MET, MISSED, CLIENT_BOUND = "met", "missed", "client-bound"
OUTCOMES = (MET, MISSED, CLIENT_BOUND)
FOUND, UNBOUNDED, NONE_MET, UNFINISHED = "found", "unbounded", "none met", "unfinished"

HALVINGS_MAX = 6
"""A first value that is missed is halved at most so often before the search gives up."""


@dataclass
class Search:
    """Look for the highest load that still meets an SLA; every probe is measured as a cell of its own.

    Attributes
    ----------
    over : str
        What is varied: `rate_rps` (open loop) or `concurrency` (closed loop) of the load's arrival.
    sla : str
        Name of the service level, as in `scenarios/sla/`.
    low : float
        The first value that is tried.
    high : float or None
        No value above it is tried; null sets no limit.
    repeats : int
        Probes at one value, on different traffic; the majority decides.
    precision_pct : float
        The search ends when the lowest value missed is at most this much above the highest one met.
    probes_max : int
        Most probes of one search.
    probe_s : float or None
        An open loop's probe has at least so many seconds of arrivals (and at least the load's `requests`): a server
        that falls behind slowly shows it only in time. null: the load's `requests`, however soon they are sent.
    """

    over: str = "rate_rps"
    sla: str = ""
    low: float = 1.0
    high: float | None = None
    repeats: int = 3
    precision_pct: float = 10.0
    probes_max: int = 30
    probe_s: float | None = None

    def __post_init__(self) -> None:
        if self.over not in OVER:
            raise ConfigError(f"over: '{self.over}' is unknown; allowed: {', '.join(OVER)}")
        if not self.sla:
            raise ConfigError("sla: name the service level to meet, as in scenarios/sla/")
        if not 0 < self.low < math.inf:
            raise ConfigError(f"low: {self.low} must be > 0")
        if self.high is not None and not self.low <= self.high < math.inf:
            raise ConfigError(f"high: {self.high} must be >= low ({self.low}), or null for no limit")
        if self.over == "concurrency" and any(v is not None and v != int(v) for v in (self.low, self.high)):
            raise ConfigError("low, high: a concurrency is a whole number")
        if self.repeats < 1 or self.repeats % 2 == 0:
            raise ConfigError(f"repeats: {self.repeats} must be odd, so that a majority decides")
        if not 0 < self.precision_pct <= 100:
            raise ConfigError(f"precision_pct: {self.precision_pct} must lie in (0, 100]")
        if self.probes_max < 2 * self.repeats:
            raise ConfigError(
                f"probes_max: {self.probes_max} must be >= {2 * self.repeats}, so that two values can be probed"
            )
        if self.probe_s is not None and not 0 < self.probe_s < math.inf:
            raise ConfigError(f"probe_s: {self.probe_s} must be > 0, or null")

    @property
    def probes_expected(self) -> int:
        """Probes of a usual search: three doublings and the bisection, a majority at each value."""
        halvings = (
            math.ceil(math.log2(math.log(2) / math.log1p(self.precision_pct / 100))) if self.precision_pct < 100 else 0
        )
        return min(self.probes_max, (4 + max(0, halvings)) * (self.repeats // 2 + 1) + 2 * (self.repeats // 2))


@dataclass(frozen=True)
class Probe:
    """What to measure next.

    Attributes
    ----------
    value : float
        Requests a second, or requests at a time.
    repeat : int
        How many probes of this value came before it.
    """

    value: float
    repeat: int


@dataclass(frozen=True)
class Saturation:
    """What a search came to.

    Attributes
    ----------
    state : str
        `found`; `unbounded`: even the highest value allowed was met; `none met`: no value tried was; `unfinished`:
        `probes_max` ended it before the precision was reached; `client-bound`: this client can't ask for more.
    highest : float or None
        Highest value that the majority of its probes met.
    low, high : float or None
        The interval: every probe at or below `low` met the SLA, every probe at or above `high` missed it. None:
        there is no such value.
    runs : dict
        The outcomes, by value.
    """

    state: str
    highest: float | None
    low: float | None
    high: float | None
    runs: dict[float, tuple[str, ...]] = field(default_factory=dict)


Probing = Generator[Probe, str, Saturation]


def probing(search: Search) -> Probing:
    """A coroutine: yields the next probe, is sent its outcome (`OUTCOMES`), returns the `Saturation`."""
    return _Prober(search).run()


class _Stop(Exception):
    """The search ends early; the argument is its state."""


class _Prober:
    def __init__(self, search: Search) -> None:
        self.search = search
        self.runs: dict[float, list[str]] = defaultdict(list)

    def run(self) -> Probing:
        state = FOUND
        try:
            met, missed = yield from self._bracket()
            if met is None:
                state = NONE_MET
            elif missed is None:
                state = UNBOUNDED
            else:
                met, missed = yield from self._bisect(met, missed)
                yield from self._complete(met)
                yield from self._complete(missed)
        except _Stop as stop:
            state = str(stop)
        return self._result(state)

    def _bracket(self) -> Generator[Probe, str, tuple[float | None, float | None]]:
        """A value that is met and one above it that isn't; None where there is none."""
        value = self._round(self.search.low)
        if (yield from self._meets(value)):
            while True:
                higher = value * 2 if self.search.high is None else min(value * 2, self.search.high)
                if higher <= value:
                    return value, None
                if not (yield from self._meets(higher)):
                    return value, higher
                value = higher
        for _ in range(HALVINGS_MAX):
            lower = self._round(value / 2)
            if not 0 < lower < value:
                break
            if (yield from self._meets(lower)):
                return lower, value
            value = lower
        return None, value

    def _bisect(self, met: float, missed: float) -> Generator[Probe, str, tuple[float, float]]:
        while missed / met > 1 + self.search.precision_pct / 100:
            middle = self._round(math.sqrt(met * missed))
            if not met < middle < missed:
                middle = met + 1  # whole numbers with one between them
                if self.search.over != "concurrency" or middle >= missed:
                    break
            if (yield from self._meets(middle)):
                met = middle
            else:
                missed = middle
        return met, missed

    def _meets(self, value: float) -> Generator[Probe, str, bool]:
        """Whether the majority of the probes at a value meets the SLA; no more of them than decide it."""
        enough = self.search.repeats // 2 + 1
        while True:
            outcomes = self.runs[value]
            if outcomes.count(MET) >= enough or outcomes.count(MISSED) >= enough:
                return outcomes.count(MET) >= enough
            yield from self._ask(value)

    def _complete(self, value: float) -> Generator[Probe, str, None]:
        """The remaining probes at an end of the bracket: the interval shall rest on all of them."""
        while len(self.runs[value]) < self.search.repeats:
            yield from self._ask(value)

    def _ask(self, value: float) -> Generator[Probe, str, None]:
        if sum(map(len, self.runs.values())) >= self.search.probes_max:
            raise _Stop(UNFINISHED)
        outcome = yield Probe(value, len(self.runs[value]))
        if outcome not in OUTCOMES:
            raise ValueError(f"outcome '{outcome}' is unknown; allowed: {', '.join(OUTCOMES)}")
        self.runs[value].append(outcome)
        if outcome == CLIENT_BOUND:
            raise _Stop(CLIENT_BOUND)

    def _round(self, value: float) -> float:
        return float(round(value)) if self.search.over == "concurrency" else float(f"{value:.4g}")

    def _result(self, state: str) -> Saturation:
        enough = self.search.repeats // 2 + 1
        runs = {value: tuple(outcomes) for value, outcomes in sorted(self.runs.items()) if outcomes}
        met = [value for value, outcomes in runs.items() if outcomes.count(MET) >= enough]
        low = high = None
        for value, outcomes in runs.items():
            if set(outcomes) != {MET}:
                break
            low = value
        for value, outcomes in reversed(runs.items()):
            if set(outcomes) != {MISSED}:
                break
            high = value
        return Saturation(state, max(met, default=None), low, high, runs)
