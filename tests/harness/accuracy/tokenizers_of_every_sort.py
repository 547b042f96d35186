"""Tokenizers that cut text in different ways, each as a model that is only a tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from harness.accuracy.names import WORDS
from harness.accuracy.straw import DID, WHAT, WHEN, WHERE, WHO
from harness.model import Model, ModelShape

TEXT = [*WHO, *DID, *WHAT, *WHERE, *WHEN, *WORDS, "Special magic number: 12345. Question? Answer! {}[]=<>|_-'\"/()\n"]
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
SPECIAL = ["<|start|>", "<|end|>"]


def byte_level_bpe() -> Tokenizer:
    """GPT-2's sort: words with the space before them, any byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def unigram() -> Tokenizer:
    """SentencePiece's sort: a space is ▁, and one stands before the text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    characters = sorted({character for text in TEXT for character in text} | set("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    trainer = trainers.UnigramTrainer(
        vocab_size=400, initial_alphabet=characters, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def whole_text_bpe() -> Tokenizer:
    """Llama 2's sort: no cut at spaces at all, merges only."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False, fuse_unk=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=[chr(code) for code in range(33, 127)], special_tokens=["<unk>"],
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT's sort: lower case, pieces with ## before them, unknown words as one token."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def characters() -> Tokenizer:
    """A token for each character."""
    vocabulary = {chr(code): code for code in range(1, 128)} | {"?unknown?": 0}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?unknown?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


SORTS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level-bpe": byte_level_bpe,
    "unigram": unigram,
    "whole-text-bpe": whole_text_bpe,
    "word-piece": word_piece,
    "characters": characters,
}


def as_model(tokenizer: Tokenizer, folder: Path) -> Model:
    """A model's folder with that tokenizer and a chat template whose special tokens it has."""
    tokenizer.add_special_tokens(SPECIAL)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return Model(folder.name, ModelShape(vocab=tokenizer.get_vocab_size()), str(folder), None, "", "")
