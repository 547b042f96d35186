"""Questions on a long document: one passage answers, and lies among others of its kind.

RULER's question answering (Hsieh et al., 2024, arXiv:2404.06654) puts passages of a data set together. Here they are
made from a seed: short lives of people who don't exist, so that nothing but the document answers, and guessing scores
0; or, with `data_dir`, a user's own passages, each with its question. Every question is on another passage, at another
depth; the rest of the document are passages that nobody asks about.

It takes more than a model of 135M parameters: SmolLM2-135M in 16 bits had 4 of 10 right at 900 tokens in the form below
(2 of 10 with the answer on a line of its own) on the documents that the form was chosen on, on others 1 of 5, none of
6 at 1,900, and none of 5 as a chat.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice

from harness.accuracy import data_files, data_set
from harness.accuracy.data_files import TEXT, item_name
from harness.accuracy.haystack import (
    Blank,
    Question,
    check_lengths,
    depth_of,
    evenly_long,
    fitted,
    generated,
    rows_of,
    size_of,
    spread,
)
from harness.accuracy.kinds.interface import Asking, Kind, Row, Share, Size
from harness.accuracy.names import distinct, pairs, shuffled
from harness.accuracy.passages import encode
from harness.accuracy.straw import WHERE, sentence
from harness.accuracy.task import Task
from harness.errors import ConfigError

FACTS = (
    ("was born in", "In which town was {person} born?"),
    ("went to school in", "In which town did {person} go to school?"),
    ("moved to", "To which town did {person} move?"),
)
"""How a passage words a fact, and the question for it."""
FORENAMES = (
    "Ada", "Anna", "Clara", "David", "Emma", "Felix", "George", "Helen", "Hugo", "Ida", "James", "Julia", "Karl",
    "Laura", "Martin", "Nora", "Oscar", "Paul", "Rosa", "Simon", "Thomas", "Vera", "Walter", "Yvonne",
)  # fmt: skip
COMPLETION = "\n\nQuestion: {question} Answer:"
CHAT = "\n\n{question} Answer as briefly as you can, with words of the text."
FILES = ("passages.jsonl.gz",)
LAYOUT = "passages: id, passage, question, answer (words of the passage)"


@dataclass(frozen=True)
class Person:
    """Somebody who doesn't exist: a name, and one made-up name for each of `FACTS`."""

    name: str
    values: tuple[str, ...]

    def passage(self, rng: random.Random) -> str:
        """A short life."""
        born, school, moved = (f"{wording} {value}" for (wording, _), value in zip(FACTS, self.values, strict=True))
        return (
            f"{self.name} {born}, a small town {rng.choice(WHERE)}. {sentence(rng)} As a child {self.name} {school}, "
            f"{rng.choice(WHERE)}. {sentence(rng)} In later years {self.name} {moved}, {rng.choice(WHERE)}."
        )


def people(rng: random.Random, count: int) -> list[Person]:
    """People none of whose names, nor the names in their lives, occur twice."""
    surnames = list(islice(distinct(shuffled(rng), ""), count))
    taken = set(surnames)
    others = (name for name in pairs(shuffled(rng)) if name not in taken)
    return [
        Person(f"{rng.choice(FORENAMES)} {surname.capitalize()}", tuple(next(others).capitalize() for _ in FACTS))
        for surname in surnames
    ]


def joined(others: Sequence[str], asked: Sequence[str], depths: Sequence[float], words: int, filler: str) -> str:
    """Passages up to so many words, the last cut short, with those that are asked about at their (rising) depths."""
    ends = list(accumulate(len(one.split()) for one in others))
    whole = bisect_right(ends, words)
    passages = list(others[:whole])
    for before, (depth, passage) in enumerate(zip(depths, asked, strict=True)):
        passages.insert(int(depth * whole) + before, passage)
    left = words - (ends[whole - 1] if whole else 0)
    rest = [*(others[whole].split()[:left] if left else []), *([filler] if filler else [])]
    return "\n\n".join([*passages, " ".join(rest)] if rest else passages)


def document(task: Task, asking: Asking, blank: Blank) -> list[Row]:
    """The questions on one document of made-up lives; all ask for the same fact."""
    rng = blank.rng
    fact = rng.randrange(len(FACTS))
    wording, form = FACTS[fact]

    def question(person: str) -> str:
        asked = form.format(person=person)
        if asking.chat:
            return CHAT.format(question=asked)
        return COMPLETION.format(question=asked) + f" {person} {wording}"

    candidates = {one.name: one for one in people(rng, 8 * task.questions + blank.tokens // 40)}
    chosen = evenly_long(asking, rng, list(candidates)[: 8 * task.questions], question, task.questions)
    asked = [candidates.pop(name) for name in chosen]
    passages = [one.passage(rng) for one in asked]
    others = [one.passage(rng) for one in candidates.values()]
    depths = spread(rng, task.questions)
    texts = [question(one.name) for one in asked]
    words = sum(len(one.split()) for one in others)
    whole = fitted(
        asking, lambda count, filler: joined(others, passages, depths, count, filler), words, texts, blank.tokens
    )
    found = [
        Question(one.name.replace(" ", "-"), text, (one.values[fact],), depth_of(whole, passage))
        for one, text, passage in zip(asked, texts, passages, strict=True)
    ]
    return rows_of(asking, blank.document_id, whole, found)


def _own(task: Task) -> list[Row]:
    """The items of the user's file; raises `ConfigError` where there are too few."""
    assert task.data_dir is not None
    fields = {"passage": TEXT, "question": TEXT, "answer": TEXT}
    try:
        (rows,) = data_files.read(task.kind, FILES, fields, LAYOUT, task.data_dir)
        wanted = task.documents * task.questions
        if len(rows) < wanted:
            raise ConfigError(f"{task.data_dir} has {len(rows)} questions; documents × questions need {wanted}")
        if len({row["passage"] for row in rows}) <= task.questions:
            raise ConfigError(
                f"{task.data_dir} has no passages besides those of a document's {task.questions} questions"
            )
    except ConfigError as error:
        raise ConfigError(f"data_dir: {error}") from error
    return rows


def _own_share(task: Task, asking: Asking) -> Share:
    """Documents of the user's passages; blocks ask other items until all were asked, and each length asks the same."""
    every = _own(task)
    named = [{**row, "document_id": item_name(task.kind, row)} for row in every]
    part = data_set.divided(named, replace(task, limit=task.documents * task.questions), asking)

    def document(task: Task, asking: Asking, blank: Blank) -> list[Row]:
        rows = part.rows[blank.number * task.questions :][: task.questions]
        passages = list(dict.fromkeys(row["passage"].strip() for row in rows))
        others = sorted({row["passage"].strip() for row in every} - set(passages))
        blank.rng.shuffle(others)
        depths = spread(blank.rng, len(passages))
        form = CHAT if asking.chat else COMPLETION
        texts = [form.format(question=row["question"].strip()) for row in rows]
        longest_first = sorted(texts, key=lambda text: len(encode(asking.model, text)), reverse=True)

        def write(count: int, filler: str) -> str:
            return joined(others, passages, depths, count, filler)

        words = sum(len(one.split()) for one in others)
        whole = fitted(asking, write, words, longest_first, blank.tokens, every=False)
        found = [
            Question(row["document_id"], text, (row["answer"],), depth_of(whole, row["passage"].strip()))
            for row, text in zip(rows, texts, strict=True)
        ]
        return rows_of(asking, blank.document_id, whole, found)

    return replace(part, rows=generated(task, asking, document))


def share(task: Task, asking: Asking) -> Share:
    """The block's questions: on the user's passages, or made from its seed."""
    return Share(generated(task, asking, document)) if task.data_dir is None else _own_share(task, asking)


def check(task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` where prompts and answers don't fit the servers, or the user's file is spoiled."""
    check_lengths(task, context_tokens)
    if task.data_dir is not None:
        _own(task)


def size(task: Task) -> Size:
    """How much a block asks."""
    return size_of(task)


KIND = Kind(modes={"generation": "document_qa"}, share=share, check=check, size=size, output_tokens=32)
