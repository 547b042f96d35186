"""Traces of real services, in the formats that they are published in: when requests came, how long, what they shared.

One format a module: a function from a row's values to what they say. Whatever is wrong with a row is a `ConfigError`
that names file, line and field. `read` reads a file once a process, whole.
"""

import csv
import gzip
import io
import json
import math
import os
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from harness.errors import ConfigError
from harness.traffic.parameters import unknown

TOKENS_MAX = 10_000_000
"""A request that is longer is a fault of the file."""


class Row(NamedTuple):
    """One request of a trace.

    Attributes
    ----------
    at_s : float
        When it came, in seconds from whatever the trace counts from.
    prompt_tokens, output_tokens : int
        Its lengths, >= 0; a request that failed has no output.
    blocks : tuple of int
        Ids of its prompt's blocks, the last of them perhaps partly filled; empty where the trace has none.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


class Line(NamedTuple):
    """Where something stands, and how to complain about it."""

    path: Path
    number: int

    def error(self, field: str, value: object, must: str) -> ConfigError:
        shown = value if isinstance(value, str) else json.dumps(value, default=str)
        return ConfigError(f"{self.path}, line {self.number}, {field}: {shown[:80]!r} must be {must}")

    def number_of(self, field: str, value: object) -> float:
        """A finite number, from JSON or from the text of a CSV."""
        try:
            number = math.nan if isinstance(value, bool) or value is None else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise self.error(field, value, "a number")
        return number

    def tokens_of(self, field: str, value: object) -> int:
        """A whole number of tokens, >= 0."""
        if isinstance(value, str) and value.isdecimal() and len(value) <= 7:
            return int(value)
        number = self.number_of(field, value)
        if number != int(number) or not 0 <= number <= TOKENS_MAX:
            raise self.error(field, value, f"a whole number from 0 to {TOKENS_MAX}")
        return int(number)


@dataclass(frozen=True)
class Format:
    """A format of traces.

    Attributes
    ----------
    name : str
    block_tokens : int or None
        Tokens of a block; None where the format has no block ids.
    columns : tuple of str
        By these a file is recognised: columns of a CSV, keys of each object of a JSONL. The last holds the block ids.
    row : callable
        (where it stands, value by column) → `Row`, its blocks not yet held against the prompt's length.
    """

    name: str
    block_tokens: int | None
    columns: tuple[str, ...]
    row: Callable[[Line, Mapping[str, Any]], Row]


_FORMATS: list[Format] = []

R = TypeVar("R", bound=Callable[[Line, Mapping[str, Any]], Row])


def trace_format(name: str, *columns: str, block_tokens: int | None = None) -> Callable[[R], R]:
    """Decorator: read a format's rows by this function. A format may have several shapes: one function each."""

    def register(row: R) -> R:
        _FORMATS.append(Format(name, block_tokens, columns, row))
        return row

    return register


def formats() -> list[Format]:
    """All shapes of all formats; of two that fit a file, the one with more columns is meant."""
    from harness.traffic.traces import azure, burstgpt, mooncake, qwen_bailian  # noqa: F401  (they register)

    return sorted(_FORMATS, key=lambda each: -len(each.columns))


def format_names() -> list[str]:
    """Names for `format` in YAML."""
    return sorted({each.name for each in formats()})


@dataclass(frozen=True)
class Trace:
    """The rows of a file, in the order of time.

    Attributes
    ----------
    format : str
    block_tokens : int or None
        Tokens of a block; None where the trace has no block ids.
    at_s : array of float
        Seconds from the first row.
    prompt_tokens, output_tokens : array of int
    blocks : tuple of tuple of int
        By row; empty where the trace has none.
    reordered : int
        Rows that stood behind one that came later.
    """

    format: str
    block_tokens: int | None
    at_s: "array[float]"
    prompt_tokens: "array[int]"
    output_tokens: "array[int]"
    blocks: tuple[tuple[int, ...], ...]
    reordered: int


def read(
    path: str,
    format_name: str = "auto",
    *,
    skip_rows: int = 0,
    rows_max: int = 1_000_000,
    block_tokens: int | None = None,
) -> Trace:
    """The rows of a file, `.gz` or not, every one of them checked.

    Parameters
    ----------
    path : str
        The file.
    format_name : str
        One of `format_names`, or ``auto``: by the columns.
    skip_rows, rows_max : int
        Rows passed over unread at the start; rows read after them (what stands behind is as if it weren't there).
    block_tokens : int or None
        Tokens of a block; None: as the format has it.

    Raises
    ------
    ConfigError
        Naming file, line and field.
    """
    file = Path(path).expanduser()
    try:
        stat = os.stat(file)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    return _read(file, format_name, skip_rows, rows_max, block_tokens, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _read(
    file: Path, format_name: str, skip_rows: int, rows_max: int, block_tokens: int | None, mtime_ns: int, size: int
) -> Trace:
    shape: Format | None = None
    rows: list[Row] = []
    for line, values in islice(_values(file), skip_rows, skip_rows + rows_max):
        if shape is None:
            shape = _shape_of(line, values, format_name)
            block_tokens = (block_tokens or shape.block_tokens) if shape.block_tokens else None
        row = shape.row(line, values)
        if block_tokens:
            _check_blocks(line, shape.columns[-1], row, block_tokens)
        rows.append(row)
    if shape is None:
        raise ConfigError(f"{file}: has no rows" + (f" after skip_rows ({skip_rows})" if skip_rows else ""))
    reordered = sum(1 for before, after in pairwise(rows) if after.at_s < before.at_s)
    rows.sort(key=attrgetter("at_s"))
    first = rows[0].at_s
    return Trace(
        shape.name,
        block_tokens,
        array("d", (row.at_s - first for row in rows)),
        array("I", (row.prompt_tokens for row in rows)),
        array("I", (row.output_tokens for row in rows)),
        tuple(row.blocks for row in rows) if block_tokens else (),
        reordered,
    )


def opened(file: Path) -> io.TextIOBase:
    """A text file, unpacked where it is packed."""
    raw = open(file, "rb")  # noqa: SIM115  (closed by the wrapper)
    packed = raw.peek(2)[:2] == b"\x1f\x8b"
    return io.TextIOWrapper(gzip.open(raw) if packed else raw, encoding="utf-8-sig", newline="")


def lines_of(file: Path) -> Iterator[tuple[Line, str]]:
    """Lines with their numbers; raises `ConfigError` where the file isn't readable text."""
    number = 0
    try:
        with opened(file) as text:
            for number, line in enumerate(text, 1):
                yield Line(file, number), line
    except UnicodeDecodeError as error:
        number += 1 + error.object[: error.start].count(b"\n")  # of the piece that was being decoded
        raise ConfigError(f"{file}, line {number}: is not UTF-8 text ({error.reason})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{file}, line {number + 1}: can't be read: {error}") from error


def _values(file: Path) -> Iterator[tuple[Line, Mapping[str, Any]]]:
    """Rows of a CSV with a header, or of a JSONL: what the first line is tells."""
    lines = ((line, text) for line, text in lines_of(file) if text.strip())
    first = next(lines, None)
    if first is None:
        return
    if first[1].lstrip().startswith("{"):
        for line, text in chain([first], lines):
            yield line, _object(line, text)
        return
    if first[1].lstrip().startswith("["):
        raise ConfigError(f"{file}, line {first[0].number}: is a JSON list; write one object a line (JSONL)")
    columns = [name.strip() for name in _cells(*first)]
    for line, text in lines:
        cells = _cells(line, text)
        if len(cells) != len(columns):
            raise ConfigError(f"{line.path}, line {line.number}: {len(cells)} cells for {len(columns)} columns")
        yield line, dict(zip(columns, cells, strict=True))


def _cells(line: Line, text: str) -> list[str]:
    if '"' not in text:
        return text.rstrip("\r\n").split(",")
    try:
        return next(csv.reader([text]))
    except csv.Error as error:
        raise ConfigError(f"{line.path}, line {line.number}: is no row of a CSV: {error}") from error


def _object(line: Line, text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{line.path}, line {line.number}: is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{line.path}, line {line.number}: is not a JSON object")
    return value


def _shape_of(line: Line, values: Mapping[str, Any], format_name: str) -> Format:
    candidates = [each for each in formats() if format_name in ("auto", each.name)]
    for each in candidates:
        if set(each.columns) <= set(values):
            return each
    if not candidates:
        raise ConfigError(f"format: {unknown(format_name, ['auto', *format_names()])}")
    nearest = max(candidates, key=lambda each: len(set(each.columns) & set(values)))
    missing = [name for name in nearest.columns if name not in values]
    raise ConfigError(
        f"{line.path}, line {line.number}: has no {missing[0]!r}, which the format {nearest.name} needs "
        f"({', '.join(nearest.columns)}); it has {', '.join(map(str, values)) or 'nothing'}"
    )


def field(line: Line, values: Mapping[str, Any], name: str) -> Any:
    """A value of a row; raises `ConfigError` where the row lacks it."""
    try:
        return values[name]
    except KeyError:
        raise ConfigError(f"{line.path}, line {line.number}, {name}: is missing") from None


def blocks_of(line: Line, values: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """A row's list of block ids."""
    ids = field(line, values, name)
    if not isinstance(ids, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in ids):
        raise line.error(name, ids, "a list of whole numbers")
    return tuple(ids)


def _check_blocks(line: Line, name: str, row: Row, block_tokens: int) -> None:
    """As many blocks as the prompt has; one that is only partly filled, the last, may be left out."""
    whole, most = row.prompt_tokens // block_tokens, -(-row.prompt_tokens // block_tokens)
    if not whole <= len(row.blocks) <= most:
        raise ConfigError(
            f"{line.path}, line {line.number}, {name}: {len(row.blocks)} blocks for a prompt of {row.prompt_tokens} "
            f"tokens; at {block_tokens} tokens a block it has {most}"
        )
