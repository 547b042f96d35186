"""Engine settings that are not the KV strategy: equal for all deployments of a run wherever an engine allows it."""

from dataclasses import dataclass

from harness.errors import ConfigError


@dataclass
class Settings:
    """Settings of a server; also the Hydra schema of `settings:` in a scenario. None means the engine's default.

    Attributes
    ----------
    context_tokens : int
        Longest sequence (prompt + output) that a server must take; vLLM's `max_model_len`.
    max_num_seqs : int
        Most requests in a batch.
    kv_budget_bytes : int or None
        Bytes of KV pool, equal for all strategies (rule 3). None: the engine's own choice.
    block_size_tokens : int or None
        Tokens in a KV block, where the engine has blocks.
    max_num_batched_tokens : int or None
        Most tokens in one engine step (chunked prefill).
    gpu_memory_utilization : float or None
        Share of device memory that the engine may take, 0 to 1.
    swap_space_gib : float or None
        Host memory for swapped-out sequences, where an engine still has it.
    tensor_parallel : int
        Devices that one server spreads over.
    threads : int or None
        Compute threads on a CPU; None: all of `cores`.
    cores : list of int or None
        CPU cores that the engine may use; None: all.
    eager : bool
        Skip compilation and graph capture at start.
    """

    context_tokens: int = 8192
    max_num_seqs: int = 16
    kv_budget_bytes: int | None = None
    block_size_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    swap_space_gib: float | None = None
    tensor_parallel: int = 1
    threads: int | None = None
    cores: list[int] | None = None
    eager: bool = True

    def __post_init__(self) -> None:
        for key in ("context_tokens", "max_num_seqs"):
            if getattr(self, key) < 1:
                raise ConfigError(f"settings.{key}: {getattr(self, key)} must be >= 1")
        for key in ("kv_budget_bytes", "block_size_tokens", "max_num_batched_tokens", "threads"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ConfigError(f"settings.{key}: {value} must be >= 1, or null for the engine's own")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise ConfigError(f"settings.gpu_memory_utilization: {share} must be above 0 and at most 1")
