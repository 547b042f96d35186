"""Questions of known benchmarks, out of a user's folder or from the hub, as rows that the task YAMLs read."""

import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness.accuracy.task import DATA_LAYOUT, KINDS, Task, data_file
from harness.errors import ConfigError

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """JSON lines, compressed or not; an error names file and line."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    rows: list[Row] = []
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for line in file:
                number += 1
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("not a JSON object")
                    rows.append(row)
    except (ValueError, OSError, EOFError) as error:
        raise ConfigError(f"{path}, line {max(number, 1)}: {error}; {DATA_LAYOUT}") from error
    return rows


def questions(task: Task, seed: int) -> list[Row]:
    """The task's questions for one block, each with `item_id` and `document_id`.

    All launches of a block get the same; with consecutive seeds, blocks get neighbouring parts of one shuffled list,
    so that they share no question before the data set is used up.
    """
    main, examples = _load(task)
    found = [_NORMALISE[task.kind](row, examples) for row in main]
    random.Random(f"questions/{task.kind}").shuffle(found)
    if task.limit is None or task.limit >= len(found):
        return found
    start = seed * task.limit % len(found)
    return (found + found)[start : start + task.limit]


def _load(task: Task) -> tuple[list[Row], list[Row]]:
    """Questions and worked examples."""
    kind = KINDS[task.kind]
    if task.data_dir is None:
        return _from_hub(task.kind)
    found = []
    for name in kind.files:
        path = data_file(task.data_dir, name)
        if path is None:
            raise ConfigError(f"data_dir: {Path(task.data_dir) / name} is missing; {DATA_LAYOUT}")
        rows = read_rows(path)
        for number, row in enumerate(rows, start=1):
            if missing := _FIELDS[task.kind] - row.keys():
                raise ConfigError(f"{path}, line {number}: no field {', '.join(sorted(missing))}; {DATA_LAYOUT}")
        if not rows:
            raise ConfigError(f"{path} holds no items; {DATA_LAYOUT}")
        found.append(rows)
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


_FIELDS: dict[str, set[str]] = {
    "gsm8k": {"question", "answer"},
    "mmlu": {"subject", "question", "choices", "answer"},
    "boolq": {"passage", "question", "label"},
    "humaneval": {"task_id", "prompt", "test", "entry_point"},
}


def _name(kind: str, row: Row) -> str:
    """The item's own name, or one made of its content."""
    given = row.get("id") or row.get("task_id")
    return (
        str(given) if given else f"{kind}/{hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]}"
    )


def _gsm8k(row: Row, examples: list[Row]) -> Row:
    name = _name("gsm8k", row)
    return {
        "item_id": name,
        "document_id": name,
        "question": row["question"],
        "target": row["answer"].rpartition("####")[2].strip().replace(",", ""),
        "examples": [{"question": one["question"], "answer": one["answer"]} for one in examples],
    }


def _mmlu(row: Row, examples: list[Row]) -> Row:
    name = _name("mmlu", row)
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
        "item_id": _name("boolq", row),
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
