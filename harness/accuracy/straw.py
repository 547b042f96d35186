"""Text that fills a document and answers nothing: plain English sentences, drawn from a seed.

They are made here and not taken from a corpus, so that equal seeds give equal bytes on every machine, and so that no
tokenizer comes between. There are no digits and no proper names in them: what a question asks for stands nowhere else.
RULER's essays and "The grass is green. The sky is blue." have the same part (Hsieh et al., 2024, arXiv:2404.06654).
"""

import random

WHO = (
    "an old carpenter", "the harbour master", "a young clerk", "the night watchman", "a travelling musician",
    "the baker's daughter", "a patient teacher", "the village doctor", "a retired sailor", "the new librarian",
    "a careful gardener", "the youngest brother", "a group of students", "the bridge keeper", "a stranger in grey",
    "the owner of the mill", "a tired postman", "the choir leader", "a painter of signs", "the neighbour's cousin",
    "a quiet engineer", "the ferry pilot", "a maker of clocks", "the head cook",
)  # fmt: skip
DID = (
    "mended", "carried away", "found", "painted", "measured", "described", "borrowed", "hid", "cleaned", "sold",
    "forgot", "watched", "photographed", "moved", "rebuilt", "opened", "covered", "returned", "weighed", "admired",
    "lost", "kept", "sketched", "polished",
)  # fmt: skip
WHAT = (
    "a wooden boat", "the broken clock", "a basket of apples", "the garden gate", "an iron stove", "a heavy map",
    "the red bicycle", "a pair of boots", "the village bell", "a box of candles", "the long ladder", "a glass lamp",
    "the stone bench", "a leather bag", "the water wheel", "a bundle of letters", "the blue curtain", "a small organ",
    "the kitchen table", "a silver whistle", "the fishing net", "a crate of books", "the chimney", "a woollen coat",
)  # fmt: skip
WHERE = (
    "near the river", "behind the station", "in the upper field", "at the edge of the forest", "beside the old wall",
    "in the market hall", "under the bridge", "on the north road", "in a quiet courtyard", "by the lake",
    "next to the school", "above the workshop", "in the cellar", "at the crossroads", "outside the chapel",
    "along the canal", "in the orchard", "below the tower", "across the square", "on the hill",
)  # fmt: skip
WHEN = (
    "early in the morning", "after the storm", "before the harvest", "late in the evening", "during the long winter",
    "on the first warm day", "when the rain had stopped", "while everyone slept", "at the end of summer",
    "as the lamps were lit", "just after breakfast", "shortly before noon", "without telling anybody",
    "for the second time", "with great care", "in the company of friends",
)  # fmt: skip


def sentence(rng: random.Random) -> str:
    """One of some four million."""
    parts = [rng.choice(part) for part in (WHO, DID, WHAT, WHERE, WHEN)]
    text = f"{' '.join(parts)}."
    return text[0].upper() + text[1:]


def words(rng: random.Random, count: int) -> list[str]:
    """At least `count` words of running sentences."""
    found: list[str] = []
    while len(found) < count:
        found += sentence(rng).split()
    return found
