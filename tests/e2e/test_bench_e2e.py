"""The main job on real engines: a whole run, and runs that are killed, interrupted or out of room in the middle."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
QUICK = (
    "scenario=smoke",
    "backend=llama-cpp",
    "strategy=baseline",
    "accuracy=[]",
    "scenario.settings.context_tokens=1024",
    "load.sharegpt-smoke.requests=8",
)
"""Two launches (A, A′) of the engine that starts fastest."""
SQUATTER = """
import http.server
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def bench(results: Path, *overrides: str) -> subprocess.Popen[str]:
    """Start a run whose results and reports lie below `results`, with its own process group."""
    argv = [sys.executable, "-m", "bench", *overrides, f"results_dir={results}", f"reports_dir={results / 'reports'}"]
    return subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def ended(process: subprocess.Popen[str], timeout_s: float = 900) -> str:
    """Output of a run that must end by itself."""
    output, _ = process.communicate(timeout=timeout_s)
    return output


def the_run(results: Path) -> Path:
    (manifest,) = results.glob("*/*/manifest.json")
    return manifest.parent


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def engines_of(results: Path) -> list[psutil.Process]:
    """Living processes that belong to runs below `results`: their files lie there."""
    found = []
    for process in psutil.process_iter():
        try:
            opened = [f.path for f in process.open_files()]
            if str(results) in " ".join(process.cmdline()) or any(p.startswith(str(results)) for p in opened):
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_for(condition: Callable[[], Any], timeout_s: float = 240) -> Any:
    """Wait until something is so; what it was."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come about in time")


def load_is_running(results: Path) -> bool:
    return any(results.glob("*/*/blocks/0/*/cells/*/stream-*.bin"))


def all_gone(results: Path) -> bool:
    return not engines_of(results)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The smoke scenario, run once: both engines, five measured launches and one check."""
    results = tmp_path_factory.mktemp("smoke")
    process = bench(results, "scenario=smoke")
    output = ended(process, 1500)
    assert process.returncode == 0, output
    return results, output


def test_smoke_measures_every_deployment_and_says_what_it_cannot(smoke: tuple[Path, str]) -> None:
    results, output = smoke
    run = the_run(results)
    assert read(run / "manifest.json")["status"] == "complete"
    states = {d["id"]: d["state"] for d in read(run / "analysis.json")["deployments"]}
    model = next(iter(read(run / "manifest.json")["models"]))
    assert states[f"llama-cpp+{model}+baseline"] == "measured"
    assert states[f"llama-cpp+{model}+kv-int8"] == "measured"
    assert states[f"vllm+{model}+baseline"] == "measured"
    assert states[f"vllm+{model}+kv-fp8"] == "measured"
    assert states[f"vllm+{model}+kv-int8"] == "output broken", "vLLM 0.32's int8 cache on a CPU answers garbage"
    assert states[f"llama-cpp+{model}+kv-fp8"] == "unsupported"
    assert "OUTPUT BROKEN" in output.upper()
    assert "one block" in output
    assert "\x1b" not in output, "no control characters where there is no terminal"


def test_smoke_leaves_tables_a_page_and_no_process(smoke: tuple[Path, str]) -> None:
    results, _ = smoke
    run = the_run(results)
    assert any((run / "tables").glob("*.csv"))
    assert any((run / "tables").glob("*.md"))
    (page,) = results.glob("reports/smoke/*.html")
    assert "http://" not in page.read_text().replace("http://www.w3.org", "").replace("http://127.0.0.1", "")
    assert all_gone(run)


def test_a_narrow_cache_holds_twice_the_tokens_in_the_same_bytes(smoke: tuple[Path, str]) -> None:
    results, _ = smoke
    effects = {}
    for file in the_run(results).glob("blocks/0/vllm+*/launch.json"):
        launch = read(file)
        effects[launch["strategy"]] = launch["effect"]
    assert effects["kv-fp8"]["capacity_tokens"] == 2 * effects["baseline"]["capacity_tokens"]
    assert effects["kv-fp8"]["pool_bytes"] == effects["baseline"]["pool_bytes"]


def test_the_numbers_of_a_cell_follow_from_its_parquet_file(smoke: tuple[Path, str]) -> None:
    """Recomputed row by row, without the project's own code."""
    results, _ = smoke
    run = the_run(results)
    deployment = next(
        d for d in read(run / "analysis.json")["deployments"] if d["id"].startswith("vllm") and d["ranked"]
    )
    (cell,) = deployment["cells"].values()
    (folder,) = (run / "blocks" / "0" / deployment["id"] / "cells").iterdir()
    rows = [r for r in pq.read_table(folder / "requests.parquet").to_pylist() if r["phase"] == "window"]
    assert all(r["error"] is None for r in rows)
    tokens = [sum(r["event_tokens"] or [1] * len(r["event_us"])) for r in rows]  # null: one token an event
    assert [r["output_tokens"] for r in rows] == [r["planned_output_tokens"] for r in rows] == tokens
    seconds = (max(r["ended_ns"] for r in rows) - min(r["sent_ns"] for r in rows)) / 1e9
    tokens_per_s = sum(r["output_tokens"] for r in rows) / seconds
    ttft_ms = [r["event_us"][0] / 1e3 for r in rows]  # after the send, from which a closed loop counts
    (statistics,) = [s for s in cell["launches"] if s["block"] == 0]
    assert math.isclose(statistics["values"]["output_tokens_per_s"], tokens_per_s)
    assert math.isclose(statistics["values"]["ttft_p50_ms"], np.percentile(ttft_ms, 50, method="inverted_cdf"))


def test_the_same_questions_went_to_every_deployment(smoke: tuple[Path, str]) -> None:
    results, _ = smoke
    items = {
        tuple(sorted((s["item_id"], s["prompt_sha256"]) for s in map(json.loads, file.read_text().splitlines())))
        for file in the_run(results).glob("blocks/0/*/accuracy/*/samples.jsonl")
    }
    schedules = {read(file)["schedule_sha256"] for file in the_run(results).glob("blocks/0/*/cells/*/cell.json")}
    assert len(items) == 1
    assert len(schedules) == 1


def output_check_is_running(results: Path) -> bool:
    """The engine is up, and neither its check nor a load has left anything yet."""
    logs = list(results.glob("*/*/blocks/0/*/engine.log"))
    return bool(logs) and "task" in logs[0].read_text(errors="replace")


@pytest.mark.parametrize(
    ("victim", "moment"),
    [
        ("llama_cpp_launcher.py", output_check_is_running),
        ("llama_cpp_launcher.py", load_is_running),
        ("locustfile.py", load_is_running),
    ],
)
def test_a_killed_engine_or_client_costs_its_launch_only_and_the_exit_code(
    tmp_path: Path, victim: str, moment: Callable[[Path], bool]
) -> None:
    process = bench(tmp_path, *QUICK)
    wait_for(lambda: moment(tmp_path))
    killed = wait_for(lambda: [p for p in engines_of(tmp_path) if is_program(p, victim)])
    killed[0].kill()
    output = ended(process)
    assert process.returncode == 1, output
    assert "Traceback" not in output
    run = the_run(tmp_path)
    launches = [read(file) for file in run.glob("blocks/0/*/launch.json")]
    assert sorted(launch["state"] for launch in launches) == ["failed", "measured"]
    failed = next(launch for launch in launches if launch["state"] == "failed")
    assert "SIGKILL" in failed["reason"]
    if moment is load_is_running:
        assert any(run.glob(f"blocks/0/{failed['deployment']}*/cells/*/requests.parquet")), "what was measured is kept"
    assert "broken" not in {d["state"] for d in read(run / "analysis.json")["deployments"]}
    assert all_gone(run)


def is_program(process: psutil.Process, name: str) -> bool:
    """Whether a process runs the Python file `name` itself; its guardian only mentions it."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return any(word.endswith(name) for word in words) and not any("guardian" in word for word in words)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_an_incomplete_run_and_no_process(tmp_path: Path, number: signal.Signals) -> None:
    process = bench(tmp_path, *QUICK)
    wait_for(lambda: load_is_running(tmp_path))
    process.send_signal(number)
    output = ended(process, 120)
    assert process.returncode == 130, output
    assert "incomplete" in output
    assert "Traceback" not in output
    assert read(the_run(tmp_path) / "manifest.json")["status"] == "incomplete"
    assert all_gone(the_run(tmp_path))


def test_a_killed_harness_leaves_no_process_and_is_resumed(tmp_path: Path) -> None:
    process = bench(tmp_path, *QUICK)
    wait_for(lambda: load_is_running(tmp_path))
    process.kill()
    process.communicate()
    wait_for(lambda: all_gone(the_run(tmp_path)), 60)
    before = {p.name for p in (the_run(tmp_path) / "blocks").iterdir()}
    assert before == {"0"}
    again = bench(tmp_path, *QUICK)
    output = ended(again)
    assert again.returncode == 0, output
    assert "resuming" in output
    run = the_run(tmp_path)
    assert {p.name for p in (run / "blocks").iterdir()} == {"0", "0.interrupted-1"}
    assert read(run / "manifest.json")["status"] == "complete"
    assert len(list(run.glob("blocks/0/*/launch.json"))) == 2, "A and A′ are measured again together"


def test_a_taken_port_is_named_with_its_owner_and_never_measured(tmp_path: Path) -> None:
    squatter = subprocess.Popen([sys.executable, "-c", SQUATTER], stdout=subprocess.PIPE, text=True)
    try:
        assert squatter.stdout is not None
        port = int(squatter.stdout.readline())
        process = bench(tmp_path, *QUICK, f"backend.port={port}")
        output = ended(process)
        assert process.returncode == 1, output
        launches = [read(file) for file in the_run(tmp_path).glob("blocks/0/*/launch.json")]
        assert all(launch["state"] == "failed" and str(squatter.pid) in launch["reason"] for launch in launches)
        assert not list(tmp_path.glob("*/*/blocks/0/*/cells/*"))
    finally:
        squatter.kill()
        squatter.wait()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 80 MB; needs the right to mount."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_the_run_with_its_reason_and_loses_nothing(small_disk: Path) -> None:
    process = bench(small_disk, *QUICK)
    first = wait_for(lambda: next(iter(small_disk.glob("*/*/blocks/0/*/launch.json")), None))
    kept = first.read_bytes()
    with open(small_disk / "filler", "wb") as filler:
        try:
            while True:
                filler.write(os.urandom(1 << 20))
                filler.flush()
        except OSError:
            pass
    output = ended(process, 300)
    assert process.returncode == 4, output
    assert "no space left" in output.lower()
    assert "Traceback" not in output
    assert first.read_bytes() == kept
    assert (
        not list(small_disk.glob("*/*/blocks/0/block.json"))
        or read(next(iter(small_disk.glob("*/*/blocks/0/block.json"))))["status"] == "running"
    )
    assert all_gone(small_disk)


def test_a_second_run_on_a_busy_machine_is_refused(tmp_path: Path) -> None:
    first = bench(tmp_path / "a", *QUICK)
    try:
        wait_for(lambda: load_is_running(tmp_path / "a"))
        second = bench(tmp_path / "b", *QUICK)
        output = ended(second, 120)
        assert second.returncode == 2, output
        assert "another run is measuring on this machine" in output
    finally:
        first.send_signal(signal.SIGINT)
        ended(first, 120)
