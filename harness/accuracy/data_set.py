"""Questions of a data set, out of a user's folder or from the hub, divided among the blocks of a run."""

import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.accuracy import own_file
from harness.accuracy.data_files import find, read
from harness.accuracy.kinds.interface import Asking, Kind, Row, Share, Size
from harness.errors import ConfigError

if TYPE_CHECKING:
    from harness.accuracy.task import Task

_ITEMS, _PROMPT_TOKENS = 1000, 700
"""Size of a data set without a limit; a 5-shot prompt of MMLU or GSM8K. For estimates."""


def divided(rows: Sequence[Row], task: "Task", asking: Asking) -> Share:
    """A block's share: `task.limit` questions, one block after the other, in an order that `run_seed` fixes.

    No question is asked in two blocks before all have been asked; then they start over. Questions on one document
    stay together: the document is their common prefix.
    """
    of_document: dict[str, list[Row]] = {}
    for row in rows:
        of_document.setdefault(row["document_id"], []).append(row)
    documents = list(of_document.values())
    random.Random(f"questions/{task.kind}/{asking.run_seed}").shuffle(documents)
    found = [row for document in documents for row in document]
    total = len(found)
    count = total if task.limit is None else min(task.limit, total)
    start = asking.block * count % total
    repeated = min(max((asking.block + 1) * count - total, 0), count)
    return Share((found + found)[start : start + count], total, repeated)


def from_folder(task: "Task", kind: Kind) -> list[list[Row]]:
    """The items of each of the kind's files in `task.data_dir`, checked field by field; raises `ConfigError`."""
    assert task.data_dir is not None
    try:
        return read(task.kind, kind.files, kind.fields, kind.layout, task.data_dir)
    except ConfigError as error:
        raise ConfigError(f"data_dir: {error}") from error


def files_of(task: "Task") -> list[Path]:
    """The user's files that the task's questions come out of, those that are there."""
    from harness.accuracy.task import kind_of  # the task needs the kinds

    kind = kind_of(task)
    if kind.takes_path and task.path:
        return own_file.files_of(task.path)
    if not task.data_dir:
        return []
    return [path.resolve() for name in kind.files if (path := find(task.data_dir, name))]


def from_hub(kind: Kind, part: str | None, which: str) -> Iterable[Row]:
    """Rows of the kind's data set on the hub; raises `ConfigError` where it can't be had."""
    from datasets import load_dataset  # type: ignore[import-untyped]  # heavy: only here

    try:
        rows: Iterable[Row] = load_dataset(kind.hub, part, split=which)
    except Exception as error:  # the library raises many kinds for one fact: it can't be had
        raise ConfigError(
            f"data_dir: the hub's data set {kind.hub} can't be loaded ({type(error).__name__}: {error}); "
            f"name a folder with {', '.join(kind.files)}"
        ) from error
    return rows


def check(task: "Task", kind: Kind) -> None:
    """Raise `ConfigError` where the data set can't be had; a user's files are read whole."""
    if task.data_dir is not None:
        from_folder(task, kind)
    elif os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        raise ConfigError(
            f"data_dir: {task.kind} needs the hub's data set {kind.hub} or a folder, and HF_HUB_OFFLINE forbids the "
            f"hub. A folder holds JSON lines: {kind.layout}"
        )


def size(task: "Task") -> Size:
    """How much a block of a data set asks, before it is read."""
    from harness.accuracy.task import answer_tokens_of, kind_of  # the task needs the kinds

    kind = kind_of(task)
    known = len(from_folder(task, kind)[0]) if task.data_dir is not None and kind.files else None
    items = min(task.limit or _ITEMS, known) if known is not None else task.limit or _ITEMS
    tokens = items * _PROMPT_TOKENS
    return Size(items, items, tokens, tokens, items * answer_tokens_of(task), known, known)
