"""Where KVMark keeps what is made once and used by every run: engine environments, models, downloads."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.files import storage_error

Say = Callable[[str], None]
"""Takes one line of progress for the user."""


def cache_dir() -> Path:
    """``$KVMARK_CACHE``, else ``$XDG_CACHE_HOME/kvmark``, else ``~/.cache/kvmark``; not created here."""
    if chosen := os.environ.get("KVMARK_CACHE"):
        return Path(chosen).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvmark"


@contextmanager
def locked(path: Path, say: Say) -> Iterator[int]:
    """Hold an exclusive lock named after `path` (``<path>.lock``), waiting for whoever has it.

    The kernel drops the lock when its holder dies, so a killed process never blocks the next one. The lock file stays:
    removing it would let two processes hold locks on two files of one name. Yields the lock's descriptor: a child that
    inherits it holds the lock too.
    """
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = lock.open("w")
    except OSError as error:
        raise storage_error(lock, error) from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: another process is preparing {path}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle.fileno()
