"""Writes rows to a Parquet file in groups, as bytes to be taken as they come: memory holds one group and no more."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

GROUP_ROWS = 20_000
GROUP_BYTES = 64 * 1024 * 1024
"""A group is written when it has so many rows, or its lists and texts are so large."""


def parquet_pieces(rows: Iterable[Mapping[str, Any]], schema: pa.Schema, repeated: list[str]) -> Iterator[bytes]:
    """The bytes of a Parquet file that holds the rows.

    Parameters
    ----------
    rows : iterable of mapping
        By column; a list column holds uint32 arrays or None.
    schema : pyarrow.Schema
        Of the file.
    repeated : list of str
        Columns whose values repeat.
    """
    sink = _Sink()
    writer = pq.ParquetWriter(sink, schema, use_dictionary=repeated, write_page_checksum=True)
    group = _Group(schema)
    for row in rows:
        group.add(row)
        if group.is_full():
            writer.write_table(group.table())
            group = _Group(schema)
            yield sink.taken()
    writer.write_table(group.table())
    writer.close()
    yield sink.taken()


class _Group:
    """Rows that are written together."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows: dict[str, list[Any]] = {name: [] for name in schema.names}
        self._large = [field.name for field in schema if pa.types.is_list(field.type) or field.name == "text"]
        self._count = self._bytes = 0

    def add(self, row: Mapping[str, Any]) -> None:
        for name, column in self._rows.items():
            column.append(row[name])
        self._count += 1
        self._bytes += sum(4 * len(row[name]) for name in self._large if row[name] is not None)

    def is_full(self) -> bool:
        return self._count >= GROUP_ROWS or self._bytes >= GROUP_BYTES

    def table(self) -> pa.Table:
        arrays = [
            _list_array(values) if pa.types.is_list(field.type) else pa.array(values, field.type)
            for field, values in zip(self._schema, self._rows.values(), strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _list_array(lists: list[NDArray[np.uint32] | None]) -> pa.Array:
    """A list column out of one array a row."""
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum([0 if values is None else len(values) for values in lists], out=offsets[1:])
    values = [values for values in lists if values is not None]
    return pa.ListArray.from_arrays(
        pa.array(offsets),
        pa.array(np.concatenate(values) if values else np.empty(0, np.uint32)),
        mask=pa.array([values is None for values in lists], pa.bool_()),
    )


class _Sink:
    """A file to a Parquet writer, whose bytes are taken as they come."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._at = 0

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._at += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
