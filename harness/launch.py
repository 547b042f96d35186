"""One launch, measured from start to end: start → prove → check output → replay load → repeat → score → stop.

Everything that was measured is on disk as soon as it is measured; what goes wrong is part of the record.
"""

import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from harness.accuracy import Task, output_check, run_task
from harness.accuracy.fidelity_options import FidelityOptions
from harness.accuracy.under_load import BackgroundLoad
from harness.backends.command_line import final_command
from harness.backends.interface import Backend, Command, EngineState
from harness.cell import Served, measure_cell
from harness.clock import clock
from harness.environments import EnginePython
from harness.errors import ConfigError, KVMarkError, StorageError
from harness.fidelity import measure_determinism, measure_greedy
from harness.files import is_out_of_room, storage_error, write_json
from harness.model import Model
from harness.saturation import Judge, at_value, measure_saturation
from harness.server import Server, ServerSpec, free_port, serve
from harness.settings import Settings
from harness.strategy import Strategy
from harness.telemetry import Recorder
from harness.traffic.client_options import ClientOptions
from harness.traffic.load import Load
from harness.watch import Watch

SCHEMA_VERSION = 1
DEATH_S = 1.0
"""Time in which the end of a server becomes known after it stopped answering."""


@dataclass(frozen=True)
class LaunchSpec:
    """What to launch and what to do to it; see `docs/results.md` for how it is recorded.

    Attributes
    ----------
    judge : callable
        Tells whether a probe of a load that searches met its SLA.
    seed : int
        The block's seed, for traffic and questions: equal for all launches of a block.
    run_seed : int
        Seed of the output check's texts and of the order of data sets: equal for all launches of a run.
    folder : Path
        Where the launch is recorded.
    record_dir : Path
        Where running processes are noted, so that a later run can end what a killed one left behind.
    fidelity : FidelityOptions
        Sizes of the output check, the greedy continuations and the repeated requests.
    """

    block: int
    backend: str
    strategy_name: str
    deployment: str
    replica: int
    check_only: bool
    model: Model
    strategy: Strategy
    settings: Settings
    loads: Mapping[str, Load]
    client: ClientOptions
    tasks: Mapping[str, Task]
    judge: Judge
    seed: int
    run_seed: int
    folder: Path
    record_dir: Path
    fidelity: FidelityOptions = field(default_factory=FidelityOptions)


@dataclass
class _Record:
    """What is known so far; becomes `launch.json`."""

    state: str = "measured"
    reason: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    effect: dict[str, Any] | None = None

    def fail(self, reason: str) -> None:
        self.state, self.reason = "failed", self.reason or reason
        self.errors.append(reason)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = round(self.seconds.get(phase, 0.0) + time.monotonic() - started, 3)


def measure_launch(spec: LaunchSpec, backend: Backend, engine: EnginePython, watch: Watch) -> dict[str, Any]:
    """Measure one launch and write `launch.json`, which is returned.

    Whatever goes wrong with the server, or with what it answers, is recorded with its reason and never raises.
    `StorageError` does: without a disk nothing more can be measured.
    """
    port = backend.options.port or free_port()
    served_name = f"{spec.model.name}-{uuid4().hex[:8]}"
    record = _Record()
    clocks = [clock()]
    command = Command(())
    watch.step("starting the engine")
    stopping = time.monotonic()
    try:
        command = final_command(backend, engine.python, spec.model, spec.strategy, spec.settings, port, served_name)
        with serve(_server_spec(spec, backend, command, port, served_name), watch.say) as server:
            record.seconds["start"] = round(server.start_seconds, 3)
            try:
                _use(server, spec, backend, record, watch)
            except OSError:
                time.sleep(DEATH_S)
                server.check()  # a server that died is the better reason than an unanswered request
                raise
            watch.step("stopping the engine")
            stopping = time.monotonic()
        record.seconds["stop"] = round(time.monotonic() - stopping, 3)
    except StorageError:
        raise
    except KVMarkError as error:
        record.fail(str(error))
    except Exception as error:
        if isinstance(error, OSError) and is_out_of_room(error):
            raise storage_error(spec.folder, error) from error
        record.fail(f"{type(error).__name__}: {error}")
        record.errors.append(traceback.format_exc())
    clocks.append(clock())
    result = {
        "schema_version": SCHEMA_VERSION,
        "block": spec.block,
        "backend": spec.backend,
        "model": spec.model.name,
        "strategy": spec.strategy_name,
        "deployment": spec.deployment,
        "replica": spec.replica,
        "check_only": spec.check_only,
        "command": {"argv": list(command.argv), "env": dict(command.env)},
        "engine": {"version": engine.version},
        "port": port,
        "served_name": served_name,
        "settings": asdict(spec.settings),
        "confounders": backend.confounders(spec.strategy, spec.settings),
        "clock": clocks,
        **asdict(record),
    }
    write_json(spec.folder / "launch.json", result)
    return result


def _server_spec(spec: LaunchSpec, backend: Backend, command: Command, port: int, served_name: str) -> ServerSpec:
    return ServerSpec(
        argv=command.argv,
        env=command.env,
        log_path=spec.folder / "engine.log",
        port=port,
        served_name=served_name,
        health_path=backend.health_path,
        metrics_path=backend.metrics_path,
        cores=spec.settings.cores,
        start_timeout_s=backend.options.start_timeout_s,
        record_dir=spec.record_dir,
    )


def _use(server: Server, spec: LaunchSpec, backend: Backend, record: _Record, watch: Watch) -> None:
    """Prove, check, load and score a server that is ready."""
    effect = backend.proof(spec.model, spec.strategy, spec.settings, server.log_text(), server.metrics_text())
    record.effect = asdict(effect)
    if not effect.in_effect:
        record.state, record.reason = "not in effect", "; ".join(effect.mismatches)
        return

    def state() -> EngineState:
        return backend.state(server.metrics_text())

    served = Served(
        server=server,
        backend=backend,
        model=spec.model,
        context_tokens=spec.settings.context_tokens,
        capacity_tokens=effect.capacity_tokens,
        run_seed=spec.run_seed,
        record_dir=spec.record_dir,
        state=state,
        client=spec.client,
        watch=watch,
    )
    with Recorder(server.pids, state, spec.folder / "telemetry.parquet"):
        with record.timed("output_check"):
            watch.step("output check")
            checked = output_check.take(
                backend,
                server.base_url,
                server.served_name,
                spec.model,
                context_tokens=spec.settings.context_tokens,
                seed=spec.run_seed,
                state=state,
                options=spec.fidelity,
                prefix_reuse=spec.strategy.prefix_reuse,
            )
            write_json(spec.folder / "output_check.json", checked)
            if checked["error"]:
                record.errors.append(f"output check: {checked['error']}")
        server.check()
        with record.timed("fidelity"):
            record.errors += measure_greedy(served, spec.fidelity, spec.folder)
        server.check()
        if spec.check_only:
            return
        for name, load in spec.loads.items():
            with record.timed("load"):
                watch.step(f"load {name}")
                cell = _cell(served, name, load, spec)
                record.cells.append(name)
                if cell["state"] == "failed":
                    record.fail(f"load {name}: {cell['reason']}")
            server.check()
        if spec.block == 0:  # whether answers repeat is a property of the deployment: once is enough
            with record.timed("fidelity"):
                record.errors += measure_determinism(
                    served, spec.fidelity, spec.folder, seed=spec.seed, settings=spec.settings, effect=effect
                )
            server.check()
        for name, task in spec.tasks.items():
            with record.timed("accuracy"):
                watch.step(f"accuracy {name}")
                reset = served.reset()
                if not reset.done:
                    record.errors.append(f"accuracy {name}: the cache was not empty at the start: {reset.evidence}")
                _task(served, spec, name, task, record)
            server.check()


def _cell(served: Served, name: str, load: Load, spec: LaunchSpec) -> dict[str, Any]:
    folder = spec.folder / "cells" / name
    if load.search is None:
        return measure_cell(served, name, load, seed=spec.seed, folder=folder)
    return measure_saturation(served, name, load, seed=spec.seed, folder=folder, judge=spec.judge)


def _task(served: Served, spec: LaunchSpec, name: str, task: Task, record: _Record) -> None:
    try:
        result = run_task(
            task,
            backend=served.backend,
            base_url=served.server.base_url,
            served_name=served.server.served_name,
            model=spec.model,
            context_tokens=spec.settings.context_tokens,
            seed=spec.seed,
            out_dir=spec.folder / "accuracy" / name,
            say=served.watch.step,
            record_dir=spec.record_dir,
            block=spec.block,
            run_seed=spec.run_seed,
            prefix_reuse=spec.strategy.prefix_reuse,
            background=_background(served, spec, task),
        )
    except ConfigError as error:
        record.fail(f"accuracy {name}: {error}")
        return
    record.tasks.append(name)
    if result["state"] == "failed":
        record.fail(f"accuracy {name}: {result['reason']}")


def _background(served: Served, spec: LaunchSpec, task: Task) -> BackgroundLoad | None:
    """The load to be played beside the questions; one that searches has its lowest rate or concurrency."""
    if task.under_load is None:
        return None
    load = spec.loads[task.under_load]
    if load.search is not None:
        load = at_value(load, load.search.low)
    return BackgroundLoad(task.under_load, load, served, spec.seed)
