"""The series over a launch keeps what it has, whatever becomes of the engine; the machine is described truly."""

import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from harness.backends.interface import EngineState
from harness.errors import StorageError
from harness.telemetry import Recorder, gpus, hardware, software
from harness.telemetry.recorder import SCHEMA, CpuTime, pss_bytes

BUSY = "block = bytearray(30_000_000); print('up', flush=True)\nwhile True: pass"


@pytest.fixture
def busy() -> subprocess.Popen[str]:  # type: ignore[misc]
    with subprocess.Popen([sys.executable, "-S", "-c", BUSY], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process
        process.kill()


def wait_for_samples(recorder: Recorder, count: int) -> None:
    while len(recorder._rows) < count:
        time.sleep(0.01)


def test_a_series_holds_what_the_processes_use_and_the_engine_says(busy: subprocess.Popen[str], tmp_path: Path) -> None:
    readings = iter(range(10_000))

    def state() -> EngineState:
        return EngineState(kv_cache_usage=0.25, prefix_hits_total=float(next(readings)))

    path = tmp_path / "launch" / "telemetry.parquet"
    with Recorder(lambda: [busy.pid], state, path, period_s=0.05) as recorder:
        wait_for_samples(recorder, 4)
        assert not path.exists()  # a file that exists is whole
    table = pq.read_table(path)
    assert table.schema.equals(SCHEMA)
    rows = table.to_pylist()
    assert len(rows) >= 4
    assert [row["prefix_hits_total"] for row in rows] == [float(n) for n in range(len(rows))]
    assert all(row["kv_cache_usage"] == 0.25 and row["processes"] == 1 for row in rows)
    assert all(row["pss_bytes"] > 30_000_000 for row in rows)
    assert rows[-1]["cpu_seconds_total"] > rows[0]["cpu_seconds_total"]
    assert all(0 < row["host_memory_available_bytes"] <= psutil.virtual_memory().total for row in rows)
    assert all(later["t_ns"] > earlier["t_ns"] for earlier, later in pairwise(rows))
    assert all(row["requests_running"] is None and row["preemptions_total"] is None for row in rows)
    if not gpus():
        assert all(row["gpu_memory_bytes"] is None for row in rows)


def test_the_death_of_the_engine_leaves_holes_not_an_error(busy: subprocess.Popen[str], tmp_path: Path) -> None:
    def state() -> EngineState:
        if busy.poll() is not None:
            raise OSError("connection refused")
        return EngineState(requests_running=2)

    with pytest.raises(RuntimeError), Recorder(lambda: [busy.pid], state, tmp_path / "t.parquet", 0.05) as recorder:
        wait_for_samples(recorder, 2)
        busy.kill()
        busy.wait()
        wait_for_samples(recorder, len(recorder._rows) + 3)
        raise RuntimeError("the cell failed")
    rows = pq.read_table(tmp_path / "t.parquet").to_pylist()
    assert rows[0]["requests_running"] == 2 and rows[0]["pss_bytes"] is not None
    assert rows[-1]["requests_running"] is None and rows[-1]["pss_bytes"] is None
    assert rows[-1]["cpu_seconds_total"] >= rows[0]["cpu_seconds_total"]  # what it had used stays counted


def test_a_launch_shorter_than_a_period_has_a_sample(tmp_path: Path) -> None:
    with Recorder(lambda: [os.getpid()], EngineState, tmp_path / "t.parquet", period_s=60.0):
        pass
    assert pq.read_table(tmp_path / "t.parquet").num_rows == 1


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError), Recorder(list, EngineState, tmp_path / "file" / "t.parquet", 0.05):
        pass


def test_processor_time_of_an_ended_process_stays_in_the_sum(busy: subprocess.Popen[str]) -> None:
    cpu = CpuTime()
    assert cpu.read([]) is None
    while not (used := cpu.read([busy.pid])):
        time.sleep(0.02)
    busy.kill()
    busy.wait()
    assert (cpu.read([busy.pid]) or 0) >= used


def test_memory_of_nobody_is_none_not_zero() -> None:
    assert pss_bytes([]) is None
    assert pss_bytes([2**22 + 1]) is None
    assert (pss_bytes([os.getpid()]) or 0) > 1_000_000


def test_the_machine_is_described() -> None:
    machine = hardware()
    assert set(machine) == {"hostname", "cpu", "cores", "memory_bytes", "gpus"}
    assert machine["cpu"] and machine["hostname"]
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert 0 < machine["memory_bytes"] <= psutil.virtual_memory().total
    assert all(set(gpu) == {"name", "memory_bytes"} for gpu in machine["gpus"])
    packages = software()["packages"]
    assert packages["psutil"] == psutil.__version__
