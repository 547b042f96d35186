"""Random weights: reproducible, loadable, and of the shape that was asked for."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from harness.errors import ConfigError
from harness.models import ModelSpec, prepare
from harness.models.llama_files import parameters
from harness.models.safetensors_file import read_bf16


def quiet(_: str) -> None:
    pass


@pytest.fixture
def random_spec(tiny_spec: ModelSpec) -> ModelSpec:
    shape = dataclasses.replace(tiny_spec.shape, layers=3, hidden=96, heads=6, kv_heads=3, intermediate=128)
    return dataclasses.replace(
        tiny_spec, source="random", seed=5, shape=dataclasses.replace(shape, parameters=parameters(shape))
    )


def test_equal_seeds_give_equal_files(random_spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare("r", random_spec, quiet)
    monkeypatch.setenv("KVMARK_CACHE", str(tmp_path / "second-cache"))
    second = prepare("r", random_spec, quiet)
    assert first.path != second.path
    assert first.content_sha256 == second.content_sha256


def test_another_seed_gives_another_model(random_spec: ModelSpec) -> None:
    other = dataclasses.replace(random_spec, seed=6)
    assert prepare("r", random_spec, quiet).content_sha256 != prepare("r", other, quiet).content_sha256


def test_the_files_have_the_shape_and_sane_weights(random_spec: ModelSpec) -> None:
    model = prepare("r", random_spec, quiet)
    tensors = {tensor.name: tensor.load() for tensor in read_bf16(Path(model.path) / "model.safetensors")}
    assert sum(values.size for values in tensors.values()) == random_spec.shape.parameters
    assert model.gguf
    assert sum(int(t.n_elements) for t in GGUFReader(model.gguf).tensors) == random_spec.shape.parameters
    for name, values in tensors.items():
        assert np.isfinite(values).all(), name
        assert values.ndim == 1 or 0.005 < values.std() < 0.03, name
    layers = {tensors[f"model.layers.{i}.mlp.up_proj.weight"].tobytes() for i in range(3)}
    assert len(layers) == 3, "layers must differ"


def test_a_parameter_count_that_is_not_the_shapes_is_refused(random_spec: ModelSpec) -> None:
    wrong = dataclasses.replace(random_spec, shape=dataclasses.replace(random_spec.shape, parameters=1))
    with pytest.raises(ConfigError, match=r"model\.r\.shape\.parameters: says 1"):
        prepare("r", wrong, quiet)


def test_scores_of_random_weights_mean_nothing(random_spec: ModelSpec, tiny_spec: ModelSpec) -> None:
    assert not random_spec.has_trained_weights
    assert tiny_spec.has_trained_weights
