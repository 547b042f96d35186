"""The model under test: its shape (for predictions, before any download) and its files (once prepared)."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class ModelShape:
    """What the plan must know of a model; also the Hydra schema of `shape:` in `scenarios/model/*.yaml`.

    Attributes
    ----------
    layers, heads, kv_heads, head_dim, hidden, vocab : int
        As in the model's `config.json` (`kv_heads` is `num_key_value_heads`).
    intermediate : int
        Width of the feed-forward layers; 0 where only the parameter count is known.
    context_tokens : int
        Longest sequence the model takes (`max_position_embeddings`).
    parameters : int
        Number of weights.
    """

    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    hidden: int = 0
    intermediate: int = 0
    vocab: int = 0
    context_tokens: int = 0
    parameters: int = 0

    def kv_values_per_token(self) -> int:
        """Keys and values stored for one token over all layers: 2 × layers × kv_heads × head_dim."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, bits_per_value: float) -> float:
        """Bytes that one token's keys and values take at the given mean bits a value (scales included)."""
        return self.kv_values_per_token() * bits_per_value / 8


@dataclass(frozen=True)
class Model:
    """A prepared model: files that engines load, all from the same weights.

    Attributes
    ----------
    name : str
        Name of the model in KVMark (the YAML's name).
    shape : ModelShape
        Its shape.
    path : str
        Folder in Hugging Face layout (or a hub id where the model isn't embedded); tokenizer included.
    gguf : Path or None
        16-bit GGUF of the same weights for llama.cpp, where there is one.
    content_sha256 : str
        Hash over the files that engines load; equal hash means equal model.
    source : str
        Where the weights came from, for the manifest.
    facts : dict
        Further facts for the manifest (package version, file hashes, conversion error).
    """

    name: str
    shape: ModelShape
    path: str
    gguf: Path | None
    content_sha256: str
    source: str
    facts: dict[str, str] = field(default_factory=dict)
