"""Pairs of monotonic and wall-clock time: how measurements of several hosts are laid over each other."""

import time


def clock() -> dict[str, int]:
    """A monotonic and a wall-clock reading of the same moment, in nanoseconds."""
    return {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
