"""The command line: exit codes, and errors that a user can act on, before anything is launched."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.app import EXIT_CONFIG, EXIT_STORAGE
from bench.identity import config_sha256, file_hashes
from bench.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_plan_is_printed_and_nothing_is_left_behind(tmp_path: Path) -> None:
    done = bench("plan", "scenario=long-context", f"results_dir={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "working set ÷ pool" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "strategy=kv-fp9"], ["kv-fp9", "kv-fp8"]),
        (["run", "scenario.bloks=2"], ["bloks", "blocks"]),
        (["scenario=nothing"], ["nothing", "smoke"]),
        (["run", "--multirun"], ["--multirun", "key=value"]),
        (["report", "results"], ["manifest.json"]),
        (["run", "backend=[vllm", "scenario=smoke"], ["override"]),
        (["run", "precision=extreme"], ["precision", "high"]),
    ],
)
def test_what_is_wrong_is_named_without_a_traceback(arguments: list[str], words: list[str]) -> None:
    done = bench(*arguments)
    assert done.returncode == EXIT_CONFIG, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize("key", ["scenario.client.cores", "scenario.settings.cores"])
def test_cores_that_the_machine_lacks_are_refused_before_anything_is_launched(key: str, tmp_path: Path) -> None:
    one = ("scenario=smoke", "backend=llama-cpp", "strategy=baseline")
    done = bench("run", *one, f"{key}=[0,4095]", f"results_dir={tmp_path}")
    assert done.returncode == EXIT_CONFIG, done.stdout + done.stderr
    assert f"error: {key}: this machine has no core 4095" in done.stderr
    assert not list(tmp_path.glob("*/*"))


def test_a_results_folder_without_room_is_refused_before_the_start() -> None:
    many = "load.sharegpt-smoke.requests=2000000000"
    done = bench("run", "scenario=smoke", many, "scenario.budget_minutes=null", "results_dir=/tmp")
    assert done.returncode == EXIT_STORAGE, done.stdout + done.stderr
    assert "free" in done.stderr


def test_auto_becomes_a_model_and_the_users_words_win_over_presets() -> None:
    overrides, config = resolve(["scenario=long-context", "precision=high", "scenario.blocks=4", "backend=llama-cpp"])
    assert "auto" not in config.model
    assert list(config.backend) == ["llama-cpp"]
    assert config.scenario.blocks == 4
    assert config.load["sharegpt-long"].requests >= 368
    assert any(text.startswith("model=[") for text in overrides)


def test_a_backend_key_reaches_the_only_backend() -> None:
    _, config = resolve(["scenario=smoke", "backend=llama-cpp", "backend.port=8123", "backend.env.A=b"])
    assert config.backend["llama-cpp"].port == 8123
    assert config.backend["llama-cpp"].env == {"A": "b"}


def test_another_file_under_the_same_name_is_another_run(tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    hashes = []
    for tokens in (50, 51):
        rows = "".join(f"{second},{tokens},9\n" for second in range(80))
        trace.write_text(f"arrival_s,context_tokens,generated_tokens\n{rows}")
        _, config = resolve(["load=trace-azure", f"load.trace-azure.workload.path={trace}"])
        assert list(file_hashes(config)) == [f"file {trace}"]
        hashes.append(config_sha256(config))
    assert len(set(hashes)) == 2
