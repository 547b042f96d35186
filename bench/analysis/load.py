"""A run's folder as typed data. Only what `docs/results.md` describes is read; only complete blocks are taken."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from bench.analysis.records import Records
from harness.errors import KVMarkError
from harness.files import read_json

SCHEMA_VERSIONS = (1,)
"""Versions of the results folder that this code reads."""


@dataclass(frozen=True)
class CellRecord:
    """One cell: `cell.json`, and where the requests are (they are read when measured, one cell at a time)."""

    load: str
    facts: dict[str, Any]
    requests: Records | None


@dataclass(frozen=True)
class TaskRecord:
    """One accuracy task of one launch: `results.json` and the items."""

    task: str
    facts: dict[str, Any]
    samples: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class LaunchRecord:
    """One server's life: `launch.json` and what lies beside it."""

    name: str
    block: int
    facts: dict[str, Any]
    cells: dict[str, CellRecord]
    tasks: dict[str, TaskRecord]
    output_check: dict[str, Any] | None
    telemetry: pd.DataFrame | None
    fidelity: dict[str, Any] | None = None

    @property
    def deployment(self) -> str:
        return str(self.facts["deployment"])

    @property
    def replica(self) -> int:
        return int(self.facts.get("replica") or 1)

    @property
    def state(self) -> str:
        return str(self.facts["state"])

    @property
    def effect(self) -> dict[str, Any]:
        return self.facts.get("effect") or {}


@dataclass(frozen=True)
class RunRecord:
    """One run.

    Attributes
    ----------
    blocks : dict
        `block.json` of each complete block, by index.
    interrupted : tuple of str
        Folders under `blocks/` that are not complete, and hence not read further.
    problems : tuple of str
        Files that should be there and can't be read; what they held counts as not measured.
    """

    path: Path
    manifest: dict[str, Any]
    plan: dict[str, Any]
    blocks: dict[int, dict[str, Any]]
    launches: tuple[LaunchRecord, ...]
    interrupted: tuple[str, ...]
    problems: tuple[str, ...] = field(default=())


def load_run(run_dir: Path) -> RunRecord:
    """Read `run_dir`; raises `KVMarkError` where it is no run or of a version that isn't known."""
    for name in ("manifest.json", "plan.json"):
        if not (run_dir / name).is_file():
            raise KVMarkError(f"{run_dir} holds no run: {name} is missing. Give a folder results/<scenario>/<run>.")
    manifest, plan = read_json(run_dir / "manifest.json"), read_json(run_dir / "plan.json")
    if (version := manifest.get("schema_version")) not in SCHEMA_VERSIONS:
        known = ", ".join(map(str, SCHEMA_VERSIONS))
        raise KVMarkError(f"{run_dir}/manifest.json: schema_version {version} is unknown; this version reads {known}")
    problems: list[str] = []
    plan = _with_added_blocks(plan, _json_or_none(run_dir / "extension.json", problems))
    blocks: dict[int, dict[str, Any]] = {}
    interrupted: list[str] = []
    launches: list[LaunchRecord] = []
    folders = (run_dir / "blocks").iterdir() if (run_dir / "blocks").is_dir() else ()
    for folder in sorted((f for f in folders if f.is_dir()), key=lambda f: (len(f.name), f.name)):
        facts = _json_or_none(folder / "block.json", problems)
        if not folder.name.isdigit() or facts is None or facts.get("status") != "complete":
            interrupted.append(folder.name)
            continue
        block = int(folder.name)
        blocks[block] = facts
        found = [f for f in sorted(folder.iterdir()) if (f / "launch.json").is_file()]
        records = [_launch(f, block, problems) for f in found]
        launches += [record for record in records if record is not None]
    return RunRecord(run_dir, manifest, plan, blocks, tuple(launches), tuple(interrupted), tuple(problems))


def _with_added_blocks(plan: dict[str, Any], extension: dict[str, Any] | None) -> dict[str, Any]:
    """The plan with the blocks that precision asked for; `extension` then says how many were added and why it ended."""
    if extension is None:
        return plan
    planned, blocks, looks = int(plan["blocks"]), int(extension["blocks"]), extension["looks"]
    ended = bool(looks) and looks[-1]["blocks"] == blocks
    facts = {"blocks_planned": planned, "blocks_added": blocks - planned, "looks": looks}
    facts |= {"enough": ended and looks[-1]["enough"], "why": looks[-1]["why"] if ended else "interrupted"}
    return {**plan, "blocks": blocks, "extension": facts}


def _launch(folder: Path, block: int, problems: list[str]) -> LaunchRecord | None:
    facts = _json_or_none(folder / "launch.json", problems)
    if facts is None:
        return None
    telemetry = _frame_or_none(folder / "telemetry.parquet", problems)
    cells = {f.parent.name: f.parent for f in sorted(folder.glob("cells/*/cell.json"))}
    tasks = {f.parent.name: f.parent for f in sorted(folder.glob("accuracy/*/results.json"))}
    return LaunchRecord(
        name=folder.name,
        block=block,
        facts=facts,
        cells={name: cell for name, f in cells.items() if (cell := _cell(f, problems))},
        tasks={name: task for name, f in tasks.items() if (task := _task(f, problems))},
        output_check=_json_or_none(folder / "output_check.json", problems),
        telemetry=telemetry,
        fidelity=_json_or_none(folder / "fidelity.json", problems),
    )


def _cell(folder: Path, problems: list[str]) -> CellRecord | None:
    facts = _json_or_none(folder / "cell.json", problems)
    if facts is None:
        return None
    return CellRecord(folder.name, facts, _records_or_none(folder / "requests.parquet", problems))


def _task(folder: Path, problems: list[str]) -> TaskRecord | None:
    facts = _json_or_none(folder / "results.json", problems)
    if facts is None:
        return None
    return TaskRecord(folder.name, facts, _samples(folder / "samples.jsonl", problems))


def _samples(path: Path, problems: list[str]) -> tuple[dict[str, Any], ...]:
    """The answered questions; of a damaged file none, since answers are paired as a whole."""
    if not path.is_file():
        return ()
    try:
        with path.open(encoding="utf-8") as file:
            found = [json.loads(line) for line in file if line.strip()]
        if all(isinstance(one, dict) and (one.get("score") is None or 0 <= one["score"] <= 1) for one in found):
            return tuple(found)
        reason = "a line is no answered question with a score from 0 to 1"
    except (ValueError, TypeError, OSError) as error:
        reason = str(error)
    problems.append(f"{path}: {reason}; its answers are left out")
    return ()


def _json_or_none(path: Path, problems: list[str]) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = read_json(path)
    except ValueError as error:
        problems.append(f"{path.parent.name}/{path.name} can't be read: {error}")
        return None
    return value if isinstance(value, dict) else None


def _records_or_none(path: Path, problems: list[str]) -> Records | None:
    if not path.is_file():
        return None
    try:
        return Records.open(path)
    except (OSError, ValueError, KVMarkError) as error:  # pyarrow's own errors are ValueErrors
        problems.append(f"{path.parent.name}/{path.name} can't be read: {error}")
        return None


def _frame_or_none(path: Path, problems: list[str]) -> pd.DataFrame | None:
    if not path.is_file():
        return None
    try:
        return pd.DataFrame(pq.read_table(path).to_pandas())
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        problems.append(f"{path.parent.name}/{path.name} can't be read: {error}")
        return None
