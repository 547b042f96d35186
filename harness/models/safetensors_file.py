"""Safetensors in bfloat16, written and read a tensor at a time, without torch (format: the safetensors README)."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is computed when it is written, so that a model never has to fit in memory.

    Attributes
    ----------
    name : str
        Its name in the Hugging Face layout.
    shape : tuple of int
        (out, in), or (n,).
    load : callable
        Gives the values, float32.
    """

    name: str
    shape: tuple[int, ...]
    load: Callable[[], NDArray[np.float32]]


def write_bf16(path: Path, tensors: Sequence[LazyTensor]) -> None:
    """Write `tensors`, rounded to bfloat16, in the given order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + 2 * int(np.prod(tensor.shape))
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data must start on a multiple of 8 bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            values = tensor.load()
            if values.shape != tensor.shape:
                raise ValueError(f"{tensor.name}: shape {values.shape}, announced {tensor.shape}")
            file.write(np.ascontiguousarray(values).astype(ml_dtypes.bfloat16).tobytes())


def read_bf16(path: Path) -> Iterator[LazyTensor]:
    """The tensors of a file that `write_bf16` wrote, in its order."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length)
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        shape = tuple(entry["shape"])

        def load(start: int = start, end: int = end, shape: tuple[int, ...] = shape) -> NDArray[np.float32]:
            values: NDArray[np.float32] = data[start:end].view(ml_dtypes.bfloat16).astype(np.float32)
            return values.reshape(shape)

        yield LazyTensor(name, shape, load)
