"""Reads a `requests.parquet` of either version: everything but the events at once, the events a few rows at a time.

A million requests of 128 tokens are half a gigabyte of arrival times: they pass through memory, they don't stay there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from harness.errors import KVMarkError

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

VERSION_KEY = b"kvmark_requests_version"
VERSIONS = (1, 2)
"""Versions of `requests.parquet` that are read: 1 holds absolute nanoseconds, 2 microseconds since the send."""

MISSING = -1
"""Stands for null in times and counts, which are never negative; as floats, nanoseconds would lose digits."""

_EVENTS = ("event_us", "event_ns", "event_tokens")
_UNREAD = (*_EVENTS, "text", "request_id", "error_detail", "finish_reason", "http_status", "planned_output_tokens")
_NAMES = ("phase", "session_id", "tenant", "error")
_NEEDED = ("phase", "turn", "scheduled_ns", "sent_ns", "ended_ns", "error", "event_tokens")
_BATCH_EVENTS = 1_000_000
"""Events read at once: so many arrival times stay in a core's cache."""


@dataclass(frozen=True)
class Events:
    """The events of some consecutive rows.

    Attributes
    ----------
    first_row : int
        Row that the first of them belongs to.
    offsets : array of int
        Where each row's events begin, and where the last row's end.
    at : array of int
        Arrival after the row's send, in units of `unit_ns`.
    tokens : array of int or None
        Tokens in each event; None: one each.
    """

    first_row: int
    offsets: Ints
    at: NDArray[np.integer]
    tokens: NDArray[np.integer] | None
    unit_ns: int

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + len(self.offsets) - 1)


@dataclass(frozen=True)
class Names:
    """A column of text: a code a row (`MISSING`: null), and the texts."""

    codes: Ints
    texts: tuple[str, ...]

    def where(self, text: str) -> Flags:
        return self.codes == self.texts.index(text) if text in self.texts else np.zeros(len(self.codes), dtype=bool)


@dataclass(frozen=True)
class Rows:
    """Every row's columns but the events; what a version lacks is all null."""

    phase: Names
    session: Names
    tenant: Names
    error: Names
    turn: Ints
    worker: Ints
    scheduled_ns: Ints
    sent_ns: Ints
    ended_ns: Ints
    planned_prompt_tokens: Ints
    prompt_tokens: Ints
    cached_prompt_tokens: Ints
    output_tokens: Ints
    tokens_estimated: Flags
    buffered: Flags
    connection_reused: Ints

    def __len__(self) -> int:
        return len(self.turn)


@dataclass(frozen=True)
class Records:
    """The request records of one cell: a file, or (in tests) a table that holds the same."""

    source: Path | pa.Table
    version: int
    columns: tuple[str, ...]

    @staticmethod
    def open(source: Path | pa.Table) -> "Records":
        """Read version and columns; raises `KVMarkError`, `OSError` or `ValueError` where the file is none of ours."""
        schema = source.schema if isinstance(source, pa.Table) else pq.read_schema(source)
        version = int((schema.metadata or {}).get(VERSION_KEY, b"2" if "event_us" in schema.names else b"1"))
        if version not in VERSIONS:
            known = ", ".join(map(str, VERSIONS))
            raise KVMarkError(f"version {version} of the request records is unknown; this KVMark reads {known}")
        needed = (*_NEEDED, "event_us" if version == 2 else "event_ns")
        if missing := [name for name in needed if name not in schema.names]:
            raise KVMarkError(f"the request records lack the columns {', '.join(missing)}")
        return Records(source, version, tuple(schema.names))

    def rows(self) -> Rows:
        """All rows, without their events."""
        if isinstance(self.source, pa.Table):
            table = self.source
        else:
            names = [name for name in _NAMES if name in self.columns]
            with pq.ParquetFile(self.source, read_dictionary=names, page_checksum_verification=True) as file:
                table = file.read(columns=[name for name in self.columns if name not in _UNREAD])
                if (found := min((len(column) for column in table.columns), default=0)) != file.metadata.num_rows:
                    raise KVMarkError(f"{found} of {file.metadata.num_rows} rows are there")
        missing = np.full(len(table), MISSING, dtype=np.int64)

        def ints(name: str) -> Ints:
            return _ints(table[name]) if name in table.column_names else missing

        return Rows(
            phase=_names(table, "phase"),
            session=_names(table, "session_id"),
            tenant=_names(table, "tenant"),
            error=_names(table, "error"),
            turn=ints("turn"),
            worker=ints("worker"),
            scheduled_ns=ints("scheduled_ns"),
            sent_ns=ints("sent_ns"),
            ended_ns=ints("ended_ns"),
            planned_prompt_tokens=ints("planned_prompt_tokens"),
            prompt_tokens=ints("prompt_tokens"),
            cached_prompt_tokens=ints("cached_prompt_tokens"),
            output_tokens=ints("output_tokens"),
            tokens_estimated=ints("tokens_estimated") == 1,
            buffered=ints("buffered") == 1,
            connection_reused=ints("connection_reused"),
        )

    def events(self, rows: Rows) -> Iterator[Events]:
        """The events of all rows, a batch at a time, in order."""
        first = 0
        for batch in self._batches():
            yield self._events(batch, first, rows)
            first += len(batch)
        if first != len(rows):
            raise KVMarkError(f"the events of {first} of {len(rows)} rows are there")

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if isinstance(self.source, pa.Table):
            yield from self.source.combine_chunks().to_batches()
            return
        with pq.ParquetFile(self.source, page_checksum_verification=True) as file:
            columns = [name for name in _EVENTS if name in self.columns]
            total = file.metadata.num_rows
            at = next(i for i, path in enumerate(_leaf_columns(file)) if path in _EVENTS[:2])
            events = sum(file.metadata.row_group(i).column(at).num_values for i in range(file.num_row_groups))
            size = max(1, min(total, _BATCH_EVENTS * total // max(events, 1)))
            yield from file.iter_batches(batch_size=size, columns=columns)

    def _events(self, batch: pa.RecordBatch, first: int, rows: Rows) -> Events:
        name = "event_us" if self.version == 2 else "event_ns"
        column = batch.column(batch.schema.get_field_index(name))
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        at = pc.list_flatten(column).to_numpy(zero_copy_only=False)
        tokens = _tokens(batch.column(batch.schema.get_field_index("event_tokens")), lengths)
        if self.version == 2:
            return Events(first, offsets, at, tokens, 1000)
        sent = rows.sent_ns[first : first + len(lengths)]
        return Events(first, offsets, at.astype(np.int64) - np.repeat(sent, lengths), tokens, 1)


def _leaf_columns(file: pq.ParquetFile) -> Iterator[str]:
    """Top-level name of each of the file's leaf columns, in their order."""
    for i in range(len(file.schema)):
        yield file.schema.column(i).path.split(".")[0]


def _tokens(column: pa.Array, lengths: Ints) -> NDArray[np.integer] | None:
    """Tokens in each event of a batch; a row whose list is null has one in each. None: all have one."""
    if column.null_count == len(column):
        return None
    stated = pc.list_flatten(column).to_numpy(zero_copy_only=False).astype(np.int64)
    if not column.null_count:
        return None if (stated == 1).all() else stated
    tokens = np.ones(int(lengths.sum()), dtype=np.int64)
    tokens[np.repeat(pc.is_valid(column).to_numpy(zero_copy_only=False), lengths)] = stated
    return None if (tokens == 1).all() else tokens


def _ints(column: pa.ChunkedArray) -> Ints:
    filled = pc.fill_null(column.cast(pa.int64()), MISSING)
    return np.asarray(filled.to_numpy(), dtype=np.int64)


def _names(table: pa.Table, name: str) -> Names:
    if name not in table.column_names or not len(table):
        return Names(np.full(len(table), MISSING, dtype=np.int64), ())
    column = table[name]
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    one = column.unify_dictionaries().combine_chunks()
    one = one.chunk(0) if isinstance(one, pa.ChunkedArray) else one
    codes = pc.fill_null(one.indices.cast(pa.int64()), MISSING)
    return Names(codes.to_numpy(zero_copy_only=False), tuple(one.dictionary.to_pylist()))
