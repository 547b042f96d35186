"""A user's own questions as a file: what is read, and what is refused before anything is launched."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy.data_set import files_of
from harness.accuracy.kinds.own import chance
from harness.accuracy.own_file import _FIELDS, read_own
from harness.accuracy.task import Task, check_task, kind_of
from harness.errors import ConfigError

GOOD: dict[str, Any] = {"question": "Who?", "answer": "Ada"}


def written(folder: Path, *rows: Any) -> str:
    path = folder / "own.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def test_questions_with_one_text_or_one_document_id_share_their_document(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("\ufeffText C.")
    path = written(
        tmp_path,
        {**GOOD, "document": "Text A.", "document_id": "a"},
        {**GOOD, "question": "When?", "document_id": "a"},
        {**GOOD, "question": "Where?", "document": "Text A."},
        {**GOOD, "question": "How?", "document": "Text B."},
        {**GOOD, "question": "Why?", "document": "Text B."},
        {**GOOD, "question": "What?", "document_path": "c.txt"},
        {**GOOD, "question": "None?"},
        {**GOOD, "question": "None at all?"},
    )
    found = read_own(path)
    names = [one.document_id for one in found]
    assert names[:3] == ["a"] * 3
    assert names[3] == names[4]
    assert len(set(names)) == 5
    assert [one.document for one in found] == ["Text A."] * 3 + ["Text B."] * 2 + ["Text C.", "", ""]
    assert len({one.item_id for one in found}) == 8, "without ids, named by their content"
    assert files_of(Task(kind="own", path=path)) == [Path(path), tmp_path / "c.txt"]


def test_a_compressed_file_reads_the_same(tmp_path: Path) -> None:
    plain = written(tmp_path, GOOD, {**GOOD, "id": 0, "_source": "a note", "question": "Wer? 誰？ \u2028 ?"})
    packed = tmp_path / "own.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(plain).read_bytes()))
    assert read_own(plain) == read_own(str(packed))
    assert read_own(plain)[1].item_id == "0"


@pytest.mark.parametrize("answer", ["four", "B", 1])
def test_a_choice_is_named_by_text_letter_or_index(tmp_path: Path, answer: Any) -> None:
    (found,) = read_own(written(tmp_path, {"question": "2 + 2?", "choices": ["three", "four"], "answer": answer}))
    assert found.answers == ("B",)


def test_an_answer_may_be_a_number_or_a_list(tmp_path: Path) -> None:
    path = written(tmp_path, {**GOOD, "answer": 42}, {"question": "Who?", "answers": ["Ada", "Ada Lovelace", 7]})
    assert [one.answers for one in read_own(path)] == [("42",), ("Ada", "Ada Lovelace", "7")]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "holds no questions"),
        ([GOOD, "nonsense"], "line 2: "),
        ([GOOD, "", "[]"], "line 3: not a JSON object"),
        ([GOOD, {"question": "q"}], "line 2: answer, answers: exactly one"),
        ([{**GOOD, "answers": ["x"]}], "line 1: answer, answers: exactly one"),
        ([{"answer": "x"}], "line 1: no question and no prompt"),
        ([{**GOOD, "question": " "}], "line 1: question must be a text that isn't empty"),
        ([{**GOOD, "answer": "?!"}], "line 1: answer \"?!\" has no letter and no digit"),
        ([{**GOOD, "answer": ["x"]}], "line 1: answer must be a text"),
        ([{**GOOD, "anwser": "x"}], "line 1: anwser is no field of a question; allowed: answer, answers"),
        ([{**GOOD, "score": "bleu"}], "line 1: score must be one of exact, contains, f1, rouge_l"),
        ([{**GOOD, "score": ["f1"]}], "line 1: score must be one of exact"),
        ([{**GOOD, "depth": 1.5}], "line 1: depth must be a number from 0 to 1"),
        ([{**GOOD, "context_tokens": 0}], "line 1: context_tokens must be a number of tokens >= 1"),
        ([{**GOOD, "document": ""}], "line 1: document must be a text that isn't empty"),
        ([{**GOOD, "document": "x", "document_path": "x"}], "line 1: document, document_path: one of the two"),
        ([{**GOOD, "document_path": "gone.txt"}], "gone.txt can't be read as UTF-8 text"),
        ([{**GOOD, "document_path": "a\0b"}], "can't be read as UTF-8 text"),
        ([{**GOOD, "document_id": "a"}], "line 1: document_id: no line has the document of a"),
        (
            [{**GOOD, "document_id": 1, "document": "A"}, {**GOOD, "id": 2, "document_id": "1", "document": "B"}],
            "line 2: document: another text stands under document_id 1 already",
        ),
        ([{**GOOD, "id": "a"}, {**GOOD, "id": "a"}], "line 2: id a stands in line 1 already"),
        ([GOOD, GOOD], "line 2: id own/"),
        (
            [{**GOOD, "choices": ["x", "y"]}],
            "line 1: answer must be one of choices: its text, its letter (A-B) or its index (0-1)",
        ),
        ([{**GOOD, "choices": ["x"], "answer": "x"}], "line 1: choices must be a list of 2 to 26 different texts"),
        ([{**GOOD, "choices": ["1", "2"], "answer": 1}], "line 1: answer 1 is a choice's index or its text?"),
        ([{**GOOD, "choices": ["B", "A"], "answer": "A"}], "line 1: answer A is a choice's letter or its text?"),
        ([{**GOOD, "choices": ["x", "y"], "answer": "x", "score": "f1"}], "line 1: score: a choice is right or wrong"),
        ([{"prompt": "p", "choices": ["x", "y"], "answer": "x"}], "line 1: prompt, choices"),
        (['{"question": "\\ud800", "answer": "x"}'], "line 1: "),
        (['{"question": "q", "answer": NaN}'], "line 1: NaN is no JSON"),
        ([f'{{"question": "q", "answer": "x", "_note": {"[" * 100_000}'], "line 1: "),
    ],
)  # fmt: skip
def test_a_spoiled_file_is_refused_with_key_file_and_line(tmp_path: Path, rows: list[Any], says: str) -> None:
    path = written(tmp_path, *rows)
    with pytest.raises(ConfigError) as caught:
        check_task("mine", Task(kind="own", path=path), context_tokens=2048)
    for part in ("accuracy.mine.path", says):
        assert part in str(caught.value)


def test_what_the_servers_have_no_room_for_is_refused(tmp_path: Path) -> None:
    long = written(tmp_path, {**GOOD, "context_tokens": 1000})
    check_task("t", Task(kind="own", path=long), context_tokens=1032)
    with pytest.raises(ConfigError, match="1000 and an answer of 32 don't fit the servers' 1031"):
        check_task("t", Task(kind="own", path=long), context_tokens=1031)
    wordy = written(tmp_path, {**GOOD, "answer": "word " * 40, "score": "rouge_l"})
    with pytest.raises(ConfigError, match="line 1: an answer of 40 words can't be given in answer_tokens=32"):
        check_task("t", Task(kind="own", path=wordy), context_tokens=2048)
    check_task("t", Task(kind="own", path=wordy, answer_tokens=64), context_tokens=2048)


def test_a_path_is_needed_here_and_refused_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"accuracy\.t\.path: own needs a file"):
        check_task("t", Task(kind="own"), context_tokens=2048)
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl is no file"):
        check_task("t", Task(kind="own", path=str(tmp_path / "nowhere.jsonl")), context_tokens=2048)
    with pytest.raises(ConfigError, match=r"accuracy\.t\.path: gsm8k reads no file"):
        check_task("t", Task(kind="gsm8k", path="x.jsonl"), context_tokens=2048)


def test_log_likelihood_is_for_choices(tmp_path: Path) -> None:
    choice = {**GOOD, "choices": ["Ada", "Bob"]}
    check_task("t", Task(kind="own", mode="loglikelihood", path=written(tmp_path, choice)), context_tokens=2048)
    mixed = Task(kind="own", mode="loglikelihood", path=written(tmp_path, choice, GOOD))
    with pytest.raises(ConfigError, match="line 2: mode loglikelihood needs choices"):
        check_task("t", mixed, context_tokens=2048)


def test_a_document_is_counted_once_in_the_plan(tmp_path: Path) -> None:
    document = {"document": "x" * 4000, "document_id": "a"}
    rows = [{**GOOD, **document, "question": f"Question {index}?"} for index in range(4)]
    size = kind_of(Task(kind="own")).size(Task(kind="own", path=written(tmp_path, *rows)))
    assert (size.questions, size.documents, size.output_tokens) == (4, 1, 128)
    assert size.prompt_tokens > 4000 > 1200 > size.distinct_prompt_tokens > 1000


def test_chance_is_the_best_constant_letter_and_none_for_open_answers() -> None:
    def row(target: str, choices: int) -> dict[str, Any]:
        return {"target": target, "choices": ["x"] * choices}

    assert chance([row("A", 2), row("B", 4)]) == 0.5
    assert chance([row("A", 4), row("B", 4), row("B", 4), row("C", 4)]) == 0.5
    assert chance([row("A", 4), row("B", 4), row("C", 4), row("D", 4)]) == 0.25
    assert chance([row("Ada", 0), row("Bob", 0)]) == 0.0
    assert chance([row("A", 2), row("Ada", 0)]) == 0.5


def test_the_documented_example_is_of_the_documented_form(tmp_path: Path) -> None:
    document = (Path(__file__).parents[3] / "docs" / "accuracy.md").read_text()
    (tmp_path / "report.txt").write_text("Sales were lower.")
    example = document.partition("```json\n")[2].partition("```")[0]
    found = read_own(written(tmp_path, *example.splitlines()))
    assert [one.scored_by for one in found] == ["contains", "exact", "rouge_l", "contains"]
    assert found[0].document == found[1].document != "" and found[1].answers == ("C",)
    described = document.partition("## Your own questions")[2]
    assert all(f"`{field}`" in described for field in _FIELDS)
