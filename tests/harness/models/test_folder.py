"""A user's own folder, and the hub."""

import dataclasses
import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from harness.errors import ConfigError, SetupError
from harness.model import ModelShape
from harness.models import ModelSpec, known_shape, prepare


def quiet(_: str) -> None:
    pass


@pytest.fixture
def own(tiny_spec: ModelSpec) -> ModelSpec:
    """A folder as a user may have it (here: one that KVMark made), with nothing said about its shape."""
    model = prepare("tiny", tiny_spec, quiet)
    return ModelSpec(source="path", path_or_id=model.path, gguf=str(model.gguf))


def test_the_shape_is_read_from_the_folder(own: ModelSpec, tiny_spec: ModelSpec) -> None:
    model = prepare("own", own, quiet)
    assert model.shape == tiny_spec.shape
    assert model.path == own.path_or_id
    assert str(model.gguf) == own.gguf


def test_the_plan_knows_the_shape_before_anything_is_prepared(own: ModelSpec, tiny_spec: ModelSpec) -> None:
    assert known_shape("own", own) == tiny_spec.shape
    assert known_shape("tiny", tiny_spec) is tiny_spec.shape


def test_head_dim_and_kv_heads_may_be_missing(own: ModelSpec) -> None:
    path = Path(str(own.path_or_id)) / "config.json"
    config = json.loads(path.read_text())
    del config["head_dim"], config["num_key_value_heads"]
    path.write_text(json.dumps(config))
    shape = prepare("own", own, quiet).shape
    assert (shape.head_dim, shape.kv_heads) == (shape.hidden // shape.heads, shape.heads)


@pytest.mark.parametrize("where", ["head", "tail"])
def test_changed_weights_are_another_model(own: ModelSpec, where: str) -> None:
    before = prepare("own", own, quiet).content_sha256
    assert prepare("own", own, quiet).content_sha256 == before
    weights = Path(str(own.path_or_id)) / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1 if where == "tail" else len(data) // 100 + 4096] ^= 1
    weights.write_bytes(data)
    assert prepare("own", own, quiet).content_sha256 != before


def test_a_missing_folder_or_file_is_named(own: ModelSpec, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.own\.path_or_id: '/nowhere'"):
        prepare("own", dataclasses.replace(own, path_or_id="/nowhere"), quiet)
    with pytest.raises(ConfigError, match=r"model\.own\.gguf"):
        prepare("own", dataclasses.replace(own, gguf="/nowhere.gguf"), quiet)
    with pytest.raises(SetupError, match=r"config\.json"):
        prepare("own", dataclasses.replace(own, path_or_id=str(tmp_path)), quiet)


def test_an_unreachable_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    spec = ModelSpec(source="hub", path_or_id="nobody/no-such-model", shape=ModelShape(layers=2))
    with pytest.raises(SetupError, match=r"nobody/no-such-model(.|\n)*model\.big\.source=path"):
        prepare("big", spec, quiet)
