"""Pairs of monotonic and wall-clock time: how measurements of several hosts are laid over each other."""

import time
from pathlib import Path


def clock() -> dict[str, int]:
    """A monotonic and a wall-clock reading of the same moment, in nanoseconds."""
    return {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}


def boot_id() -> str:
    """Which boot of which machine this is: monotonic times are comparable where it is equal, and nowhere else."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
