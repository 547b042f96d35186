"""What this machine is: processor, memory, accelerators, and the versions of what runs on it."""

import contextlib
import os
import platform
import socket
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import psutil
import pynvml


def hardware() -> dict[str, Any]:
    """This host, as recorded in a run's manifest.

    Returns
    -------
    dict
        `hostname`, `cpu` (its name), `cores` (those that we may use), `memory_bytes` (of the host, or of our control
        group where that is less), `gpus`.
    """
    return {
        "hostname": socket.gethostname(),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_limit_bytes(),
        "gpus": gpus(),
    }


def software() -> dict[str, Any]:
    """The harness's own Python, platform and packages, as recorded in a run's manifest."""
    packages = {item.name: item.version for item in distributions() if item.name}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


@cache
def _gpus() -> tuple[tuple[str, int], ...]:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(device)
            text = name.decode() if isinstance(name, bytes) else str(name)
            found.append((text, int(pynvml.nvmlDeviceGetMemoryInfo(device).total)))
        return tuple(found)
    except pynvml.NVMLError:
        return ()
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def gpus() -> list[dict[str, Any]]:
    """The NVIDIA devices that NVML sees: `name` and `memory_bytes` each; none where there's no driver."""
    return [{"name": name, "memory_bytes": memory} for name, memory in _gpus()]


def memory_limit_bytes() -> int:
    """Memory that we may use: the host's, or our control group's limit where that is less."""
    total: int = psutil.virtual_memory().total
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return min(total, int(Path(path).read_text()))
    return total


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "cpu model"):
                return value.strip()
    return platform.processor() or platform.machine()
