"""Prompt text: CPython's own language reference (`pydoc_data.topics`), real English that every machine already has.

The text differs between CPython versions, so a corpus carries the hash of its token ids.
"""

import hashlib
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
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


Segment = tuple[int, int] | str
"""A piece of a prompt: (start, count) of the corpus, or token ids as `"12,99,3"`."""

SALT_TOKENS = 4
"""Token ids that make a start distinct where the corpus has none left; a few thousand ids to the fourth suffice."""

SCAN = 4096
"""So many starts in a row that are taken: the corpus counts as used up."""


class Starts:
    """The starts handed out so far, over all readers of a corpus; what is used up for one counts so for all."""

    def __init__(self, tokens: "array[int]", rng: random.Random) -> None:
        self._taken: set[bytes] = set()
        self._used_up: set[int] = set()
        self._salts: Counter[int] = Counter()
        self._ids = sorted(set(tokens))
        rng.shuffle(self._ids)

    def used_up(self, head_tokens: int) -> bool:
        """Whether the corpus has no further distinct start of so many tokens."""
        return head_tokens in self._used_up

    def give_up(self, head_tokens: int) -> None:
        """From now on starts of so many tokens are salted."""
        self._used_up.add(head_tokens)

    def claim(self, head: "array[int]") -> bool:
        """Take a start; False where it is taken already."""
        key = head.tobytes()
        if key in self._taken:
            return False
        self._taken.add(key)
        return True

    def salts(self, head_tokens: int) -> "Iterator[array[int]]":
        """Salts never given before. Those given aren't kept: no start of the corpus is handed out after them."""
        size, base = min(head_tokens, SALT_TOKENS), len(self._ids)
        while (number := self._salts[head_tokens]) < base**size:
            self._salts[head_tokens] += 1
            yield array("I", (self._ids[number // base**place % base] for place in range(size)))

    def is_taken(self, head: "array[int]") -> bool:
        """Whether this start was claimed."""
        return head.tobytes() in self._taken


class Reader:
    """Hands out slices of a stretch of the corpus, one after the other, from a start given by the seed.

    No two slices overlap until the stretch is used up; the next lap then begins elsewhere, so that slices repeat
    text but never their first tokens (`take_start`).
    """

    def __init__(self, tokens: "array[int]", low: int, high: int, rng: random.Random, starts: Starts) -> None:
        self._tokens = tokens
        self._low = low
        self._size = high - low
        self._rng = rng
        self._starts = starts
        self._position = rng.randrange(self._size)
        self._left_in_lap = self._size

    def take(self, count: int) -> list[Segment]:
        """The next `count` tokens (going round at the end of the stretch)."""
        self._new_lap_if_used_up(count)
        return self._advance(count)

    def take_start(self, count: int) -> list[Segment]:
        """As `take`, for the start of a session: its first `HEAD_TOKENS` were never handed out as a start before.

        Where the corpus has no further such start, a few token ids stand before the slice and make it one.
        """
        head_tokens = min(count, HEAD_TOKENS)
        self._new_lap_if_used_up(count)
        if not self._starts.used_up(head_tokens):
            for _ in range(min(SCAN, self._size)):
                if self._starts.claim(self._peek(head_tokens)):
                    return self._advance(count)
                self._advance(1)
            self._starts.give_up(head_tokens)
        for salt in self._starts.salts(head_tokens):
            if not self._starts.is_taken(salt + self._peek(head_tokens - len(salt))):
                return [",".join(map(str, salt)), *self._advance(count - len(salt))]
        raise ConfigError(
            f"workload: the corpus ({self._size} tokens) has no further distinct start of {count} tokens; "
            "ask for fewer sessions or longer prompts"
        )

    def _advance(self, count: int) -> list[Segment]:
        out: list[Segment] = []
        left = count
        while left:
            piece = min(left, self._size - self._position)
            out.append((self._low + self._position, piece))
            self._position = (self._position + piece) % self._size
            left -= piece
        self._left_in_lap -= count
        return out

    def _peek(self, count: int) -> "array[int]":
        at = self._low + self._position
        head = self._tokens[at : min(at + count, self._low + self._size)]
        while len(head) < count:
            head += self._tokens[self._low : self._low + min(count - len(head), self._size)]
        return head

    def _new_lap_if_used_up(self, count: int) -> None:
        if self._left_in_lap < count and self._left_in_lap < self._size:
            self._position = self._rng.randrange(self._size)
            self._left_in_lap = self._size


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
        starts = Starts(self.tokens, random.Random(f"text-salt-{seed}"))
        cut, size = len(self.tokens) // WARMUP_SHARE, len(self.tokens)
        # A string seed is hashed by SHA-512, the same on every Python version and platform.
        return (
            Reader(self.tokens, 0, cut, random.Random(f"text-warmup-{seed}"), starts),
            Reader(self.tokens, cut, size, random.Random(f"text-window-{seed}"), starts),
        )

    def ids(self, segments: Iterable[Segment]) -> "array[int]":
        """The token ids that segments stand for."""
        out = array("I")
        for segment in segments:
            if isinstance(segment, str):
                out.extend(map(int, segment.split(",")))
            else:
                out += self.tokens[segment[0] : segment[0] + segment[1]]
        return out


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
