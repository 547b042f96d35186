"""Questions of known benchmarks, out of a user's folder or from the hub, as rows that the task YAMLs read."""

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.accuracy.data_files import Row, item_name, read
from harness.accuracy.task import KINDS, Task
from harness.errors import ConfigError


@dataclass(frozen=True)
class Share:
    """A block's part of a data set.

    Attributes
    ----------
    rows : list of dict
        The questions, each with `item_id` and `document_id`.
    data_set_items : int
        Questions that the whole data set has.
    repeated : int
        How many of `rows` an earlier block of the run asked too, the data set being used up.
    """

    rows: list[Row]
    data_set_items: int
    repeated: int


def questions(task: Task, *, block: int, run_seed: int) -> Share:
    """The task's questions for one block: equal for all launches of the block.

    The whole data set is shuffled by `run_seed`, and blocks take `task.limit` questions each, one block after the
    other, so that no question is asked in two blocks before all have been asked; then they start over.
    """
    main, examples = _load(task)
    found = [_NORMALISE[task.kind](row, examples) for row in main]
    random.Random(f"questions/{task.kind}/{run_seed}").shuffle(found)
    total = len(found)
    count = total if task.limit is None else min(task.limit, total)
    start = block * count % total
    repeated = min(max((block + 1) * count - total, 0), count)
    return Share((found + found)[start : start + count], total, repeated)


def _load(task: Task) -> tuple[list[Row], list[Row]]:
    """Questions and worked examples."""
    if task.data_dir is None:
        return _from_hub(task.kind)
    try:
        found = read(task.kind, KINDS[task.kind].files, task.data_dir)
    except ConfigError as error:
        raise ConfigError(f"data_dir: {error}") from error
    return found[0], found[1] if len(found) > 1 else []


def _from_hub(kind: str) -> tuple[list[Row], list[Row]]:
    """The same rows from the hub's data sets, in the layout of the folder."""
    from datasets import load_dataset  # type: ignore[import-untyped]  # heavy: only here

    def split(name: str, part: str | None, which: str) -> Iterable[Row]:
        try:
            rows: Iterable[Row] = load_dataset(name, part, split=which)
        except Exception as error:  # the library raises many kinds for one fact: it can't be had
            raise ConfigError(
                f"data_dir: the hub's data set {name} can't be loaded ({type(error).__name__}: {error}); "
                f"name a folder with {', '.join(KINDS[kind].files)}"
            ) from error
        return rows

    hub = KINDS[kind].hub or ""
    if kind == "gsm8k":
        test = [{"id": f"gsm8k/test/{i}", **row} for i, row in enumerate(split(hub, "main", "test"))]
        train = [dict(row) for _, row in zip(range(5), split(hub, "main", "train"), strict=False)]
        return test, train
    if kind == "mmlu":
        test = [{"id": f"mmlu/test/{i}", **row} for i, row in enumerate(split(hub, "all", "test"))]
        return test, [dict(row) for row in split(hub, "all", "dev")]
    if kind == "boolq":
        rows = split(hub, None, "validation")
        return [{"id": f"boolq/val/{i}", **row, "label": int(row["answer"])} for i, row in enumerate(rows)], []
    return [dict(row) for row in split(hub, None, "test")], []


def _gsm8k(row: Row, examples: list[Row]) -> Row:
    name = item_name("gsm8k", row)
    return {
        "item_id": name,
        "document_id": name,
        "question": row["question"],
        "target": row["answer"].rpartition("####")[2].strip().replace(",", ""),
        "examples": [{"question": one["question"], "answer": one["answer"]} for one in examples],
    }


def _mmlu(row: Row, examples: list[Row]) -> Row:
    name = item_name("mmlu", row)
    same = [one for one in examples if one["subject"] == row["subject"]]
    keys = ("question", "choices", "answer")
    return {
        "item_id": name,
        "document_id": name,
        "subject": row["subject"].replace("_", " "),
        "examples": [{key: one[key] for key in keys} for one in same],
        **{key: row[key] for key in keys},
    }


def _boolq(row: Row, examples: list[Row]) -> Row:
    passage = row["passage"]
    return {
        "item_id": item_name("boolq", row),
        "document_id": f"boolq/{hashlib.sha256(passage.encode()).hexdigest()[:16]}",
        "passage": passage,
        "question": row["question"].rstrip("? "),
        "label": int(row["label"]),
    }


def _humaneval(row: Row, examples: list[Row]) -> Row:
    keys = ("prompt", "test", "entry_point")
    return {"item_id": row["task_id"], "document_id": row["task_id"], **{key: row[key] for key in keys}}


_NORMALISE: dict[str, Callable[[Row, list[Row]], Row]] = {
    "gsm8k": _gsm8k,
    "mmlu": _mmlu,
    "boolq": _boolq,
    "humaneval": _humaneval,
}
