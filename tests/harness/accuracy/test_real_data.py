"""The layout against real benchmark files, where `KVMARK_TEST_DATA` names a folder that has them."""

import os

import pytest
from examples import share

from harness.accuracy.extraction import gsm8k_result, mmlu_result
from harness.accuracy.kinds import kinds
from harness.accuracy.task import Task, check_task
from harness.model import Model

DATA_DIR = os.environ.get("KVMARK_TEST_DATA")


@pytest.mark.skipif(DATA_DIR is None, reason="KVMARK_TEST_DATA names no folder")
@pytest.mark.parametrize("kind", [name for name, kind in kinds().items() if kind.files])
def test_real_files_are_read_whole(model: Model, kind: str) -> None:
    task = Task(kind=kind, data_dir=DATA_DIR)
    check_task(kind, task, context_tokens=2048)
    rows = share(task, model).rows
    assert len(rows) == {"gsm8k": 1319, "mmlu": 14042, "boolq": 3270, "humaneval": 164, "key-value": 500}[kind]
    assert len({row["item_id"] for row in rows}) == len(rows)
    if kind in ("gsm8k", "mmlu"):
        assert all(len(row["examples"]) == 5 for row in rows)


@pytest.mark.skipif(DATA_DIR is None, reason="KVMARK_TEST_DATA names no folder")
def test_every_right_answer_of_the_real_files_is_scored_right(model: Model) -> None:
    gsm8k = share(Task(kind="gsm8k", data_dir=DATA_DIR), model).rows
    for form in ("#### {}", "The answer is {}.", "{}", "so it is **{}**\n"):
        assert all(gsm8k_result(row, [form.format(row["target"])])["exact_match"] for row in gsm8k), form
    mmlu = share(Task(kind="mmlu", data_dir=DATA_DIR), model).rows
    for form in (" {0}", "({0})", "{0}. {1}", "The answer is {0}."):
        said = ((row, form.format("ABCD"[row["answer"]], row["choices"][row["answer"]])) for row in mmlu)
        assert all(mmlu_result(row, [answer])["exact_match"] for row, answer in said), form
