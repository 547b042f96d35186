"""A Llama of any shape with random weights, built locally: for memory and speed, where answers don't matter."""

import hashlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.cache import Say
from harness.errors import ConfigError
from harness.model import Model, ModelShape
from harness.models.embedded import packaged_file
from harness.models.llama_files import LlamaConfig, parameters, tensor_shapes, write_gguf, write_hf_folder
from harness.models.prepared import built, folder_for
from harness.models.safetensors_file import LazyTensor
from harness.models.spec import ModelSpec
from harness.models.vocabulary import Vocabulary, read_vocabulary

STANDARD_DEVIATION = 0.02
"""Of initial weights, as GPT-2 and Llama start training; keeps the logits finite and flat."""


def random_tensors(shape: ModelShape, seed: int) -> list[LazyTensor]:
    """Weights that depend on `shape`, `seed` and the tensor's name only, so one can be made without the others."""
    return [_random(name, dims, shape.layers, seed) for name, dims in tensor_shapes(shape).items()]


def _random(name: str, dims: tuple[int, ...], layers: int, seed: int) -> LazyTensor:
    def load() -> NDArray[np.float32]:
        if len(dims) == 1:
            return np.ones(dims, np.float32)
        key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
        deviation = STANDARD_DEVIATION
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            deviation /= (2 * layers) ** 0.5  # what is added to the residual stream must not grow with depth
        values = np.random.default_rng([seed, key]).standard_normal(dims, dtype=np.float32)
        return values * np.float32(deviation)

    return LazyTensor(name, dims, load)


def build_random(folder_part: Path, name: str, config: LlamaConfig, vocabulary: Vocabulary, seed: int) -> float:
    """Write `hf/` and `model-f16.gguf` into the folder; the largest difference of a float16 value from its bf16 one."""
    write_hf_folder(folder_part / "hf", config, vocabulary, random_tensors(config.shape, seed))
    return write_gguf(folder_part / "model-f16.gguf", folder_part / "hf", name, config, vocabulary)


def prepare_random(name: str, spec: ModelSpec, say: Say) -> Model:
    """The model of `spec` as files for every engine, made at first use."""
    shape = spec.shape
    if shape.parameters != (count := parameters(shape)):
        raise ConfigError(f"model.{name}.shape.parameters: says {shape.parameters}, the shape has {count}")
    config = LlamaConfig(shape, spec.rope_theta, norm_epsilon=1e-5)
    recipe = {
        "kind": "random",
        "shape": asdict(shape),
        "seed": spec.seed,
        "rope_theta": spec.rope_theta,
        "tokenizer": spec.file_sha256,
    }
    folder = folder_for(name, recipe)

    def build(part: Path) -> dict[str, str]:
        vocabulary = read_vocabulary(packaged_file(spec, say))
        if shape.vocab != len(vocabulary.tokens):
            raise ConfigError(f"model.{name}.shape.vocab: {shape.vocab}; the tokenizer has {len(vocabulary.tokens)}")
        say(f"model: writing {shape.parameters / 1e6:.0f} M random weights (seed {spec.seed})")
        worst = build_random(part, name, config, vocabulary, spec.seed)
        return {
            "weights": f"random, seed {spec.seed}",
            "tokenizer": f"{spec.package}=={spec.version}",
            "f16_minus_bf16_max_abs": f"{worst:.3g}",
        }

    content_sha256, facts = built(folder, build, say)
    return Model(
        name=name,
        shape=shape,
        path=str(folder / "hf"),
        gguf=folder / "model-f16.gguf",
        content_sha256=content_sha256,
        source=f"random weights, seed {spec.seed}",
        facts=facts,
    )
