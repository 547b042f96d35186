"""Files that are whole or absent: written to a temporary name in the same folder, synced, then renamed."""

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.errors import DamagedFile, StorageError

_OUT_OF_ROOM = {errno.ENOSPC: "no space left", errno.EDQUOT: "quota used up", errno.EROFS: "read-only file system"}


def is_out_of_room(error: OSError) -> bool:
    """Whether a write failed because the disk can't take it, rather than for what was written."""
    return error.errno in _OUT_OF_ROOM


def storage_error(path: Path, error: OSError) -> StorageError:
    """The error for a file that can't be written; names the folder and what to do."""
    reason = _OUT_OF_ROOM.get(error.errno or 0, error.strerror or str(error))
    return StorageError(f"can't write {path}: {reason}. What was measured before is intact; free room, then run again.")


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically, making its folder; raises `StorageError`."""
    write_lines(path, (data,))


def write_lines(path: Path, pieces: Iterable[bytes]) -> None:
    """As `write_bytes`, piece by piece: what they make up together need never be in memory.

    What the pieces themselves raise is passed on; the file is then as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the folder itself may be what is wrong
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise storage_error(path, error) from error
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON; NaN and infinity are refused (they are not JSON)."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file; raises `DamagedFile` where it is none."""
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error


def sha256_of(value: Any) -> str:
    """Hash of a JSON-able value, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def sha256_of_files(paths: Iterable[Path], root: Path) -> str:
    """Hash over names (relative to `root`) and contents of files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
