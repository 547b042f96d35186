"""Whole runs against a server whose truth is known (`controllable_server.py`): does each verdict say what is true?"""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(__file__).with_name("controllable_server.py")
SLOWER, FLIPS_PCT = 1.5, 30.0
ENGINE = "llama-cpp+smollm2-135m"
RUN = (
    "scenario=smoke",
    "backend=[llama-cpp]",
    "model=[smollm2-135m]",
    f"backend.llama-cpp.command='{shlex.join([sys.executable, str(SERVER)])}'",
    "scenario.check_only=[]",
    "scenario.budget_minutes=null",
    "load.sharegpt-smoke.workload.output_tokens_mean=64",
    "accuracy.retrieval-smoke.context_tokens=500",
    "accuracy.retrieval-smoke.documents=8",
    "accuracy.retrieval-smoke.questions=8",
    "accuracy.retrieval-smoke.num_concurrent=4",
)


def analysis(folder: Path, truth: Mapping[str, str], *overrides: str) -> Any:
    """What a run's `analysis.json` says."""
    launches = folder / "launches"
    launches.mkdir()
    env = {**{f"TRUTH_{key}": value for key, value in truth.items()}, "TRUTH_LAUNCHES": str(launches)}
    given = "+backend.llama-cpp.env={" + ",".join(f"{key}:'{value}'" for key, value in env.items()) + "}"
    folders = [f"results_dir={folder}/results", f"reports_dir={folder}/reports"]
    argv = [sys.executable, "-m", "bench", "run", *RUN, given, *overrides, *folders]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    (path,) = (folder / "results").glob("*/*/analysis.json")
    return json.loads(path.read_text())


def comparison(said: Any, strategy: str, metric: str) -> Any:
    """Against the engine's own 16-bit launches."""
    (found,) = (
        one
        for one in said["comparisons"]
        if (one["deployment"], one["metric"], one["against"]) == (f"{ENGINE}+{strategy}", metric, "engine")
    )
    return found


def accuracy(said: Any, strategy: str) -> Any:
    (found,) = (
        one for one in said["accuracy"] if one["deployment"] == f"{ENGINE}+{strategy}" and one["against"] == "engine"
    )
    return found


def deployment(said: Any, strategy: str) -> Any:
    (found,) = (one for one in said["deployments"] if one["id"] == f"{ENGINE}+{strategy}")
    return found


@pytest.fixture(scope="module")
def three_blocks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """int8 is equal to the baseline, int4 only slower, and without prefix reuse a known share of answers is wrong."""
    truth = {"Q4_0": f"slower={SLOWER}", "UNCACHED": f"flips={FLIPS_PCT}"}
    return analysis(
        tmp_path_factory.mktemp("verdicts"),
        truth,
        "strategy=[baseline,kv-int8,kv-int4,prefix-off]",
        "scenario.blocks=3",
        "scenario.margin.throughput_pct=15",
        "scenario.margin.latency_pct=20",
    )


@pytest.fixture(scope="module")
def one_block(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """int8 cuts prompts, int4 says garbage; a log-likelihood task is asked of a server that ignores `echo`."""
    folder = tmp_path_factory.mktemp("faults")
    rows = [{"id": str(i), "passage": "A text.", "question": "is it", "label": i % 2} for i in range(4)]
    (folder / "boolq_val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return analysis(
        folder,
        {"Q8_0": "truncates=256", "Q4_0": "garbage"},
        "strategy=[baseline,kv-int8,kv-int4]",
        "accuracy=[retrieval-smoke,boolq]",
        "scenario.blocks=1",
        f"accuracy.boolq.data_dir={folder}",
        "accuracy.boolq.mode=loglikelihood",
        "accuracy.boolq.limit=4",
    )


def test_an_equal_server_is_neither_better_nor_worse(three_blocks: Any) -> None:
    for metric in ("output_tokens_per_s", "ttft_p90_ms"):
        assert comparison(three_blocks, "kv-int8", metric)["verdict"] in ("equivalent", "inconclusive")
    same = accuracy(three_blocks, "kv-int8")
    assert (same["verdict"], same["difference_pp"], same["lost"], same["gained"]) == ("equivalent", 0.0, 0, 0)


def test_a_slower_server_is_worse_by_its_factor_and_loses_no_answer(three_blocks: Any) -> None:
    found = comparison(three_blocks, "kv-int4", "output_tokens_per_s")
    assert found["verdict"] == "worse"
    assert found["low_pct"] <= 100 / SLOWER - 100 <= found["high_pct"]
    assert accuracy(three_blocks, "kv-int4")["verdict"] == "equivalent"


def test_a_server_that_flips_answers_is_worse_by_their_share(three_blocks: Any) -> None:
    found = accuracy(three_blocks, "prefix-off")
    assert found["verdict"] == "worse" and not found["non_inferior"]
    assert found["low_pp"] <= -FLIPS_PCT <= found["high_pp"]
    assert (found["n"], found["gained"]) == (192, 0)
    assert found["difference_pp"] == pytest.approx(-100 * found["lost"] / found["n"])
    speed = comparison(three_blocks, "prefix-off", "output_tokens_per_s")
    assert speed["verdict"] in ("equivalent", "inconclusive"), "its pace is the baseline's"


def test_equal_answers_and_probabilities_are_seen_as_such(three_blocks: Any) -> None:
    for strategy in ("kv-int8", "kv-int4"):
        found = deployment(three_blocks, strategy)
        assert found["output_check"]["state"] == "sound"
        for band in found["fidelity"]["bands"]:
            assert (band["top1_agreement"], band["kl"]) == (1.0, pytest.approx(0.0, abs=1e-9))
        assert found["fidelity"]["identical_outputs"] == found["determinism"]["identical_alone"] == 1.0
    assert all((floor["lost"], floor["gained"]) == (0, 0) for floor in three_blocks["flip_floors"])


def test_garbage_is_broken_output_and_not_ranked(one_block: Any) -> None:
    found = deployment(one_block, "kv-int4")
    assert (found["state"], found["ranked"]) == ("output broken", False)
    assert not [one for one in one_block["comparisons"] if one["deployment"] == found["id"] and one["effect_pct"]]


def test_a_server_that_cuts_prompts_gets_no_score_but_the_reason(one_block: Any) -> None:
    task = deployment(one_block, "kv-int8")["accuracy"]["retrieval-smoke"]
    assert (task["state"], task["score"]) == ("unsupported", None)
    assert "read 256 of the 500 prompt tokens" in task["reason"]


def test_a_server_that_ignores_echo_gets_no_score_by_log_likelihood(one_block: Any) -> None:
    for one in one_block["deployments"]:
        task = one["accuracy"]["boolq"]
        assert (task["state"], task["score"]) == ("unsupported", None)
        assert "echo" in task["reason"]
