"""Several client processes, on one machine and as on several, play one schedule; some of them are killed."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.errors import LaunchError, StorageError
from harness.model import Model
from harness.traffic.client_options import ClientOptions
from harness.traffic.load import Load
from harness.traffic.spool import SpoolReader

from .cells import Cell
from .conftest import PacedServer

ROOT = Path(__file__).parents[3]
SESSIONS = Load(
    workload={"kind": "sharegpt", "input_tokens_mean": 120, "output_tokens_mean": 6, "turns_max": 3},
    arrival={"kind": "closed", "concurrency": 5},
    requests=40,
    warmup_requests=4,
    timeout_s=20,
)
ARRIVALS = Load(
    workload={"kind": "synthetic", "input_tokens_mean": 40, "output_tokens_mean": 6},
    arrival={"kind": "poisson", "rate_rps": 30.0},
    requests=40,
    warmup_requests=0,
    timeout_s=20,
)


@pytest.fixture
def cell(model: Model, tmp_path: Path) -> Cell:
    return Cell(model, tmp_path / "cell")


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def joined(port: int, count: int, scratch: Path, *more: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Workers as on other machines: they see the master's port, and none of its folders."""
    scratch.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "harness.traffic.worker", f"127.0.0.1:{port}", "--scratch", str(scratch), *more]
    workers = [
        subprocess.Popen(argv, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(30)


def assert_joined_with_the_servers_log(cell: Cell, server: PacedServer, requests: int) -> list[dict[str, Any]]:
    rows, log = cell.rows(), server.log(requests)
    by_id = {entry["request_id"]: entry for entry in log}
    assert len(rows) == len(log) == len(by_id) == requests
    for row in rows:
        entry = by_id[row["request_id"]]
        assert row["error"] is None, row["error_detail"]
        assert row["text"] == entry["text"]
        assert row["prompt_tokens"] == row["planned_prompt_tokens"] == len(entry["body"]["prompt"])
        assert row["sent_ns"] <= entry["arrived_ns"] < row["ended_ns"]
    return rows


@pytest.mark.parametrize("load", [SESSIONS, ARRIVALS], ids=["closed", "open"])
def test_processes_divide_a_schedule_without_loss(load: Load, cell: Cell, paced_server: PacedServer) -> None:
    report = cell.replay(load, paced_server.url(), ClientOptions(processes=3))
    requests = load.requests + load.warmup_requests
    rows = assert_joined_with_the_servers_log(cell, paced_server, requests)
    assert {row["worker"] for row in rows} == {0, 1, 2}
    assert cell.progress[-1] == (requests, requests)
    client = report.client
    assert (client.processes, client.workers, client.lost_workers, len(client.each)) == (3, 0, (), 3)
    assert len({one["origin_ns"] for one in client.each}) == 1, "all start at one moment"
    assert len({one["pid"] for one in client.each}) == 3
    assert not cell.processes()


def test_due_times_are_those_of_the_schedule_in_every_process(cell: Cell, paced_server: PacedServer) -> None:
    report = cell.replay(ARRIVALS, paced_server.url(), ClientOptions(processes=2))
    origin = report.client.each[0]["origin_ns"]
    for row in cell.rows():
        assert row["scheduled_ns"] == origin + cell.sessions()[row["session_id"]]["due_ns"]
        assert row["sent_ns"] >= row["scheduled_ns"]


def test_more_processes_than_sessions(cell: Cell, paced_server: PacedServer) -> None:
    load = replace(ARRIVALS, requests=2)
    report = cell.replay(load, paced_server.url(), ClientOptions(processes=4))
    assert_joined_with_the_servers_log(cell, paced_server, 2)
    assert [one["requests"] for one in report.client.each] == [1, 1, 0, 0]


def test_master_and_workers_without_a_common_folder_lose_nothing(
    cell: Cell, paced_server: PacedServer, port: int, tmp_path: Path
) -> None:
    said: list[str] = []
    scratch = tmp_path / "scratch"
    with ExitStack() as stack:

        def join(text: str) -> None:
            said.append(text)
            stack.enter_context(joined(port, 2, scratch))

        options = ClientOptions(workers=2, bind_port=port)
        report = cell.replay(SESSIONS, paced_server.url("text-only"), options, join)
        rows = assert_joined_with_the_servers_log(cell, paced_server, 44)
        assert {row["worker"] for row in rows} == {0, 1}
        assert len(said) == 1 and f":{port} --processes" in said[0] and "harness.traffic.worker" in said[0]
        workers = json.loads((cell.folder / "workers.json").read_text())
        assert [(one["state"], one["is_local"]) for one in workers["workers"]] == [("done", False)] * 2
        assert report.client.workers == 2
        # The same workers take part in the next cell.
        cell.replay(SESSIONS, paced_server.url("text-only"), options)
        assert len(cell.rows()) == 44
        assert not any(scratch.iterdir()), "the master has it all"


def test_a_worker_with_several_processes(cell: Cell, paced_server: PacedServer, port: int, tmp_path: Path) -> None:
    with joined(port, 1, tmp_path / "scratch", "--processes", "2", "--once") as (worker,):
        cell.replay(ARRIVALS, paced_server.url(), ClientOptions(workers=2, bind_port=port))
        assert_joined_with_the_servers_log(cell, paced_server, 40)
        worker.wait(30)
        assert not [p for p in psutil.process_iter(["cmdline"]) if str(port) in (p.info["cmdline"] or [])]


def check_lost(cell: Cell, report: Any, number: int) -> None:
    rows = cell.rows()
    lost = [row for row in rows if row["error"] == "client_lost"]
    assert lost and {row["worker"] for row in lost} == {number}
    assert {row["error"] for row in rows} == {None, "client_lost", "not_sent"}
    assert all(row["sent_ns"] is None for row in rows if row["error"] == "not_sent")
    assert any(row["error"] is None and row["worker"] == number for row in rows), "what it had measured is kept"
    others = [row for row in rows if row["worker"] not in (number, None)]
    assert others and all(row["error"] is None for row in others), "the others play on"
    assert len(rows) == len({row["request_id"] for row in rows}) == 24
    (one,) = report.client.lost_workers
    assert one["number"] == number and one["reason"]


SLOW = replace(ARRIVALS, arrival={"kind": "closed", "concurrency": 4}, requests=24)


def test_a_killed_process_is_named_and_its_requests_are_lost(cell: Cell, paced_server: PacedServer) -> None:
    thread = cell.once_under_way(lambda: os.kill(cell.workers()[1], signal.SIGKILL), requests=8)
    report = cell.replay(SLOW, paced_server.url("slow"), ClientOptions(processes=2))
    thread.join()
    check_lost(cell, report, 1)


def test_a_killed_worker_of_another_machine_leaves_what_it_had_shipped(
    cell: Cell, paced_server: PacedServer, port: int, tmp_path: Path
) -> None:
    thread = cell.once_under_way(lambda: os.kill(cell.workers()[1], signal.SIGKILL), requests=8, wait_s=1.2)
    with joined(port, 2, tmp_path / "scratch"):
        report = cell.replay(SLOW, paced_server.url("slow"), ClientOptions(workers=2, bind_port=port))
    thread.join()
    check_lost(cell, report, 1)


def test_a_terminated_worker_delivers_its_record_first(
    cell: Cell, paced_server: PacedServer, port: int, tmp_path: Path
) -> None:
    with joined(port, 2, tmp_path / "scratch") as workers:
        thread = cell.once_under_way(workers[0].terminate, requests=8)
        report = cell.replay(SLOW, paced_server.url("slow"), ClientOptions(workers=2, bind_port=port))
        thread.join()
    rows = cell.rows()
    assert {row["error"] for row in rows} == {None, "aborted", "not_sent"}
    assert len([row for row in rows if row["error"] == "aborted"]) == 2
    assert len(report.client.lost_workers) == 1


def test_a_killed_master_leaves_no_process_and_keeps_the_record(cell: Cell, paced_server: PacedServer) -> None:
    thread = cell.once_under_way(lambda: os.kill(cell.processes()[0].pid, signal.SIGKILL), requests=8)
    with pytest.raises(LaunchError, match=r"load client died.*SIGKILL"):
        cell.replay(SLOW, paced_server.url("slow"), ClientOptions(processes=2))
    thread.join()
    assert not cell.processes()
    rows = cell.rows()
    assert len(rows) == 24 and any(row["error"] is None for row in rows)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_master_lets_its_workers_end_their_records(
    number: int, cell: Cell, paced_server: PacedServer
) -> None:
    thread = cell.once_under_way(lambda: os.kill(cell.processes()[0].pid, number), wait_s=0.7)
    with pytest.raises(LaunchError, match="load client died"):
        cell.replay(SLOW, paced_server.url("slow"), ClientOptions(processes=2))
    thread.join()
    rows = cell.rows()
    assert len([row for row in rows if row["error"] == "aborted"]) == 4
    assert {row["error"] for row in rows} == {"aborted", "not_sent"}
    assert not cell.processes()


def test_stopping_the_harness_stops_all(cell: Cell, paced_server: PacedServer) -> None:
    class Stop(BaseException):
        pass

    def stop(done: int, total: int) -> None:
        if done:
            raise Stop

    cell.note = stop  # type: ignore[method-assign]
    with pytest.raises(Stop):
        cell.replay(SLOW, paced_server.url("slow"), ClientOptions(processes=2))
    assert not cell.processes()
    assert any(row["error"] is None for row in cell.rows())


def test_a_full_disk_of_the_measuring_machine_ends_a_run_of_workers(
    cell: Cell, paced_server: PacedServer, port: int, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    load = replace(ARRIVALS, arrival={"kind": "constant", "rate_rps": 20.0}, requests=100)
    path = cell.schedule(load)
    with joined(port, 2, tmp_path / "scratch"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        try:
            with pytest.raises(StorageError, match=r"stream-\d.bin.*File too large"):
                cell.replay_schedule(path, load, paced_server.url(), ClientOptions(workers=2, bind_port=port))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_workers_that_do_not_come_are_an_error_with_how_many_did(cell: Cell, port: int) -> None:
    options = ClientOptions(workers=2, workers_wait_s=2, bind_port=port)
    with pytest.raises(LaunchError, match="0 of 2 load workers came within 2 s"):
        cell.replay(ARRIVALS, "http://127.0.0.1:9", options)


def test_a_fault_in_a_process_is_told_with_its_reason(cell: Cell) -> None:
    with pytest.raises(LaunchError, match=r"load worker . on .* form http://host:port"):
        cell.replay(ARRIVALS, "ftp://127.0.0.1", ClientOptions(processes=2))


def test_the_web_page_shows_the_run_and_ends_with_it(cell: Cell, paced_server: PacedServer, port: int) -> None:
    import urllib.request

    pages: list[dict[str, Any]] = []

    def look() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (pages and pages[-1]["stats"][0]["num_requests"]):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats/requests", timeout=5) as answer:
                    pages.append(json.load(answer))
            except OSError:
                pass
            time.sleep(0.1)

    thread = threading.Thread(target=look)
    thread.start()
    load = replace(ARRIVALS, arrival={"kind": "constant", "rate_rps": 8.0})
    cell.replay(load, paced_server.url(), ClientOptions(web_port=port))
    thread.join()
    assert_joined_with_the_servers_log(cell, paced_server, 40)
    assert pages[-1]["stats"][0]["name"] == "/v1/completions"


def test_the_one_start_is_recorded_by_both_clocks(
    cell: Cell, paced_server: PacedServer, port: int, tmp_path: Path
) -> None:
    with joined(port, 1, tmp_path / "scratch", "--once"):
        cell.replay(replace(ARRIVALS, requests=4), paced_server.url(), ClientOptions(workers=1, bind_port=port))
    start = json.loads((cell.folder / "workers.json").read_text())
    (worker,) = SpoolReader(cell.folder, 4).workers
    assert worker.client["origin_ns"] == start["origin_ns"]
    assert abs(time.time_ns() - start["origin_wall_ns"]) < 120e9
    assert {"monotonic_ns", "wall_ns"} <= set(start["workers"][0]["clock"])
