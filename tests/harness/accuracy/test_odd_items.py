"""Items that are in the layout but out of the ordinary, from the file to the score."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from mimic import MimicServer

from harness.accuracy import Task, run_task
from harness.accuracy.kinds.interface import Row
from harness.backends import backend_class
from harness.model import Model

GSM8K = {
    "gsm8k_test": [
        {"id": 0, "question": "One? [key: #### 1]", "answer": "#### 1"},
        {"id": "a/b #c\u2028 d", "question": "Half? [key: It is $.50]", "answer": "so\n#### 0.5"},
        {"id": "negative", "question": "−7? [key: the answer is −7]", "answer": "x\n#### -7"},
        {"id": "commas", "question": "Many? [key: 1,234,567 of them]", "answer": "x\n#### 1,234,567"},
        {"id": "中文", "question": "多少？[key: 答案是18。]", "answer": "十八\n#### 18"},
        {"question": "No id? [key: #### 3]", "answer": "#### 3"},
    ],
    "gsm8k_fewshot5": [{"question": f"{n}?", "answer": f"#### {n}"} for n in range(8)],
}
MMLU = {
    "mmlu_test": [
        {
            "id": 7,
            "subject": "a_b",
            "question": "Q1 [key: The answer is (C)]",
            "choices": ["", "x", "x", "A"],
            "answer": 2,
        },
        {
            "id": "7a",
            "subject": "no examples",
            "question": " Q2 [key: d.]",
            "choices": ["1", "2", "3", "4"],
            "answer": 3,
        },
        {
            "subject": "a_b",
            "question": "Q3\n{{x}} [key: **A**]",
            "choices": ["ä", "1999-01-02", "[1]", "4"],
            "answer": 0,
        },
    ],
    "mmlu_dev": [
        {"subject": "a_b", "question": f"E{n}", "choices": ["p", "q", "r", "s"], "answer": n % 4} for n in range(7)
    ],
}
BOOLQ = {
    "boolq_val": [
        {"id": "long", "passage": "Word. " * 700, "question": "is it long [key: Yes, it is]", "label": 1},
        {"id": 2, "passage": "P\n\nÜ.", "question": "Is it？ [key: The answer is no]？", "label": 0},
        {"id": "3", "passage": "P\n\nÜ.", "question": "is that true? [key: true]", "label": True},
        {"passage": "P\n\nÜ.", "question": "q [key: Wrong]", "label": 0},
    ],
}  # fmt: skip


def asked(kind: str, files: dict[str, list[Row]], packed: bool, mimic: MimicServer, model: Model, out: Path) -> Any:
    folder = out / "data"
    folder.mkdir()
    for name, rows in files.items():
        text = "\ufeff" + "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        path = folder / f"{name}.jsonl{'.gz' * packed}"
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    task = Task(kind=kind, mode="generation", data_dir=str(folder))
    server = {"base_url": mimic.url(), "served_name": "m", "model": model, "context_tokens": 4096}
    results = run_task(
        task, backend=backend_class("vllm")(), seed=1, out_dir=out / "out", say=lambda text: None, **server
    )
    samples = [json.loads(line) for line in (out / "out" / "samples.jsonl").read_text().splitlines()]
    return results, {one["item_id"].partition("#generation")[0]: one["score"] for one in samples}


@pytest.mark.parametrize("packed", [False, True])
def test_gsm8k(server: MimicServer, model: Model, tmp_path: Path, packed: bool) -> None:
    results, scores = asked("gsm8k", GSM8K, packed, server, model, tmp_path)
    assert len(scores) == 6 and {"0", "a/b #c\u2028 d", "negative", "commas", "中文"} < set(scores)
    assert set(scores.values()) == {1.0}
    samples = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert sum(one["other_scores"]["strict"] for one in samples) == 2, "two stand behind ####"
    assert results["chance"] == 0.0
    sent = next(one["text"] for one in server.seen() if "Half?" in one["text"])
    assert "4?\nAnswer: #### 4" in sent and "5?\nAnswer" not in sent, "five examples, not eight"


def test_mmlu(server: MimicServer, model: Model, tmp_path: Path) -> None:
    results, scores = asked("mmlu", MMLU, False, server, model, tmp_path)
    assert {"7", "7a"} < set(scores) and set(scores.values()) == {1.0}
    assert results["chance"] == pytest.approx(1 / 3)


def test_boolq(server: MimicServer, model: Model, tmp_path: Path) -> None:
    results, scores = asked("boolq", BOOLQ, False, server, model, tmp_path)
    assert {name: scores[name] for name in ("long", "2", "3")} == {"long": 1.0, "2": 1.0, "3": 1.0}
    assert results["score"] == 0.75 and results["chance"] == 0.5
    assert any("\nQuestion: Is it？ [key: The answer is no]?\n" in one["text"] for one in server.seen())
