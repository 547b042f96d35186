"""How near a generated answer comes to the accepted ones: exact, contains, F1, ROUGE-L; each 0 to 1.

Case, white space and punctuation don't count, except punctuation inside a number. Words of scripts that are written
without spaces are compared character by character.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rouge_score.rouge_scorer import RougeScorer

_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff])"
)
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese."""


def words(text: str) -> list[str]:
    """The words that count, in one spelling."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("−", "-")
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", plain)
    kept = (one if _counts(plain, index) else " " for index, one in enumerate(plain))
    return _UNSPACED.sub(r" \1 ", "".join(kept)).split()


def _counts(text: str, index: int) -> bool:
    one, before, after = text[index], text[index - 1 : index], text[index + 1 : index + 2]
    if unicodedata.category(one)[0] in "LMN":
        return True
    if one in ".,:/-" and before.isdigit() and after.isdigit():
        return True
    return one == "-" and after.isdigit() and not before.isalnum()


def exact(answer: str, accepted: str) -> float:
    """Whether the answer is the accepted one."""
    return float(words(_as_long(answer, accepted)) == words(accepted))


def contains(answer: str, accepted: str) -> float:
    """Whether the accepted answer's words stand together somewhere in the answer."""
    said, wanted = words(answer), words(accepted)
    return float(any(said[at : at + len(wanted)] == wanted for at in range(len(said) - len(wanted) + 1)))


def f1(answer: str, accepted: str) -> float:
    """Harmonic mean of precision and recall of the words (Rajpurkar et al., 2016, arXiv:1606.05250)."""
    said, wanted = words(_as_long(answer, accepted)), words(accepted)
    common = sum((Counter(said) & Counter(wanted)).values())
    return 2 * common / (len(said) + len(wanted)) if common else 0.0


def rouge_l(answer: str, accepted: str) -> float:
    """F measure of the longest common subsequence of words (Lin, 2004), by `rouge-score`."""
    return float(_ROUGE.score(accepted, answer)["rougeL"].fmeasure)


class _Words:
    """The tokenizer that `rouge-score` asks for; its own knows only ASCII."""

    def tokenize(self, text: str) -> list[str]:
        return words(text)


_ROUGE = RougeScorer(["rougeL"], tokenizer=_Words())

SCORES: Mapping[str, Callable[[str, str], float]] = {
    "exact": exact,
    "contains": contains,
    "f1": f1,
    "rouge_l": rouge_l,
}


def _as_long(answer: str, accepted: str) -> str:
    """The answer's first line that isn't blank, where the accepted answer is one line: base models run on."""
    if "\n" in accepted.strip():
        return answer
    return next((line for line in answer.splitlines() if line.strip()), "")


def own_result(doc: Mapping[str, Any], answers: Sequence[str]) -> dict[str, float]:
    """For lm-eval: the score of the user's own question, by the accepted answer that comes nearest."""
    from harness.accuracy.extraction import letter, without_thoughts

    if doc["choices"]:
        return {"score": float(letter(answers[0], doc["choices"]) == doc["target"])}
    score, answer = SCORES[doc["scored_by"]], without_thoughts(answers[0])
    return {"score": max(score(answer, one) for one in doc["answers"])}
