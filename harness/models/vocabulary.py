"""The tokenizer of a GGUF file, and the same one in Hugging Face's files.

`transformers` builds a tokenizer of the wrong class (and without its end and padding tokens) from such a file, so it
is built here from the vocabulary and merges themselves.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from harness.errors import SetupError

CONTROL = 3
"""GGUF's token type of special tokens (`gguf.TokenType.CONTROL`)."""


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE tokenizer as GGUF holds it; `merges` are pairs joined by one space."""

    tokens: tuple[str, ...]
    token_types: tuple[int, ...]
    merges: tuple[str, ...]
    pre_tokenizer: str
    bos_id: int
    eos_id: int
    unknown_id: int
    padding_id: int
    chat_template: str


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file."""
    fields = GGUFReader(path).fields

    def value(key: str) -> object:
        if key not in fields:
            raise SetupError(f"{path}: has no {key}; a GGUF with a byte-level BPE tokenizer is needed")
        return fields[key].contents()

    kind, pre = value("tokenizer.ggml.model"), value("tokenizer.ggml.pre")
    if (kind, pre) != ("gpt2", "smollm"):
        raise SetupError(f"{path}: tokenizer {kind}/{pre} is not known here; known: gpt2/smollm")
    return Vocabulary(
        tokens=tuple(value("tokenizer.ggml.tokens")),  # type: ignore[arg-type]
        token_types=tuple(value("tokenizer.ggml.token_type")),  # type: ignore[arg-type]
        merges=tuple(value("tokenizer.ggml.merges")),  # type: ignore[arg-type]
        pre_tokenizer=str(pre),
        bos_id=int(value("tokenizer.ggml.bos_token_id")),  # type: ignore[call-overload]
        eos_id=int(value("tokenizer.ggml.eos_token_id")),  # type: ignore[call-overload]
        unknown_id=int(value("tokenizer.ggml.unknown_token_id")),  # type: ignore[call-overload]
        padding_id=int(value("tokenizer.ggml.padding_token_id")),  # type: ignore[call-overload]
        chat_template=str(value("tokenizer.chat_template")),
    )


def write_tokenizer(vocabulary: Vocabulary, folder: Path, context_tokens: int) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json`."""
    tokens = vocabulary.tokens
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in vocabulary.merges)]
    tokenizer = Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    # llama.cpp's `smollm` rule: each digit alone, then GPT-2's word pattern.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, vocabulary.token_types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        "bos_token": tokens[vocabulary.bos_id],
        "eos_token": tokens[vocabulary.eos_id],
        "unk_token": tokens[vocabulary.unknown_id],
        "pad_token": tokens[vocabulary.padding_id],
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_tokens,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": vocabulary.chat_template,
        **names,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(names, indent=2) + "\n")
