"""Documents of the wanted length out of a stream of text, and questions spread evenly over their depth."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer

from harness.accuracy.builder.cloze import GAP, Gap, gaps, sentences
from harness.errors import ConfigError

Row = dict[str, Any]

QUESTION = 'What stands in the text above where this has {gap}? Answer with nothing else. "{sentence}"'
"""What a chat is asked. As a completion the sentence up to the gap follows the document, and the model goes on from it.
Seen on SmolLM2-135M in 16 bits, 900 tokens: 10 of 15 so, 1 of 15 by a question."""
RESERVED_TOKENS = 160
"""Of a prompt, for its question; a sentence that takes more is not used."""

MOST_ANSWER_TOKENS = 16
CHARS_PER_TOKEN = 5
"""So much text is tokenised at a time to find a document's end; it is doubled where that isn't enough."""


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Attributes
    ----------
    context_tokens : int
        Most tokens of a prompt: document and question.
    documents, questions : int
        Documents, and questions to each.
    seed : int
        Which documents and gaps are drawn.
    """

    context_tokens: int = 4000
    documents: int = 4
    questions: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.context_tokens < 2 * RESERVED_TOKENS:
            raise ConfigError(f"context_tokens: {self.context_tokens} must be >= {2 * RESERVED_TOKENS}")
        for key in ("documents", "questions"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key}: {getattr(self, key)} must be >= 1")


@dataclass
class Built:
    """What came of it.

    Attributes
    ----------
    rows : list of dict
        Questions in the form of docs/accuracy.md.
    stretches : int
        Documents of the wanted length that the texts would have made.
    missing : list of str
        Why there are fewer questions than asked for; empty: there aren't.
    """

    rows: list[Row] = field(default_factory=list)
    stretches: int = 0
    missing: list[str] = field(default_factory=list)


def build(stream: str, tokenizer: Tokenizer, wanted: Wanted) -> Built:
    """Questions out of a stream of text.

    The stream is cut into documents that end with a sentence; `seed` draws among them and among their gaps. Each part
    of a document (of as many equal parts as there are questions) gives one question, or none where it has no gap.

    Raises
    ------
    ConfigError
        The text is shorter than one document.
    """
    stretches = list(_stretches(stream, tokenizer, wanted.context_tokens - RESERVED_TOKENS))
    if not stretches:
        raise ConfigError(
            f"context_tokens: the texts have {_count(tokenizer, stream)} tokens, and a document of "
            f"{wanted.context_tokens - RESERVED_TOKENS} needs more; ask for shorter ones, or add texts"
        )
    rng = random.Random(f"questions/{wanted.seed}")
    rng.shuffle(stretches)
    full: list[tuple[str, list[Row]]] = []
    partial: list[tuple[str, list[Row]]] = []
    for document in stretches:
        rows = _questions(document, tokenizer, wanted, rng)
        (full if len(rows) == wanted.questions else partial).append((document, rows))
        if len(full) == wanted.documents:
            break
    partial.sort(key=lambda one: -len(one[1]))
    chosen = [one for one in [*full, *partial][: wanted.documents] if one[1]]
    built = Built(stretches=len(stretches))
    for number, (document, rows) in enumerate(chosen):
        name = f"d{number}"
        # The document stands with its first question only; document_id leads the others to it.
        for index, row in enumerate(rows):
            shared = {"document": document} if index == 0 else {}
            built.rows.append({"id": f"{name}/{index}", "document_id": name, **shared, **row})
    if len(stretches) < wanted.documents:
        built.missing.append(f"the texts make {len(stretches)} documents of {wanted.context_tokens} tokens")
    if without := len(chosen) * wanted.questions - len(built.rows):
        built.missing.append(
            f"{without} of {len(chosen) * wanted.questions} parts of the documents have no sentence with a number, "
            "date, identifier, name or quoted title that the document has only once"
        )
    if len(chosen) < min(wanted.documents, len(stretches)):
        built.missing.append(f"{min(wanted.documents, len(stretches)) - len(chosen)} documents have none at all")
    return built


def _questions(document: str, tokenizer: Tokenizer, wanted: Wanted, rng: random.Random) -> list[Row]:
    parts: dict[int, list[Gap]] = {}
    for gap in gaps(document):
        parts.setdefault(gap.at * wanted.questions // len(document), []).append(gap)
    found = []
    for _, candidates in sorted(parts.items()):
        rng.shuffle(candidates)
        row = next((row for gap in candidates if (row := _row(gap, document, tokenizer, wanted))), None)
        if row is not None:
            found.append(row)
    return found


def _row(gap: Gap, document: str, tokenizer: Tokenizer, wanted: Wanted) -> Row | None:
    prompt, question = gap.before.rstrip(), QUESTION.format(gap=GAP, sentence=gap.sentence)
    tokens = _count(tokenizer, f"{document}\n\n{prompt}")
    longest = max(tokens, _count(tokenizer, f"{document}\n\n{question}"))
    if longest > wanted.context_tokens or _count(tokenizer, f" {gap.answer}") > MOST_ANSWER_TOKENS:
        return None
    depth = round(gap.at / len(document), 4)
    return {
        "prompt": prompt,
        "question": question,
        "answer": gap.answer,
        "score": "contains",
        "depth": depth,
        "context_tokens": tokens,
    }


def _stretches(stream: str, tokenizer: Tokenizer, tokens: int) -> Iterator[str]:
    """The stream in documents of at most so many tokens, each ending with a sentence; a shorter rest is left out."""
    at = 0
    while (end := _end(stream, at, tokenizer, tokens)) is not None:
        last = max((stop for _, stop in sentences(stream[at:end]) if stop < end - at), default=0)
        # A text without sentences, such as a table, is cut where the tokens end.
        stop = at + last if last > (end - at) * 0.8 else end
        yield stream[at:stop].strip()
        at = stop


def _end(stream: str, at: int, tokenizer: Tokenizer, tokens: int) -> int | None:
    """Where so many tokens from `at` on end; None where fewer are left."""
    chars = tokens * CHARS_PER_TOKEN
    while True:
        offsets = tokenizer.encode(stream[at : at + chars], add_special_tokens=False).offsets
        if len(offsets) > tokens:
            return at + max(int(offsets[tokens - 1][1]), 1)
        if at + chars >= len(stream):
            return None
        chars *= 2


def _count(tokenizer: Tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)
