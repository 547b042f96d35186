"""One cell: one load replayed against a server that is ready; everything measured is on disk when it returns."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.accuracy.passages import passage
from harness.backends.interface import Backend, EngineState, ResetOutcome
from harness.cache_reset import PROBE_TOKENS, reset_and_verify
from harness.clock import clock
from harness.errors import KVMarkError, StorageError
from harness.files import write_json
from harness.model import Model
from harness.server import Server
from harness.traffic.client_options import ClientOptions
from harness.traffic.load import Load
from harness.traffic.replay import replay
from harness.traffic.report import ReplayReport
from harness.traffic.schedule import ScheduleFacts, build_schedule
from harness.watch import Watch

SCHEMA_VERSION = 1
"""Of `cell.json`."""


@dataclass(frozen=True)
class Served:
    """A server that is ready, and what a cell needs to know of it.

    Attributes
    ----------
    capacity_tokens : float or None
        Tokens that the KV pool holds, as proved.
    run_seed : int
        Seed of the probe that verifies a reset; equal for all launches of a run.
    state : callable
        A reading of the engine's own counters.
    client : ClientOptions
        How the load client runs.
    """

    server: Server
    backend: Backend
    model: Model
    context_tokens: int
    capacity_tokens: float | None
    run_seed: int
    record_dir: Path
    state: Callable[[], EngineState]
    client: ClientOptions
    watch: Watch

    def reset(self) -> ResetOutcome:
        """Empty the caches, verified; prompts of later steps never overlap earlier ones or the probe."""
        probe = passage(self.model, PROBE_TOKENS, seed=self.run_seed, stream="cache-probe")
        return reset_and_verify(self.backend, self.server.base_url, self.server.served_name, self.state, probe)


def measure_cell(served: Served, name: str, load: Load, *, seed: int, folder: Path) -> dict[str, Any]:
    """Replay one load and write `cell.json`, which is returned; a failed cell keeps what there is.

    Raises
    ------
    StorageError
        When something can't be written.
    """
    schedule = build_schedule(
        load,
        model=served.model,
        served_name=served.server.served_name,
        request_extras=served.backend.request_extras,
        context_tokens=served.context_tokens,
        seed=seed,
        path=folder / "schedule.jsonl",
    )
    reset = served.reset() if load.cache_state == "cold" else None
    before, clocks = served.state(), [clock()]
    cell = _head(served, name, load, schedule, reset, seed)
    report: ReplayReport | None = None
    try:
        report = replay(
            load,
            schedule_path=folder / "schedule.jsonl",
            base_url=served.server.base_url,
            out_dir=folder,
            env={},
            on_progress=served.watch.requests,
            record_dir=served.record_dir,
            options=served.client,
            say=served.watch.say,
        )
        served.server.check()
        if lost := report.client.lost_workers:
            words = "; ".join(f"{one['number']} on {one['host']}: {one['reason']}" for one in lost)
            cell |= {"state": "failed", "reason": f"not comparable: load worker lost ({words})"}
        elif report.failed_requests >= report.window_requests > 0:
            cell |= {
                "state": "failed",
                "reason": f"all {report.window_requests} requests failed: {report.commonest_error}",
            }
    except StorageError:
        raise
    except KVMarkError as error:
        cell |= {"state": "failed", "reason": str(error)}
    after = _state_or_none(served.state)
    clocks.append(clock())
    cell |= {
        "clock": clocks,
        "counters": {"before": asdict(before), "after": asdict(after) if after else None},
        "window": asdict(report.window) if report and report.window else None,
        "client": asdict(report.client) if report else None,
    }
    write_json(folder / "cell.json", cell)
    return cell


def _head(
    served: Served, name: str, load: Load, schedule: ScheduleFacts, reset: ResetOutcome | None, seed: int
) -> dict[str, Any]:
    capacity = served.capacity_tokens
    return {
        "schema_version": SCHEMA_VERSION,
        "load": name,
        "state": "measured",
        "reason": None,
        "seed": seed,
        "arrival": load.arrival,
        "tenants": {name: {"arrival": tenant.arrival, "sla": tenant.sla} for name, tenant in load.tenants.items()},
        "requests": load.requests,
        "statistics": schedule.statistics,
        "cache": {
            "state": load.cache_state if reset is None or reset.done else "unverified",
            "reset": reset.evidence if reset else None,
        },
        "working_set_tokens": schedule.working_set_tokens,
        "working_set_over_pool": schedule.working_set_tokens / capacity if capacity else None,
        "schedule_sha256": schedule.sha256,
    }


def _state_or_none(state: Callable[[], EngineState]) -> EngineState | None:
    try:
        return state()
    except OSError:
        return None
