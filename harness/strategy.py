"""The vocabulary of KV-cache strategies: what to do with the cache, in no vendor's words.

A backend translates a `Strategy` to its engine's own switches (`harness/backends/`), or raises `Unsupported` with the
reason. The dataclass is also the Hydra schema of `scenarios/strategy/*.yaml`, which is why it is not frozen; nothing
changes one after the configuration is composed.
"""

from dataclasses import dataclass, fields

from harness.errors import ConfigError

KV_DTYPES = ("16bit", "fp8_e4m3", "fp8_e5m2", "int8", "int4")
"""Stored formats of keys and values. `16bit` is the engine's 16-bit format (bf16 or f16) and the baseline."""

KV_GRANULARITIES = ("tensor", "token_head", "channel", "token", "group")
"""What shares one quantisation scale. None means the engine's own choice, which its proof of effect reports."""


@dataclass
class Strategy:
    """A KV-cache optimisation, vendor-neutral.

    Attributes
    ----------
    title : str
        Short label for tables, e.g. ``fp8 (e4m3)``.
    kv_dtype : str
        One of `KV_DTYPES`.
    kv_granularity : str or None
        One of `KV_GRANULARITIES`; None leaves it to the engine.
    prefix_reuse : bool
        Whether computed KV blocks are reused by later requests that share a prefix.
    sliding_window_tokens : int or None
        Attend to (and keep) only the newest tokens, > 0; None keeps all.
    """

    title: str = ""
    kv_dtype: str = "16bit"
    kv_granularity: str | None = None
    prefix_reuse: bool = True
    sliding_window_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.kv_dtype not in KV_DTYPES:
            raise ConfigError(f"kv_dtype: '{self.kv_dtype}' is unknown; allowed: {', '.join(KV_DTYPES)}")
        if self.kv_granularity is not None and self.kv_granularity not in KV_GRANULARITIES:
            allowed = ", ".join(KV_GRANULARITIES)
            raise ConfigError(f"kv_granularity: '{self.kv_granularity}' is unknown; allowed: {allowed}")
        if self.sliding_window_tokens is not None and self.sliding_window_tokens <= 0:
            raise ConfigError(f"sliding_window_tokens: {self.sliding_window_tokens} must be > 0, or null for none")

    @property
    def is_16bit_baseline(self) -> bool:
        """Whether this is the plain 16-bit cache that an engine's other strategies are compared with."""
        plain = Strategy()
        return all(getattr(self, f.name) == getattr(plain, f.name) for f in fields(self) if f.name != "title")
