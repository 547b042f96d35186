import gzip
from pathlib import Path

import pytest
import yaml

from harness.accuracy.datasets import questions
from harness.accuracy.task import KINDS, TASKS_DIR, Task, check_task, data_file, mode_of
from harness.errors import ConfigError

DATA_KINDS = [name for name, kind in KINDS.items() if kind.files]


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_a_complete_folder_passes(data_dir: Path, kind: str) -> None:
    check_task("t", Task(kind=kind, data_dir=str(data_dir)), context_tokens=2048)


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_a_missing_file_is_named_with_key_and_layout(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_task("mine", Task(kind=kind, data_dir=str(tmp_path)), context_tokens=2048)
    for part in ("accuracy.mine.data_dir", KINDS[kind].files[0], "JSON lines"):
        assert part in str(caught.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere is no folder"):
        check_task("t", Task(kind="gsm8k", data_dir=str(tmp_path / "nowhere")), context_tokens=2048)


def test_the_hub_is_refused_before_launch_when_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="openai/gsm8k"):
        check_task("t", Task(kind="gsm8k"), context_tokens=2048)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    check_task("t", Task(kind="gsm8k"), context_tokens=2048)


def test_retrieval_must_fit_the_context_with_its_answer() -> None:
    check_task("t", Task(context_tokens=1000), context_tokens=1008)
    with pytest.raises(ConfigError, match=r"accuracy\.t\.context_tokens.*up to 999"):
        check_task("t", Task(context_tokens=1000), context_tokens=1007)
    with pytest.raises(ConfigError, match="needs its prompts' length"):
        check_task("t", Task(), context_tokens=1007)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_and_lm_eval_mean_the_same_answer_length(kind: str) -> None:
    for mode, name in KINDS[kind].modes.items():
        if mode == "generation":
            settings = yaml.safe_load((TASKS_DIR / f"{name}.yaml").read_text())["generation_kwargs"]
            assert settings["max_gen_toks"] == KINDS[kind].output_tokens


@pytest.mark.parametrize(
    "wrong", [{"kind": "nope"}, {"mode": "loglikelihood"}, {"documents": 0}, {"limit": 0}, {"margin_pp": 0.0}]
)
def test_values_that_make_no_sense_are_refused_by_key(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}:"):
        Task(**wrong)  # type: ignore[arg-type]


def test_an_engine_without_echo_is_asked_to_generate() -> None:
    assert mode_of(Task(kind="boolq"), reads_echo=True) == "loglikelihood"
    assert mode_of(Task(kind="boolq"), reads_echo=False) == "generation"
    assert mode_of(Task(kind="boolq", mode="loglikelihood"), reads_echo=False) == "loglikelihood"


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_blocks_share_no_question_until_the_data_set_is_used_up(data_dir: Path, kind: str) -> None:
    task = Task(kind=kind, data_dir=str(data_dir), limit=2)
    blocks = [{row["item_id"] for row in questions(task, seed)} for seed in (10, 11)]
    assert all(len(block) == 2 for block in blocks)
    assert not blocks[0] & blocks[1]
    assert questions(task, 10) == questions(task, 10)


def test_compressed_files_are_read_the_same(data_dir: Path, tmp_path: Path) -> None:
    plain = data_file(str(data_dir), "humaneval.jsonl.gz")
    assert plain is not None and plain.suffix == ".jsonl"
    (tmp_path / "humaneval.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    compressed = Task(kind="humaneval", data_dir=str(tmp_path))
    assert questions(compressed, 0) == questions(Task(kind="humaneval", data_dir=str(data_dir)), 0)


@pytest.mark.parametrize(
    ("content", "says"),
    [('{"id": "x"}\n', "line 1: no field"), ('{"a": 1}\n\nnonsense\n', "line 3"), ("", "holds no items")],
)
def test_a_spoiled_file_is_named_with_its_line(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "boolq_val.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=says):
        questions(Task(kind="boolq", data_dir=str(tmp_path)), 0)


def test_questions_on_one_passage_share_their_document(data_dir: Path) -> None:
    rows = questions(Task(kind="boolq", data_dir=str(data_dir)), 0)
    assert len({row["document_id"] for row in rows}) == 6
