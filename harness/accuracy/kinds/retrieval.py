"""Needle retrieval: many needles in one haystack, each question asks for one of them.

Needle in a haystack: Kamradt, 2023 (github.com/gkamradt/LLMTest_NeedleInAHaystack); many keys and one asked for:
RULER (Hsieh et al., 2024, arXiv:2404.06654). A needle's number stands nowhere else, so that guessing scores 0.

SmolLM2-135M in 16 bits answered 8 of 8 at each of 900, 1,900 and 4,000 tokens, and 5 of 8 at 900 posed as a chat.
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
from harness.accuracy.straw import words
from harness.accuracy.task import Task

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
COMPLETION = "\n\nSpecial magic number: {city}"
"""In the needle's own words: a small model takes needles that share their last words ("the special magic number for
Oslo is …") for one another. Of 16 and 40 questions at 6,000 tokens of other text SmolLM2-135M had 5 and 38 right."""
CHAT = "\n\nWhat is the special magic number of {city}? Answer with the number only."


def question(asking: Asking, city: str) -> str:
    """What is appended to the haystack."""
    return (CHAT if asking.chat else COMPLETION).format(city=city)


def document(task: Task, asking: Asking, blank: Blank) -> list[Row]:
    """The questions on one haystack."""
    cities = evenly_long(asking, blank.rng, CITIES, lambda city: question(asking, city), task.questions)
    numbers = digits(blank.rng, task.questions)
    needles = [NEEDLE.format(city=city, number=number) for city, number in zip(cities, numbers, strict=True)]
    depths = spread(blank.rng, task.questions)
    straw = words(blank.rng, blank.tokens)
    asked = [question(asking, city) for city in cities]
    haystack = fitted(
        asking,
        lambda count, filler: with_needles(straw[:count], needles, depths, filler),
        len(straw),
        asked,
        blank.tokens,
    )
    found = [
        Question(city, text, (number,), depth_of(haystack, needle))
        for city, text, number, needle in zip(cities, asked, numbers, needles, strict=True)
    ]
    return rows_of(asking, blank.document_id, haystack, found)


def share(task: Task, asking: Asking) -> Share:
    """The block's questions, made from its seed."""
    return Share(generated(task, asking, document))


KIND = Kind(modes={"generation": "retrieval"}, share=share, check=check_lengths, size=size_of, output_tokens=32)
