import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy.kinds.interface import Asking, Share
from harness.accuracy.task import Task, check_task, kind_of
from harness.errors import ConfigError
from harness.model import Model

ANIMALS = ("otter", "falcon", "lobster", "camel", "raven", "spider", "salmon", "turtle", "pigeon", "lizard")


def write(folder: Path, count: int, **more: Any) -> Task:
    """A task on a user's passages, one an animal."""
    rows = [
        {
            "id": f"p/{animal}",
            "passage": f"The {animal} of the harbour sleeps in house number {7 * index + 100}, which is painted white. "
            * 3,
            "question": f"In which house does the {animal} sleep{'' if index % 2 else ', if it sleeps at all'}?",
            "answer": f"number {7 * index + 100}",
        }
        for index, animal in enumerate(ANIMALS[:count])
    ]
    (folder / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = {"context_tokens": 500, "documents": 2, "questions": 2, **more}
    return Task(kind="document-qa", data_dir=str(folder), **sizes)


def share(task: Task, model: Model, block: int = 0) -> Share:
    return kind_of(task).share(task, Asking(model, 1, block))


def test_a_users_passage_lies_among_the_others(model: Model, tmp_path: Path) -> None:
    task = write(tmp_path, 10)
    check_task("t", task, context_tokens=2048)
    found = share(task, model)
    assert (len(found.rows), found.data_set_items, found.repeated) == (4, 10, 0)
    for row in found.rows:
        document, _, question = row["prompt"].rpartition("\n\n")
        animal = row["item_id"].rpartition("/")[2]
        assert f"the {animal} sleep" in question
        passage = next(one for one in document.split("\n\n") if f"The {animal} " in one)
        assert row["target"] in passage
        assert row["depth"] == pytest.approx(document.index(passage) / len(document), abs=0.001)


def test_the_longest_prompt_of_a_users_document_is_exact_and_none_is_longer(model: Model, tmp_path: Path) -> None:
    found = share(write(tmp_path, 10), model)
    by_document: dict[str, list[int]] = {}
    for row in found.rows:
        by_document.setdefault(row["document_id"], []).append(row["context_tokens"])
    assert {max(lengths) for lengths in by_document.values()} == {500}


def test_blocks_ask_other_passages_until_all_were_asked(model: Model, tmp_path: Path) -> None:
    task = write(tmp_path, 8)
    names = [{row["item_id"].rpartition("/")[2] for row in share(task, model, block).rows} for block in range(2)]
    assert names[0].isdisjoint(names[1])
    assert share(task, model, 2).repeated == 4


@pytest.mark.parametrize(
    ("count", "sizes", "says"), [(3, {}, "documents × questions need 4"), (2, {"documents": 1}, "no passages besides")]
)
def test_too_few_passages_are_refused_before_any_launch(
    tmp_path: Path, count: int, sizes: dict[str, int], says: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^accuracy\.t\.data_dir: .*{says}"):
        check_task("t", write(tmp_path, count, **sizes), context_tokens=2048)


def test_nobody_in_a_made_up_document_has_anothers_name(model: Model) -> None:
    task = Task(kind="document-qa", context_tokens=3000, documents=1, questions=3)
    document = share(task, model).rows[0]["prompt"].rpartition("\n\n")[0]
    people = re.findall(
        r"^\w+ (\w+) was born in (\w+),.* went to school in (\w+),.* moved to (\w+),", document, re.MULTILINE
    )
    names = [name for person in people for name in person]
    assert len(people) > 3
    assert len(set(names)) == len(names)
