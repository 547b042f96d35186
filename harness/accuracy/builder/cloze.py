"""Gaps: a sentence of a document and a word in it that the document has nowhere else (cloze; Taylor, 1953).

A word is distinctive by its form alone: a number, a date, an identifier, a name written with a capital, a title in
quotation marks. That needs no model of the language, but in a script without capitals and spaces, such as Chinese,
only numbers, dates, Latin words and quoted titles are found.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

GAP = "____"
SENTENCE_CHARS = (30, 320)
"""Shorter ones say too little about where the gap is; a longer one is mostly a list or a table."""

WORDS_BEFORE = 3
"""Words (or as many times two Chinese characters) that stand before a gap, so that they lead to it."""

_BLOCK = re.compile(r"\n[ \t]*\n|\n(?=[ \t]*(?:[-*+>|#]|\d+[.)][ \t]))|(?m:^[ \t]*[|#].*\n)")
"""Where a sentence can't go on: a blank line, a list's next item, a heading, a table's next row."""

_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*[ \t\n]+(?=[^\sa-zа-я])|(?<=[。！？；])[”’」』）]*\n?")

_KINDS = (
    r"\d{1,4}年(?:\d{1,2}月)?(?:\d{1,2}日)?",  # 1999年3月
    r"\d{4}-\d{2}-\d{2}",
    r"《[^《》\n]{2,20}》|「[^「」\n]{2,20}」",
    r"(?<![A-Za-z0-9_])(?=[A-Za-z.-]*[_\d])[A-Za-z_][A-Za-z0-9_]*(?:[.-][A-Za-z0-9_]+)*",
    r"(?<![\w.,])\d+(?:[.,:/]\d+)+(?![\w])|(?<![\w.,])\d{2,}(?![\w])(?![.,]\d)",
    r"(?<=[A-Za-zÀ-ɏͰ-ӿ,;)] )(?:[A-ZÀ-ÖØ-ÞΑ-ΩА-Я][^\W\d_]{2,})(?: [A-ZÀ-ÖØ-ÞΑ-ΩА-Я][^\W\d_]{2,})*",
    r"(?<=[\u3040-\u30ff\u4e00-\u9fff])[A-Za-z][A-Za-z0-9+.-]{2,}(?=[\u3040-\u30ff\u4e00-\u9fff])",
)
_DISTINCTIVE = re.compile("|".join(f"(?:{kind})" for kind in _KINDS))
_WORD = re.compile(r"[^\W\d_]{2,}")
_CHINESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")


@dataclass(frozen=True)
class Gap:
    """A possible question.

    Attributes
    ----------
    at : int
        Where the answer lies in the document, in characters.
    before, after : str
        The sentence up to the gap and behind it, on one line each.
    answer : str
        What stood there.
    """

    at: int
    before: str
    after: str
    answer: str

    @property
    def sentence(self) -> str:
        """The sentence with the gap."""
        return f"{self.before}{GAP}{self.after}"


def gaps(document: str) -> Iterator[Gap]:
    """Every gap that the document has, from its start to its end."""
    folded = document.casefold()
    for start, end in sentences(document):
        sentence = document[start:end]
        shortest, longest = SENTENCE_CHARS
        if (
            len(sentence) * (1 + bool(_CHINESE.search(sentence))) < shortest
            or len(sentence) > longest
            or GAP in sentence
        ):
            continue
        for found in _DISTINCTIVE.finditer(sentence):
            answer, before = found[0], sentence[: found.start()]
            if "\n" in answer or _words(before) < WORDS_BEFORE:
                continue
            if folded.count(answer.casefold()) == 1 and document.count(before) == 1:
                yield Gap(start + found.start(), _on_one_line(before), _on_one_line(sentence[found.end() :]), answer)


def _words(text: str) -> float:
    return len(_WORD.findall(_CHINESE.sub(" ", text))) + len(_CHINESE.findall(text)) / 2


def _on_one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def sentences(text: str) -> Iterator[tuple[int, int]]:
    """Where the text's sentences begin and end, without the white space around them."""
    for start, end in _between(_BLOCK, text, 0, len(text)):
        for first, last in _between(_END, text, start, end):
            piece = text[first:last]
            if piece.strip():
                yield first + len(piece) - len(piece.lstrip()), last - len(piece) + len(piece.rstrip())


def _between(pattern: re.Pattern[str], text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    at = start
    for found in pattern.finditer(text, start, end):
        yield at, found.end()
        at = found.end()
    yield at, end
