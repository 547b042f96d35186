"""Documents that make prompts of an exact length in any tokenizer's tokens, and the questions that share them.

A document is written from as many units (words, pairs, words of passages) as fit, and a few short words at its end take
up what is left. All questions on a document stand at its end, so that the document is their common prefix: from the
second question on an engine answers out of its stored KV entries, which is what a cache strategy may spoil.
"""

import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from harness.accuracy.kinds.interface import Asking, Row, Size
from harness.accuracy.passages import encode, tokenizer_of
from harness.accuracy.task import Task, answer_tokens_of
from harness.errors import ConfigError
from harness.model import Model

Write = Callable[[int, str], str]
"""A document of so many units, with a text at its end that fills it up."""

FILLERS = ("and", "so", "on", "then", "now", "it", "is", "a")
_TRIES = 24
"""Documents of so many lengths are tried before a tokenizer counts as unable to give the exact one."""
_CORRECTIONS = 4


def prompt_tokens(asking: Asking, prompt: str) -> int:
    """Length of a prompt as it is sent, in the model's tokens: with the chat template where there is one."""
    return len(encode(asking.model, asking.chat.render(prompt) if asking.chat else prompt))


def fitted(
    asking: Asking, write: Write, units: int, questions: Sequence[str], tokens: int, *, every: bool = True
) -> str:
    """The document with which `questions` are prompts of exactly `tokens` tokens.

    Parameters
    ----------
    write : callable
        Writes a document; more units make a longer one.
    units : int
        How many there are at most.
    questions : sequence of str
        What is appended to the document.
    every : bool
        Whether all have that length; False: the first has, and none is longer.

    Raises
    ------
    ConfigError
        The length is too short, or this tokenizer can't give it.
    """

    def length(count: int, filler: str) -> int:
        return prompt_tokens(asking, write(count, filler) + questions[0])

    if (least := length(0, "")) > tokens:
        raise ConfigError(
            f"context_tokens: {tokens} are too few for what must stand in the prompt; {asking.model.name} needs at "
            f"least {least} tokens for this many questions"
        )
    most = bisect_right(range(units + 1), tokens, key=lambda count: length(count, "")) - 1
    for count in range(most, max(most - _TRIES, -1), -1):
        wanted = tokens - length(count, "")
        for _ in range(_CORRECTIONS):
            filler = _filler(asking.model, wanted)
            if filler is None:
                break
            off = length(count, filler) - tokens
            if not off:
                document = write(count, filler)
                lengths = [prompt_tokens(asking, document + one) for one in questions[1:]]
                if all(one == tokens or (one < tokens and not every) for one in lengths):
                    return document
                break
            wanted -= off
    raise ConfigError(
        f"context_tokens: prompts of exactly {tokens} tokens can't be made with the tokenizer of {asking.model.name}; "
        "choose another number"
    )


def _filler(model: Model, tokens: int) -> str | None:
    """Short words that take so many tokens; None where none do."""
    if tokens < 0:
        return None
    costs = _filler_costs(model)
    reached = [True] + [False] * tokens
    for total in range(1, tokens + 1):
        reached[total] = any(cost <= total and reached[total - cost] for cost in costs)
    if not reached[tokens]:
        return None
    found: list[str] = []
    while tokens:
        turn = [(len(found) + step) % len(FILLERS) for step in range(len(FILLERS))]
        chosen = next(i for i in turn if costs[i] <= tokens and reached[tokens - costs[i]])
        tokens -= costs[chosen]
        found.append(FILLERS[chosen])
    return " ".join(found)


def _filler_costs(model: Model) -> tuple[int, ...]:
    return _costs_at(model.path)


@cache
def _costs_at(model_path: str) -> tuple[int, ...]:
    """Tokens that each filler takes behind another word."""

    def length(text: str) -> int:
        return len(tokenizer_of(model_path).encode(text, add_special_tokens=False).ids)

    return tuple(max(length(f"it is {word}") - length("it is"), 1) for word in FILLERS)


def spread(rng: random.Random, count: int) -> list[float]:
    """Depths, 0 to 1 and rising: one at a random place of each of `count` equal stretches."""
    return [(index + rng.uniform(0.2, 0.8)) / count for index in range(count)]


def with_needles(straw: Sequence[str], needles: Sequence[str], depths: Sequence[float], filler: str) -> str:
    """Words with needles at their (rising) depths, between words, and the filler at the end."""
    cuts = [int(depth * len(straw)) for depth in depths]
    parts: list[str] = []
    for start, end, needle in zip([0, *cuts], cuts, needles, strict=False):
        parts += [*straw[start:end], needle]
    parts += straw[cuts[-1] :]
    return " ".join([*parts, filler] if filler else parts)


def depth_of(document: str, part: str) -> float:
    """Where a part begins in a document, 0 to 1, by its characters."""
    return round(document.index(part) / len(document), 4)


def evenly_long(
    asking: Asking, rng: random.Random, candidates: Iterable[str], question: Callable[[str], str], count: int
) -> list[str]:
    """So many of `candidates` whose questions take equally many tokens: a document's prompts are equally long."""
    by_length: dict[int, list[str]] = defaultdict(list)
    for candidate in candidates:
        by_length[len(encode(asking.model, question(candidate)))].append(candidate)
    most = max(by_length.values(), key=len)
    if len(most) < count:
        raise ConfigError(f"questions: {count} are too many for one document; allowed: up to {len(most)}")
    return rng.sample(most, count)


def digits(rng: random.Random, count: int) -> list[str]:
    """Different numbers, none with a digit twice: small models stumble over repeated digits when they copy.

    They have five digits, or seven where so many are wanted that five would not suffice (there are 27,216).
    """
    width = 5 if count <= 20_000 else 7
    numbers: dict[str, None] = {}
    while len(numbers) < count:
        number = "".join(rng.sample("0123456789", width))
        if number[0] != "0":
            numbers.setdefault(number)
    return list(numbers)


@dataclass(frozen=True)
class Question:
    """A question on a document.

    Attributes
    ----------
    key : str
        What it asks about; names the item within its document.
    text : str
        What is appended to the document, blank line included.
    targets : tuple of str
        What the answer must name.
    depth : float
        Where in the document it stands, 0 to 1.
    """

    key: str
    text: str
    targets: tuple[str, ...]
    depth: float


def rows_of(asking: Asking, document_id: str, document: str, questions: Sequence[Question]) -> list[Row]:
    """A document's questions as rows of the task's JSON lines; `prompt` is without the chat template."""
    return [
        {
            "item_id": f"{document_id}/{one.key}",
            "document_id": document_id,
            "depth": one.depth,
            "key": one.key,
            "prompt": document + one.text,
            "target": ", ".join(one.targets),
            "targets": list(one.targets),
            "context_tokens": prompt_tokens(asking, document + one.text),
        }
        for one in questions
    ]


@dataclass(frozen=True)
class Blank:
    """A document that is still to be written.

    Attributes
    ----------
    document_id : str
        Its name, equal for all deployments of a block.
    number : int
        Counts the documents of a length.
    tokens : int
        Length of the prompts.
    rng : Random
        Its own: equal seeds and sizes give equal bytes.
    """

    document_id: str
    number: int
    tokens: int
    rng: random.Random


def generated(task: Task, asking: Asking, document: Callable[[Task, Asking, Blank], list[Row]]) -> list[Row]:
    """A block's questions: those of `task.documents` documents of each length."""
    rows: list[Row] = []
    for tokens in task.lengths:
        for number in range(task.documents):
            rng = random.Random(f"{task.kind}/{asking.seed}/{number}/{tokens}")
            rows += document(task, asking, Blank(f"{task.kind}-{tokens}/{asking.seed}/{number}", number, tokens, rng))
    return rows


def check_lengths(task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` where prompts and answers don't fit the servers."""
    if not task.lengths:
        raise ConfigError(f"context_tokens: {task.kind} needs its prompts' length in tokens")
    output_tokens = answer_tokens_of(task)
    for length in task.lengths:
        if length + output_tokens > context_tokens:
            raise ConfigError(
                f"context_tokens: {length} tokens and an answer of {output_tokens} don't fit the servers' "
                f"{context_tokens}; allowed: up to {context_tokens - output_tokens}"
            )


def size_of(task: Task) -> Size:
    """How much a block of generated questions asks."""
    documents = task.documents * len(task.lengths)
    questions = documents * task.questions
    tokens = task.documents * sum(task.lengths)
    return Size(questions, documents, tokens * task.questions, tokens, questions * answer_tokens_of(task))
