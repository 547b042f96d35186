"""Whether weights and KV pool fit the machine, over how many devices, and how large the pool may be.

Memory here is a prediction, made before anything is downloaded: 16-bit weights from the number of parameters, the pool
from the KV budget. What an engine really takes is measured in the run.
"""

import math
from dataclasses import dataclass, replace

from harness.errors import Unsupported
from harness.model import ModelShape
from harness.settings import Settings

DEVICE_SHARE = 0.85
"""Of a device's memory; the rest is for activations, graphs and the driver. `gpu_memory_utilization` replaces it."""
HOST_SHARE = 0.9
"""Of a host's memory, where there is no device."""
WEIGHT_BYTES = 2


@dataclass(frozen=True)
class Memory:
    """Memory of this machine: of each GPU, and of the host, which counts where there is no GPU."""

    device_bytes: tuple[int, ...]
    host_bytes: int

    def usable_bytes(self, settings: Settings, devices: int) -> int:
        """What weights and pool of one server may take together."""
        if not self.device_bytes:
            return math.floor(HOST_SHARE * self.host_bytes)
        return math.floor(devices * min(self.device_bytes) * (settings.gpu_memory_utilization or DEVICE_SHARE))


def weight_bytes(shape: ModelShape) -> int:
    """Bytes of the 16-bit weights."""
    return WEIGHT_BYTES * shape.parameters


def fitted(
    model: str, shape: ModelShape, settings: Settings, wanted_bytes: int | None, least_bytes: int, memory: Memory
) -> Settings:
    """The settings with device count and KV budget filled in.

    Parameters
    ----------
    model : str
        Its name, for the error texts.
    wanted_bytes : int or None
        The pool that the scenario would like; less is taken where memory leaves less (a smaller pool binds the more).
        None: the engine's own choice. A `kv_budget_bytes` that is set already is kept as it is.
    least_bytes : int
        The pool that one request of the longest context needs.

    Raises
    ------
    Unsupported
        Where the weights and the least pool don't fit.
    """
    asked = settings.kv_budget_bytes
    pool = asked if asked is not None else max(wanted_bytes or 0, least_bytes)
    if settings.tensor_parallel < 1:
        settings = replace(settings, tensor_parallel=devices_needed(shape, pool, settings, memory))
    devices = settings.tensor_parallel
    if memory.device_bytes and devices > len(memory.device_bytes):
        have = _gpus(len(memory.device_bytes), memory)
        raise Unsupported(f"scenario.settings.tensor_parallel={devices}, and this machine has {have}")
    left = memory.usable_bytes(settings, devices) - weight_bytes(shape)
    needed = asked if asked is not None else least_bytes
    if left < needed:
        raise Unsupported(_too_large(model, shape, settings, needed, memory))
    if asked is None and wanted_bytes is not None:
        settings = replace(settings, kv_budget_bytes=min(pool, left))
    return settings


def devices_needed(shape: ModelShape, pool_bytes: int, settings: Settings, memory: Memory) -> int:
    """Fewest devices, a power of two that divides the attention heads, that hold weights and pool; else all such."""
    if not memory.device_bytes:
        return 1
    powers = range(len(memory.device_bytes).bit_length())
    possible = [1 << power for power in powers if shape.heads % (1 << power) == 0]
    needed = weight_bytes(shape) + pool_bytes
    return next((n for n in possible if memory.usable_bytes(settings, n) >= needed), possible[-1])


def _too_large(model: str, shape: ModelShape, settings: Settings, pool_bytes: int, memory: Memory) -> str:
    devices = settings.tensor_parallel
    usable = memory.usable_bytes(settings, devices)
    budget = settings.kv_budget_bytes
    what = f"kv_budget_bytes={budget}" if budget is not None else f"one request of {settings.context_tokens} tokens"
    where = _gpus(devices, memory) if memory.device_bytes else f"a host of {_gib(memory.host_bytes)}"
    ways = ["the model", "kv_budget_bytes" if budget is not None else "context_tokens"]
    if memory.device_bytes and devices < len(memory.device_bytes):
        ways.append("tensor_parallel")
    return (
        f"{model} needs {_gib(weight_bytes(shape))} for its 16-bit weights and {_gib(pool_bytes)} of KV pool "
        f"({what}), and {where} leaves {_gib(usable)} for them; change {', '.join(ways[:-1])} or {ways[-1]} "
        "(scenario.settings)"
    )


def _gpus(count: int, memory: Memory) -> str:
    return f"{count} {'GPU' if count == 1 else 'GPUs'} of {_gib(min(memory.device_bytes))}"


def _gib(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB"
