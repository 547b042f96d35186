"""The whole path over real sockets: schedule, Locust process, server process, records."""

import json
import os
import resource
import signal
import socket
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest

from harness.errors import LaunchError, StorageError
from harness.model import Model
from harness.traffic.client_options import ClientOptions
from harness.traffic.load import Load, Tenant
from harness.traffic.records import ERRORS
from harness.traffic.report import ReplayReport
from harness.traffic.spool import SpoolReader, stream_path
from harness.traffic.text import encode, load_tokenizer

from .cells import Cell
from .conftest import PacedServer, started_server

ONE_SHOT = Load(
    workload={"kind": "synthetic", "input_tokens_mean": 40, "output_tokens_mean": 6},
    arrival={"kind": "closed", "concurrency": 2},
    requests=4,
    warmup_requests=0,
    timeout_s=20,
)
SESSIONS = Load(
    workload={"kind": "sharegpt", "input_tokens_mean": 120, "output_tokens_mean": 6, "turns_max": 3},
    arrival={"kind": "closed", "concurrency": 3},
    requests=14,
    warmup_requests=4,
    timeout_s=20,
)


def closed(concurrency: int) -> dict[str, Any]:
    return {"kind": "closed", "concurrency": concurrency}


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
        assert row["event_tokens"] is None and len(row["event_us"]) == 6
        # Both clocks are this host's monotonic one: nothing arrives before it was sent.
        assert row["sent_ns"] <= entry["arrived_ns"]
        # Arrivals are kept in whole microseconds.
        got_ns = [row["sent_ns"] + 1000 * us for us in row["event_us"]]
        assert all(sent <= got + 1000 for sent, got in zip(entry["sent_ns"], got_ns, strict=False))
        assert got_ns == sorted(got_ns) and got_ns[-1] <= row["ended_ns"]


def test_the_body_is_the_schedules_and_the_engines(cell: Cell, paced_server: PacedServer) -> None:
    cell.folder.mkdir()
    stream_path(cell.folder, 7).write_bytes(b"of an earlier, killed replay")
    cell.replay(replace(ONE_SHOT, requests=1), paced_server.url(), ignore_eos=True, min_tokens=6)
    (entry,) = paced_server.log(1)
    assert len(cell.rows()) == 1
    facts = json.loads((cell.folder / "schedule.jsonl").read_text().splitlines()[1])
    corpus = [int(token) for token in facts["corpus"].split(",")]
    ((start, count),) = cell.sessions()["window-00000"]["turns"][0]["new"]
    prompt = corpus[start : start + count]
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
    "text-only": {"tokens_estimated": False, "event_tokens": None},
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
        load = replace(ONE_SHOT, arrival=closed(1), requests=2 * len(behaviours))
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
        assert sum(row["event_tokens"] or [1] * len(row["event_us"])) == row["output_tokens"] == 6
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
        assert row["sent_ns"] + 1000 * row["event_us"][-1] <= row["ended_ns"] < row["server_ended_ns"]


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
    load = replace(ONE_SHOT, arrival={"kind": "poisson", "rate_rps": 20.0}, requests=12, warmup_requests=3)
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
    cell.replay(replace(ONE_SHOT, requests=12, arrival=closed(3)), paced_server.url())
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


def pids(cell: Cell) -> list[int]:
    return [process.pid for process in cell.processes()]


def test_a_killed_client_is_an_error_that_keeps_what_there_is(cell: Cell, paced_server: PacedServer) -> None:
    thread = cell.once_under_way(lambda: os.kill(pids(cell)[0], signal.SIGKILL), requests=4)
    with pytest.raises(LaunchError, match=r"load client died.*SIGKILL"):
        cell.replay(replace(ONE_SHOT, requests=12), paced_server.url("slow"))
    thread.join()
    rows = cell.rows()
    assert len(rows) == 12, "every planned request has its row"
    errors = [row["error"] for row in rows]
    assert set(errors) == {None, "client_lost", "not_sent"}
    assert errors.count("client_lost") == 2
    for row in rows:
        assert (row["sent_ns"] is None) == (row["error"] == "not_sent")


def test_a_terminated_client_records_what_was_under_way_as_aborted(cell: Cell, paced_server: PacedServer) -> None:
    thread = cell.once_under_way(lambda: os.kill(pids(cell)[0], signal.SIGTERM), wait_s=0.7)
    with pytest.raises(LaunchError, match="load client died"):
        cell.replay(replace(ONE_SHOT, requests=12), paced_server.url("slow"))
    thread.join()
    rows = cell.rows()
    aborted = [row for row in rows if row["error"] == "aborted"]
    assert len(aborted) == 2
    assert all(row["event_us"] for row in aborted), "what had arrived is kept"
    assert {row["error"] for row in rows} == {"aborted", "not_sent"}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_replay_that_is_told_to_stop_ends_early_and_that_is_no_fault(
    processes: int, cell: Cell, paced_server: PacedServer
) -> None:
    thread = cell.once_under_way(cell.stop.set, wait_s=0.7)
    report = cell.replay(replace(ONE_SHOT, requests=12), paced_server.url("slow"), ClientOptions(processes=processes))
    thread.join()
    assert not cell.processes()
    rows = cell.rows()
    assert (len(rows), report.window_requests, report.client.lost_workers) == (12, 12, ())
    assert {row["error"] for row in rows} == {"aborted", "not_sent"}
    assert sum(row["sent_ns"] is not None for row in rows) == 2


def test_a_client_that_waits_for_its_next_arrival_ends_at_once(cell: Cell, paced_server: PacedServer) -> None:
    load = replace(ONE_SHOT, arrival={"kind": "constant", "rate_rps": 0.02}, requests=3)
    thread = cell.once_under_way(lambda: os.kill(pids(cell)[0], signal.SIGTERM), requests=1)
    with pytest.raises(LaunchError, match="load client died"):
        cell.replay(load, paced_server.url())
    thread.join()
    assert [row["error"] for row in cell.rows()] == [None, "not_sent", "not_sent"]
    assert SpoolReader(cell.folder, 3).workers[0].client["complete"] is False


def test_stopping_the_harness_stops_the_client_and_keeps_the_record(cell: Cell, paced_server: PacedServer) -> None:
    class Stop(BaseException):
        pass

    def stop(done: int, total: int) -> None:
        if done:
            raise Stop

    cell.note = stop  # type: ignore[method-assign]
    with pytest.raises(Stop):
        cell.replay(replace(ONE_SHOT, requests=12), paced_server.url("slow"))
    rows = cell.rows()
    assert len(rows) == 12 and any(row["error"] is None for row in rows)
    assert not cell.processes()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_record_that_outgrows_its_room_raises_storage_error(
    processes: int, cell: Cell, paced_server: PacedServer
) -> None:
    """The file size limit stands for a full disk: the client's writes fail in the middle of the run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    load = replace(ONE_SHOT, requests=200, arrival=closed(8))
    path = cell.schedule(load)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        with pytest.raises(StorageError, match=r"the load client can't write to .*File too large.* is intact"):
            cell.replay_schedule(path, load, paced_server.url("split"), ClientOptions(processes=processes))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not cell.processes()


def test_a_record_that_can_not_be_begun_raises_storage_error(cell: Cell, paced_server: PacedServer) -> None:
    (cell.folder / "stream-0.bin").mkdir(parents=True)
    with pytest.raises(StorageError, match=str(cell.folder)):
        cell.replay(ONE_SHOT, paced_server.url())


def test_a_key_goes_to_the_server_and_into_no_record(cell: Cell, paced_server: PacedServer) -> None:
    cell.env = {"KVMARK_API_KEY": "sk-very-secret"}
    cell.replay(ONE_SHOT, paced_server.url())
    assert {entry["authorization"] for entry in paced_server.log(4)} == {"Bearer sk-very-secret"}
    for path in cell.folder.iterdir():
        assert b"very-secret" not in path.read_bytes()


def test_a_fault_of_the_client_itself_is_no_measurement(cell: Cell) -> None:
    with pytest.raises(LaunchError, match="form http://host:port"):
        cell.replay(ONE_SHOT, "ftp://127.0.0.1")


def test_locusts_variables_and_files_change_nothing(
    cell: Cell, paced_server: PacedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell.folder.mkdir()
    settings = "run-time = 1\nstop-timeout = 7\nusers = 99\nhost = http://127.0.0.1:9\nweird-option = 1\n"
    for path in (tmp_path / ".locust.conf", cell.folder / "locust.conf"):
        path.write_text(settings)
    (cell.folder / "pyproject.toml").write_text('[tool.locust]\nexclude-tags = ["x"]\nrun-time = 1\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in (
        ("LOCUST_RUN_TIME", "1"), ("LOCUST_HOST", "http://127.0.0.1:9"), ("LOCUST_USERS", "50"),
        ("LOCUST_MODE_MASTER", "true"), ("LOCUST_SKIP_MONKEY_PATCH", "1"), ("LOCUST_USER_CLASSES", "Nobody"),
        ("LOCUST_CSV", str(tmp_path / "csv")), ("GEVENT_LOOP", "nonsense"),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
    report = cell.replay(ONE_SHOT, paced_server.url("slow"))  # longer than the run time of the variables
    assert (report.window_requests, report.failed_requests) == (4, 0)


CLOCK_STEP = """
import os, time
_time, _time_ns = time.time, time.time_ns
def _step():
    return 3600 if os.path.exists(os.environ["STEP_FILE"]) else 0
time.time = lambda: _time() + _step()
time.time_ns = lambda: _time_ns() + _step() * 10**9
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_a_step_of_the_wall_clock_changes_nothing(
    processes: int, cell: Cell, paced_server: PacedServer, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(CLOCK_STEP)
    root = Path(__file__).parents[3]
    cell.env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)]), "STEP_FILE": str(tmp_path / "step")}
    load = replace(ONE_SHOT, arrival={"kind": "poisson", "rate_rps": 4.0}, requests=12)
    thread = cell.once_under_way((tmp_path / "step").touch, requests=4, wait_s=0)
    report = cell.replay(load, paced_server.url("slow"), ClientOptions(processes=processes))
    thread.join()
    rows = cell.rows()
    assert (report.window_requests, report.failed_requests) == (12, 0)
    log = {entry["request_id"]: entry for entry in paced_server.log(12)}
    for row in rows:
        entry = log[row["request_id"]]
        assert row["scheduled_ns"] <= row["sent_ns"] <= entry["arrived_ns"] <= row["ended_ns"]
        assert row["ended_ns"] - row["scheduled_ns"] < 20e9
    for worker in SpoolReader(cell.folder, 12).workers:
        stepped_ns = worker.client["clock"]["wall_ns"] - worker.hello["clock"]["wall_ns"]
        assert stepped_ns > 3500e9, "the clock did step in the middle"


def test_a_chat_sends_messages_and_says_back_what_was_said(cell: Cell, paced_server: PacedServer) -> None:
    cell.replay(replace(SESSIONS, api="chat", warmup_requests=0), paced_server.url("chat"))
    log = {entry["request_id"]: entry["body"]["messages"] for entry in paced_server.log(14)}
    rows = cell.rows()
    assert [row["error"] for row in rows] == [None] * 14
    assert {row["turn"] for row in rows} > {0}
    text = {row["request_id"]: row["text"] for row in rows}
    for row in rows:
        turns = cell.sessions()[row["session_id"]]["turns"][: row["turn"] + 1]
        asked = [turn["text"] for turn in turns]
        said = [text[f"{row['session_id']}-{index}"] for index in range(row["turn"])]
        expected = [{"role": "user", "content": asked[0]}]
        for answer, question in zip(said, asked[1:], strict=True):
            expected += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
        assert log[row["request_id"]] == expected


def test_tenants_keep_their_own_concurrency_and_rate(cell: Cell, paced_server: PacedServer) -> None:
    load = Load(
        tenants={
            "chats": Tenant(
                {"kind": "synthetic", "input_tokens_mean": 30, "output_tokens_mean": 6}, closed(3), requests=12
            ),
            "jobs": Tenant(
                {"kind": "synthetic", "input_tokens_mean": 60, "output_tokens_mean": 3},
                {"kind": "constant", "rate_rps": 40.0},
                requests=10,
            ),
        },
        warmup_requests=0,
        timeout_s=20,
    )
    report = cell.replay(load, paced_server.url(), ClientOptions(processes=2))
    rows = cell.rows()
    assert (len(rows), report.failed_requests) == (22, 0)
    levels = most_at_once([row for row in rows if row["tenant"] == "chats"])
    assert levels == 3
    due = sorted(row["scheduled_ns"] for row in rows if row["tenant"] == "jobs")
    assert {later - earlier for earlier, later in pairwise(due)} == {25_000_000}
    client = report.client
    assert client.asked_concurrency == 3 and client.asked_rps == pytest.approx(40)


def most_at_once(rows: list[dict[str, Any]]) -> int:
    """Most requests under way at the same moment."""
    changes = sorted([(row["sent_ns"], 1) for row in rows] + [(row["ended_ns"], -1) for row in rows])
    return max(accumulate(change for _, change in changes))


@pytest.mark.parametrize("key", ["web_port", "bind_port"])
def test_a_port_that_is_taken_is_named(cell: Cell, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ClientOptions(**{key: taken.getsockname()[1]}, workers=int(key == "bind_port"))  # type: ignore[arg-type]
        with pytest.raises(LaunchError, match=rf"^client\.{key}: can't listen on .*: Address already in use"):
            cell.replay(ONE_SHOT, "http://127.0.0.1:9", options)
