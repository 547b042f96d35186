"""Variable tracking: assignments scattered over a document, each chain leading back to a number.

RULER's multi-hop tracing (Hsieh et al., 2024, arXiv:2404.06654), asked from the other end: RULER gives the number and
asks for the variables; here the chain's last variable is given, and the `hops` variables before it and the number are
asked for. Each hop is then found behind the one before, and a small model shows at least some. A document has one
chain for each question. A score is the share of the chain that the answer names, 0 to 1 (`multi_needle` says what
becomes of graded scores); naming variables at random finds one in `questions`.

Models of 135M parameters are near that: SmolLM2-135M in 16 bits scored 0.17 to 0.42 at 400 tokens (4 questions, 3
documents), 0.22 at 900 and 0.06 at 1,900 (6 questions each); RULER's question gave 0 to 0.25 at 400.
"""

import random
from itertools import pairwise

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
from harness.errors import ConfigError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NAMES = len(LETTERS) ** 2 - 1
FIRST, NEXT = "VAR {variable} = {number}.", "VAR {variable} = VAR {before}."
COMPLETION = "\n\n{example}\nVAR {variable} = VAR"
"""The example is the trace of one more chain, whose lines the document begins with."""
CHAT = (
    "\n\nTrace variable {variable} back to its number: which variables does it get its value from, one after another, "
    "and what is the number? Answer with their names and the number only, separated by commas."
)


def question(asking: Asking, variable: str, example: str) -> str:
    """What is appended to the document."""
    return (CHAT if asking.chat else COMPLETION).format(variable=variable, example=example)


def variables(rng: random.Random, count: int) -> list[str]:
    """Names of three capital letters, no two with the same first two."""
    starts = rng.sample([first + second for first in LETTERS for second in LETTERS if first + second != "VA"], count)
    return [start + rng.choice(LETTERS) for start in starts]


def chain_lines(chain: list[str], number: str) -> list[str]:
    """The assignments of a chain, its number first."""
    further = [NEXT.format(variable=after, before=before) for before, after in pairwise(chain)]
    return [FIRST.format(variable=chain[0], number=number), *further]


def trace(chain: list[str], number: str) -> str:
    """A chain from its last variable back to its number."""
    return " = ".join([*(f"VAR {variable}" for variable in reversed(chain)), f"{number}."])


def document(task: Task, asking: Asking, blank: Blank) -> list[Row]:
    """The questions on one document; a chain's lines lie within one stretch of it, the number first."""
    rng, length = blank.rng, task.hops + 1
    names = variables(rng, min((task.questions + 1) * (length + 7), _NAMES))
    shown, names = names[:length], names[length:]
    numbers = digits(rng, task.questions + 1)
    example = trace(shown, numbers[-1])
    last = evenly_long(
        asking, rng, names[: 8 * task.questions], lambda one: question(asking, one, example), task.questions
    )
    rest = [name for name in names if name not in last]
    chains = [[*rest[index * task.hops : (index + 1) * task.hops], name] for index, name in enumerate(last)]
    lines = [line for chain, number in zip(chains, numbers, strict=False) for line in chain_lines(chain, number)]
    depths = spread(rng, len(lines))
    straw = words(rng, blank.tokens)
    head = " ".join(chain_lines(shown, numbers[-1]))
    asked = [question(asking, name, example) for name in last]

    def write(taken: int, filler: str) -> str:
        return f"{head} {with_needles(straw[:taken], lines, depths, filler)}"

    text = fitted(asking, write, len(straw), asked, blank.tokens)
    found = []
    for index, (chain, number) in enumerate(zip(chains, numbers, strict=False)):
        own = lines[index * length : (index + 1) * length]
        middle = round(sum(depth_of(text, line) for line in own) / length, 4)
        found.append(Question(chain[-1], asked[index], (*reversed(chain[:-1]), number), middle))
    return rows_of(asking, blank.document_id, text, found)


def share(task: Task, asking: Asking) -> Share:
    """The block's questions, made from its seed."""
    return Share(generated(task, asking, document))


def check(task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` where prompts and answers don't fit the servers, or the names don't suffice."""
    check_lengths(task, context_tokens)
    if (task.questions + 1) * (task.hops + 1) > _NAMES:
        raise ConfigError(f"questions: {task.questions} chains of {task.hops} hops need more names than there are")


KIND = Kind(modes={"generation": "variable_tracking"}, share=share, check=check, size=size_of, output_tokens=64)
