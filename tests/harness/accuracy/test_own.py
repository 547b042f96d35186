"""A user's own questions, asked: through the worker, against the tests' server."""

import json
from pathlib import Path
from typing import Any

import pytest
from mimic import MimicServer

from harness.accuracy import Task, run_task
from harness.accuracy.kinds.interface import Asking, Row
from harness.accuracy.task import kind_of
from harness.backends import backend_class
from harness.model import Model, ModelShape

NO_MODEL = Model("none", ModelShape(), "/nowhere", None, "", "")


def task_of(folder: Path, *rows: Row, **more: Any) -> Task:
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return Task(kind="own", path=str(path), **more)


def prompt_of(folder: Path, row: Row, **more: Any) -> str:
    task = task_of(folder, row)
    (found,) = kind_of(task).share(task, Asking(NO_MODEL, seed=0, **more)).rows
    return str(found["prompt"])


def asked(task: Task, server: MimicServer, model: Model, out_dir: Path) -> tuple[Row, list[Row]]:
    results = run_task(
        task,
        backend=backend_class("vllm")(),
        base_url=server.url(),
        served_name="m",
        model=model,
        context_tokens=4096,
        seed=1,
        out_dir=out_dir,
        say=lambda text: None,
    )
    return results, [json.loads(line) for line in (out_dir / "samples.jsonl").read_text().splitlines()]


def test_a_prompt_has_the_documented_form(tmp_path: Path) -> None:
    plain = {"question": "Who?", "answer": "Ada", "document": "A text."}
    choices = {"question": "Who?", "answer": "Ada", "choices": ["Ada", "Bob"]}
    both = {"prompt": "It was", "question": "Who was it?", "answer": "Ada", "document": "It was Ada."}
    assert prompt_of(tmp_path, plain) == "A text.\n\nQuestion: Who?\nAnswer:"
    assert prompt_of(tmp_path, choices) == "Question: Who?\nA. Ada\nB. Bob\nAnswer:"
    assert prompt_of(tmp_path, both) == "It was Ada.\n\nIt was"
    chat: Any = {"chat": object()}  # only whether there is one counts
    assert prompt_of(tmp_path, plain, **chat) == "A text.\n\nWho?"
    assert prompt_of(tmp_path, choices, **chat) == "Who?\nA. Ada\nB. Bob\nAnswer with the letter only."
    assert prompt_of(tmp_path, both, **chat) == "It was Ada.\n\nWho was it?"
    verbatim = " exactly\n  this: {{ question }} \u2028"
    assert prompt_of(tmp_path, {"prompt": verbatim, "answer": "x"}) == verbatim


def test_each_line_is_scored_as_it_says(server: MimicServer, model: Model, tmp_path: Path) -> None:
    # The server answers with the key.
    rows = [
        {"id": "exact", "question": "[key: 1999-01-02]", "answer": "1999-01-02"},
        {"id": "exact/wrong", "question": "[key: 1999-01-03]", "answer": "1999-01-02"},
        {"id": "list", "question": "[key: [1, 2]. ]", "answers": ["[2, 1]", "[1, 2]"]},
        {"id": "number", "question": "[key: 1,234]", "answer": 1234},
        {"id": "contains", "question": "[key: in the year 1812, they say]", "answer": "1812", "score": "contains"},
        {"id": "f1", "question": "[key: the red car]", "answer": "a red car", "score": "f1"},
        {"id": "rouge", "question": "[key: the red car]", "answer": "a red car", "score": "rouge_l", "depth": 0.5},
        {"id": "中文", "question": "首都？[key: 北京。]", "answer": "北京", "context_tokens": 9, "depth": 1},
        {"id": "choice", "question": "[key: (b)]", "choices": ["x", "y"], "answer": "y"},
    ]  # fmt: skip
    results, samples = asked(task_of(tmp_path, *rows), server, model, tmp_path / "out")
    scores = {one["item_id"].partition("#")[0]: one["score"] for one in samples}
    assert scores == {
        "exact": 1.0, "exact/wrong": 0.0, "list": 1.0, "number": 1.0, "contains": 1.0, "f1": pytest.approx(2 / 3),
        "rouge": pytest.approx(2 / 3), "中文": 1.0, "choice": 1.0,
    }  # fmt: skip
    assert (results["state"], results["n"]) == ("measured", 9)
    assert results["score"] == pytest.approx((6 + 4 / 3) / 9)
    assert results["chance"] == pytest.approx(1 / 9), "one of nine questions has choices, and its answer is B"
    by_id = {one["item_id"]: one for one in samples}
    assert by_id["exact#generation"]["target"] == "1999-01-02", "a date stays a text"
    assert (by_id["中文#generation"]["depth"], by_id["中文#generation"]["context_tokens"]) == (1.0, 9)


def test_choices_by_log_likelihood_may_differ_in_number(server: MimicServer, model: Model, tmp_path: Path) -> None:
    rows = [
        {"question": f"{n} [key: {'ABCDE'[n - 1]}]", "choices": [f"c{i}" for i in range(n)], "answer": n - 1}
        for n in (2, 5, 3)
    ]
    results, samples = asked(task_of(tmp_path, *rows, mode="loglikelihood"), server, model, tmp_path / "out")
    assert (results["state"], results["score"]) == ("measured", 1.0)
    assert sorted(len(one["choice_logprobs"]) for one in samples) == [2, 3, 5]
    assert {one["answer"] for one in samples} == {"B", "C", "E"}


def test_a_long_answer_has_the_room_that_the_task_gives_it(server: MimicServer, model: Model, tmp_path: Path) -> None:
    row = {"question": "Say it. [key: so]", "answer": "so", "score": "rouge_l"}
    results, _ = asked(task_of(tmp_path, row, answer_tokens=200), server, model, tmp_path / "out")
    assert results["score"] == 1.0
    assert {one["body"]["max_tokens"] for one in server.seen() if "Say it." in one["text"]} == {1, 200}


def test_questions_on_one_document_are_asked_together_in_every_block(tmp_path: Path) -> None:
    rows = [
        {"id": f"{d}/{q}", "document": f"Document {d}.", "question": f"Question {q}?", "answer": "x"}
        for q in range(3)
        for d in range(8)
    ]
    task = task_of(tmp_path, *rows, limit=12)
    blocks = [kind_of(task).share(task, Asking(NO_MODEL, seed=9, block=block, run_seed=3)).rows for block in (0, 1)]
    assert len({row["item_id"] for block in blocks for row in block}) == 24
    for block in blocks:
        names = [row["document_id"] for row in block]
        assert names == sorted(names, key=names.index) and len(set(names)) == 4
