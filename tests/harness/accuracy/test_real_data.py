"""The layout against real benchmark files, where `KVMARK_TEST_DATA` names a folder that has them."""

import os

import pytest

from harness.accuracy.datasets import questions
from harness.accuracy.task import KINDS, Task, check_task

DATA_DIR = os.environ.get("KVMARK_TEST_DATA")


@pytest.mark.skipif(DATA_DIR is None, reason="KVMARK_TEST_DATA names no folder")
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.files])
def test_real_files_are_read_whole(kind: str) -> None:
    task = Task(kind=kind, data_dir=DATA_DIR)
    check_task(kind, task, context_tokens=2048)
    rows = questions(task, block=0, run_seed=0).rows
    assert len(rows) == {"gsm8k": 1319, "mmlu": 14042, "boolq": 3270, "humaneval": 164}[kind]
    assert len({row["item_id"] for row in rows}) == len(rows)
    if kind in ("gsm8k", "mmlu"):
        assert all(len(row["examples"]) == 5 for row in rows)
