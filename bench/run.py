"""Carries a plan out, block by block. The failure of one launch never ends the run; a full disk does."""

import fcntl
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import calibration, store
from bench.analysis import analyse
from bench.config import Config
from bench.judge import judge_by
from bench.plan import Plan, PlannedLaunch
from bench.progress import Progress, Say
from harness.accuracy.task import Task, check_on_model
from harness.backends import backend_class
from harness.backends.interface import Backend
from harness.environments import EnginePython, ensure
from harness.errors import ConfigError
from harness.files import sha256_of, write_json
from harness.launch import LaunchSpec, measure_launch
from harness.model import Model
from harness.models import prepare as prepare_model


@dataclass(frozen=True)
class Prepared:
    """Everything that must exist before the first launch."""

    backends: dict[str, Backend]
    engines: dict[str, EnginePython]
    models: dict[str, Model]

    def engines_sha256(self) -> str:
        """Hash of what is measured: the engines' versions, packages and options, and the models' files."""
        engines = {
            name: (engine.version, engine.packages_sha256, asdict(self.backends[name].options))
            for name, engine in self.engines.items()
        }
        return sha256_of((engines, {name: model.content_sha256 for name, model in self.models.items()}))


def prepare(config: Config, plan: Plan, say: Say) -> Prepared:
    """Make the plan's engines and models ready (created on first use).

    Raises
    ------
    SetupError
        When one can't be had.
    ConfigError
        When this machine lacks something that the configuration asks of it.
    """
    _need_cores("scenario.client.cores", config.scenario.client.cores)
    _need_cores("scenario.settings.cores", config.scenario.settings.cores)
    used = {d.backend for d in plan.deployments}, {d.model for d in plan.deployments}
    backends = {name: backend_class(name)(options) for name, options in config.backend.items()}
    engines = {name: ensure(b.environment, b.options, say) for name, b in backends.items() if name in used[0]}
    models = {name: prepare_model(name, spec, say) for name, spec in config.model.items() if name in used[1]}
    for name, model in models.items():
        for task_name, task in _tasks(plan, config, name).items():
            check_on_model(task_name, task, model)
    return Prepared(backends, engines, models)


def _need_cores(key: str, cores: list[int] | None) -> None:
    here = sorted(os.sched_getaffinity(0))
    if missing := sorted(set(cores or ()) - set(here)):
        raise ConfigError(f"{key}: this machine has no core {', '.join(map(str, missing))}; allowed: {here}")


@contextmanager
def exclusive_node() -> Iterator[None]:
    """Hold this machine: two blocks at once on shared devices would measure each other. Raises `ConfigError`."""
    path = Path(tempfile.gettempdir()) / f"kvmark-measuring-{os.getuid()}.lock"
    with open(path, "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "another process"
            raise ConfigError(
                f"another run is measuring on this machine ({holder}); blocks on shared devices would measure each "
                "other. Wait for it, or stop it."
            ) from None
        lock.truncate(0)
        lock.write(f"pid {os.getpid()}")
        lock.flush()
        yield


def run_block(run: Path, config: Config, plan: Plan, prepared: Prepared, block: int, hardware_sha256: str) -> None:
    """Measure one block, unless it is complete; an interrupted one is put aside and measured again."""
    if store.block_complete(run, block):
        return
    with exclusive_node():
        folder = store.block_folder(run, block)
        aside = store.put_aside(folder)
        skip = _known_bad(run, block)
        launches = [launch for launch in plan.launches(block, config.seed) if launch.deployment.id not in skip]
        record: dict[str, Any] = {
            "schema_version": store.SCHEMA_VERSION,
            "block": block,
            "seed": store.seed_of(config.seed, "block", block),
            "node": socket.gethostname(),
            "order": [launch.name for launch in launches],
            "skipped": skip,
            "status": "running",
            "started": store.now(),
            "finished": None,
        }
        write_json(folder / "block.json", record)
        console = Console(file=sys.stderr)
        with Progress(console, plan.blocks, _expected(plan, config.seed, block, skip)) as progress:
            if aside is not None:
                progress.say(f"block {block + 1} was interrupted before; kept as {aside.name}, measured again")
            for launch in launches:
                _run_launch(folder, launch, config, plan, prepared, record["seed"], progress, hardware_sha256)
        write_json(folder / "block.json", {**record, "status": "complete", "finished": store.now()})


def _run_launch(
    folder: Path,
    launch: PlannedLaunch,
    config: Config,
    plan: Plan,
    prepared: Prepared,
    seed: int,
    progress: Progress,
    hardware_sha256: str,
) -> None:
    deployment = launch.deployment
    block = int(folder.name)
    progress.launch(block, launch.name)
    spec = LaunchSpec(
        block=block,
        backend=deployment.backend,
        strategy_name=deployment.strategy,
        deployment=deployment.id,
        replica=launch.replica,
        check_only=launch.check_only,
        model=prepared.models[deployment.model],
        strategy=config.strategy[deployment.strategy],
        settings=plan.settings[deployment.model],
        loads=plan.loads,
        client=config.scenario.client,
        tasks=_tasks(plan, config, deployment.model),
        judge=judge_by({name: asdict(sla) for name, sla in config.sla.items()}),
        seed=seed,
        run_seed=store.seed_of(config.seed, "run"),
        folder=folder / launch.name,
        record_dir=folder.parent.parent,
        fidelity=config.scenario.fidelity,
    )
    outcome = measure_launch(
        spec, prepared.backends[deployment.backend], prepared.engines[deployment.backend], progress
    )
    if outcome["state"] == "measured" and config.backend[deployment.backend].command is None:
        # A program of the user's own says nothing about the engine that this host is known for.
        estimate = plan.estimates[deployment.id]
        calibration.learn_launch(
            hardware_sha256, deployment.backend, deployment.strategy, outcome["seconds"], estimate.counted_s
        )
    reason = f": {str(outcome['reason']).splitlines()[0]}" if outcome["reason"] else ""
    progress.launch_done(block, launch.name, outcome["state"] + reason)


def _tasks(plan: Plan, config: Config, model: str) -> dict[str, Task]:
    """Random weights know nothing: accuracy isn't measured on them."""
    return plan.tasks if config.model[model].has_trained_weights else {}


def _known_bad(run: Path, block: int) -> dict[str, str]:
    """Deployments that earlier blocks proved broken or without effect: launching them again would tell nothing new."""
    if not any(store.block_complete(run, earlier) for earlier in range(block)):
        return {}
    found = [d for d in analyse(run).deployments if not d.engine_baseline]
    return {d.id: f"{d.state}: {d.reason}" for d in found if d.state in ("output broken", "not in effect")}


def _expected(plan: Plan, seed: int, first: int, skip: dict[str, str]) -> dict[tuple[int, str], float]:
    """Estimated seconds of each launch from block `first` on."""
    return {
        (block, launch.name): plan.estimates[launch.deployment.id].total_s
        for block in range(first, plan.blocks)
        for launch in plan.launches(block, seed)
        if launch.deployment.id not in skip
    }
