"""Data sets in a user's folder: read whole and checked field by field, so that a spoiled file ends no run half-way."""

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import ConfigError

Row = dict[str, Any]

DATA_LAYOUT = """JSON lines, one item a line, `.jsonl.gz` or plain `.jsonl`:
  gsm8k_test, gsm8k_fewshot5   id, question, answer (its last line is "#### <number>")
  mmlu_test, mmlu_dev          id, subject, question, choices (4 texts), answer (0-3)
  boolq_val                    id, passage, question, label (1 = yes)
  humaneval                    task_id, prompt, test, entry_point
An id may be left out, except task_id; then it is made of the item's content."""


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _worked(value: object) -> bool:
    return isinstance(value, str) and bool(value.rpartition("####")[1] and value.rpartition("####")[2].strip())


def _choices(value: object) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(isinstance(one, str) for one in value)


def _index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 3


def _yes_or_no(value: object) -> bool:
    return isinstance(value, int) and value in (0, 1)


_Field = tuple[Callable[[object], bool], str]
_TEXT: _Field = (_text, "a text that isn't empty")
FIELDS: Mapping[str, Mapping[str, _Field]] = {
    "gsm8k": {"question": _TEXT, "answer": (_worked, 'a text that ends in "#### <number>"')},
    "mmlu": {
        "subject": _TEXT,
        "question": _TEXT,
        "choices": (_choices, "a list of 4 texts"),
        "answer": (_index, "0, 1, 2 or 3"),
    },
    "boolq": {"passage": _TEXT, "question": _TEXT, "label": (_yes_or_no, "0 or 1")},
    "humaneval": {"task_id": _TEXT, "prompt": _TEXT, "test": _TEXT, "entry_point": _TEXT},
}
"""Kind → field → whether a value will do, and what will, in words."""


def item_name(kind: str, row: Row) -> str:
    """The item's own name, or one made of its content."""
    given = row.get("id") or row.get("task_id")
    content = json.dumps(row, sort_keys=True).encode()
    return str(given) if given else f"{kind}/{hashlib.sha256(content).hexdigest()[:16]}"


def find(data_dir: str, name: str) -> Path | None:
    """A file of the data folder, compressed or not; None when it isn't there."""
    path = Path(data_dir).expanduser() / name
    return next((found for found in (path, path.with_suffix("")) if found.is_file()), None)


def read(kind: str, files: tuple[str, ...], data_dir: str) -> list[list[Row]]:
    """The items of each of a kind's files; every line is read and checked.

    Raises
    ------
    ConfigError
        The folder or a file is missing, empty or no JSON lines, a field is missing or of no use, or two items of a
        file have one name. The text names file, line and field.
    """
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder. It must hold {', '.join(files)}; {DATA_LAYOUT}")
    found = []
    for name in files:
        path = find(data_dir, name)
        if path is None:
            raise ConfigError(f"{folder / name} is missing ({kind} needs it); {DATA_LAYOUT}")
        found.append(_checked(kind, path))
    return found


def _checked(kind: str, path: Path) -> list[Row]:
    rows: list[Row] = []
    first_line: dict[str, int] = {}
    for number, row in _lines(path):
        for field, (will_do, wanted) in FIELDS[kind].items():
            if field not in row:
                raise ConfigError(f"{path}, line {number}: no field {field}; {DATA_LAYOUT}")
            if not will_do(row[field]):
                value = json.dumps(row[field], ensure_ascii=False)[:60]
                raise ConfigError(f"{path}, line {number}: {field} must be {wanted}, not {value}; {DATA_LAYOUT}")
        name = item_name(kind, row)
        if name in first_line:
            key = "task_id" if "task_id" in FIELDS[kind] else "id"
            raise ConfigError(
                f"{path}, line {number}: {key} {name} stands in line {first_line[name]} already; ids must differ, "
                "since answers are paired by them"
            )
        first_line[name] = number
        rows.append(row)
    if not rows:
        raise ConfigError(f"{path} holds no items; {DATA_LAYOUT}")
    return rows


def _lines(path: Path) -> Iterator[tuple[int, Row]]:
    """The lines that aren't blank, with their numbers."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            for line in file:
                number += 1
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise ValueError("not a JSON object")
                    yield number, row
    except (ValueError, OSError, EOFError) as error:
        raise ConfigError(f"{path}, line {max(number, 1)}: {error}; {DATA_LAYOUT}") from error
