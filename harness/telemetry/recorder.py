"""A coarse series of what an engine uses and says of itself, over the whole of a launch."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pynvml

from harness.backends.interface import EngineState
from harness.files import write_bytes

SCHEMA = pa.schema(
    [
        ("t_ns", pa.int64()),
        ("kv_cache_usage", pa.float64()),
        ("requests_running", pa.int32()),
        ("requests_waiting", pa.int32()),
        ("preemptions_total", pa.float64()),
        ("prefix_queries_total", pa.float64()),
        ("prefix_hits_total", pa.float64()),
        ("pss_bytes", pa.int64()),
        ("cpu_seconds_total", pa.float64()),
        ("processes", pa.int32()),
        ("host_memory_available_bytes", pa.int64()),
        ("gpu_memory_bytes", pa.int64()),
    ]
)


class Recorder:
    """Samples in a thread of its own while the context is open; writes one file at its end, whatever happened.

    Parameters
    ----------
    pids : callable
        The engine's living processes.
    state : callable
        One reading of the engine's counters; may raise when it doesn't answer, which leaves nulls.
    path : Path
        Where the series goes (schema: docs/results.md).
    period_s : float
        Time between two samples.
    """

    def __init__(
        self, pids: Callable[[], list[int]], state: Callable[[], EngineState], path: Path, period_s: float = 1.0
    ) -> None:
        self._pids = pids
        self._state = state
        self._path = path
        self._period_s = period_s
        self._rows: list[dict[str, Any]] = []
        self._cpu = CpuTime()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def _run(self) -> None:
        with GpuMemory() as gpu_memory:
            while True:
                started = time.monotonic()
                self._rows.append(self._sample(gpu_memory))
                if self._over.wait(max(0.05, self._period_s - (time.monotonic() - started))):
                    return

    def _sample(self, gpu_memory: "GpuMemory") -> dict[str, Any]:
        t_ns = time.monotonic_ns()
        state = EngineState()
        # an engine that dies answers anything or nothing; a series with holes is better than none
        with contextlib.suppress(Exception):
            state = self._state()
        pids: list[int] = []
        with contextlib.suppress(Exception):
            pids = self._pids()
        return {
            "t_ns": t_ns,
            **asdict(state),
            "pss_bytes": pss_bytes(pids),
            "cpu_seconds_total": self._cpu.read(pids),
            "processes": len(pids),
            "host_memory_available_bytes": psutil.virtual_memory().available,
            "gpu_memory_bytes": gpu_memory.read(pids),
        }

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(15.0)
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(self._rows), schema=SCHEMA), sink)
        write_bytes(self._path, sink.getvalue().to_pybytes())


class CpuTime:
    """Processor time of a changing set of processes; what an ended process used stays in the sum."""

    def __init__(self) -> None:
        self._used: dict[tuple[int, float], float] = {}

    def read(self, pids: Iterable[int]) -> float | None:
        """Seconds used so far by all processes ever seen; None before the first."""
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                times = process.cpu_times()
                self._used[(pid, process.create_time())] = times.user + times.system
        return sum(self._used.values()) if self._used else None


def pss_bytes(pids: Iterable[int]) -> int | None:
    """Memory of the processes, shared pages counted once among those that share them; None where nothing tells."""
    total, read = 0, False
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
                    read = True
    return total if read else None


class GpuMemory:
    """Device memory of processes by NVML; reads None where there is no NVML."""

    def __init__(self) -> None:
        self._devices: list[Any] = []

    def __enter__(self) -> Self:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._devices:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    def read(self, pids: Iterable[int]) -> int | None:
        """Bytes on all devices: of these processes, or of everyone where NVML can't see the processes (containers)."""
        if not self._devices:
            return None
        ours = set(pids)
        try:
            of_ours = sum(
                int(process.usedGpuMemory or 0)
                for device in self._devices
                for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)
                if process.pid in ours
            )
            if of_ours:
                return of_ours
            return sum(int(pynvml.nvmlDeviceGetMemoryInfo(device).used) for device in self._devices)
        except pynvml.NVMLError:
            return None
