"""The configured models are well-formed, and `auto` picks by GPU memory."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

import harness
from harness.errors import ConfigError
from harness.models import ModelSpec, choose_auto, prepare
from harness.models.spec import check_spec

FILES = sorted((Path(harness.__file__).parent.parent / "scenarios" / "model").glob("*.yaml"))
GIB = 2**30


def load(path: Path) -> ModelSpec:
    spec = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ModelSpec), OmegaConf.load(path)))
    assert isinstance(spec, ModelSpec)
    return spec


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_configured_model_is_complete_and_lands_under_its_name(path: Path) -> None:
    spec = load(path)
    check_spec(path.stem, spec)
    assert spec.title
    assert path.read_text().splitlines()[0] == f"# @package model.{path.stem}"
    assert "." not in path.stem, "Hydra splits keys at dots"


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "auto"], ids=lambda path: path.stem)
def test_every_shape_is_consistent(path: Path) -> None:
    shape = load(path).shape
    assert all(value > 0 for value in vars(shape).values())
    assert shape.heads % shape.kv_heads == 0
    attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    dense = shape.layers * (attention + 3 * shape.hidden * shape.intermediate)
    if "a22b" not in path.stem:  # experts: more weights than one dense feed-forward holds
        counts = [dense + shape.vocab * shape.hidden * embeddings for embeddings in (1, 2)]
        assert min(abs(shape.parameters / count - 1) for count in counts) < 0.001


def specs() -> dict[str, ModelSpec]:
    return {path.stem: load(path) for path in FILES}


@pytest.mark.parametrize(
    ("gpus_gib", "tensor_parallel", "chosen"),
    [
        ([], 1, "smollm2-135m"),
        ([4], 1, "smollm2-135m"),
        ([24], 1, "qwen3-4b"),
        ([80], 1, "qwen3-14b"),
        ([80, 80], 1, "qwen3-14b"),
        ([80, 80], 2, "qwen3-32b"),
        ([80, 24], 2, "qwen3-8b"),
        ([140] * 8, 8, "llama-3-1-405b"),
    ],
)
def test_auto_takes_the_largest_that_fits(gpus_gib: list[int], tensor_parallel: int, chosen: str) -> None:
    assert choose_auto(specs(), [gib * GIB for gib in gpus_gib], tensor_parallel) == chosen


def test_every_candidate_of_auto_is_configured() -> None:
    assert set(specs()["auto"].candidates) <= specs().keys()


def test_nothing_fits_is_said() -> None:
    with pytest.raises(ConfigError, match="no candidate fits 8 GiB"):
        choose_auto({"auto": ModelSpec(source="auto", candidates={"big": 80})}, [8 * GIB])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ModelSpec(source="ftp"), r"model\.m\.source: 'ftp' is unknown; allowed: pypi, random, path, hub, auto"),
        (ModelSpec(source="hub"), r"model\.m\.path_or_id: needed with source=hub"),
        (ModelSpec(source="pypi", package="p"), r"model\.m\.version: needed with source=pypi"),
    ],
)
def test_an_incomplete_model_names_the_key(spec: ModelSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare("m", spec, print)
