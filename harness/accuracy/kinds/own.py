"""A user's own questions ("try your domain's questions"), out of a file in the form of docs/accuracy.md.

A document stands before its questions, which therefore share it as their prefix and are asked one after the other.
Open answers are scored as the line says (`text_scores`); choices are lettered, and either the most probable letter is
the answer (`mode: loglikelihood`) or the one that the model names.
"""

from collections.abc import Sequence

from harness.accuracy import data_set
from harness.accuracy.kinds.interface import Asking, Kind, Row, Share, Size
from harness.accuracy.own_file import OwnQuestion, read_own
from harness.accuracy.task import Task, answer_tokens_of
from harness.accuracy.text_scores import words
from harness.errors import ConfigError

BYTES_PER_TOKEN = 4
"""For estimates: about what English takes, with a vocabulary of some ten thousand tokens."""


def share(task: Task, asking: Asking) -> Share:
    """The block's questions."""
    return data_set.divided([_row(one, asking.chat is not None) for one in _questions(task)], task, asking)


def _questions(task: Task) -> tuple[OwnQuestion, ...]:
    try:
        return read_own(str(task.path))
    except ConfigError as error:
        raise ConfigError(f"path: {error}") from error


def _row(one: OwnQuestion, chat: bool) -> Row:
    return {
        "item_id": one.item_id,
        "document_id": one.document_id,
        "prompt": _prompt(one, chat),
        "target": one.answers[0],
        "answers": list(one.answers),
        "choices": list(one.choices),
        "letters": [_letter(index) for index in range(len(one.choices))],
        "right_index": ord(one.answers[0]) - ord("A") if one.choices else -1,
        "scored_by": one.scored_by,
        "context_tokens": one.context_tokens,
        "depth": one.depth,
    }


def _prompt(one: OwnQuestion, chat: bool) -> str:
    """What is sent: as a completion it ends where the answer begins; in a chat nothing is put into the user's mouth."""
    document = f"{one.document}\n\n" if one.document else ""
    if one.prompt and not (chat and one.question):
        return f"{document}{one.prompt}"
    listed = "".join(f"\n{_letter(index)}. {text}" for index, text in enumerate(one.choices))
    if chat:
        return f"{document}{one.question}{listed}" + ("\nAnswer with the letter only." if listed else "")
    return f"{document}Question: {one.question}{listed}\nAnswer:"


def _letter(index: int) -> str:
    return chr(ord("A") + index)


def chance(rows: Sequence[Row]) -> float:
    """What the best constant letter scores; open answers can't be guessed."""
    letters = [row["target"] for row in rows if row["choices"]]
    guessed = sum(1 / len(row["choices"]) for row in rows if row["choices"])
    return max([guessed, *map(letters.count, set(letters))]) / len(rows)


def check(task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` where the file isn't as it should be, or its answers or prompts have no room."""
    if not task.path:
        raise ConfigError("path: own needs a file of questions; its form: docs/accuracy.md")
    found, room = _questions(task), answer_tokens_of(task)
    for one in found:
        where = f"path: {task.path}, line {one.line}"
        if task.mode == "loglikelihood" and not one.choices:
            raise ConfigError(f"{where}: mode loglikelihood needs choices; allowed: mode generation, or auto")
        if (one.context_tokens or 0) + room > context_tokens:
            raise ConfigError(
                f"{where}: context_tokens {one.context_tokens} and an answer of {room} don't fit the servers' "
                f"{context_tokens}"
            )
        if not one.choices and (least := min(len(words(text)) for text in one.answers)) > room:
            raise ConfigError(
                f"{where}: an answer of {least} words can't be given in answer_tokens={room}; set answer_tokens"
            )


def size(task: Task) -> Size:
    """How much a block asks; tokens by the bytes of the texts where the file doesn't say."""
    found = _questions(task)
    questions = min(task.limit or len(found), len(found))
    part = questions / len(found)
    documents: dict[str, int] = {}
    prompts = own_part = 0
    for one in found:
        tokens = one.context_tokens or _tokens(_prompt(one, chat=False))
        documents[one.document_id] = min(_tokens(one.document), tokens)
        own_part += tokens - documents[one.document_id]
        prompts += tokens
    return Size(
        questions=questions,
        documents=max(1, round(part * len(documents))),
        prompt_tokens=round(part * prompts),
        distinct_prompt_tokens=round(part * (own_part + sum(documents.values()))),
        output_tokens=questions * answer_tokens_of(task),
        data_set_questions=len(found),
        data_set_documents=len(documents),
    )


def _tokens(text: str) -> int:
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


KIND = Kind(
    modes={"generation": "own_generation", "loglikelihood": "own"},
    share=share,
    check=check,
    size=size,
    output_tokens=32,
    takes_path=True,
    chance=chance,
    text_references=True,
)
