"""Multi-needle retrieval: each question asks for all values of one key (RULER's multi-value task).

Hsieh et al., 2024, arXiv:2404.06654. The needles of a key lie within one stretch of the haystack, so that scores can be
told by depth. A score is the share of the values that the answer names, 0 to 1; naming every number in sight earns
nothing, since only as many count as were asked for. Graded scores are paired and averaged as others are, with intervals
from the differences themselves; where right and wrong are counted (flips, McNemar's test) they have no part.
"""

from harness.accuracy.haystack import (
    Blank,
    Question,
    check_lengths,
    depth_of,
    digits,
    evenly_long,
    fitted,
    generated,
    rows_of,
    size_of,
    spread,
    with_needles,
)
from harness.accuracy.kinds.interface import Asking, Kind, Row, Share
from harness.accuracy.kinds.retrieval import CITIES
from harness.accuracy.straw import words
from harness.accuracy.task import Task

NEEDLE = "Special magic number: {city} {number}."
COMPLETION = "\n\n{example}\nSpecial magic number: {city}"
"""The example is the needles of one more key, with which the haystack begins. Seen on SmolLM2-135M in 16 bits, at 400
tokens and 4 keys of 3 values: a score of 0.50 in this form, 0.42 as "Special magic numbers: Oslo …, Oslo …", 0.25
without an example, 0.33 where needles state their number twice, as those of `retrieval` do. On other seeds, 6 questions
each: 0.50 at 900 tokens, 0.33 at 1,900."""
CHAT = (
    "\n\nThe text has {count} special magic numbers of {city}. What are they? Answer with the numbers only, "
    "separated by commas."
)


def question(task: Task, asking: Asking, city: str, example: str) -> str:
    """What is appended to the haystack."""
    return (CHAT if asking.chat else COMPLETION).format(city=city, count=task.needles, example=example)


def document(task: Task, asking: Asking, blank: Blank) -> list[Row]:
    """The questions on one haystack."""
    rng, count = blank.rng, task.needles
    numbers = digits(rng, (task.questions + 1) * count)
    shown = rng.choice(CITIES)
    example = " ".join(NEEDLE.format(city=shown, number=number) for number in numbers[-count:])
    others = [city for city in CITIES if city != shown]
    cities = evenly_long(asking, rng, others, lambda city: question(task, asking, city, example), task.questions)
    owners = [city for city in cities for _ in range(count)]
    needles = [NEEDLE.format(city=city, number=number) for city, number in zip(owners, numbers, strict=False)]
    depths = spread(rng, len(needles))
    straw = words(rng, blank.tokens)
    asked = [question(task, asking, city, example) for city in cities]

    def write(taken: int, filler: str) -> str:
        return f"{example} {with_needles(straw[:taken], needles, depths, filler)}"

    haystack = fitted(asking, write, len(straw), asked, blank.tokens)
    found = []
    for index, (city, text) in enumerate(zip(cities, asked, strict=True)):
        own = slice(index * count, (index + 1) * count)
        middle = sum(depth_of(haystack, needle) for needle in needles[own]) / count
        found.append(Question(city, text, tuple(numbers[own]), round(middle, 4)))
    return rows_of(asking, blank.document_id, haystack, found)


def share(task: Task, asking: Asking) -> Share:
    """The block's questions, made from its seed."""
    return Share(generated(task, asking, document))


KIND = Kind(modes={"generation": "multi_needle"}, share=share, check=check_lengths, size=size_of, output_tokens=64)
