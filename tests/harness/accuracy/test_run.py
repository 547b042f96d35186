"""Tasks against a live server: through lm-eval in a process of its own, as in a run."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from mimic import MimicServer

from harness.accuracy import Task, run_task
from harness.accuracy.sandbox.available import probed
from harness.backends import backend_class
from harness.model import Model

RETRIEVAL = Task(context_tokens=600, documents=2, questions=6)


def ran(
    server: MimicServer, model: Model, out_dir: Path, task: Task, faults: str = "sound", **more: Any
) -> dict[str, Any]:
    results = run_task(
        task,
        backend=backend_class(more.get("engine", "vllm"))(),
        base_url=server.url(faults),
        served_name="m",
        model=model,
        context_tokens=more.get("context_tokens", 4096),
        seed=more.get("seed", 1),
        out_dir=out_dir,
        say=lambda text: None,
        block=more.get("block", 0),
        run_seed=more.get("run_seed", 0),
    )
    assert results == json.loads((out_dir / "results.json").read_text())
    return results


def samples_of(out_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out_dir / "samples.jsonl").read_text().splitlines()]


def test_flipped_answers_lower_the_score_by_their_share_and_pair_with_the_sound_ones(
    server: MimicServer, model: Model, tmp_path: Path
) -> None:
    sound = ran(server, model, tmp_path / "sound", RETRIEVAL)
    flips = ran(server, model, tmp_path / "flips", RETRIEVAL, "flips+paired")
    assert (sound["state"], sound["n"], sound["score"], sound["chance"]) == ("measured", 12, 1.0, 0.0)
    asked_wrongly = {one["text"] for one in server.seen("flips+paired") if one["wrong"]}
    assert 0 < len(asked_wrongly) < 12
    assert flips["score"] == pytest.approx(1 - len(asked_wrongly) / 12)
    assert sound["items_sha256"] == flips["items_sha256"]
    pairs = zip(samples_of(tmp_path / "sound"), samples_of(tmp_path / "flips"), strict=True)
    assert all(a["item_id"] == b["item_id"] and a["prompt_sha256"] == b["prompt_sha256"] for a, b in pairs)


def test_nothing_is_truncated_beyond_lm_evals_own_limit(server: MimicServer, model: Model, tmp_path: Path) -> None:
    long = Task(context_tokens=3000, documents=1, questions=2)
    results = ran(server, model, tmp_path / "long", long, "sound+long")
    assert {one["body"]["prompt"] for one in server.seen("sound+long")} == {3000}
    assert (results["score"], results["prompt_tokens"]) == (1.0, {"min": 3000, "max": 3000})


def test_blocks_ask_other_items_and_the_results_say_when_they_start_over(
    server: MimicServer, model: Model, data_dir: Path, tmp_path: Path
) -> None:
    # Unrelated block seeds, as in a run; llama.cpp has no `echo`, so that nothing is asked here: the items are enough.
    halves = Task(kind="boolq", data_dir=str(data_dir), mode="loglikelihood", limit=6)
    ran_as = [
        ran(server, model, tmp_path / str(block), halves, engine="llama-cpp", block=block, seed=seed, run_seed=3)
        for block, seed in ((0, 4_000_000_000), (1, 17), (2, 5), (0, 1))
    ]
    hashes = [one["items_sha256"] for one in ran_as]
    assert hashes[0] == hashes[2] == hashes[3] != hashes[1], "of a data set the block decides, not its seed"
    kept = ("block", "run_seed", "items", "items_repeated", "data_set_items")
    assert [ran_as[2][key] for key in kept] == [2, 3, 6, 6, 12]
    assert [one["items_repeated"] for one in ran_as[:2]] == [0, 0]


def test_a_server_without_echo_is_unsupported_not_scored(
    server: MimicServer, model: Model, data_dir: Path, tmp_path: Path
) -> None:
    boolq = Task(kind="boolq", data_dir=str(data_dir), mode="loglikelihood")
    lied_to = ran(server, model, tmp_path / "lied", boolq, "ignores-echo")
    assert (lied_to["state"], lied_to["score"], samples_of(tmp_path / "lied")) == ("unsupported", None, [])
    assert "echo" in lied_to["reason"]
    known = ran(server, model, tmp_path / "known", boolq, engine="llama-cpp")
    assert known["state"] == "unsupported" and "echo" in known["reason"]


def test_a_killed_lm_eval_is_a_failed_task_with_its_reason(server: MimicServer, model: Model, tmp_path: Path) -> None:
    def kill_worker() -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for child in psutil.Process().children(recursive=True):
                if "harness.accuracy.lm_eval_worker" in child.cmdline():
                    os.kill(child.pid, signal.SIGKILL)
                    return
            time.sleep(0.02)

    killer = threading.Thread(target=kill_worker)
    killer.start()
    results = ran(server, model, tmp_path / "killed", RETRIEVAL)
    killer.join()
    assert results["state"] == "failed"
    assert "SIGKILL" in results["reason"]


@pytest.mark.parametrize("prompt", ["completion", "chat"])
def test_code_is_scored_in_a_sandbox_and_not_asked_for_where_there_is_none(
    server: MimicServer, model: Model, data_dir: Path, tmp_path: Path, prompt: str
) -> None:
    task = Task(kind="humaneval", data_dir=str(data_dir), prompt=prompt)
    results = ran(server, model, tmp_path / "humaneval", task)
    if working := [one.name for one, problem in probed() if problem is None]:
        assert (results["state"], results["score"], results["sandbox"]) == ("measured", 0.5, working[0])
        assert all("return a + b" in sample["answer"] for sample in samples_of(tmp_path / "humaneval"))
    else:
        assert (results["state"], results["score"]) == ("unsupported", None)
        assert "allow_unsandboxed_code=true" in results["reason"]


def test_tests_that_can_not_be_judged_are_no_wrong_answers(
    server: MimicServer, model: Model, data_dir: Path, tmp_path: Path
) -> None:
    rows = [json.loads(line) for line in (data_dir / "humaneval.jsonl").read_text().splitlines()]
    rows[0]["test"] = "def check(f):\n    f(object(), 3)\n"
    (tmp_path / "humaneval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Task(kind="humaneval", data_dir=str(tmp_path), allow_unsandboxed_code=True)
    results = ran(server, model, tmp_path / "humaneval", task)
    assert (results["n"], results["score"], results["errors"]) == (3, pytest.approx(1 / 3), 1)
    assert results["notes"] == [
        "1 of 4 questions have no score: not judged: the test passes what can't be passed: "
        "a value of type object is not plain"
    ]


def test_every_key_that_is_written_is_described(
    server: MimicServer, model: Model, data_dir: Path, tmp_path: Path
) -> None:
    boolq = Task(kind="boolq", data_dir=str(data_dir), limit=2)
    results = ran(server, model, tmp_path / "boolq", boolq)
    described = (Path(__file__).parents[3] / "docs" / "results.md").read_text().partition("## accuracy/")[2]
    for key in (*results, *samples_of(tmp_path / "boolq")[0]):
        assert re.search(rf"\b{key}\b", described), f"docs/results.md says nothing of {key}"
