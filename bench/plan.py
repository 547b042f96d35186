"""What a run will do: deployments, launches, blocks; as data, and as `plan.json` keeps it.

It is made by `bench/planner.py` before anything is launched, from the configuration alone.
"""

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import OmegaConf

from bench.calibration import Noise
from bench.config import Config
from harness.accuracy.task import Task
from harness.backends.interface import Backend
from harness.files import read_json
from harness.settings import Settings
from harness.traffic.load import Load

T = TypeVar("T")

LOG_BYTES = 1_000_000
"""An engine's log and a launch's other records."""
SUPPORTED, UNSUPPORTED = "supported", "unsupported"
EXTENSION_FILE = "extension.json"
"""Of a run's folder: blocks that were added to the planned ones, and why (`bench.until`)."""


@dataclass(frozen=True)
class Deployment:
    """A candidate: backend × model × strategy."""

    backend: str
    model: str
    strategy: str

    @property
    def id(self) -> str:
        return f"{self.backend}+{self.model}+{self.strategy}"


@dataclass(frozen=True)
class PlannedLaunch:
    """One server process of a block; `replica` 2 is the baseline's second launch (A′)."""

    deployment: Deployment
    replica: int = 1
    check_only: bool = False

    @property
    def name(self) -> str:
        return self.deployment.id + ("+A2" if self.replica == 2 else "")


@dataclass(frozen=True)
class SupportEntry:
    """Whether a backend can carry out a strategy on a model, and why not."""

    backend: str
    model: str
    strategy: str
    state: str
    reason: str | None = None


@dataclass(frozen=True)
class UnsupportedTask:
    """An accuracy task that a backend can't do, and why."""

    backend: str
    task: str
    reason: str


@dataclass(frozen=True)
class TaskPlan:
    """What an accuracy task can show, from its sizes and the number of tasks that claims are adjusted over.

    Attributes
    ----------
    questions, documents : int
        Of all blocks together; questions on one document are one cluster.
    questions_needed : int or None
        With which an equal candidate is found non-inferior with 80 % probability, if a tenth of the answers change;
        None: the margin is relative, and the baseline's score isn't known yet.
    smallest_loss_pp : float or None
        The loss found with that probability, percentage points; None: one block gives no verdict.
    """

    questions: int
    documents: int
    questions_needed: int | None
    smallest_loss_pp: float | None


@dataclass(frozen=True)
class LaunchEstimate:
    """Predicted seconds a phase, and memory, of one launch of a deployment.

    Attributes
    ----------
    seconds : dict
        Of each phase, with the factors that this host's earlier launches taught.
    counted_s : dict
        Of the phases that have such a factor, the seconds without it.
    """

    deployment: str
    seconds: dict[str, float]
    counted_s: dict[str, float]
    kv_bytes_per_token: float
    capacity_tokens: int | None
    pool_bytes: int | None
    weight_bytes: int
    working_set_tokens: int
    working_set_bytes: float

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def working_set_over_pool(self) -> float | None:
        """Tokens wanted at once ÷ tokens that the pool holds; None where the engine chooses the pool."""
        return self.working_set_tokens / self.capacity_tokens if self.capacity_tokens else None


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    Attributes
    ----------
    traffic : dict
        Statistics of each load's window, as asked (`harness/traffic/statistics.py`).
    load_bytes : int
        Estimated bytes of all loads' records in one launch.
    settings : dict
        Per model that fits the machine, KV budget and device count filled in.
    """

    scenario: str
    baseline: Deployment
    deployments: tuple[Deployment, ...]
    check_only: frozenset[str]
    blocks: int
    loads: dict[str, Load]
    traffic: dict[str, dict[str, Any]]
    load_bytes: int
    tasks: dict[str, Task]
    settings: dict[str, Settings]
    support: tuple[SupportEntry, ...]
    unsupported_tasks: tuple[UnsupportedTask, ...]
    task_plans: dict[str, TaskPlan]
    estimates: dict[str, LaunchEstimate]
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    smallest_effect: dict[str, float | None] = field(default_factory=dict)
    noise: Noise = field(default_factory=Noise)

    def launches(self, block: int, seed: int) -> list[PlannedLaunch]:
        """The block's launches in their seeded random order; checks only in the first block."""
        planned = [PlannedLaunch(self.baseline, replica=2)]
        for deployment in self.deployments:
            once = deployment.id in self.check_only
            if not once or block == 0:
                planned.append(PlannedLaunch(deployment, check_only=once))
        random.Random(f"order-{seed}-{block}").shuffle(planned)
        return planned

    def engine_baseline(self, deployment: Deployment, strategies: Mapping[str, Any]) -> Deployment | None:
        """The 16-bit deployment of the same engine and model."""
        for other in self.deployments:
            same = (other.backend, other.model) == (deployment.backend, deployment.model)
            if same and strategies[other.strategy].is_16bit_baseline:
                return other
        return None

    def disk_bytes(self) -> int:
        """Estimated bytes of the whole run's records: logs, schedules, raw streams."""
        launches = [p for block in range(self.blocks) for p in self.launches(block, 0)]
        return sum(LOG_BYTES + (0 if launch.check_only else self.load_bytes) for launch in launches)

    def seconds(self) -> float:
        """Estimated seconds of the whole run."""
        return sum(self.estimates[p.deployment.id].total_s for b in range(self.blocks) for p in self.launches(b, 0))


def plan_record(plan: Plan, config: Config, backends: Mapping[str, Backend]) -> dict[str, Any]:
    """`plan.json`: the plan as data, for the analysis and the report."""
    scenario = config.scenario
    return {
        "schema_version": 1,
        "scenario": plan.scenario,
        "title": scenario.title,
        "question": scenario.question,
        "precision": config.precision,
        "baseline": {
            "backend": plan.baseline.backend,
            "model": plan.baseline.model,
            "strategy": plan.baseline.strategy,
        },
        "deployments": [
            {
                "id": d.id,
                **asdict(d),
                "strategy_title": config.strategy[d.strategy].title or d.strategy,
                "backend_title": backends[d.backend].title,
                "engine_baseline": config.strategy[d.strategy].is_16bit_baseline,
                "common_baseline": d == plan.baseline,
                "check_only": d.id in plan.check_only,
            }
            for d in plan.deployments
        ],
        "blocks": plan.blocks,
        "loads": {name: asdict(load) for name, load in plan.loads.items()},
        "traffic": plan.traffic,
        "load_bytes": plan.load_bytes,
        "accuracy": {name: asdict(task) for name, task in plan.tasks.items()},
        "sla": {name: asdict(sla) for name, sla in config.sla.items()},
        "margin": asdict(scenario.margin),
        "until": asdict(scenario.until),
        "output_check": asdict(scenario.output_check),
        "support": [asdict(entry) for entry in plan.support],
        "unsupported_tasks": [asdict(entry) for entry in plan.unsupported_tasks],
        "task_plans": {name: asdict(sized) for name, sized in plan.task_plans.items()},
        "dropped": list(plan.dropped),
        "notes": list(plan.notes),
        "smallest_effect": plan.smallest_effect,
        "noise": asdict(plan.noise),
        "estimates": {name: {**asdict(e), "total_s": e.total_s} for name, e in plan.estimates.items()},
        "seconds": plan.seconds(),
        "settings": {name: asdict(settings) for name, settings in plan.settings.items()},
        "kv_budget_bytes": {name: settings.kv_budget_bytes for name, settings in plan.settings.items()},
    }


def blocks_of(run: Path) -> int:
    """Blocks that a run's folder is to hold: the planned ones, and those that were added."""
    added = run / EXTENSION_FILE
    return int(read_json(added if added.exists() else run / "plan.json")["blocks"])


def read_plan(run: Path) -> Plan:
    """The plan that a run's folder holds, with blocks that were added: a resumed or remote block carries it out."""
    record = read_json(run / "plan.json")
    deployments = {d["id"]: Deployment(d["backend"], d["model"], d["strategy"]) for d in record["deployments"]}
    baseline = record["baseline"]
    return Plan(
        scenario=record["scenario"],
        baseline=Deployment(baseline["backend"], baseline["model"], baseline["strategy"]),
        deployments=tuple(deployments.values()),
        check_only=frozenset(d["id"] for d in record["deployments"] if d["check_only"]),
        blocks=blocks_of(run),
        loads={name: _from_record(Load, value) for name, value in record["loads"].items()},
        traffic=record["traffic"],
        load_bytes=record["load_bytes"],
        tasks={name: _from_record(Task, value) for name, value in record["accuracy"].items()},
        settings={name: Settings(**value) for name, value in record["settings"].items()},
        support=tuple(SupportEntry(**entry) for entry in record["support"]),
        unsupported_tasks=tuple(UnsupportedTask(**entry) for entry in record.get("unsupported_tasks", ())),
        task_plans={name: TaskPlan(**sized) for name, sized in record.get("task_plans", {}).items()},
        estimates={
            name: LaunchEstimate(**{key: value for key, value in e.items() if key != "total_s"})
            for name, e in record["estimates"].items()
        },
        dropped=tuple(record["dropped"]),
        notes=tuple(record["notes"]),
        smallest_effect=record["smallest_effect"],
        noise=Noise(**record["noise"]),
    )


def _from_record(kind: type[T], value: dict[str, Any]) -> T:
    made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), value))
    assert isinstance(made, kind)
    return made
