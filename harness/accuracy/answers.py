"""What a generated answer names, for tasks that score by it: the share of the right values, 0 to 1.

Of an answer only as many different values count as were asked for, so that naming everything earns nothing.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.accuracy.extraction import without_thoughts

NUMBER = re.compile(r"\d+")
LINK = re.compile(r"\b(?!VAR\b)[A-Z]{3}\b|\b\d+\b")


def numbers_result(doc: Mapping[str, Any], answers: Sequence[str]) -> dict[str, float]:
    """For lm-eval: the share of the numbers asked for that stand among the answer's first."""
    return {"share": share_found(NUMBER.findall(without_thoughts(answers[0])), doc["targets"])}


def chain_result(doc: Mapping[str, Any], answers: Sequence[str]) -> dict[str, float]:
    """For lm-eval: the share of a chain's variables and number among the answer's first, the question's own aside."""
    named = LINK.findall(without_thoughts(answers[0]))
    return {"share": share_found([one for one in named if one != doc["key"]], doc["targets"])}


def text_result(doc: Mapping[str, Any], answers: Sequence[str]) -> dict[str, float]:
    """For lm-eval: whether the answer holds one of the texts that are right, as whole words and in any case."""
    return {"exact_match": float(any(holds(without_thoughts(answers[0]), target) for target in doc["targets"]))}


def share_found(named: Sequence[str], targets: Sequence[str]) -> float:
    """The share of `targets` among the first so many different values of `named`."""
    counted = list(dict.fromkeys(named))[: len(targets)]
    return sum(target in counted for target in targets) / len(targets)


def holds(answer: str, target: str) -> bool:
    """Whether a text stands in an answer, not within a longer word."""
    pattern = r"\s+".join(re.escape(part) for part in target.casefold().split())
    return re.search(rf"(?<!\w){pattern}(?!\w)", answer.casefold()) is not None
