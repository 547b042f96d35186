import sys
from pathlib import Path

import pytest

from harness.backends.vllm import Vllm
from harness.model import Model, ModelShape

sys.path.insert(0, str(Path(__file__).parent))  # helpers that lie beside the tests


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same answers on every machine that the tests run on."""
    monkeypatch.setattr(Vllm, "on_gpu", False)


@pytest.fixture
def shape() -> ModelShape:
    """SmolLM2-135M: 23,040 bytes of KV a token in 16 bits."""
    return ModelShape(
        layers=30, heads=9, kv_heads=3, head_dim=64, hidden=576, intermediate=1536, vocab=49152, context_tokens=8192,
        parameters=134_515_008,
    )  # fmt: skip


@pytest.fixture
def model(shape: ModelShape, tmp_path: Path) -> Model:
    return Model("smollm2-135m", shape, str(tmp_path), tmp_path / "model-f16.gguf", "0" * 64, "made up for a test")
