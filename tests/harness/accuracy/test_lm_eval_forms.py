"""The prompts of the data sets are those of lm-eval's own tasks, so that scores can be laid beside published ones."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
from datasets import Dataset  # type: ignore[import-untyped]
from examples import share
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

from harness.accuracy.task import TASKS_DIR, Task
from harness.model import Model, ModelShape

LM_EVAL = Path(lm_eval.tasks.__file__).parent
NO_MODEL = Model("none", ModelShape(), "/nowhere", None, "", "")


def prompts(yaml: Path, data: Mapping[str, list[dict[str, Any]]], **more: Any) -> list[str]:
    """What lm-eval asks, from the task's own file and the given rows."""
    config = load_yaml(yaml, resolve_func=True) | more
    config["custom_dataset"] = lambda **_: {name: Dataset.from_list(rows) for name, rows in data.items()}
    task = ConfigurableTask(config={**config, "task": config.get("task", "theirs")})
    task.build_all_requests()
    return list(dict.fromkeys(str(one.args[0]) for one in task.instances))


def ours(kind: str, yaml: str, data_dir: Path) -> dict[str, str]:
    rows = share(Task(kind=kind, data_dir=str(data_dir)), NO_MODEL).rows
    return dict(zip([row["item_id"] for row in rows], prompts(TASKS_DIR / f"{yaml}.yaml", {"test": rows}), strict=True))


def lines(data_dir: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (data_dir / f"{name}.jsonl").read_text().splitlines()]


def test_gsm8k(data_dir: Path) -> None:
    test, train = lines(data_dir, "gsm8k_test"), lines(data_dir, "gsm8k_fewshot5")
    theirs = prompts(
        LM_EVAL / "gsm8k" / "gsm8k.yaml",
        {"train": train, "test": test},
        num_fewshot=len(train),
        fewshot_config={"sampler": "first_n"},
    )
    mine = ours("gsm8k", "gsm8k", data_dir)
    assert [mine[row["id"]] for row in test] == theirs


@pytest.mark.parametrize("yaml", ["mmlu", "mmlu_generation"])
def test_mmlu(data_dir: Path, yaml: str) -> None:
    subject = "subject_1"
    test, dev = (
        [row for row in lines(data_dir, name) if row["subject"] == subject] for name in ("mmlu_test", "mmlu_dev")
    )
    theirs = prompts(
        LM_EVAL / "mmlu" / "default" / "_default_template_yaml",
        {"dev": dev, "test": test},
        num_fewshot=len(dev),
        description="The following are multiple choice questions (with answers) about subject 1.\n\n",
    )
    mine = ours("mmlu", yaml, data_dir)
    assert [mine[row["id"]] for row in test] == theirs


def test_boolq(data_dir: Path) -> None:
    rows = lines(data_dir, "boolq_val")
    theirs = prompts(LM_EVAL / "super_glue" / "boolq" / "default.yaml", {"train": rows, "validation": rows})
    mine = ours("boolq", "boolq", data_dir)
    assert [mine[row["id"]] for row in rows] == theirs
