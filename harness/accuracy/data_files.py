"""Data sets in a user's folder: read whole and checked field by field, so that a spoiled file ends no run half-way."""

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.accuracy.kinds.interface import Field, Row
from harness.errors import ConfigError

NAMES = "An id may be left out, except task_id; then it is made of the item's content."


def is_text(value: object) -> bool:
    """A text that isn't empty."""
    return isinstance(value, str) and bool(value.strip())


TEXT: Field = (is_text, "a text that isn't empty")


def item_name(kind: str, row: Row) -> str:
    """The item's own name, or one made of its content."""
    given = next((row[key] for key in ("id", "task_id") if row.get(key) not in (None, "")), None)
    content = json.dumps(row, sort_keys=True).encode()
    return str(given) if given is not None else f"{kind}/{hashlib.sha256(content).hexdigest()[:16]}"


def find(data_dir: str, name: str) -> Path | None:
    """A file of the data folder, compressed or not; None when it isn't there."""
    path = Path(data_dir).expanduser() / name
    return next((found for found in (path, path.with_suffix("")) if found.is_file()), None)


def read(kind: str, files: tuple[str, ...], fields: Mapping[str, Field], layout: str, data_dir: str) -> list[list[Row]]:
    """The items of each of a kind's files; every line is read and checked.

    Raises
    ------
    ConfigError
        The folder or a file is missing, empty or no JSON lines, a field is missing or of no use, or two items of a
        file have one name. The text names file, line and field.
    """
    folder = Path(data_dir).expanduser()
    layout = f"JSON lines, one item a line, `.jsonl.gz` or plain `.jsonl`: {layout}. {NAMES}"
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder. It must hold {', '.join(files)}; {layout}")
    found = []
    for name in files:
        path = find(data_dir, name)
        if path is None:
            raise ConfigError(f"{folder / name} is missing ({kind} needs it); {layout}")
        found.append(_checked(kind, path, fields, layout))
    return found


def _checked(kind: str, path: Path, fields: Mapping[str, Field], layout: str) -> list[Row]:
    rows: list[Row] = []
    first_line: dict[str, int] = {}
    for number, row in lines(path, layout):
        for field, (will_do, wanted) in fields.items():
            if field not in row:
                raise ConfigError(f"{path}, line {number}: no field {field}; {layout}")
            if not will_do(row[field]):
                value = json.dumps(row[field], ensure_ascii=False)[:60]
                raise ConfigError(f"{path}, line {number}: {field} must be {wanted}, not {value}; {layout}")
        name = item_name(kind, row)
        if name in first_line:
            key = "task_id" if "task_id" in fields else "id"
            raise ConfigError(
                f"{path}, line {number}: {key} {name} stands in line {first_line[name]} already; ids must differ, "
                "since answers are paired by them"
            )
        first_line[name] = number
        rows.append(row)
    if not rows:
        raise ConfigError(f"{path} holds no items; {layout}")
    return rows


def lines(path: Path, layout: str) -> Iterator[tuple[int, Row]]:
    """The lines that aren't blank, with their numbers; raises `ConfigError` naming file and line."""
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8-sig") as file:
            for line in file:
                number += 1
                if line.strip():
                    row = json.loads(line, parse_constant=_no_json)
                    if not isinstance(row, dict):
                        raise ValueError("not a JSON object")
                    json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair can't be sent to anybody
                    yield number, row
    except (ValueError, OSError, EOFError, RecursionError, zlib.error) as error:
        raise ConfigError(f"{path}, line {max(number, 1)}: {error}; {layout}") from error


def _no_json(name: str) -> None:
    """Python's reader takes NaN and Infinity for numbers; no answer is one of them."""
    raise ValueError(f"{name} is no JSON")
