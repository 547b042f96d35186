import json
from pathlib import Path
from typing import Any

import pytest

import bench.questions
from bench.app import main
from bench.resolve import resolve
from harness.accuracy.own_file import read_own
from harness.model import Model, ModelShape

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The model's files aren't needed, only a tokenizer: one that cuts at white space."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    model = Model("tiny", ModelShape(), str(tmp_path), None, "", "")
    monkeypatch.setattr(bench.questions, "prepare", lambda name, spec, say: model)


def test_questions_out_of_this_projects_own_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.jsonl"
    sizes = ["context_tokens=1000", "documents=3", "questions=4", "seed=2"]
    assert main(["questions", f"from={DOCS}", f"out={out}", *sizes]) == 0
    said = capsys.readouterr().out
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert f"{len(rows)} questions on 3 documents" in said and "accuracy.own.path=" in said
    assert 9 <= len(rows) <= 12 and ("fewer because" in said) == (len(rows) < 12)
    assert [one.item_id for one in read_own(str(out))] == [row["id"] for row in rows]
    _, config = resolve(["scenario=smoke", "accuracy=[own]", f"accuracy.own.path={out}"])
    assert config.accuracy["own"].path == str(out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "from: needed"),
        (["from=docs"], "out: needed"),
        (["from=docs", "out=x.txt"], "must be a .jsonl file"),
        (["from=docs", "out=x.jsonl", "depth=3"], "unknown key depth; allowed: from, out, model, context_tokens"),
        (["from=docs", "out=x.jsonl", "seed=one"], "seed: 'one' must be a whole number"),
        (["from=docs", "out=x.jsonl", "context_tokens=10"], "context_tokens: 10 must be >="),
        (["from=/nowhere", "out=x.jsonl"], "from: /nowhere is no folder"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(DOCS.parent)
    assert main(["questions", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not Path("x.jsonl").exists()


def test_a_file_under_the_same_name_is_another_run(tmp_path: Path) -> None:
    from bench.identity import config_sha256

    path = tmp_path / "own.jsonl"
    hashes = []
    for answer in ("Ada", "Bob", "Ada"):
        path.write_text(json.dumps({"question": "Who?", "answer": answer}) + "\n")
        _, config = resolve(["scenario=smoke", "accuracy=[own]", f"accuracy.own.path={path}"])
        hashes.append(config_sha256(config))
    assert hashes[0] == hashes[2] != hashes[1]
