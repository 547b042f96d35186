"""Prompt text: CPython's own language reference (`pydoc_data.topics`), real English that every machine already has.

The text differs between CPython versions, so a corpus carries the hash of its token ids.
"""

import hashlib
import random
from array import array
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

from tokenizers import Tokenizer

from harness.errors import ConfigError, SetupError

HEAD_TOKENS = 16
"""Two session starts differ within so many tokens: the smallest KV block that an engine in use caches whole."""

WARMUP_SHARE = 8
"""One part in so many of the corpus is kept for warm-up prompts."""


def load_tokenizer(model_path: str) -> Tokenizer:
    """The tokenizer of a model: a folder with `tokenizer.json`, such a file, or a hub id.

    Raises
    ------
    SetupError
        When there is none.
    """
    path = Path(model_path)
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return Tokenizer.from_file(str(file)) if file.exists() else Tokenizer.from_pretrained(model_path)
    except Exception as error:  # the library raises bare Exception
        raise SetupError(f"no tokenizer for {model_path}: {error}. A model's folder needs a tokenizer.json") from error


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a text, with no special tokens around it."""
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


class Reader:
    """Hands out slices of a stretch of the corpus, one after the other, from a start given by the seed.

    No two slices overlap until the stretch is used up; the next lap then begins elsewhere, so that slices repeat
    text but never their first tokens (`take_start`).
    """

    def __init__(self, tokens: "array[int]", rng: random.Random, heads: set[tuple[int, ...]]) -> None:
        self._tokens = tokens
        self._rng = rng
        self._heads = heads
        self._position = rng.randrange(len(tokens))
        self._left_in_lap = len(tokens)

    def take(self, count: int) -> list[int]:
        """The next `count` tokens (going round at the end of the stretch)."""
        self._new_lap_if_used_up(count)
        return self._advance(count)

    def take_start(self, count: int) -> list[int]:
        """As `take`, for the start of a session: its first `HEAD_TOKENS` were never handed out as a start before."""
        self._new_lap_if_used_up(count)
        for _ in range(len(self._tokens)):
            head = tuple(self._peek(min(count, HEAD_TOKENS)))
            if head not in self._heads:
                self._heads.add(head)
                return self._advance(count)
            self._advance(1)
        raise ConfigError(
            f"workload: the corpus ({len(self._tokens)} tokens) has no further distinct start of {count} tokens; "
            "ask for fewer sessions or longer prompts"
        )

    def _advance(self, count: int) -> list[int]:
        out: list[int] = []
        while len(out) < count:
            piece = self._tokens[self._position : self._position + count - len(out)]
            out += piece
            self._position = (self._position + len(piece)) % len(self._tokens)
        self._left_in_lap -= count
        return out

    def _peek(self, count: int) -> list[int]:
        size = len(self._tokens)
        return [self._tokens[(self._position + i) % size] for i in range(count)]

    def _new_lap_if_used_up(self, count: int) -> None:
        if self._left_in_lap < count and self._left_in_lap < len(self._tokens):
            self._position = self._rng.randrange(len(self._tokens))
            self._left_in_lap = len(self._tokens)


@dataclass(frozen=True)
class Corpus:
    """Tokenised text.

    Attributes
    ----------
    tokens : array of int
        The whole text as token ids.
    sha256 : str
        Hash of the ids.
    """

    tokens: "array[int]"
    sha256: str

    def readers(self, seed: int) -> tuple[Reader, Reader]:
        """Readers for warm-up and for the window: of separate stretches, and with no start in common."""
        heads: set[tuple[int, ...]] = set()
        cut = len(self.tokens) // WARMUP_SHARE
        # A string seed is hashed by SHA-512, the same on every Python version and platform.
        return (
            Reader(self.tokens[:cut], random.Random(f"text-warmup-{seed}"), heads),
            Reader(self.tokens[cut:], random.Random(f"text-window-{seed}"), heads),
        )


def corpus_of(ids: list[int]) -> Corpus:
    """A corpus of given token ids."""
    if len(ids) < 64 * WARMUP_SHARE:
        raise ConfigError(f"corpus: {len(ids)} tokens are too few; at least {64 * WARMUP_SHARE} are needed")
    tokens = array("I", ids)
    return Corpus(tokens, hashlib.sha256(tokens.tobytes()).hexdigest())


@cache
def corpus(model_path: str) -> Corpus:
    """The topics in alphabetical order, tokenised by the model's own tokenizer (about 120,000 tokens, under 1 s)."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return corpus_of(encode(load_tokenizer(model_path), text))
