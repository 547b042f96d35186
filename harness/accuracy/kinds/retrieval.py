"""Needle retrieval posed as a completion: many needles in one haystack, one question at its end.

The questions of a haystack share it as their prefix, so from the second on an engine answers them out of its stored
KV entries, which is what a cache strategy may spoil. Needle in a haystack: Kamradt 2023; many keys and one asked for:
RULER (Hsieh et al., 2024, arXiv:2404.06654). Prompts are pinned: equal model, seed and sizes give equal bytes.
"""

import random
from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import accumulate

from harness.accuracy.kinds.interface import Asking, Kind, Share, Size
from harness.accuracy.passages import encode, tokenizer_of, words
from harness.accuracy.task import Task
from harness.errors import ConfigError
from harness.model import Model

CITIES = (
    "Oslo", "Paris", "Lima", "Cairo", "Delhi", "Tokyo", "Berlin", "Madrid", "Vienna", "Prague", "Dublin", "Athens",
    "Moscow", "London", "Boston", "Chicago", "Seattle", "Denver", "Dallas", "Houston", "Miami", "Phoenix",
    "Atlanta", "Detroit", "Toronto", "Montreal", "Vancouver", "Sydney", "Melbourne", "Auckland", "Jakarta",
    "Manila", "Bangkok", "Seoul", "Beijing", "Shanghai", "Mumbai", "Karachi", "Tehran", "Baghdad", "Jerusalem",
    "Istanbul", "Rome", "Milan", "Venice", "Naples", "Munich", "Hamburg", "Zurich", "Geneva", "Brussels",
    "Amsterdam", "Stockholm", "Copenhagen", "Helsinki", "Warsaw", "Budapest", "Lisbon", "Barcelona", "Havana",
    "Nairobi", "Lagos", "Tunis",
)  # fmt: skip
NEEDLE = "Special magic number: {city} {number}, {city} {number}."
QUESTION = "\n\nSpecial magic number: {city}"
"""Seen on SmolLM2-135M in 16 bits, 6,000 tokens, 8 needles: 38 of 40 in this form; 5 of 16 as "The special magic
number for Oslo is …", since a small model takes needles that share their last words for one another."""
DIGITS = 5
FILLERS = ("and", "so", "on", "then", "now", "it", "is", "a")
"""Words that take one token each, to fill the last tokens."""


@dataclass(frozen=True)
class Item:
    """A question.

    Attributes
    ----------
    item_id, document_id : str
        Names of the question and of its haystack, equal for all deployments of a block.
    depth : float
        Where the needle lies in the haystack, 0 (start) to 1 (end).
    prompt, target : str
        What is sent, and the number that is right.
    context_tokens : int
        Length of the prompt in the model's tokens.
    """

    item_id: str
    document_id: str
    depth: float
    prompt: str
    target: str
    context_tokens: int


def items(model: Model, *, documents: int, questions: int, context_tokens: int, seed: int) -> list[Item]:
    """`documents` × `questions` prompts of exactly `context_tokens` tokens; a document's questions stand together."""
    found: list[Item] = []
    for number in range(documents):
        rng = random.Random(f"retrieval/{seed}/{number}/{context_tokens}")
        document_id = f"retrieval-{context_tokens}/{seed}/{number}"
        found += _document(model, rng, document_id, questions, context_tokens)
    return found


def as_rows(found: list[Item]) -> list[dict[str, object]]:
    """The items as rows of the task's JSON lines."""
    return [asdict(item) for item in found]


def _document(model: Model, rng: random.Random, document_id: str, questions: int, context_tokens: int) -> list[Item]:
    cities = rng.sample(_even_cities(model, questions), questions)
    numbers = _numbers(rng, questions)
    needles = [NEEDLE.format(city=city, number=number) for city, number in zip(cities, numbers, strict=True)]
    # Needles lie evenly, each at a random place of its own stretch.
    depths = [(index + rng.uniform(0.2, 0.8)) / questions for index in range(questions)]
    straw = words(model, 2 * context_tokens, seed=rng.randrange(2**32), stream="retrieval")
    haystack = _fit(model, straw, needles, depths, context_tokens, QUESTION.format(city=cities[0]))
    found = []
    for city, number, needle in zip(cities, numbers, needles, strict=True):
        prompt = haystack + QUESTION.format(city=city)
        found.append(
            Item(
                item_id=f"{document_id}/{city}",
                document_id=document_id,
                depth=round(haystack.index(needle) / len(haystack), 4),
                prompt=prompt,
                target=number,
                context_tokens=_count(model, prompt),
            )
        )
    if wrong := [item.context_tokens for item in found if item.context_tokens != context_tokens]:
        raise ConfigError(
            f"retrieval: prompts of exactly {context_tokens} tokens can't be made with the tokenizer of {model.name} "
            f"(got {wrong[0]}); choose another context_tokens"
        )
    return found


def _numbers(rng: random.Random, count: int) -> list[str]:
    """Different numbers, none with a digit twice: small models stumble over repeated digits while they copy."""
    numbers: list[str] = []
    while len(numbers) < count:
        digits = "".join(rng.sample("0123456789", DIGITS))
        if digits[0] != "0" and digits not in numbers:
            numbers.append(digits)
    return numbers


def _count(model: Model, text: str) -> int:
    return len(encode(model, text))


def _even_cities(model: Model, at_least: int) -> list[str]:
    """Cities that take the same number of tokens, so that all questions of a haystack are equally long."""
    by_length: dict[int, list[str]] = defaultdict(list)
    for city in CITIES:
        by_length[len(encode(model, QUESTION.format(city=city)))].append(city)
    cities = max(by_length.values(), key=len)
    if len(cities) < at_least:
        raise ConfigError(f"questions: {at_least} are too many for one haystack; allowed: up to {len(cities)}")
    return cities


def _haystack(straw: list[str], needles: list[str], depths: list[float], filler: int) -> str:
    """The straw with needles at their depths, between words, and `filler` one-token words at its end."""
    cuts = [int(depth * len(straw)) for depth in depths]
    parts: list[str] = []
    for start, end, needle in zip([0, *cuts], cuts, needles, strict=False):
        parts += [*straw[start:end], needle]
    parts += straw[cuts[-1] :]
    parts += [FILLERS[index % len(FILLERS)] for index in range(filler)]
    return " ".join(parts)


def _fit(
    model: Model, straw: list[str], needles: list[str], depths: list[float], context_tokens: int, question: str
) -> str:
    """The haystack with as much straw as fits, and filler up to the exact token count."""

    def tokens(straw_words: int, filler: int) -> int:
        return _count(model, _haystack(straw[:straw_words], needles, depths, filler) + question)

    # Tokenizers cut at spaces, so words' counts nearly add up; the filler and a word less make it exact.
    room = context_tokens - tokens(0, 0)
    if room < 0:
        raise ConfigError(f"context_tokens: {context_tokens} are too few for {len(needles)} needles")
    lengths = [len(one.ids) for one in tokenizer_of(model.path).encode_batch([f" {word}" for word in straw])]
    fitting = sum(total <= room for total in accumulate(lengths))
    for straw_words in range(fitting, max(fitting - 20, -1), -1):
        filler = max(context_tokens - tokens(straw_words, 0), 0)
        for trial in {filler, max(filler - 1, 0), filler + 1}:
            if tokens(straw_words, trial) == context_tokens:
                return _haystack(straw[:straw_words], needles, depths, trial)
    return _haystack(straw[:fitting], needles, depths, 0)


def share(task: Task, asking: Asking) -> Share:
    """The block's questions, made from its seed."""
    (context_tokens,) = task.lengths
    found = items(
        asking.model,
        documents=task.documents,
        questions=task.questions,
        context_tokens=context_tokens,
        seed=asking.seed,
    )
    return Share(as_rows(found))


def check(task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` where prompts and answers don't fit the servers."""
    for length in task.lengths:
        if length + KIND.output_tokens > context_tokens:
            raise ConfigError(
                f"context_tokens: {length} tokens and an answer of {KIND.output_tokens} don't fit the servers' "
                f"{context_tokens}; allowed: up to {context_tokens - KIND.output_tokens}"
            )


def size(task: Task) -> Size:
    """How much a block asks."""
    documents = task.documents * len(task.lengths)
    questions = documents * task.questions
    tokens = task.documents * sum(task.lengths)
    return Size(questions, documents, tokens * task.questions, tokens, questions * KIND.output_tokens)


KIND = Kind(modes={"generation": "retrieval"}, share=share, check=check, size=size, output_tokens=8)
