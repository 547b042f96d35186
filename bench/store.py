"""The results folder: one folder a run, its identity, and which run may be resumed."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.errors import DamagedFile, StorageError
from harness.files import read_json, sha256_of, sha256_of_files, storage_error, write_json

SCHEMA_VERSION = 1
ROOT = Path(__file__).resolve().parent.parent
MEASURING_CODE = (
    "harness/**/*.py",
    "harness/**/*.json",
    "harness/**/*.yaml",
    "bench/run.py",
    "bench/plan*.py",
    "bench/budget.py",
)
"""What can change a measurement; analysis and report can't."""
HARDWARE_KEYS = ("hostname", "cpu", "cores", "memory_bytes", "gpus")
"""What must be equal for speeds to be of the same machine."""


FINISHED = ("complete", "failed")
"""States of a run that was measured to its end."""


@dataclass(frozen=True)
class Identity:
    """What must be equal for a run to be resumed."""

    config_sha256: str
    code_sha256: str
    hardware_sha256: str
    engines_sha256: str


def code_sha256() -> str:
    """Hash of the measuring code."""
    files = {path for pattern in MEASURING_CODE for path in ROOT.glob(pattern) if path.is_file()}
    return sha256_of_files(files, ROOT)


def hardware_sha256(hardware: dict[str, Any]) -> str:
    """Hash of the hardware, as far as it decides speed; free memory and the like are left out."""
    return sha256_of({key: hardware.get(key) for key in HARDWARE_KEYS})


def git_state() -> dict[str, Any] | None:
    """Commit, and whether tracked files differ from it; None outside a checkout."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}


@contextmanager
def open_run(results_dir: Path, scenario: str, identity: Identity) -> Iterator[tuple[Path, bool]]:
    """The folder to write to, held for as long as the run lasts.

    Yields the newest incomplete run of equal identity that no other process holds, else a new folder; and whether it is
    resumed. A run whose process was killed still says "running", but nobody holds it any more.
    """
    base = results_dir / scenario
    for folder in sorted(runs_of(base), key=lambda f: f.name, reverse=True):
        try:
            manifest = read_json(folder / "manifest.json")
        except DamagedFile:
            continue  # whatever it was, it can't be resumed; `report` names it
        if manifest.get("identity") == asdict(identity) and manifest.get("status") in ("running", "incomplete"):
            with _held(folder) as free:
                if free:
                    yield folder, True
                    return
    folder = _new_folder(base)
    with _held(folder):
        yield folder, False


@contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Lock a run's folder; False when another process has it. The kernel drops the lock when its holder dies."""
    try:
        file = open(folder / ".lock", "w")  # noqa: SIM115
    except OSError as error:
        raise storage_error(folder, error) from error
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def runs_of(base: Path) -> list[Path]:
    """Run folders below `base` that have a manifest."""
    return [path.parent for path in base.glob("*/manifest.json")]


def _new_folder(base: Path) -> Path:
    stamp = datetime.now().astimezone().strftime("%Y-%m-%dT%H%M")
    number = 1
    while True:
        folder = base / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
        except OSError as error:
            raise storage_error(folder, error) from error


def need_room(folder: Path, bytes_needed: int, key: str = "results_dir") -> None:
    """Raise `StorageError` where the disk of `folder` can't hold a run, before anything is launched; `key` names it."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < bytes_needed:
        raise StorageError(
            f"{folder}: {free / 1e6:.0f} MB free, a run may need {bytes_needed / 1e6:.0f} MB; free room or set {key}="
        )
    if not os.access(existing, os.W_OK):
        raise StorageError(f"{existing} can't be written; set {key}= to a folder of yours")


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest."""
    write_json(folder / "manifest.json", manifest)


def set_status(folder: Path, status: str) -> None:
    """Change a run's status; a finished one gets its time."""
    manifest = read_json(folder / "manifest.json")
    manifest["status"] = status
    manifest["finished"] = now() if status in FINISHED else None
    write_manifest(folder, manifest)


def now() -> str:
    """Local time with its offset, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def block_folder(run: Path, block: int) -> Path:
    """Folder of one block."""
    return run / "blocks" / str(block)


def block_complete(run: Path, block: int) -> bool:
    """Whether a block was measured to its end."""
    file = block_folder(run, block) / "block.json"
    try:
        return file.exists() and read_json(file)["status"] == "complete"
    except DamagedFile:
        return False


def complete_blocks(run: Path) -> int:
    """Blocks from the first on that were measured to their end."""
    block = 0
    while block_complete(run, block):
        block += 1
    return block


def put_aside(folder: Path) -> Path | None:
    """Rename an interrupted block's folder, so that its cells are kept but never read as a block."""
    if not folder.exists():
        return None
    number = 1
    while (aside := folder.with_name(f"{folder.name}.interrupted-{number}")).exists():
        number += 1
    folder.rename(aside)
    return aside


def seed_of(seed: int, *parts: object) -> int:
    """A seed derived from the run's seed and a path of names: equal for equal parts, else unrelated."""
    text = "/".join(str(part) for part in (seed, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
