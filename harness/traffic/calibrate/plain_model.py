"""A model that is only a tokenizer: what a schedule needs where no real model is asked."""

from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from harness.files import sha256_of_files, write_bytes, write_json
from harness.model import Model, ModelShape
from harness.traffic.calibrate.answers import WORDS

CONTEXT_TOKENS = 32_768


VOCABULARY = 4096


def plain_model(folder: Path) -> Model:
    """Write the tokenizer's files, in the form that other clients read as well, and name them as a model.

    It is learned from the text that prompts are cut from, and knows each word that the paced server says as one token:
    clients that count tokens by encoding what they got must find as many as were sent.
    """
    if not (folder / "tokenizer_config.json").exists():
        _write(folder)
    files = [folder / "tokenizer.json", folder / "tokenizer_config.json"]
    return Model("paced", ModelShape(), str(folder), None, sha256_of_files(files, folder), "learned")


def _write(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    words = ["".join(f" {word}" for word in WORDS)] * 1000
    tokenizer.train_from_iterator([*(topics[name] for name in sorted(topics)), *words], trainer)
    write_bytes(folder / "tokenizer.json", tokenizer.to_str().encode())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT_TOKENS}
    write_json(folder / "tokenizer_config.json", config)
