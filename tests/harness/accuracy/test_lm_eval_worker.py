"""The worker's own judgement, with lm-eval running in this process: what each fault of a server leads to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from examples import example, share
from mimic import MimicServer

from harness.accuracy.job import Job, Outcome
from harness.accuracy.kinds import kinds
from harness.accuracy.lm_eval_worker import run
from harness.accuracy.task import TASKS_DIR
from harness.model import Model


@pytest.fixture
def ask(server: MimicServer, model: Model, data_dir: Path, tmp_path: Path) -> Any:
    def asked(kind: str, mode: str, faults: str = "sound", *, documents: int = 3, **more: Any) -> Outcome:
        rows = share(example(kind, data_dir, documents=documents), model).rows
        (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        job = {
            "task_yaml": str(TASKS_DIR / f"{kinds()[kind].modes[mode]}.yaml"),
            "items_path": str(tmp_path / "items.jsonl"),
            "base_url": server.url(faults),
            "served_name": "m",
            "tokenizer": model.path,
            "token_ids": True,
            "context_tokens": 4096,
            "num_concurrent": 1,
            "timeout_s": 20.0,
            "out_path": "",
        }
        return run(Job(**{**job, **more}))

    return asked


def mean(outcome: Outcome) -> float:
    return sum(sample["score"] for sample in outcome.samples) / len(outcome.samples)


@pytest.mark.parametrize("as_ids", [True, False])
@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, found in kinds().items() for mode in found.modes])
def test_right_answers_score_one_and_flipped_ones_less(ask: Any, kind: str, mode: str, as_ids: bool) -> None:
    sound, flips = ask(kind, mode, token_ids=as_ids), ask(kind, mode, "flips", token_ids=as_ids)
    assert (sound.state, flips.state) == ("measured", "measured")
    if kind != "humaneval":  # scored elsewhere
        assert mean(sound) == 1.0
        assert mean(flips) < 1.0


FAULTS = [
    ("retrieval", "generation", "truncates", "unsupported", "cut"),
    ("retrieval", "generation", "no-usage", "unsupported", "usage.prompt_tokens"),
    ("retrieval", "generation", "refuses-long", "unsupported", "maximum context length is 24"),
    ("retrieval", "generation", "error", "failed", "HTTP 500"),
    ("retrieval", "generation", "no-text", "failed", "no text"),
    ("retrieval", "generation", "garbled", "failed", "not JSON"),
    ("boolq", "loglikelihood", "ignores-echo", "unsupported", "echo"),
    ("boolq", "loglikelihood", "nan", "failed", "no numbers"),
    ("boolq", "loglikelihood", "null", "failed", "no numbers"),
    ("boolq", "loglikelihood", "truncates", "unsupported", "returned 25"),
    ("boolq", "loglikelihood", "refuses-long", "unsupported", "maximum context length is 24"),
]


@pytest.mark.parametrize(("kind", "mode", "faults", "state", "says"), FAULTS)
def test_a_faulty_server_gets_a_reason_and_no_score(
    ask: Any, kind: str, mode: str, faults: str, state: str, says: str
) -> None:
    outcome = ask(kind, mode, faults)
    assert outcome.state == state and says in outcome.reason
    assert all(one["score"] is None for one in outcome.samples)


def test_a_prompt_longer_than_the_context_is_refused_not_cut(ask: Any) -> None:
    outcome = ask("retrieval", "generation", context_tokens=531)
    assert outcome.state == "unsupported"
    assert "nothing is truncated" in outcome.reason
    assert ask("retrieval", "generation", context_tokens=532).state == "measured"


def test_questions_without_an_answer_count_as_wrong(ask: Any) -> None:
    outcome = ask("retrieval", "generation", "error-on-some", num_concurrent=1)
    failed = [sample for sample in outcome.samples if sample["error"]]
    assert 0 < len(failed) < len(outcome.samples)
    assert {sample["score"] for sample in failed} == {0.0}
    assert {sample["answer"] for sample in failed} == {None}
    assert mean(outcome) == pytest.approx(1 - len(failed) / len(outcome.samples))


def test_stop_list_and_answers_are_the_same_at_any_concurrency(ask: Any, server: MimicServer) -> None:
    one, many = (ask("gsm8k", "generation", f"sound+at-{n}", num_concurrent=n) for n in (1, 8))
    assert one.stop == many.stop and "<|end|>" in one.stop
    assert [sample["answer"] for sample in one.samples] == [sample["answer"] for sample in many.samples]
    bodies = [seen["body"] for n in (1, 8) for seen in server.seen(f"sound+at-{n}") if seen["body"]["max_tokens"] > 1]
    assert {tuple(body["stop"]) for body in bodies} == {tuple(one.stop)}


def test_a_document_is_read_once_before_its_other_questions_come(ask: Any) -> None:
    documents: dict[str, list[dict[str, Any]]] = {}
    for sample in ask("retrieval", "generation", num_concurrent=4).samples:
        assert 0 < sample["asked_ns"] < sample["answered_ns"]
        documents.setdefault(sample["document_id"], []).append(sample)
    assert [len(samples) for samples in documents.values()] == [6, 6, 6]
    for first, *others in documents.values():
        assert all(first["answered_ns"] <= other["asked_ns"] for other in others)


def test_no_answer_is_taken_from_a_cache(ask: Any, server: MimicServer) -> None:
    for _ in range(2):
        assert ask("gsm8k", "generation", "sound+twice").state == "measured"
    asked = [seen for seen in server.seen("sound+twice") if seen["body"]["max_tokens"] > 1]
    assert len(asked) == 2 * 12


def test_a_task_may_allow_longer_answers(ask: Any, server: MimicServer) -> None:
    outcome = ask("retrieval", "generation", "sound+longer", answer_tokens=99)
    assert outcome.answer_tokens == 99
    assert {seen["body"]["max_tokens"] for seen in server.seen("sound+longer")} == {1, 99}  # 1: the shape check
    assert ask("retrieval", "generation").answer_tokens == kinds()["retrieval"].output_tokens


SCORING = """
from collections.abc import Mapping

def share(doc, results):
    return {"share": SCORE}
"""


@pytest.fixture
def graded(tmp_path: Path) -> Callable[[str], str]:
    """A task whose own function scores."""

    def made(score: str) -> str:
        text = (TASKS_DIR / "retrieval.yaml").read_text()
        head = text.partition("filter_list:")[0].partition("metric_list:")[0].partition("process_results:")[0]
        metric = "process_results: !function scoring.share\nmetric_list:\n  - {metric: share, aggregation: mean}\n"
        (tmp_path / "scoring.py").write_text(SCORING.replace("SCORE", score))
        (tmp_path / "graded.yaml").write_text(head + metric)
        return str(tmp_path / "graded.yaml")

    return made


def test_a_tasks_own_function_may_grade_answers(ask: Any, graded: Callable[[str], str]) -> None:
    outcome = ask("retrieval", "generation", task_yaml=graded("0.25 if results[0] else 0"))
    assert {(type(sample["score"]), sample["score"]) for sample in outcome.samples} == {(float, 0.25)}
    failed = ask("retrieval", "generation", task_yaml=graded("3"))
    assert failed.state == "failed" and "between 0 and 1" in failed.reason


def test_every_reading_of_an_answer_is_scored_and_the_first_counts(
    ask: Any, graded: Callable[[str], str], tmp_path: Path
) -> None:
    path = Path(graded("float(len(results[0]) > 3)"))
    filters = """filter_list:
  - {name: whole, filter: [{function: take_first}]}
  - {name: digit, filter: [{function: regex, regex_pattern: "([0-9])"}, {function: take_first}]}
"""
    path.write_text(path.read_text() + filters)
    outcome = ask("retrieval", "generation", task_yaml=str(path))
    assert len({sample["item_id"] for sample in outcome.samples}) == len(outcome.samples) == 18
    assert {sample["score"] for sample in outcome.samples} == {1.0}
    assert all(sample["other_scores"] == {"digit": 0.0} for sample in outcome.samples)


def test_prompts_that_are_cut_later_on_are_found_too(ask: Any) -> None:
    outcome = ask("retrieval", "generation", "truncates-some")
    assert outcome.state == "unsupported" and "cut" in outcome.reason


def test_a_server_that_answers_longer_than_asked_gives_no_usable_answer(ask: Any) -> None:
    outcome = ask("retrieval", "generation", "talks-on")
    assert outcome.state == "failed" and "at most" in outcome.reason


def test_many_bad_answers_among_good_ones_count_as_wrong_and_end_nothing(ask: Any) -> None:
    outcome = ask("retrieval", "generation", "error-often")
    bad = [one for one in outcome.samples if one["error"]]
    assert outcome.state == "measured" and 0 < len(bad) < len(outcome.samples)
    assert all(one["score"] == 0.0 for one in bad)


def test_what_was_answered_before_a_server_broke_is_kept_without_a_score(ask: Any) -> None:
    outcome = ask("retrieval", "generation", "breaks-late", documents=6)
    assert outcome.state == "failed" and "worn out" in outcome.reason
    answered = [one for one in outcome.samples if one["error"] is None]
    assert len(answered) >= 6 and all(one["answer"] and one["prompt"] for one in answered)
    assert {one["score"] for one in outcome.samples} == {None}
