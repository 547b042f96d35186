"""A model that is only a tokenizer of single bytes: what a schedule needs where no real model is asked."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from harness.files import sha256_of_files, write_bytes, write_json
from harness.model import Model, ModelShape

CONTEXT_TOKENS = 32_768


def plain_model(folder: Path) -> Model:
    """Write the tokenizer's files, in the form that other clients read as well, and name them as a model."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    write_bytes(folder / "tokenizer.json", tokenizer.to_str().encode())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT_TOKENS}
    write_json(folder / "tokenizer_config.json", config)
    files = [folder / "tokenizer.json", folder / "tokenizer_config.json"]
    return Model("paced", ModelShape(), str(folder), None, sha256_of_files(files, folder), json.dumps(config))
