"""Questions beside a load, with everything real but the engine: Locust, lm-eval, sockets, processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from harness.accuracy import Task, run_task
from harness.accuracy.under_load import BackgroundLoad
from harness.backends import backend_class
from harness.cell import Served
from harness.errors import ConfigError
from harness.model import Model
from harness.server import ServerSpec, free_port, serve
from harness.traffic.client_options import ClientOptions
from harness.traffic.load import Load

TASK = Task(context_tokens=400, documents=2, questions=4, under_load="busy", answer_tokens=4)
LOAD = Load(
    workload={"kind": "synthetic", "input_tokens_mean": 40, "output_tokens_mean": 20},
    arrival={"kind": "closed", "concurrency": 2},
    requests=6,
    warmup_requests=2,
    timeout_s=20,
)


class Silent:
    """Nobody looks on."""

    def say(self, text: str) -> None:
        pass

    def step(self, text: str) -> None:
        pass

    def requests(self, done: int, total: int) -> None:
        raise AssertionError("the load beside the questions is no cell")


@contextmanager
def served(model: Model, folder: Path, behaviour: str = "") -> Iterator[Served]:
    port = free_port()
    argv = [sys.executable, str(Path(__file__).with_name("busy_server.py")), str(port), "busy-1", behaviour]
    backend = backend_class("llama-cpp")()
    with serve(ServerSpec(argv, folder / "engine.log", port, "busy-1")) as server:
        yield Served(
            server=server,
            backend=backend,
            model=model,
            context_tokens=1024,
            capacity_tokens=None,
            run_seed=1,
            record_dir=folder / "processes",
            state=lambda: backend.state(server.metrics_text()),
            client=ClientOptions(),
            watch=Silent(),
        )


def asked(at: Served, out_dir: Path, load: Load = LOAD, task: Task = TASK, seed: int = 7) -> dict[str, Any]:
    return run_task(
        task,
        backend=at.backend,
        base_url=at.server.base_url,
        served_name=at.server.served_name,
        model=at.model,
        context_tokens=at.context_tokens,
        seed=seed,
        out_dir=out_dir,
        say=at.watch.step,
        record_dir=at.record_dir,
        background=BackgroundLoad("busy", load, at, seed),
    )


def clients(folder: Path) -> list[int]:
    """Load clients whose records go to a folder."""
    found = psutil.process_iter(["pid", "cmdline"])
    return [one.info["pid"] for one in found if any(str(folder) in word for word in one.info["cmdline"] or ())]


def rows_of(out_dir: Path) -> list[list[dict[str, Any]]]:
    return [pq.read_table(folder / "requests.parquet").to_pylist() for folder in sorted((out_dir / "load").iterdir())]


def prompts_of(out_dir: Path) -> list[str]:
    """First prompts of every session of every round, as the schedule has them."""
    schedules = sorted(out_dir.glob("load/*/schedule.jsonl"))
    lines = [json.loads(line) for path in schedules for line in path.read_text().splitlines()[2:]]
    return [json.dumps(line["turns"][0]["new"]) for line in lines]


def test_the_load_goes_on_until_the_questions_are_answered_and_then_stops(model: Model, tmp_path: Path) -> None:
    with served(model, tmp_path) as at:
        results = asked(at, tmp_path / "retrieval")
        assert at.state().requests_running == 0, "nothing is under way any more"
    assert (results["state"], results["n"]) == ("measured", 8)
    assert "under load" in results["exercises"]
    load = results["under_load"]
    assert (load["load"], load["error"], load["failed_requests"]) == ("busy", None, {})
    assert load["share_of_questions_under_load"] >= 0.9 and not results["notes"]
    assert load["load_requests_mean"] > 0 and load["requests_running_mean"] > 1
    assert load["preemptions"] is None, "not zero where the engine says nothing"
    rounds = rows_of(tmp_path / "retrieval")
    assert load["rounds"] == len(rounds)
    assert all(row["error"] is None for rows in rounds[:-1] for row in rows)
    assert {row["error"] for row in rounds[-1]} <= {None, "aborted", "not_sent"}
    samples = [json.loads(line) for line in (tmp_path / "retrieval" / "samples.jsonl").read_text().splitlines()]
    first_sent = min(row["sent_ns"] for row in rounds[0] if row["sent_ns"])
    assert first_sent < min(sample["asked_ns"] for sample in samples), "the load comes first"
    assert not clients(tmp_path) and not list((tmp_path / "processes").iterdir())
    assert not list(tmp_path.glob("retrieval/load/*/cell.json"))
    prompts = prompts_of(tmp_path / "retrieval")
    assert len(set(prompts)) == len(prompts), "no prompt is sent twice, in this round or another"
    with served(model, tmp_path) as at:
        again = asked(at, tmp_path / "again" / "retrieval")
    assert again["asked_sha256"] == results["asked_sha256"]
    assert prompts_of(tmp_path / "again" / "retrieval")[:8] == prompts[:8], "the same for every deployment of a block"


def test_a_load_that_fails_is_told_and_fails_no_task(model: Model, tmp_path: Path) -> None:
    with served(model, tmp_path, "refuses-loads") as at:
        results = asked(at, tmp_path / "retrieval")
    assert (results["state"], results["n"]) == ("measured", 8)
    assert "requests of load busy failed" in " ".join(results["notes"])
    assert results["under_load"]["failed_requests"]["http_status"] > 0


def vars_of(load: Load) -> dict[str, Any]:
    return {key: value for key, value in vars(load).items() if not key.startswith("_")}


def test_a_load_that_cannot_be_made_leaves_the_questions_unasked(model: Model, tmp_path: Path) -> None:
    too_long = {"kind": "synthetic", "input_tokens_mean": 4000, "output_tokens_mean": 20}
    with served(model, tmp_path) as at:
        results = asked(at, tmp_path / "retrieval", Load(**{**vars_of(LOAD), "workload": too_long}))
    assert (results["state"], results["score"]) == ("failed", None)
    assert "load busy did not get under way" in results["reason"]


def under_way(out_dir: Path, act: Callable[[], object]) -> threading.Thread:
    """Do something once lm-eval asks."""

    def wait() -> None:
        log, deadline = out_dir / "lm_eval.log", time.monotonic() + 120
        while time.monotonic() < deadline and not (log.exists() and "Running generate_until" in log.read_text()):
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


MANY = Task(context_tokens=400, documents=20, questions=8, under_load="busy", answer_tokens=4)


def test_an_engine_that_dies_ends_both_with_a_reason(model: Model, tmp_path: Path) -> None:
    with served(model, tmp_path) as at:
        killer = under_way(tmp_path / "retrieval", lambda: os.kill(at.server.pids()[0], signal.SIGKILL))
        results = asked(at, tmp_path / "retrieval", task=MANY)
        killer.join()
    assert results["state"] == "failed"
    assert "the connection broke" in results["reason"]
    assert not clients(tmp_path) and not list((tmp_path / "processes").iterdir())


STARTS = """
import sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_under_load import LOAD, MANY, asked, served
from harness.model import Model, ModelShape
model = Model("tiny", ModelShape(), {path!r}, None, "", "")
with served(model, Path({folder!r})) as at:
    asked(at, Path({folder!r}) / "retrieval", task=MANY)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_when_the_harness_ends_in_the_middle(
    number: signal.Signals, model: Model, tmp_path: Path
) -> None:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[3])]
    program = STARTS.format(paths=paths, path=model.path, folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as harness:
        killer = under_way(tmp_path / "retrieval", lambda: harness.send_signal(number))
        killer.join()
        harness.wait(60)
    deadline = time.monotonic() + 30
    while clients(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not clients(tmp_path)
    assert list(tmp_path.glob("retrieval/load/000/stream-*.bin")), "what came is kept"


def test_a_load_must_be_handed_over_where_one_is_named(model: Model, tmp_path: Path) -> None:
    with served(model, tmp_path) as at, pytest.raises(ConfigError, match="under_load: None"):
        asked(at, tmp_path / "retrieval", task=Task(context_tokens=400))
