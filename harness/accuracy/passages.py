"""Passages of the corpus for accuracy: exact token counts, equal for equal seeds."""

import hashlib
import random
from functools import cache

from tokenizers import Tokenizer

from harness.model import Model
from harness.traffic.text import corpus, load_tokenizer

tokenizer_of = cache(load_tokenizer)
"""The tokenizer of a model's path; loading one takes a tenth of a second."""


def encode(model: Model, text: str) -> list[int]:
    """Token ids of a text, with no special tokens around it."""
    tokenizer: Tokenizer = tokenizer_of(model.path)
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def passage(model: Model, tokens: int, *, seed: int, stream: str) -> list[int]:
    """Exactly `tokens` token ids of running text; which, is drawn from `seed` for the purpose `stream`."""
    ids = corpus(model.path).tokens
    start = random.Random(f"{stream}/{seed}").randrange(len(ids))
    laps = 1 + (start + tokens) // len(ids)
    return list(ids * laps)[start : start + tokens]


def words(model: Model, tokens: int, *, seed: int, stream: str) -> list[str]:
    """About `tokens` tokens of running text as words, without the reference's layout."""
    text: str = tokenizer_of(model.path).decode(passage(model, tokens, seed=seed, stream=stream))
    return text.split()


def text_sha256(ids: list[int]) -> str:
    """Hash of a token sequence."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
