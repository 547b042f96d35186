"""HumanEval (Chen et al., 2021, arXiv:2107.03374): functions to write, scored by running their tests."""

from collections.abc import Sequence

from harness.accuracy import data_set
from harness.accuracy.code_execution import passes
from harness.accuracy.data_files import TEXT
from harness.accuracy.kinds.interface import Asking, Kind, Row, Share, Size
from harness.accuracy.task import Task


def share(task: Task, asking: Asking) -> Share:
    """The block's problems."""
    rows = data_set.from_folder(task, KIND)[0] if task.data_dir is not None else data_set.from_hub(KIND, None, "test")
    keys = ("prompt", "test", "entry_point")
    found = [
        {"item_id": row["task_id"], "document_id": row["task_id"], **{key: row[key] for key in keys}} for row in rows
    ]
    return data_set.divided(found, task, asking)


def score(name: str, task: Task, samples: Sequence[Row], rows: Sequence[Row]) -> Row:
    """Score generated functions by running them, if the user allows it; what changes in the results."""
    if not task.allow_unsandboxed_code:
        return {
            "state": "unsupported",
            "reason": "scoring would run code that the model wrote, on this machine and without a sandbox; the answers "
            f"are kept in samples.jsonl. To score: accuracy.{name}.allow_unsandboxed_code=true",
        }
    for sample, row in zip(samples, rows, strict=True):
        if sample["error"] is None:
            sample["score"] = float(passes(row["prompt"] + sample["answer"], row["test"], row["entry_point"]))
        else:
            sample["score"] = 0.0
    return {}


def check(task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` where the data can't be had."""
    data_set.check(task, KIND)


def size(task: Task) -> Size:
    """How much a block asks."""
    return data_set.size(task)


KIND = Kind(
    modes={"generation": "humaneval"},
    share=share,
    check=check,
    size=size,
    output_tokens=384,
    files=("humaneval.jsonl.gz",),
    hub="openai/openai_humaneval",
    fields={"task_id": TEXT, "prompt": TEXT, "test": TEXT, "entry_point": TEXT},
    layout="humaneval: task_id, prompt, test, entry_point",
    score=score,
)
