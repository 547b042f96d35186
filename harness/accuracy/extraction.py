"""What a generated answer says: the number, letter, or yes or no that it commits to, in the forms that models use.

lm-eval's own tasks take the first number behind `####` (strict) or the last number of all (flexible), the first
letter, the first word. Here the place where an answer declares itself comes first, so that "The answer is 18, since
6 × 3 = 18 and not 17" is 18; where nothing is declared the rules are lm-eval's.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

_SIGN = r"(?:(?<![\w.)\]])[-+])?"
_NUMBER = rf"{_SIGN}(?:[$€£¥][ \t]?)?{_SIGN}(?:(?:\d{{1,3}}(?:,\d{{3}})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)"
_IS_NUMBER = re.compile(_NUMBER)
_BEHIND = re.compile(rf"####[ \t]*({_NUMBER})")
_ALONE = re.compile(rf"####[ \t]*({_NUMBER})(?![.)][ \t]+\w)[^\d\n]*$", re.MULTILINE)
"""With perhaps a unit behind it; "#### 1. First, we add" is a heading."""
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_DECLARED = re.compile(rf"answer(?:[ \t]+is|[*_]*[ \t]*[:=])[^\d\n]{{0,30}}?({_NUMBER})", re.IGNORECASE)
_YES_OR_NO = {"yes": "yes", "true": "yes", "no": "no", "false": "no"}
_EITHER = "|".join(_YES_OR_NO)


def number(answer: str) -> Decimal | None:
    """The number that a worked answer ends in: behind `####`, in a box, declared as the answer, or else its last."""
    text = _plain(answer)
    for found in (_ALONE.search(text), _last(_BEHIND, text), _last(_BOXED, text), _last(_DECLARED, text)):
        if found and (value := _last(_IS_NUMBER, found[1])):
            return as_number(value[0])
    last = _last(_IS_NUMBER, text)
    return as_number(last[0]) if last else None


def as_number(text: str) -> Decimal | None:
    """A number with perhaps a currency sign, commas or a per cent sign; None for anything else."""
    try:
        value = Decimal(re.sub(r"[$€£¥,%\s]", "", _plain(text)).rstrip("."))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def yes_or_no(answer: str) -> str | None:
    """``yes`` or ``no``: as the answer declares, or else the first of the words (true and false count)."""
    text = re.sub(r"yes(?: or |/)no", " ", _plain(answer).casefold())
    for pattern in (rf"^\W*({_EITHER})\b", rf"answer(?: is|\W*:)\W*({_EITHER})\b", rf"\b({_EITHER})\b"):
        if found := re.search(pattern, text):
            return _YES_OR_NO[found[1]]
    return None


def letter(answer: str, choices: Sequence[str]) -> str | None:
    """The letter of one of `choices` that an answer names, or whose text it is.

    An article is no answer: in "A good one is B" and "I say B" the letter is B.
    """
    letters = "".join(chr(ord("A") + index) for index in range(len(choices)))
    text = _plain(answer).strip()
    for part in filter(None, (text.partition("\n")[0], text)):
        if found := next(_letters(part, letters), None):
            return found
    said = _bare(text)
    named = [one for one, choice in zip(letters, choices, strict=True) if said and _bare(choice) == said]
    return named[0] if len(named) == 1 else None


def _letters(text: str, letters: str) -> Iterator[str]:
    either = f"[{letters}{letters.lower()}]"
    upper = f"(?:(?![AI][ '’][a-z])[{letters}])"
    patterns = (
        rf"^[\W_]*({either})(?:[\W_]*$|[^\w\s'’-])",  # "B", "(b)", "**B.** 4"
        rf"(?i:answer(?:[ \t]+is|[ \t]*:)|option|choice)[\W_]*({upper}(?!\w)|[{letters.lower()}](?=[^\w\s'’-]|\s*$))",
        rf"\(({either})\)",
        rf"\\boxed\{{({either})\}}",
        rf"(?<![\w'’])({upper})(?![\w'’])",
    )
    for pattern in patterns:
        if found := re.search(pattern, text):
            yield found[1].upper()


def gsm8k_result(doc: Mapping[str, Any], answers: Sequence[str]) -> dict[str, float]:
    """For lm-eval: whether the answer's number is the right one."""
    return {"exact_match": float(_same(number(answers[0]), doc["target"]))}


def mmlu_result(doc: Mapping[str, Any], answers: Sequence[str]) -> dict[str, float]:
    """For lm-eval: whether the answer names the right choice."""
    return {"exact_match": float(letter(answers[0], doc["choices"]) == chr(ord("A") + doc["answer"]))}


def boolq_result(doc: Mapping[str, Any], answers: Sequence[str]) -> dict[str, float]:
    """For lm-eval: whether yes or no is right."""
    return {"exact_match": float(yes_or_no(answers[0]) == ("no", "yes")[doc["label"]])}


def without_thoughts(answer: str) -> str:
    """What a reasoning model says behind its thoughts."""
    return answer.rpartition("</think>")[2]


def _same(found: Decimal | None, target: str) -> bool:
    return found is not None and found == as_number(target)


def _plain(answer: str) -> str:
    """The answer in compatible characters, with an ASCII minus and plain commas."""
    text = re.sub(r"(?<=\d)[\u2009\u202f\u00a0](?=\d{3}(?!\d))", "", without_thoughts(answer))
    text = unicodedata.normalize("NFKC", re.sub("[⁰¹²³⁴-⁹]", "", text))
    return text.replace("−", "-").replace("{,}", ",")


def _bare(text: str) -> str:
    return re.sub(r"[\W_]+", " ", _plain(text).casefold()).strip()


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(text):  # noqa: B007
        pass
    return found
