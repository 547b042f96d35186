"""A Llama-architecture model as files: the Hugging Face folder in bf16, and a 16-bit GGUF made from that folder.

The GGUF is always made from the folder's own bf16 weights, so engines that read one or the other compute with the same
numbers, up to what float16 can't hold (`write_gguf` returns that difference).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_VERSION, GGUFWriter, LlamaFileType
from numpy.typing import NDArray

from harness.model import ModelShape
from harness.models.safetensors_file import LazyTensor, read_bf16, write_bf16
from harness.models.vocabulary import Vocabulary, write_tokenizer

OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
"""Names of a layer's tensors: Hugging Face → GGUF."""


@dataclass(frozen=True)
class LlamaConfig:
    """What the files must say beside the shape; output and input embeddings are tied."""

    shape: ModelShape
    rope_theta: float
    norm_epsilon: float


def tensor_names(layers: int) -> dict[str, str]:
    """All tensors of a model with tied embeddings: Hugging Face name → GGUF name, in file order."""
    names = {"model.embed_tokens.weight": OUTER["model.embed_tokens.weight"]}
    for i in range(layers):
        names |= {f"model.layers.{i}.{hf}": f"blk.{i}.{gguf}" for hf, gguf in LAYER.items()}
    return names | {"model.norm.weight": OUTER["model.norm.weight"]}


def tensor_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor by Hugging Face name."""
    query, key_value = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (shape.hidden,),
        "self_attn.q_proj.weight": (query, shape.hidden),
        "self_attn.k_proj.weight": (key_value, shape.hidden),
        "self_attn.v_proj.weight": (key_value, shape.hidden),
        "self_attn.o_proj.weight": (shape.hidden, query),
        "post_attention_layernorm.weight": (shape.hidden,),
        "mlp.gate_proj.weight": (shape.intermediate, shape.hidden),
        "mlp.up_proj.weight": (shape.intermediate, shape.hidden),
        "mlp.down_proj.weight": (shape.hidden, shape.intermediate),
    }
    outer: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    return {name: outer.get(name) or layer[name.split(".", 3)[3]] for name in tensor_names(shape.layers)}


def parameters(shape: ModelShape) -> int:
    """Number of weights of a model with tied embeddings."""
    return sum(int(np.prod(dims)) for dims in tensor_shapes(shape).values())


def permute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of q or k from Hugging Face's order (half, half) to GGUF's (pairs), which their rotary codes expect."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def unpermute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """The inverse of `permute`."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def rotary_heads(name: str, shape: ModelShape) -> int | None:
    """Number of heads of a tensor whose rows are permuted (q and k), else None."""
    if name.endswith("q_proj.weight"):
        return shape.heads
    return shape.kv_heads if name.endswith("k_proj.weight") else None


def write_hf_folder(folder: Path, config: LlamaConfig, vocabulary: Vocabulary, tensors: Sequence[LazyTensor]) -> None:
    """Write the folder that vLLM, SGLang and transformers load."""
    folder.mkdir(parents=True)
    shape = config.shape
    ids = {"bos_token_id": vocabulary.bos_id, "eos_token_id": vocabulary.eos_id, "pad_token_id": vocabulary.padding_id}
    text = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context_tokens,
        "mlp_bias": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": config.norm_epsilon,
        "rope_scaling": None,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocab,
        **ids,
    }
    (folder / "config.json").write_text(json.dumps(text, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n")
    write_tokenizer(vocabulary, folder, shape.context_tokens)
    write_bf16(folder / "model.safetensors", tensors)


def write_gguf(path: Path, hf_folder: Path, name: str, config: LlamaConfig, vocabulary: Vocabulary) -> float:
    """Write the folder's weights as GGUF (matrices float16, norms float32).

    Returns
    -------
    float
        Largest absolute difference between a bf16 weight and its float16 value. float16 has the finer steps and the
        smaller range: only values below 2**-17 (8e-6) in size, or above 65504, can differ.
    """
    shape = config.shape
    writer = GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre_tokenizer)
    writer.add_token_list(list(vocabulary.tokens))
    writer.add_token_types(list(vocabulary.token_types))
    writer.add_token_merges(list(vocabulary.merges))
    writer.add_bos_token_id(vocabulary.bos_id)
    writer.add_eos_token_id(vocabulary.eos_id)
    writer.add_unk_token_id(vocabulary.unknown_id)
    writer.add_pad_token_id(vocabulary.padding_id)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(vocabulary.chat_template)

    names = tensor_names(shape.layers)
    tensors = list(read_bf16(hf_folder / "model.safetensors"))
    for tensor in tensors:
        dtype = np.dtype(np.float32 if len(tensor.shape) == 1 else np.float16)
        size = int(np.prod(tensor.shape)) * dtype.itemsize
        writer.add_tensor_info(names[tensor.name], tensor.shape, dtype, size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    worst = 0.0
    for tensor in tensors:
        values = tensor.load()
        if heads := rotary_heads(tensor.name, shape):
            values = permute(values, heads)
        stored = values if values.ndim == 1 else values.astype(np.float16)
        worst = max(worst, float(np.abs(values - stored.astype(np.float32)).max()))
        writer.write_tensor_data(stored)
    writer.close()
    return worst
