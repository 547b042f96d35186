import gzip
import json
import re
import shutil
import zlib
from pathlib import Path

import pytest
from examples import share
from lm_eval.tasks._yaml_loader import load_yaml

from harness.accuracy import data_files
from harness.accuracy.kinds import kinds
from harness.accuracy.kinds.interface import Share
from harness.accuracy.task import TASKS_DIR, Task, check_on_model, check_task, exercises, mode_of, unsupported_on
from harness.backends import backend_class
from harness.errors import ConfigError
from harness.model import Model, ModelShape

NO_MODEL = Model("none", ModelShape(), "/nowhere", None, "", "")


def questions(task: Task, *, block: int, run_seed: int, model: Model = NO_MODEL) -> Share:
    """A data set needs no tokenizer, except to tell how long its prompts are."""
    return share(task, model, block=block, run_seed=run_seed)


DATA_KINDS = [name for name, kind in kinds().items() if kind.files]


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_a_complete_folder_passes(data_dir: Path, kind: str) -> None:
    check_task("t", Task(kind=kind, data_dir=str(data_dir)), context_tokens=2048)


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_a_missing_file_is_named_with_key_and_layout(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_task("mine", Task(kind=kind, data_dir=str(tmp_path)), context_tokens=2048)
    for part in ("accuracy.mine.data_dir", kinds()[kind].files[0], "JSON lines"):
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
    check_task("t", Task(context_tokens=1000), context_tokens=1032)
    with pytest.raises(ConfigError, match=r"accuracy\.t\.context_tokens.*up to 999"):
        check_task("t", Task(context_tokens=1000), context_tokens=1031)
    with pytest.raises(ConfigError, match="needs its prompts' length"):
        check_task("t", Task(), context_tokens=1031)


@pytest.mark.parametrize("kind", kinds())
def test_the_plan_and_lm_eval_mean_the_same_answer_length(kind: str) -> None:
    for mode, name in kinds()[kind].modes.items():
        if mode == "generation":
            settings = load_yaml(TASKS_DIR / f"{name}.yaml", resolve_func=False)["generation_kwargs"]
            assert settings["max_gen_toks"] == kinds()[kind].output_tokens


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "nope"},
        {"mode": "loglikelihood"},
        {"documents": 0},
        {"limit": 0},
        {"answer_tokens": 0},
        {"margin_pp": 0.0},
    ],
)
def test_values_that_make_no_sense_are_refused_by_key(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}:"):
        Task(**wrong)  # type: ignore[arg-type]


def test_an_engine_without_echo_is_asked_to_generate() -> None:
    assert mode_of(Task(kind="boolq"), reads_echo=True) == "loglikelihood"
    assert mode_of(Task(kind="boolq"), reads_echo=False) == "generation"
    assert mode_of(Task(kind="boolq", mode="loglikelihood"), reads_echo=False) == "loglikelihood"


def test_a_task_that_an_engine_cannot_do_says_why() -> None:
    vllm, llama_cpp = backend_class("vllm"), backend_class("llama-cpp")
    asked = Task(kind="boolq", mode="loglikelihood")
    assert unsupported_on(asked, vllm) is None
    assert "llama.cpp ignores `echo`" in (unsupported_on(asked, llama_cpp) or "")
    for kind in kinds():
        task = Task(kind=kind, **({} if kinds()[kind].files else {"context_tokens": 500}))
        if "generation" in kinds()[kind].modes:
            assert unsupported_on(task, llama_cpp) is None, "asked to generate where there is no `echo`"


def test_a_task_says_which_paths_of_the_cache_it_exercises() -> None:
    vllm = backend_class("vllm")
    by_echo, generated = (Task(kind="boolq", mode=mode) for mode in ("loglikelihood", "generation"))
    assert exercises(by_echo, vllm, prefix_reuse=True) == ("prefill",), "prompt log-probabilities bypass its cache"
    assert exercises(generated, vllm, prefix_reuse=True) == ("prefill", "decode", "prefix reuse")
    assert exercises(generated, vllm, prefix_reuse=False) == ("prefill", "decode")
    assert exercises(Task(kind="boolq", under_load="short-chat"), vllm, prefix_reuse=True)[-1] == "under load"

    class Reusing(vllm):  # type: ignore[misc, valid-type]
        echo_reads_prefix_cache = True

    assert exercises(by_echo, Reusing, prefix_reuse=True) == ("prefill", "prefix reuse")


def test_a_longer_answer_must_fit_as_well() -> None:
    check_task("t", Task(context_tokens=1000, answer_tokens=24), context_tokens=1024)
    with pytest.raises(ConfigError, match=r"accuracy\.t\.answer_tokens.*1024"):
        check_task("t", Task(context_tokens=1000, answer_tokens=25), context_tokens=1024)


@pytest.mark.parametrize("kind", DATA_KINDS)
def test_blocks_divide_the_data_set_and_share_nothing_until_it_is_used_up(
    data_dir: Path, model: Model, kind: str
) -> None:
    size = 4 if kind == "humaneval" else 12
    task = Task(kind=kind, data_dir=str(data_dir), limit=size // 2)
    shares = [questions(task, block=block, run_seed=7, model=model) for block in range(3)]
    names = [[row["item_id"] for row in share.rows] for share in shares]
    assert len({*names[0], *names[1]}) == size == shares[0].data_set_items
    assert names[2] == names[0], "then they start over"
    assert [share.repeated for share in shares] == [0, 0, size // 2]
    assert questions(task, block=0, run_seed=7, model=model) == shares[0], "equal for all launches of a block"


def test_a_block_that_only_partly_starts_over_says_how_far(data_dir: Path) -> None:
    task = Task(kind="boolq", data_dir=str(data_dir), limit=5)
    shares = [questions(task, block=block, run_seed=0) for block in range(4)]
    assert [share.repeated for share in shares] == [0, 0, 3, 5]
    assert all(len({row["item_id"] for row in share.rows}) == 5 for share in shares)
    whole = Task(kind="boolq", data_dir=str(data_dir), limit=100)
    assert [questions(whole, block=block, run_seed=0).repeated for block in (0, 1)] == [0, 12]


def test_the_order_is_the_runs(data_dir: Path) -> None:
    task = Task(kind="mmlu", data_dir=str(data_dir))
    one, other = ([row["item_id"] for row in questions(task, block=0, run_seed=seed).rows] for seed in (1, 2))
    assert sorted(one) == sorted(other) and one != other


def test_compressed_files_are_read_the_same(data_dir: Path, tmp_path: Path) -> None:
    plain = data_files.find(str(data_dir), "humaneval.jsonl.gz")
    assert plain is not None and plain.suffix == ".jsonl"
    (tmp_path / "humaneval.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    folders = (str(tmp_path), str(data_dir))
    compressed, same = (questions(Task(kind="humaneval", data_dir=folder), block=0, run_seed=0) for folder in folders)
    assert compressed == same


def test_a_damaged_compressed_file_is_refused_by_name(data_dir: Path, tmp_path: Path) -> None:
    plain = data_files.find(str(data_dir), "boolq_val.jsonl.gz")
    assert plain is not None
    sound = gzip.compress(plain.read_bytes())
    path = tmp_path / "boolq_val.jsonl.gz"
    unreadable = sound[:10] + b"\xff" * 20 + sound[30:]
    with pytest.raises(zlib.error):  # which is no OSError, as gzip's own errors are
        gzip.decompress(unreadable)
    for damaged in (unreadable, sound[:-20], b"no gzip", sound[:-8] + bytes(8)):
        path.write_bytes(damaged)
        with pytest.raises(ConfigError, match=re.escape(f"accuracy.t.data_dir: {path}, line ")):
            check_task("t", Task(kind="boolq", data_dir=str(tmp_path)), context_tokens=2048)


GOOD = '{"id": "b/0", "passage": "P.", "question": "q", "label": 1}\n'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"id": "x"}\n', "line 1: no field passage"),
        (GOOD + "\n\nnonsense\n", "line 4: "),
        (GOOD + "[]\n", "line 2: not a JSON object"),
        ("", "holds no items"),
        (GOOD + GOOD, "line 2: id b/0 stands in line 1 already"),
        (GOOD.replace("1}", '"yes"}'), 'line 1: label must be 0 or 1, not "yes"'),
        (GOOD + "\n" + GOOD.replace("b/0", "b/1").replace('"q"', "null"), "line 3: question must be a text"),
    ],
)
def test_a_spoiled_file_is_refused_before_any_launch_with_file_and_line(
    tmp_path: Path, content: str, says: str
) -> None:
    (tmp_path / "boolq_val.jsonl").write_text(content)
    with pytest.raises(ConfigError) as caught:
        check_task("mine", Task(kind="boolq", data_dir=str(tmp_path)), context_tokens=2048)
    for part in ("accuracy.mine.data_dir", str(tmp_path / "boolq_val.jsonl"), says):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "file", "spoil", "says"),
    [
        ("gsm8k", "gsm8k_fewshot5", {"answer": "one"}, 'answer must be a text that ends in "#### <number>"'),
        ("mmlu", "mmlu_test", {"answer": 4}, "answer must be 0, 1, 2 or 3, not 4"),
        ("mmlu", "mmlu_dev", {"choices": ["a"]}, "choices must be a list of 4 texts"),
        ("humaneval", "humaneval", {"test": ""}, "test must be a text that isn't empty"),
    ],
)
def test_every_file_of_a_kind_is_checked_by_value(
    data_dir: Path, tmp_path: Path, kind: str, file: str, spoil: dict[str, object], says: str
) -> None:
    shutil.copytree(data_dir, tmp_path, dirs_exist_ok=True)
    path = tmp_path / f"{file}.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([*others, json.dumps(json.loads(first) | spoil)]))
    with pytest.raises(ConfigError, match=re.escape(f"{path}, line {len(others) + 1}: {says}")):
        check_task("t", Task(kind=kind, data_dir=str(tmp_path)), context_tokens=2048)


def test_an_item_without_an_id_is_named_by_its_content(tmp_path: Path) -> None:
    nameless = GOOD.replace('"id": "b/0", ', "")
    (tmp_path / "boolq_val.jsonl").write_text(nameless + nameless.replace("P.", "Q."))
    task = Task(kind="boolq", data_dir=str(tmp_path))
    check_task("t", task, context_tokens=2048)
    assert len({row["item_id"] for row in questions(task, block=0, run_seed=0).rows}) == 2


def test_questions_on_one_passage_share_their_document(data_dir: Path) -> None:
    rows = questions(Task(kind="boolq", data_dir=str(data_dir)), block=0, run_seed=0).rows
    assert len({row["document_id"] for row in rows}) == 6


def test_questions_that_a_tokenizer_can_not_make_are_refused_before_any_launch(model: Model) -> None:
    too_short = Task(kind="retrieval", context_tokens=20, documents=1, questions=8)
    check_task("mine", too_short, context_tokens=2048)
    with pytest.raises(ConfigError, match=r"^accuracy\.mine\.context_tokens: 20 "):
        check_on_model("mine", too_short, model)
    check_on_model("mine", Task(kind="retrieval", context_tokens=600, documents=1, questions=2), model)
