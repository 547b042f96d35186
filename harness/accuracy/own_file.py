"""A user's own questions: JSON lines in the form of docs/accuracy.md, read whole and checked before any launch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.accuracy.data_files import is_text, item_name, lines
from harness.accuracy.kinds.interface import Field, Row
from harness.accuracy.text_scores import SCORES, words
from harness.errors import ConfigError

LAYOUT = (
    "JSON lines, one question a line, `.jsonl` or `.jsonl.gz`: question (or prompt) and answer (or answers); perhaps "
    "document (or document_path), document_id, choices, score, id, depth, context_tokens (docs/accuracy.md)"
)
MOST_CHOICES = 26


@dataclass(frozen=True)
class OwnQuestion:
    """A line of the file.

    Attributes
    ----------
    line : int
        Its number, for error texts.
    item_id, document_id : str
        Names of the question and of what it is asked about.
    document : str
        Stands before the question; empty: nothing does.
    question, prompt : str
        At most one of the two is empty. A `prompt` follows the document as it is, for the model to go on from; where
        there is a `question` too, that is what a chat is asked.
    answers : tuple of str
        Accepted answers, the first one for show; with choices one letter.
    choices : tuple of str
        Empty: an open answer.
    scored_by : str
        A key of `text_scores.SCORES`.
    depth, context_tokens
        What the user says of them, for curves; None: nothing.
    """

    line: int
    item_id: str
    document_id: str
    document: str
    question: str
    prompt: str
    answers: tuple[str, ...]
    choices: tuple[str, ...]
    scored_by: str
    depth: float | None
    context_tokens: int | None


def read_own(path: str) -> tuple[OwnQuestion, ...]:
    """The file's questions, in its order; raises `ConfigError` naming file, line and field."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"{file} is no file; {LAYOUT}")
    state = file.stat()
    return _read(file.resolve(), (state.st_mtime_ns, state.st_size))


def files_of(path: str) -> list[Path]:
    """The file, and those that its `document_path` fields name: what a run depends on."""
    file = Path(path).expanduser().resolve()
    named = {str(row["document_path"]) for _, row in lines(file, LAYOUT) if row.get("document_path")}
    return [file, *(file.parent / name for name in sorted(named))]


@cache
def _read(file: Path, state: tuple[int, int]) -> tuple[OwnQuestion, ...]:
    rows = list(lines(file, LAYOUT))
    if not rows:
        raise ConfigError(f"{file} holds no questions; {LAYOUT}")
    for number, row in rows:
        _check(file, number, row)
    texts = _texts(file, rows)
    named = _named(file, rows, texts)
    name_of = {text: name for name, text in named.items()}
    found = []
    for number, row in rows:
        name, document = row.get("document_id"), texts[number]
        if document is None and name is not None:
            document = named.get(str(name))
            if document is None and row.get("prompt") is None:
                raise ConfigError(f"{file}, line {number}: document_id: no line has the document of {name}")
        name = name if name is not None or document is None else name_of.get(document)
        found.append(_question(file, number, row, document, None if name is None else str(name)))
    first_line: dict[str, int] = {}
    for one in found:
        if (line := first_line.setdefault(one.item_id, one.line)) != one.line:
            raise ConfigError(
                f"{file}, line {one.line}: id {one.item_id} stands in line {line} already; ids must differ, since "
                "answers are paired by them"
            )
    return tuple(found)


def _check(file: Path, number: int, row: Row) -> None:
    """Every field by itself, and which go together."""
    if unknown := sorted(set(row) - set(_FIELDS) - {field for field in row if field.startswith("_")}):
        raise ConfigError(
            f"{file}, line {number}: {unknown[0]} is no field of a question; allowed: {', '.join(sorted(_FIELDS))}, "
            "and notes of your own under names that begin with _"
        )
    for field, (will_do, wanted) in _FIELDS.items():
        if row.get(field) is not None and not will_do(row[field]):
            raise _wrong(file, number, field, wanted, row[field])
    if row.get("question") is None and row.get("prompt") is None:
        raise ConfigError(f"{file}, line {number}: no question and no prompt; {LAYOUT}")
    if (row.get("answer") is None) == (row.get("answers") is None):
        raise ConfigError(f"{file}, line {number}: answer, answers: exactly one of the two is needed; {LAYOUT}")
    if row.get("prompt") is not None and row.get("choices") is not None:
        raise ConfigError(f"{file}, line {number}: prompt, choices: choices are lettered behind a question")
    if row.get("document") is not None and row.get("document_path") is not None:
        raise ConfigError(f"{file}, line {number}: document, document_path: one of the two, not both")


def _texts(file: Path, rows: list[tuple[int, Row]]) -> dict[int, str | None]:
    """The document that each line itself has."""
    of_path: dict[str, str] = {}
    found: dict[int, str | None] = {}
    for number, row in rows:
        name = row.get("document_path")
        if name is not None and name not in of_path:
            path = file.parent / name
            try:
                of_path[name] = path.read_text(encoding="utf-8-sig")
            except (OSError, ValueError) as error:  # ValueError: no UTF-8, or no path
                raise ConfigError(
                    f"{file}, line {number}: document_path: {path} can't be read as UTF-8 text: {error}"
                ) from error
            if not of_path[name].strip():
                raise ConfigError(f"{file}, line {number}: document_path: {path} is empty")
        found[number] = row.get("document") if name is None else of_path[name]
    return found


def _named(file: Path, rows: list[tuple[int, Row]], texts: Mapping[int, str | None]) -> dict[str, str]:
    """The document under each `document_id`; all lines that have it must agree."""
    found: dict[str, str] = {}
    for number, row in rows:
        name, text = row.get("document_id"), texts[number]
        if name is not None and text is not None and found.setdefault(str(name), text) != text:
            raise ConfigError(f"{file}, line {number}: document: another text stands under document_id {name} already")
    return found


def _question(file: Path, number: int, row: Row, document: str | None, name: str | None) -> OwnQuestion:
    item = item_name("own", row)
    # Questions on one text are a cluster, whether or not it has a name.
    by_text = item if document is None else item_name("document", {"document": document})
    return OwnQuestion(
        line=number,
        item_id=item,
        document_id=by_text if name is None else name,
        document=document or "",
        question=row.get("question") or "",
        prompt=row.get("prompt") or "",
        answers=_answers(file, number, row),
        choices=tuple(row.get("choices") or ()),
        scored_by=row.get("score") or "exact",
        depth=None if row.get("depth") is None else float(row["depth"]),
        context_tokens=row.get("context_tokens"),
    )


def _answers(file: Path, number: int, row: Row) -> tuple[str, ...]:
    given = row["answers"] if row.get("answers") is not None else [row["answer"]]
    if not row.get("choices"):
        if bad := [one for one in given if not words(str(one))]:
            raise ConfigError(f"{file}, line {number}: answer {json.dumps(bad[0])} has no letter and no digit")
        return tuple(str(one) for one in given)
    if row.get("score") not in (None, "exact"):
        raise ConfigError(f"{file}, line {number}: score: a choice is right or wrong; allowed: exact")
    choices: list[str] = row["choices"]
    letters = [chr(ord("A") + index) for index in range(len(choices))]
    right = given[0] if len(given) == 1 else given
    if isinstance(right, int) and str(right) in choices:
        raise ConfigError(f"{file}, line {number}: answer {right} is a choice's index or its text? Write its letter")
    if right in letters and right in choices and choices[letters.index(right)] != right:
        raise ConfigError(f"{file}, line {number}: answer {right} is a choice's letter or its text? Write its index")
    named: dict[object, str] = {**dict(enumerate(letters)), **dict(zip(letters, letters, strict=True))}
    named |= dict(zip(choices, letters, strict=True))
    if isinstance(right, list) or right not in named:
        wanted = (
            f"one of choices: its text, its letter ({letters[0]}-{letters[-1]}) or its index (0-{len(choices) - 1})"
        )
        raise _wrong(file, number, "answer", wanted, right)
    return (named[right],)


def _wrong(file: Path, number: int, field: str, wanted: str, value: object) -> ConfigError:
    shown = json.dumps(value, ensure_ascii=False)[:60]
    return ConfigError(f"{file}, line {number}: {field} must be {wanted}, not {shown}")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _answer(value: object) -> bool:
    return is_text(value) or _number(value)


_FIELDS: Mapping[str, Field] = {
    "id": (lambda value: isinstance(value, str | int), "a text or a number"),
    "question": (is_text, "a text that isn't empty"),
    "prompt": (is_text, "a text that isn't empty"),
    "document": (is_text, "a text that isn't empty"),
    "document_path": (is_text, "a file's path, relative to this file"),
    "document_id": (lambda value: isinstance(value, str | int) and value != "", "a text or a number"),
    "answer": (_answer, "a text that isn't empty, or a number"),
    "answers": (
        lambda value: isinstance(value, list) and bool(value) and all(map(_answer, value)),
        "a list of accepted answers",
    ),
    "choices": (
        lambda value: (
            isinstance(value, list)
            and 2 <= len(value) <= MOST_CHOICES
            and all(map(is_text, value))
            and len(set(value)) == len(value)
        ),
        f"a list of 2 to {MOST_CHOICES} different texts",
    ),
    "score": (lambda value: isinstance(value, str) and value in SCORES, f"one of {', '.join(SCORES)}"),
    "depth": (lambda value: _number(value) and 0 <= float(value) <= 1, "a number from 0 to 1"),  # type: ignore[arg-type]
    "context_tokens": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
        "a number of tokens >= 1",
    ),
}
"""Every field of a line; a misspelt one is refused rather than overlooked."""
