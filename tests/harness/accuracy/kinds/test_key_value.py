import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy.kinds.interface import Asking, Row
from harness.accuracy.passages import encode
from harness.accuracy.task import Task, check_task, kind_of
from harness.errors import ConfigError
from harness.model import Model

RECORDS = {"a1": "v1", "b2": "v2", "c3": "v3"}


def write(folder: Path, *items: dict[str, Any]) -> Task:
    """A task on a file of so many items; each begins as a good one."""
    good = {"records": json.dumps(RECORDS), "key": "b2", "value": "v2"}
    lines = "".join(json.dumps({"id": f"kv/{i}", **good, **item}) + "\n" for i, item in enumerate(items))
    (folder / "kv75.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return Task(kind="key-value", data_dir=str(folder))


def rows(task: Task, model: Model) -> list[Row]:
    return kind_of(task).share(task, Asking(model, 1)).rows


def test_a_users_objects_are_asked_as_they_are(model: Model, tmp_path: Path) -> None:
    task = write(tmp_path, {}, {"key": "c3", "value": "v3"})
    check_task("t", task, context_tokens=2048)
    found = {row["item_id"]: row for row in rows(task, model)}
    assert found.keys() == {"kv/0", "kv/1"}
    assert all(json.dumps(RECORDS) in row["prompt"] for row in found.values())
    assert [found[name]["targets"] for name in ("kv/0", "kv/1")] == [["v2"], ["v3"]]
    assert 0 < found["kv/0"]["depth"] < found["kv/1"]["depth"] < 1, "where the key stands"
    assert found["kv/0"]["context_tokens"] == len(encode(model, found["kv/0"]["prompt"]))
    assert found["kv/0"]["document_id"] == found["kv/1"]["document_id"], "one object, one document"


def test_keys_and_values_of_any_script_are_asked_as_the_object_has_them(model: Model, tmp_path: Path) -> None:
    objects = [{"clé": "b2", "b2": "été"}, {'says "b2"': "x", "b2": 'a "b"'}, {"a": "b2", "b2": "c"}]
    items = [{"records": json.dumps(one), "value": one["b2"]} for one in objects]
    items += [{**items[0], "key": "clé", "value": "b2"}, {**items[1], "key": 'says "b2"', "value": "x"}]
    task = write(tmp_path, *items)
    check_task("t", task, context_tokens=2048)
    found = {row["item_id"]: row for row in rows(task, model)}
    assert "\\u" not in "".join(row["prompt"] for row in found.values())
    assert found["kv/3"]["prompt"].endswith('{"clé":') and found["kv/3"]["depth"] < found["kv/0"]["depth"]
    assert found["kv/4"]["prompt"].endswith(r'{"says \"b2\"":') and found["kv/4"]["depth"] < found["kv/1"]["depth"]
    assert found["kv/1"]["targets"] == ['a "b"', r"a \"b\""], "a model may say it in JSON or plainly"
    assert found["kv/2"]["prompt"][int(found["kv/2"]["depth"] * len(found["kv/2"]["prompt"])) :].count('"b2"') < 2
    for index, one in enumerate(objects):
        whole = found[f"kv/{index}"]["prompt"].partition("JSON data:\n")[2].rpartition("\n\n")[0]
        assert json.loads(whole) == one


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"value": "v3"}, "kv/1: records have another value under the key"),
        ({"key": "z"}, "kv/1: records have another value under the key"),
        ({"records": "[" * 100_000}, "line 2: records must be a JSON object of texts"),
        ({"records": "[1]"}, "line 2: records must be a JSON object of texts"),
        ({"records": '{"b2": 5}'}, "line 2: records must be a JSON object of texts"),
    ],
)
def test_a_spoiled_file_is_refused_before_any_launch(tmp_path: Path, item: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=r"^accuracy\.t\.data_dir: ") as caught:
        check_task("t", write(tmp_path, {}, item), context_tokens=2048)
    assert says in str(caught.value)


def test_an_object_is_json_when_it_was_made_from_a_seed(model: Model) -> None:
    task = Task(kind="key-value", context_tokens=1800, documents=1, questions=3)
    (document,) = {row["prompt"].rpartition("\n\n")[0] for row in rows(task, model)}
    pairs = json.loads(document.partition("JSON data:\n")[2])
    assert all(pairs[row["key"]] == row["target"] for row in rows(task, model))
    assert len(pairs) > 3
