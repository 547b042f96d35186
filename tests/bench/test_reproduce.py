"""A run measured again: which numbers came back, which didn't, and which can't be told."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench import resolve, store
from bench.identity import config_sha256, reproduction_sha256
from bench.reproduce import reproduction
from bench.reproduce_view import write
from bench.reproduction import Number, Reproduction
from bench.sides import Named, named
from harness.errors import ConfigError
from tests.bench.run_folder import effect, request, steady
from tests.bench.runs import BASE, FP8, spec
from tests.bench.two_runs import Launches, alter, run

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "results" / "example"


def number(result: Reproduction, deployment: str, metric: str, kind: str = "speed") -> Number:
    (found,) = [n for n in result.numbers if (n.deployment, n.metric, n.kind) == (deployment, metric, kind)]
    return found


def noisy(launches: Launches) -> None:
    """Launches of one deployment vary by some per cent, as real ones do."""
    for (block, deployment, replica), one in launches.items():
        if deployment == FP8:
            faster = (260, 268, 255)[block]
            launches[block, deployment, replica] = replace(one, rows=steady(ttft_ms=faster * (1 + 0.01 * block)))


def as_fast_as(ttft_ms: float, itl_ms: float = 20) -> Callable[[Launches], None]:
    def change(launches: Launches) -> None:
        noisy(launches)
        for block in range(3):
            launches[block, FP8, 1] = replace(
                launches[block, FP8, 1], rows=steady(ttft_ms=ttft_ms * (1 + 0.01 * block), itl_ms=itl_ms)
            )

    return change


@pytest.mark.parametrize("copied", [False, True])
def test_a_run_reproduces_itself(copied: bool, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "copy")
    second = tmp_path / "copy" if copied else EXAMPLE
    result = reproduction(named(str(EXAMPLE), "run"), named(str(second), "with"))
    assert {n.verdict for n in result.numbers} == {"reproduced"}
    assert {n.kind for n in result.numbers} == {"state", "memory", "speed", "effect", "accuracy"}
    assert "same text" in number(result, "vllm+smollm2-135m+kv-fp8", "accuracy (generation)", "accuracy").reason


def test_a_number_inside_its_interval_came_back_and_one_outside_did_not(tmp_path: Path) -> None:
    first = run(tmp_path / "a", launches=noisy)
    near = reproduction(first, run(tmp_path / "b", launches=as_fast_as(262)))
    far = reproduction(first, run(tmp_path / "c", launches=as_fast_as(420, 30)))
    for kind in ("speed", "effect"):
        held, missed = number(near, FP8, "output_tokens_per_s", kind), number(far, FP8, "output_tokens_per_s", kind)
        assert held.verdict == "reproduced"
        assert missed.verdict == "not reproduced"
        for one in (held, missed):
            assert one.low is not None and one.high is not None and one.width is not None
            assert (one.low <= one.new <= one.high) == (one.verdict == "reproduced")
            assert one.width < 25
            assert (one.old_blocks, one.new_blocks) == (3, 3)
    assert number(far, BASE, "output_tokens_per_s").verdict == "reproduced"


def test_an_interval_that_is_too_wide_decides_nothing(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", launches=noisy), run(tmp_path / "b", launches=as_fast_as(262))
    found = number(reproduction(first, second, width_pct=0.01), FP8, "output_tokens_per_s")
    assert found.verdict == "inconclusive"
    assert "too wide (beyond ± 0.01 %)" in found.reason


def test_one_block_decides_nothing_that_varies(tmp_path: Path) -> None:
    result = reproduction(run(tmp_path / "a", blocks=1), run(tmp_path / "b", blocks=1))
    varying = [n for n in result.numbers if n.kind in ("speed", "effect", "accuracy")]
    assert varying
    assert {n.verdict for n in varying} == {"inconclusive"}
    assert all("one block gives no verdict" in n.reason for n in varying)


def failing(blocks: int) -> Callable[[Launches], None]:
    """A quarter of the requests fails, so that the P90 is infinite."""

    def change(launches: Launches) -> None:
        for block in range(blocks):
            rows = steady(ttft_ms=260)
            rows[3:6] = [request(900 + i, error="http", events_ms=[], ended_ms=60) for i in range(3)]
            launches[block, FP8, 1] = replace(launches[block, FP8, 1], rows=rows)

    return change


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (0, 3, "not reproduced"),
        (3, 0, "not reproduced"),
        (0, 2, "inconclusive"),
        (3, 2, "inconclusive"),
        (3, 3, "reproduced"),
    ],
)
def test_an_infinite_latency_is_in_no_interval(first: int, second: int, verdict: str, tmp_path: Path) -> None:
    result = reproduction(run(tmp_path / "a", launches=failing(first)), run(tmp_path / "b", launches=failing(second)))
    found = number(result, FP8, "ttft_p90_ms")
    assert found.verdict == verdict and "is not bounded in" in found.reason


def test_the_file_says_what_each_verdict_rests_on(tmp_path: Path) -> None:
    result = reproduction(run(tmp_path / "a", launches=noisy), run(tmp_path / "b", launches=noisy))
    text = write(result)[1].read_text()
    assert all(words in text for words in ("| blocks", "| degrees of freedom", "95 % prediction interval; "))


def test_what_a_deployment_holds_is_equal_or_not(tmp_path: Path) -> None:
    def change(launches: Launches) -> None:
        for block in range(3):
            launches[block, FP8, 1].effect = effect("fp8_e4m3", 0.6)

    result = reproduction(run(tmp_path / "a"), run(tmp_path / "b", launches=change))
    assert number(result, FP8, "kv_bytes_per_token", "memory").verdict == "not reproduced"
    assert number(result, FP8, "kv_dtype", "memory").verdict == "reproduced"
    assert number(result, BASE, "kv_bytes_per_token", "memory").verdict == "reproduced"


def test_what_became_of_a_deployment_is_a_number_too(tmp_path: Path) -> None:
    def change(launches: Launches) -> None:
        launches[1, FP8, 1].effect = effect("bfloat16", 1.0, ["kv dtype is not fp8"])

    result = reproduction(run(tmp_path / "a"), run(tmp_path / "b", launches=change))
    state = number(result, FP8, "state", "state")
    assert (state.old, state.new, state.verdict) == ("measured", "not in effect", "not reproduced")
    assert number(result, FP8, "output_tokens_per_s").verdict == "not comparable"


def test_differences_stand_first_and_void_what_they_void(tmp_path: Path) -> None:
    other = alter(run(tmp_path / "b"), "manifest.json", "hardware", "cpu", value="another CPU")
    other = alter(other, "manifest.json", "engines", "vllm", "version", value="0.33.0")
    result = reproduction(run(tmp_path / "a"), other)
    assert {d.what for d, _ in result.differences} == {"hardware: cpu", "engine: version", "state"}
    assert {n.verdict for n in result.numbers if n.kind in ("speed", "effect")} == {"not comparable"}
    assert number(result, FP8, "exact", "accuracy").verdict == "reproduced"
    (data, page) = write(result)
    assert json.loads(data.read_text())["counts"]["not comparable"] > 0
    text = page.read_text()
    assert text.index("hardware: cpu") < text.index("## Numbers")


@pytest.mark.parametrize(("right", "verdict"), [(15, "reproduced"), (8, "not reproduced")])
def test_a_score_may_change_by_what_the_baseline_changes_of_itself(right: int, verdict: str, tmp_path: Path) -> None:
    def second(launches: Launches) -> None:
        for block in range(5):
            launches[block, FP8, 1].items = spec(block, right=right if block == 0 else 16).items
            if right < 15:
                launches[block, FP8, 1].items = spec(block, right=right).items

    a, b = run(tmp_path / "a", blocks=5), run(tmp_path / "b", blocks=5, launches=second)
    score = number(reproduction(a, b), FP8, "exact", "accuracy")
    assert score.verdict == verdict, score.reason
    assert "0 of 80" in score.method, "A against A′"
    assert score.width is not None and score.width < 10


def test_a_run_that_repeats_another_is_never_taken_for_an_ordinary_one(tmp_path: Path) -> None:
    _, config = resolve.resolve(["scenario=smoke", "backend=llama-cpp"])
    origins = [{"run": "r1", "path": "/a", "identity": {}}, {"run": "r2", "path": "/b", "identity": {}}]
    hashes = {config_sha256(config), *(reproduction_sha256(config, 3, origin) for origin in origins)}
    assert len(hashes | {reproduction_sha256(config, 2, origins[0])}) == 4
    assert reproduction_sha256(config, 3, dict(origins[0])) in hashes


def test_only_blocks_that_were_measured_from_the_first_on_are_repeated(tmp_path: Path) -> None:
    one = run(tmp_path)
    assert store.complete_blocks(one.path) == 3
    alter(one, "blocks/1/block.json", "status", value="running")
    assert store.complete_blocks(one.path) == 1


def test_a_run_without_a_complete_block_is_refused(tmp_path: Path) -> None:
    one = run(tmp_path)
    shutil.rmtree(one.path / "blocks")
    with pytest.raises(ConfigError, match="no complete block"):
        reproduction(one, Named(EXAMPLE))


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_finished_run_can_be_held_against_the_first_without_measuring(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "copy")
    done = bench("reproduce", str(EXAMPLE), f"with={tmp_path / 'copy'}")
    assert done.returncode == 0, done.stderr
    assert "reproduced" in done.stdout
    stored = json.loads((tmp_path / "copy" / "reproduction.json").read_text())
    assert (stored["schema_version"], stored["width_pct_max"]) == (1, 25.0)
    assert (tmp_path / "copy" / "tables" / "reproduction.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "run missing"),
        (("nowhere",), "run=nowhere is no run"),
        ((str(EXAMPLE), "reproduce.width_pct=-3"), "width_pct=-3 must be a number > 0"),
        ((str(EXAMPLE), "scenario.blocks=2"), "unknown key scenario.blocks; allowed: run, with, width_pct"),
        ((str(EXAMPLE), f"with={EXAMPLE}:vllm+smollm2-135m+kv-fp8"), "is no run"),
        ((str(EXAMPLE),), "config.yaml was written by another version of KVMark"),
    ],
)
def test_bad_arguments_and_runs_of_another_version_are_named(arguments: tuple[str, ...], words: str) -> None:
    done = bench("reproduce", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in done.stderr
