"""The whole path over real sockets: schedule, Locust process, server process, records."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from harness.errors import LaunchError, StorageError
from harness.model import Model
from harness.traffic.journal import EXIT_STORAGE
from harness.traffic.load import Arrival, Load, Workload
from harness.traffic.records import ERRORS, SCHEMA
from harness.traffic.replay import ReplayReport, replay
from harness.traffic.schedule import build_schedule
from harness.traffic.text import encode, load_tokenizer

from .conftest import PacedServer, started_server

ONE_SHOT = Load(
    workload=Workload("synthetic", input_tokens_mean=40, output_tokens_mean=6),
    arrival=Arrival(concurrency=2),
    requests=4,
    warmup_requests=0,
    timeout_s=20,
)
SESSIONS = Load(
    workload=Workload(input_tokens_mean=120, output_tokens_mean=6, turns_max=3),
    arrival=Arrival(concurrency=3),
    requests=14,
    warmup_requests=4,
    timeout_s=20,
)


class Cell:
    """One replay in a folder of its own."""

    def __init__(self, model: Model, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.progress: list[tuple[int, int]] = []

    def schedule(self, load: Load, **extras: Any) -> Path:
        path = self.folder / "schedule.jsonl"
        build_schedule(
            load, model=self.model, served_name="m", request_extras=lambda tokens: extras, context_tokens=1024, seed=1,
            path=path,
        )  # fmt: skip
        return path

    def replay(self, load: Load, base_url: str, **extras: Any) -> ReplayReport:
        path = self.schedule(load, **extras)
        return replay(
            load, schedule_path=path, base_url=base_url, out_dir=self.folder, env={}, on_progress=self.note,
        )  # fmt: skip

    def note(self, done: int, total: int) -> None:
        self.progress.append((done, total))

    def rows(self) -> list[dict[str, Any]]:
        table = pq.read_table(self.folder / "requests.parquet")
        assert table.schema.equals(SCHEMA)
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows


@pytest.fixture
def cell(model: Model, tmp_path: Path) -> Cell:
    return Cell(model, tmp_path / "cell")


def test_records_join_the_servers_log_request_by_request(cell: Cell, paced_server: PacedServer) -> None:
    report = cell.replay(SESSIONS, paced_server.url(), ignore_eos=True)
    rows, log = cell.rows(), paced_server.log(18)
    assert len(rows) == len(log) == 18
    assert (report.window_requests, report.failed_requests, report.errors) == (14, 0, {})
    assert report.client.exit_code == 0
    assert cell.progress[0] == (0, 18) and cell.progress[-1] == (18, 18)
    assert sum(row["phase"] == "warmup" for row in rows) == 4
    assert len({tuple(entry["body"]["prompt"]) for entry in log}) == 18, "every prompt is distinct"
    by_id = {entry["request_id"]: entry for entry in log}
    assert len(by_id) == 18
    for row in rows:
        entry = by_id[row["request_id"]]
        assert row["error"] is None
        assert row["planned_prompt_tokens"] == row["prompt_tokens"] == len(entry["body"]["prompt"])
        assert row["planned_output_tokens"] == row["output_tokens"] == entry["body"]["max_tokens"] == 6
        assert row["text"] == entry["text"]
        assert row["cached_prompt_tokens"] == 7
        assert row["event_tokens"] == [1] * 6
        # Both clocks are this host's monotonic one: nothing arrives before it was sent.
        assert row["sent_ns"] <= entry["arrived_ns"]
        assert all(sent <= got for sent, got in zip(entry["sent_ns"], row["event_ns"], strict=False))
        assert row["event_ns"] == sorted(row["event_ns"]) and row["event_ns"][-1] <= row["ended_ns"]


def test_the_body_is_the_schedules_and_the_engines(cell: Cell, paced_server: PacedServer) -> None:
    cell.folder.mkdir()
    (cell.folder / "stream.jsonl").write_text('{"kind": "start", "request_id": "of an earlier, killed replay"}\n')
    cell.replay(replace(ONE_SHOT, requests=1), paced_server.url(), ignore_eos=True, min_tokens=6)
    (entry,) = paced_server.log(1)
    assert len(cell.rows()) == 1
    prompt = json.loads((cell.folder / "schedule.jsonl").read_text().splitlines()[2])["turns"][0]["new_token_ids"]
    assert entry["body"] == {
        "model": "m", "prompt": prompt, "max_tokens": 6, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "ignore_eos": True, "min_tokens": 6,
    }  # fmt: skip
    assert entry["accept_encoding"] == "identity"


@pytest.mark.parametrize("behaviour", ["v1", "text-only", "short"])
def test_a_later_turn_continues_the_one_before_with_what_was_generated(
    behaviour: str, cell: Cell, paced_server: PacedServer
) -> None:
    cell.replay(SESSIONS, paced_server.url(behaviour))
    tokenizer = load_tokenizer(cell.model.path)
    prompts = {entry["request_id"]: entry["body"]["prompt"] for entry in paced_server.log(18)}
    turns = {(row["session_id"], row["turn"]): row for row in cell.rows()}
    later = [row for row in turns.values() if row["turn"] > 0]
    assert later
    for row in later:
        before = turns[row["session_id"], row["turn"] - 1]
        prompt, earlier = prompts[row["request_id"]], prompts[before["request_id"]]
        assert len(prompt) == row["planned_prompt_tokens"]
        generated = [100 + i for i in range(6)]
        if behaviour == "text-only":
            generated = encode(tokenizer, before["text"])[:6]
        elif behaviour == "short":
            generated = generated[:5]
        assert prompt[: len(earlier) + len(generated)] == earlier + generated
        assert row["scheduled_ns"] == before["ended_ns"] <= row["sent_ns"]


HEALTHY = {
    "close-delimited": {"buffered": True},
    "processing": {},
    "pings": {},
    "split": {},
    "held-open": {},
    "buffered": {"buffered": True},
    "packed": {"tokens_estimated": True, "event_tokens": [2, 2, 2]},
    "text-only": {"tokens_estimated": False, "event_tokens": [1] * 6},
}
FAULTY = {
    "short": ("output_length", "5 tokens instead of 6"),
    "no-done": ("truncated_stream", "[DONE]"),
    "no-finish": ("truncated_stream", "finish reason"),
    "truncated": ("truncated_stream", "in the middle of its answer"),
    "reset": ("reset", "ConnectionResetError"),
    "hang-up": ("reset", "without an answer"),
    "error-event": ("error_event", "engine ran out of blocks"),
    "bad-json": ("malformed_event", "{broken"),
    "empty": ("no_output", ""),
    "server-error": ("http_status", "HTTP 500: {\"error\": {\"message\": \"no such model\"}}"),
    "not-streamed": ("not_a_stream", "all at once"),
    "gzip": ("content_encoding", "gzip"),
    "no-http": ("malformed_http", ""),
}  # fmt: skip


Behaved = tuple[ReplayReport, dict[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def behaved(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Behaved:
    """One replay, request after request, against a server that behaves otherwise each time; rows by behaviour."""
    folder = tmp_path_factory.mktemp("behaviours")
    behaviours = [*HEALTHY, *FAULTY]
    with started_server(folder / "server.jsonl") as server:
        cell = Cell(model, folder / "cell")
        load = replace(ONE_SHOT, arrival=Arrival(concurrency=1), requests=2 * len(behaviours))
        report = cell.replay(load, server.url(",".join(behaviours)))
        log = {entry["request_id"]: entry for entry in server.log(load.requests)}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in behaviours}
    for row in cell.rows():
        entry = log[row["request_id"]]
        rows[entry["behaviour"]].append({**row, "server_ended_ns": entry["ended_ns"]})
    return report, rows


@pytest.mark.parametrize("behaviour", HEALTHY)
def test_a_healthy_answer_in_any_form_is_a_success(behaviour: str, behaved: Behaved) -> None:
    rows = behaved[1][behaviour]
    assert len(rows) == 2
    for row in rows:
        assert row["error"] is None, row["error_detail"]
        assert sum(row["event_tokens"]) == row["output_tokens"] == 6
        assert {key: row[key] for key in HEALTHY[behaviour]} == HEALTHY[behaviour]


@pytest.mark.parametrize("behaviour", FAULTY)
def test_every_fault_has_its_own_name_and_harms_no_other_request(behaviour: str, behaved: Behaved) -> None:
    error, detail = FAULTY[behaviour]
    rows = behaved[1][behaviour]
    assert [row["error"] for row in rows] == [error] * 2
    assert all(detail in row["error_detail"] for row in rows)
    assert error in ERRORS


def test_an_answer_ends_with_its_last_event_even_if_the_connection_stays(behaved: Behaved) -> None:
    for row in behaved[1]["held-open"]:
        assert row["event_ns"][-1] <= row["ended_ns"] < row["server_ended_ns"]


def test_failures_are_counted_by_name(behaved: Behaved) -> None:
    report, _ = behaved
    assert report.window_requests == 2 * (len(HEALTHY) + len(FAULTY))
    assert report.failed_requests == sum(report.errors.values()) == 2 * len(FAULTY)
    assert report.commonest_error is not None
    assert report.commonest_error.startswith("truncated_stream: the stream ended")


def test_a_request_that_does_not_end_is_a_timeout(cell: Cell, paced_server: PacedServer) -> None:
    cell.replay(replace(ONE_SHOT, timeout_s=0.5), paced_server.url("silent"))
    for row in cell.rows():
        assert row["error"] == "timeout"
        assert row["ended_ns"] - row["sent_ns"] >= 450_000_000


def test_a_server_that_is_not_there_fails_every_request_with_its_session_played_on(cell: Cell) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    report = cell.replay(SESSIONS, f"http://127.0.0.1:{port}")
    rows = cell.rows()
    assert len(rows) == 18
    assert {(row["error"], row["sent_ns"]) for row in rows} == {("connect", None)}
    assert report.window is not None


def test_an_open_loop_sends_at_the_scheduled_times(cell: Cell, paced_server: PacedServer) -> None:
    load = replace(ONE_SHOT, arrival=Arrival("poisson", rate_rps=20.0), requests=12, warmup_requests=3)
    report = cell.replay(load, paced_server.url("slow"))  # 2 s an answer: far more arrive than end
    rows = cell.rows()
    due = [json.loads(line)["due_ns"] for line in (cell.folder / "schedule.jsonl").read_text().splitlines()[2:]]
    scheduled = [row["scheduled_ns"] for row in sorted(rows, key=lambda row: row["scheduled_ns"])]
    assert [at - scheduled[0] for at in scheduled] == [at - due[0] for at in due]
    assert all(row["sent_ns"] >= row["scheduled_ns"] for row in rows)
    assert max(row["scheduled_ns"] for row in rows) < min(row["ended_ns"] for row in rows), "it waits for no answer"
    window = [row for row in rows if row["phase"] == "window"]
    assert report.window is not None
    assert report.window.start_ns == min(row["scheduled_ns"] for row in window)
    assert report.window.end_ns == max(row["scheduled_ns"] for row in window)
    assert report.peak_context_tokens == 12 * 46


def test_a_closed_loop_keeps_its_concurrency(cell: Cell, paced_server: PacedServer) -> None:
    cell.replay(replace(ONE_SHOT, requests=12, arrival=Arrival(concurrency=3)), paced_server.url())
    log = paced_server.log(12)
    changes = sorted([(entry["arrived_ns"], 1) for entry in log] + [(entry["sent_ns"][-1], -1) for entry in log])
    level, levels = 0, []
    for _, change in changes:
        level += change
        levels.append(level)
    assert max(levels) == 3


def test_think_time_lies_between_turns(cell: Cell, paced_server: PacedServer) -> None:
    cell.replay(replace(SESSIONS, think_time_s=0.1, warmup_requests=0), paced_server.url())
    turns = {(row["session_id"], row["turn"]): row for row in cell.rows()}
    gaps = [row["scheduled_ns"] - turns[s, t - 1]["ended_ns"] for (s, t), row in turns.items() if t]
    assert gaps and set(gaps) == {100_000_000}
    assert all(row["sent_ns"] >= row["scheduled_ns"] for row in turns.values() if row["turn"])


def locust_processes(cell: Cell) -> list[psutil.Process]:
    mark = str(cell.folder / "stream.jsonl")
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if mark in words and "locust" in words:
            found.append(process)
    return found


def once_requests_run(cell: Cell, act: Any) -> threading.Thread:
    """Call `act(process)` on the Locust process when its first requests are under way."""

    def wait() -> None:
        journal = cell.folder / "stream.jsonl"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and (not journal.exists() or journal.read_bytes().count(b'"start"') < 2):
            time.sleep(0.02)
        time.sleep(0.3)
        for process in locust_processes(cell):
            act(process)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_killed_client_is_an_error_that_keeps_what_there_is(cell: Cell, paced_server: PacedServer) -> None:
    thread = once_requests_run(cell, lambda process: process.kill())
    with pytest.raises(LaunchError, match=r"load client died.*SIGKILL"):
        cell.replay(replace(ONE_SHOT, requests=12), paced_server.url("slow"))
    thread.join()
    rows = cell.rows()
    assert 2 <= len(rows) < 12
    assert {row["error"] for row in rows} <= {None, "client_lost"}
    assert any(row["error"] == "client_lost" for row in rows)
    assert (cell.folder / "stream.jsonl").stat().st_size > 0


def test_a_terminated_client_records_what_was_under_way_as_aborted(cell: Cell, paced_server: PacedServer) -> None:
    thread = once_requests_run(cell, lambda process: process.send_signal(signal.SIGTERM))
    with pytest.raises(LaunchError, match="load client died"):
        cell.replay(replace(ONE_SHOT, requests=12), paced_server.url("slow"))
    thread.join()
    aborted = [row for row in cell.rows() if row["error"] == "aborted"]
    assert aborted
    assert all(row["event_ns"] for row in aborted), "what had arrived is kept"
    assert not any(row["error"] == "client_lost" for row in cell.rows())


def test_stopping_the_harness_stops_the_client_and_keeps_the_record(cell: Cell, paced_server: PacedServer) -> None:
    class Stop(BaseException):
        pass

    def stop(done: int, total: int) -> None:
        if done:
            raise Stop

    cell.note = stop  # type: ignore[method-assign]
    with pytest.raises(Stop):
        cell.replay(replace(ONE_SHOT, requests=12), paced_server.url("slow"))
    assert any(row["error"] is None for row in cell.rows())
    assert not locust_processes(cell)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("log", ["client.log", "/dev/full"])
def test_a_full_disk_ends_the_client_with_a_code_of_its_own(log: str, cell: Cell, paced_server: PacedServer) -> None:
    path = cell.schedule(ONE_SHOT)
    program = Path(__file__).parents[3] / "harness" / "traffic" / "locustfile.py"
    with (cell.folder / log).open("w") as stderr:
        process = subprocess.run(
            [
                sys.executable, "-m", "locust", "-f", program, "--headless", "--only-summary", "--loglevel", "WARNING",
                "--users", "2", "--spawn-rate", "2", "--host", paced_server.url("v1"),
                "--schedule", path, "--journal", "/dev/full",
            ],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}, stderr=stderr, timeout=60,
        )  # fmt: skip
    assert process.returncode == EXIT_STORAGE
    if log == "client.log":
        assert "No space left on device" in (cell.folder / log).read_text()


def test_a_record_that_can_not_be_written_raises_storage_error(cell: Cell, paced_server: PacedServer) -> None:
    cell.folder.mkdir()
    (cell.folder / "stream.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"stream\.jsonl"):
        cell.replay(ONE_SHOT, paced_server.url())


def test_a_fault_of_the_client_itself_is_no_measurement(cell: Cell, paced_server: PacedServer) -> None:
    with pytest.raises(LaunchError, match="form http://host:port"):
        cell.replay(ONE_SHOT, "ftp://127.0.0.1")
