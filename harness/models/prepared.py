"""Prepared models in the cache: built beside their place, moved there when whole, checked when used again."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.cache import Say, cache_dir, locked
from harness.errors import SetupError

FILES_VERSION = 1
"""Raised when the conversion changes what it writes; a new number makes new folders."""

STAMP = "kvmark-model.json"


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def folder_for(name: str, recipe: Mapping[str, Any]) -> Path:
    """Where the model made by `recipe` (everything that decides the files) lies."""
    text = json.dumps({"files_version": FILES_VERSION, **recipe}, sort_keys=True)
    return cache_dir() / "models" / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def built(folder: Path, build: Callable[[Path], dict[str, str]], say: Say) -> tuple[str, dict[str, str]]:
    """Content hash and facts of the model in `folder`, building it there first if it isn't whole.

    Parameters
    ----------
    folder : Path
        Where it lies in the end.
    build : callable
        Writes the model to the empty folder it is given, and returns facts for the manifest.
    say : callable
        Takes progress lines.
    """
    with locked(folder, say):
        stamp = _whole(folder)
        if stamp is None:
            stamp = _build(folder, build, say)
        return stamp["content_sha256"], stamp["facts"]


def _build(folder: Path, build: Callable[[Path], dict[str, str]], say: Say) -> dict[str, Any]:
    started = time.monotonic()
    for left_over in folder.parent.glob(f"{folder.name}.*.part"):  # of a killed process: the lock is ours now
        shutil.rmtree(left_over)
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    part.mkdir()
    try:
        facts = build(part)
        files = _listing(part)
        stamp = {"content_sha256": _content_hash(files), "facts": facts, "files": files}
        (part / STAMP).write_text(json.dumps(stamp, indent=2) + "\n")
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    except OSError as error:
        raise SetupError(
            f"model: writing {folder} failed: {error}. KVMARK_CACHE=<folder> puts the cache on another disk"
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    say(f"model files written to {folder} ({time.monotonic() - started:.0f} s)")
    return stamp


def _listing(folder: Path) -> dict[str, dict[str, Any]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != STAMP)
    return {
        str(path.relative_to(folder)): {
            "bytes": path.stat().st_size,
            "mtime_ns": path.stat().st_mtime_ns,
            "sha256": file_sha256(path),
        }
        for path in files
    }


def _content_hash(files: Mapping[str, Mapping[str, Any]]) -> str:
    lines = "".join(f"{name} {entry['sha256']}\n" for name, entry in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _whole(folder: Path) -> dict[str, Any] | None:
    """The stamp of a model whose files are what was written; None where anything is missing or changed."""
    try:
        stamp: dict[str, Any] = json.loads((folder / STAMP).read_text())
        for name, entry in stamp["files"].items():
            stat = (folder / name).stat()
            if stat.st_size != entry["bytes"]:
                return None
            # Reading 500 MB at every start would be seconds; a file that nobody touched needs no second hash.
            if stat.st_mtime_ns != entry["mtime_ns"] and file_sha256(folder / name) != entry["sha256"]:
                return None
    except (OSError, ValueError, KeyError):
        return None
    return stamp
