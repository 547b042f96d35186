"""A model that the user has as a folder, or that lies on the model hub: nothing is converted."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from harness.cache import Say
from harness.errors import ConfigError, SetupError
from harness.model import Model, ModelShape
from harness.models.spec import ModelSpec

SAMPLE_BYTES = 1 << 20
"""Of a weight file, this much of its head and tail is hashed, beside its size: 140 GB can't be read at each start."""

WANTED = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken")
"""What engines load from the hub; the same weights in other formats stay there."""


def read_shape(folder: Path) -> ModelShape:
    """Shape out of a folder's `config.json` and the headers of its weight files."""
    path = folder / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SetupError(f"{path}: can't be read ({error}); a folder in Hugging Face layout is needed") from error
    config = {**config, **config.get("text_config", {})}
    needed = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "max_position_embeddings")
    if missing := [key for key in needed if key not in config]:
        raise SetupError(f"{path}: has no {', '.join(missing)}; its architecture is not known here")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    return ModelShape(
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or hidden // heads,
        hidden=hidden,
        intermediate=config.get("intermediate_size", 0),
        vocab=config["vocab_size"],
        context_tokens=config["max_position_embeddings"],
        parameters=sum(_parameters(file) for file in sorted(folder.glob("*.safetensors"))),
    )


def local_folder(name: str, spec: ModelSpec) -> Path:
    """The folder that a spec with ``source: path`` names; raises `ConfigError` where there is none."""
    folder = Path(str(spec.path_or_id)).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"model.{name}.path_or_id: '{spec.path_or_id}' is no folder; for a hub id: source=hub")
    return folder


def shape_of(folder: Path, spec: ModelSpec) -> ModelShape:
    """Shape of the model in `folder`; the number of weights as configured where no safetensors file tells it."""
    shape = read_shape(folder)
    shape.parameters = shape.parameters or spec.shape.parameters
    return shape


def prepare_folder(name: str, spec: ModelSpec, say: Say) -> Model:
    """The model at `spec.path_or_id`, fetched from the hub where it isn't a folder."""
    assert spec.path_or_id
    folder = local_folder(name, spec) if spec.source == "path" else _snapshot(name, spec, say)
    gguf = Path(spec.gguf).expanduser().resolve() if spec.gguf else None
    if gguf and not gguf.is_file():
        raise ConfigError(f"model.{name}.gguf: '{spec.gguf}' is no file")
    return Model(
        name=name,
        shape=shape_of(folder, spec),
        path=str(folder.resolve()),
        gguf=gguf,
        content_sha256=sampled_sha256(folder, gguf),
        source=spec.path_or_id + (f"@{spec.revision}" if spec.revision else ""),
        facts={"content_sha256_of": f"sizes, and first and last {SAMPLE_BYTES} bytes of each file"},
    )


def _snapshot(name: str, spec: ModelSpec, say: Say) -> Path:
    from huggingface_hub import snapshot_download

    assert spec.path_or_id
    say(f"model: looking for {spec.path_or_id} in the local hub cache, then on the hub")
    try:
        return Path(snapshot_download(spec.path_or_id, revision=spec.revision, allow_patterns=list(WANTED)))
    except Exception as error:  # the client's own, its HTTP library's, or the disk's: the advice is the same
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        token = "" if os.environ.get("HF_TOKEN") else " Models behind a licence need HF_TOKEN."
        raise SetupError(
            f"model.{name}: {spec.path_or_id} can't be fetched from the hub ({type(error).__name__}: {first}).{token} "
            f"A copy on this machine: model.{name}.source=path model.{name}.path_or_id=<folder>. "
            "The embedded model needs no hub: model=smollm2-135m"
        ) from error


def sampled_sha256(folder: Path, gguf: Path | None) -> str:
    """Hash over names, sizes, heads and tails of the files that engines load; small files count whole."""
    files = sorted({path for pattern in WANTED for path in folder.glob(pattern)} | ({gguf} if gguf else set()))
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(SAMPLE_BYTES))
            file.seek(max(size - SAMPLE_BYTES, 0))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _parameters(path: Path) -> int:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    total = 0
    for key, entry in header.items():
        if key != "__metadata__":
            count = 1
            for size in entry["shape"]:
                count *= size
            total += count
    return total
