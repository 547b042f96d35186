"""A small task of each kind, for tests that meet every kind through the registry."""

from pathlib import Path
from typing import Any

from harness.accuracy.kinds import kinds
from harness.accuracy.kinds.interface import Asking, Share
from harness.accuracy.task import Task, kind_of
from harness.model import Model

GENERATED: dict[str, dict[str, Any]] = {
    "retrieval": {"context_tokens": 500, "documents": 3, "questions": 6},
    "multi-needle": {"context_tokens": 900, "documents": 4, "questions": 4, "needles": 3},
    "variable-tracking": {"context_tokens": 900, "documents": 4, "questions": 4, "hops": 2},
    "document-qa": {"context_tokens": 2000, "documents": 4, "questions": 4},
}
"""Keys of the kinds that generate their questions."""


def example(kind: str, data_dir: Path, **more: Any) -> Task:
    """A task of the kind that a tiny tokenizer and the tests' data folder suffice for."""
    data: dict[str, Any] = {"data_dir": str(data_dir)} if kinds()[kind].files else {}
    data |= {"path": str(data_dir / "own.jsonl")} if kinds()[kind].takes_path else {}
    return Task(kind=kind, **{**data, **GENERATED.get(kind, {}), **more})


def share(task: Task, model: Model, *, seed: int = 2, block: int = 0, run_seed: int = 0) -> Share:
    """The questions of one block."""
    return kind_of(task).share(task, Asking(model, seed, block, run_seed))
