"""The saturation search on a real server: every probe is a cell of its own, measured from an empty cache."""

import hashlib
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.cell import Served, measure_cell
from harness.files import read_json, sha256_of, storage_error, write_json
from harness.traffic.load import Load
from harness.traffic.search import MET, Probe, Saturation, probing

IDLE_POLL_S = 0.2


@dataclass(frozen=True)
class Judgement:
    """Whether a probe met the SLA.

    Attributes
    ----------
    outcome : str
        One of `harness.traffic.search.OUTCOMES`.
    reason : str or None
        Why not.
    evidence : dict
        The statistics that decided; an infinite one as "inf".
    """

    outcome: str
    reason: str | None = None
    evidence: dict[str, float | str] = field(default_factory=dict)


Judge = Callable[[Load, Path], Judgement]
"""Reads a probe's folder: the harness measures, what the measurement means is `bench`'s."""


def measure_saturation(
    served: Served, name: str, load: Load, *, seed: int, folder: Path, judge: Judge
) -> dict[str, Any]:
    """Search, and write the load's `cell.json`, which is returned: the facts of one probe, and what the search came to.

    That probe is the first at the highest value met (where none was met: at the lowest value tried), so that the
    load's ordinary metrics are those at saturation. The probes lie in `probes/`, each a whole cell.

    Raises
    ------
    StorageError
        When something can't be written.
    """
    assert load.search is not None
    steps = probing(load.search)
    cells: dict[Probe, Path] = {}
    probe = next(steps)
    while True:
        at = cells[probe] = folder / "probes" / f"{len(cells) + 1:02d}-{probe.value:g}-{probe.repeat + 1}"
        served.watch.step(f"load {name}: {load.search.over} {probe.value:g}, probe {len(cells)}")
        wait_until_idle(served, load.timeout_s)
        cell = measure_cell(served, name, at_value(load, probe.value), seed=probe_seed(seed, probe), folder=at)
        served.server.check()
        verdict = judge(load, at)
        write_json(at / "cell.json", {**cell, "probe": {**asdict(probe), **asdict(verdict)}})
        try:
            probe = steps.send(verdict.outcome)
        except StopIteration as stop:
            return _record(load, seed, folder, cells, stop.value)


def at_value(load: Load, value: float) -> Load:
    """The load that a probe replays: the search's load at one rate or concurrency."""
    assert load.search is not None
    search = load.search
    number = int(value) if search.over == "concurrency" else value
    # In this order: an arrival without what is searched over would be refused.
    one = replace(load, search=None).with_arrival(**{search.over: number})
    if search.over == "rate_rps" and search.probe_s is not None:
        one = one.with_requests(max(load.requests, math.ceil(value * search.probe_s)))
    return one


def probe_seed(seed: int, probe: Probe) -> int:
    """Equal for all deployments of a block, different for every probe of a server: no prompt is met twice."""
    text = f"{seed}-{probe.value:g}-{probe.repeat}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def wait_until_idle(served: Served, at_most_s: float) -> None:
    """Requests may outlive their client's patience, or its end: let the engine finish or drop them."""
    deadline = time.monotonic() + at_most_s
    while time.monotonic() < deadline:
        state = served.state()
        if not (state.requests_running or 0) + (state.requests_waiting or 0):
            return
        time.sleep(IDLE_POLL_S)


def _record(load: Load, seed: int, folder: Path, cells: dict[Probe, Path], found: Saturation) -> dict[str, Any]:
    value = found.highest if found.highest is not None else min(found.runs)
    outcomes = found.runs[value]
    shown = Probe(value, outcomes.index(MET) if MET in outcomes else 0)
    try:
        shutil.copy2(cells[shown] / "requests.parquet", folder / "requests.parquet")
    except OSError as error:
        raise storage_error(folder, error) from error
    facts: dict[str, Any] = read_json(cells[shown] / "cell.json")
    del facts["probe"]
    facts["search"] = {
        **asdict(load.search),
        "state": found.state,
        "highest": found.highest,
        "interval": [found.low, found.high],
        "probes": {str(path.relative_to(folder)): [probe.value, probe.repeat] for probe, path in cells.items()},
        "shown": str(cells[shown].relative_to(folder)),
    }
    # What was asked depends on what was answered; what makes two searches comparable is how they choose.
    facts["schedule_sha256"] = sha256_of((asdict(load), seed))
    write_json(folder / "cell.json", facts)
    return facts
