"""What the master and the workers of one schedule say to each other.

Locust's channel between master and workers carries these messages of ours:

    worker                              master
    hello: host, boot, clock        →
                                    ←   orders: number, how many, endpoint, where schedule and record lie
    fetch: a piece of a file        →   only where the worker has not the master's folders
                                    ←   piece
    ready                           →
                                    ←   go: the one start moment, by the monotonic and by the wall clock
    alive, once a second            →
    ship: what was recorded since   →   only where the worker has not the master's folders
                                    ←   kept
    done, or failed: code, reason   →
                                    ←   stop, where the run must end early

A worker takes its part of the schedule by its number: the same file and numbers give the same parts everywhere. The
monotonic clock is one for all processes of a host; another host starts by its own wall clock, and both are recorded.
"""

import os
from pathlib import Path

PROTOCOL = 1
"""Of the messages above; master and workers must have the same."""

HELLO, ORDERS, FETCH, PIECE = "kvmark_hello", "kvmark_orders", "kvmark_fetch", "kvmark_piece"
READY, GO, ALIVE, SHIP, KEPT = "kvmark_ready", "kvmark_go", "kvmark_alive", "kvmark_ship", "kvmark_kept"
DONE, FAILED, STOP = "kvmark_done", "kvmark_failed", "kvmark_stop"

SILENT_S = 15.0
"""A worker or master of whom nothing was heard for so long is lost."""

STOP_S = 8.0
"""How long workers may take to end their record when the run must end early."""


def process_namespace() -> str:
    """The namespace of this process's number: it means nothing in another (a container's)."""
    return os.readlink("/proc/self/ns/pid")


def folder_identity(path: Path) -> list[int] | None:
    """Which folder of this host a path is."""
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_dev, found.st_ino]
