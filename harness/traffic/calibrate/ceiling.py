"""What the load client can measure on this host: the ceiling that `make calibrate` found, kept in the cache."""

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from harness.cache import cache_dir, locked
from harness.files import read_json, sha256_of, write_json
from harness.telemetry import hardware
from harness.traffic.calibrate.exactness import METRICS, Exactness, Figures

VERSION = 1
"""Of the stored file; what another version found is not read."""

ERROR_PCT = 2.0
"""What the client may be off in mean TTFT and ITL: the ceiling is where it is off by more."""

WIDER_PCT = 5.0
"""Reported beside it: what the peers are compared at."""

ATTAINED = 0.98
"""Share of the asked rate that an open loop must attain."""


@dataclass(frozen=True)
class Step:
    """One measurement.

    Attributes
    ----------
    kind : str
        ``streams`` (so many at once, in lock-step), ``rate`` (so many one-token requests a second, Poisson) or
        ``capacity`` (one-token requests as fast as so many connections allow; not judged).
    asked : float
        How many.
    exactness : Exactness
        What the client got right.
    client_cpu_s : float or None
        CPU time of the client's processes.
    server_bound : bool
        Whether the server itself could not keep the asked pace: its truth is right all the same, but of a smaller load,
        so that the step says nothing about the asked one.
    attempts : int
        How often it was measured; the run with the smallest error counts, since a disturbance only adds to it.
    """

    kind: str
    asked: float
    exactness: Exactness
    client_cpu_s: float | None = None
    server_bound: bool = False
    attempts: int = 1

    def error_pct(self) -> float:
        """Largest error of the means that are judged; infinite when something failed, was lost or came too late."""
        if not self.exactness.is_whole():
            return math.inf
        if self.kind == "rate" and not self.exactness.attained_over_asked >= ATTAINED:
            return math.inf
        return self.exactness.worst_mean_pct()

    def holds(self, error_pct: float = ERROR_PCT) -> bool:
        """Whether the client was within `error_pct` of the truth."""
        return self.error_pct() <= error_pct


@dataclass(frozen=True)
class Ceiling:
    """The highest measured loads that were within `error_pct`; 0 where none was.

    A lower load that wasn't, was disturbed: what the client can do at a higher one, it can do at a lower one.

    Attributes
    ----------
    streams : int
        Streams at once, all in lock-step at 50 tokens a second.
    tokens_per_s : float
        Tokens a second at that many.
    requests_per_s : float
        One-token requests a second of an open loop.
    error_pct : float
        The error meant.
    is_lower_bound : bool
        Whether no higher load was measured that failed.
    """

    streams: int
    tokens_per_s: float
    requests_per_s: float
    error_pct: float
    is_lower_bound: bool


def ceiling_of(steps: Sequence[Step], error_pct: float = ERROR_PCT) -> Ceiling:
    """The ceiling that measured steps come to."""
    streams, more_streams = _highest([step for step in steps if step.kind == "streams"], error_pct)
    rate, more_rate = _highest([step for step in steps if step.kind == "rate"], error_pct)
    return Ceiling(
        streams=round(streams.asked) if streams else 0,
        tokens_per_s=round(streams.exactness.tokens_per_s, 1) if streams else 0.0,
        requests_per_s=round(rate.exactness.requests_per_s, 1) if rate else 0.0,
        error_pct=error_pct,
        is_lower_bound=not (more_streams and more_rate),
    )


def _highest(steps: Sequence[Step], error_pct: float) -> tuple[Step | None, bool]:
    """The highest step that holds, and whether there was one above it that doesn't."""
    kept = [step for step in steps if step.holds(error_pct) and not step.server_bound]
    best = max(kept, key=lambda step: step.asked, default=None)
    return best, any(not step.holds(error_pct) and (best is None or step.asked > best.asked) for step in steps)


def load_ceiling(transport: str, processes: int = 1) -> dict[str, Any] | None:
    """What this host's client was found able to measure; None: not calibrated.

    Parameters
    ----------
    transport : str
        ``pure`` or ``compiled``.
    processes : int
        Client processes. Where only fewer were calibrated, theirs is returned: it says so in `processes`.

    Returns
    -------
    dict or None
        `streams`, `tokens_per_s`, `requests_per_s`, `error_pct`, `is_lower_bound`, `transport`, `processes`, `created`.
    """
    found = [
        entry
        for entry in _entries(path_for_host()).values()
        if entry["transport"] == transport
        and entry["processes"] <= processes
        and entry["python"] == _python()
        and not entry["quick"]
    ]
    if not found:
        return None
    entry = max(found, key=lambda entry: int(entry["processes"]))
    return {**entry["ceiling"], **{key: entry[key] for key in ("transport", "processes", "created")}}


def store(
    path: Path, steps: Sequence[Step], *, transport: str, processes: int, server: str, created: str, quick: bool
) -> dict[str, Any]:
    """Keep a calibration beside those of other transports; what was stored."""
    entry = {
        "transport": transport,
        "processes": processes,
        "python": _python(),
        "created": created,
        "quick": quick,
        "server": server,
        "ceiling": asdict(ceiling_of(steps)),
        "wider": asdict(ceiling_of(steps, WIDER_PCT)),
        "steps": [step_record(step) for step in steps],
    }
    with locked(path, lambda _: None):
        entries = {**_entries(path), name_of(entry): entry}
        write_json(path, {"version": VERSION, "hardware": _hardware(), "entries": entries})
    return entry


def name_of(entry: dict[str, Any]) -> str:
    """What a calibration is kept under: a quick look never takes the place of a whole one."""
    return f"{entry['transport']}-{entry['processes']}" + ("-quick" if entry["quick"] else "")


def step_record(step: Step) -> dict[str, Any]:
    """A step as it is stored: errors in percent of the truth."""
    exact = step.exactness
    error_pct = step.error_pct()
    return {
        "kind": step.kind,
        "asked": step.asked,
        "attempts": step.attempts,
        "server_bound": step.server_bound,
        "worst_mean_error_pct": _finite(error_pct),
        "within_pct": error_pct <= ERROR_PCT,
        "requests": exact.requests,
        "failed": exact.failed,
        "unmatched": exact.unmatched,
        "wrong_tokens": exact.wrong_tokens,
        "errors_pct": {
            name: {figure: _finite(exact.metrics[name].error_pct(figure)) for figure in ("mean", "p50", "p90", "p99")}
            for name in METRICS
        },
        "truth_ms": {name: _figures(exact.metrics[name].truth) for name in METRICS},
        "delay_ms": _figures(exact.delay_ms),
        "send_lag_ms": _figures(exact.send_lag_ms),
        "attained_over_asked": _finite(exact.attained_over_asked),
        "requests_per_s": _finite(exact.requests_per_s),
        "tokens_per_s": _finite(exact.tokens_per_s),
        "client_cpu_s": step.client_cpu_s,
        "server_late_ms": _figures(exact.server_late_ms),
    }


def path_for_host() -> Path:
    """Where this host's calibration lies."""
    return cache_dir() / "calibration" / f"client-{sha256_of(_hardware())[:16]}.json"


@cache
def _hardware() -> dict[str, Any]:
    """The host, as far as it decides the client's speed."""
    known = hardware()
    return {key: known[key] for key in ("hostname", "cpu", "cores", "memory_bytes")}


def _python() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def _entries(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    stored = read_json(path)
    return stored["entries"] if stored.get("version") == VERSION else {}


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _figures(figures: Figures) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in asdict(figures).items()}
