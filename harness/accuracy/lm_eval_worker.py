"""Runs one task with lm-eval, in a process of its own: `python -m harness.accuracy.lm_eval_worker JOB.json`.

lm-eval builds the prompts and scores the answers; its `local-completions` model is narrowed (`served_completions`), so
that what would go wrong silently goes wrong aloud: nothing is truncated (lm-eval cuts at 2,048 tokens by default), the
stop list is the same at any concurrency (lm-eval adds the end-of-text string only to sequential requests), no answer is
taken from a cache, and each answer is checked for the shape that its score rests on.
"""

import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import Dataset  # type: ignore[import-untyped]
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from harness.accuracy.completions import BadAnswer
from harness.accuracy.job import Job, Outcome
from harness.accuracy.served_completions import GivenUp, ServedCompletions
from harness.accuracy.shape_check import NotServed
from harness.files import read_json, write_json

Row = dict[str, Any]


def run(job: Job) -> Outcome:
    """Carry the job out; a task that can't be scored is an outcome too, not an exception."""
    began = time.monotonic()
    with Path(job.items_path).open(encoding="utf-8") as file:  # `splitlines` would cut at U+2028 too
        items = [json.loads(line) for line in file]
    task = _task(job, items)
    model = ServedCompletions(job)
    outcome = Outcome()
    try:
        outcome.samples = _samples(_evaluated(task, model), task, items, model)
    except NotServed as error:
        outcome.state, outcome.reason = "unsupported", str(error)
    except (BadAnswer, GivenUp) as error:
        outcome.state, outcome.reason = "failed", str(error)
        outcome.samples = list(_unscored(items, model))
    ended = time.monotonic()
    first = model.first_request or ended
    outcome.stop, outcome.stop_token_ids = list(model.stop.texts), list(model.stop.token_ids)
    outcome.answer_tokens, outcome.answers_at_limit = model.answer_tokens, model.finish_reasons["length"]
    outcome.prompt_tokens = {"min": min(model.lengths), "max": max(model.lengths)} if model.lengths else {}
    outcome.seconds = {"prepare": round(first - began, 3), "ask": round(ended - first, 3)}
    return outcome


def _task(job: Job, items: list[Row]) -> ConfigurableTask:
    config = load_yaml(job.task_yaml, resolve_func=True)
    if job.answer_tokens is not None and "generation_kwargs" in config:
        config["generation_kwargs"]["max_gen_toks"] = job.answer_tokens
    # Rows as they are: the loader of JSON files takes texts that look like dates for times.
    config["custom_dataset"] = lambda **_: {"test": Dataset.from_list(items)}
    return ConfigurableTask(config=config)


def _evaluated(task: ConfigurableTask, model: ServedCompletions) -> list[Row]:
    """What lm-eval logs of every question: an entry for each of the task's filters."""
    results = simple_evaluate(
        model,
        tasks=[task],
        task_manager=TaskManager(include_defaults=False),
        apply_chat_template=model.template is not None,
        fewshot_as_multiturn=False,  # a question is one message, its examples included
        cache_requests=False,
        use_cache=None,
        bootstrap_iters=0,
        log_samples=True,
    )
    assert results is not None
    (samples,) = results["samples"].values()
    found: list[Row] = samples
    return found


def _samples(found: Iterable[Row], task: ConfigurableTask, items: list[Row], model: ServedCompletions) -> list[Row]:
    """A sample a question, in the items' order. The first filter's score counts; others' are kept beside it."""
    samples: dict[int, Row] = {}
    for one in found:
        index = one["doc_id"]
        score = 0.0 if index in model.errors else _score(one, task)
        if index in samples:
            samples[index]["other_scores"][one["filter"]] = score
        else:
            samples[index] = {**_sample(one, task, model), "score": score, "other_scores": {}}
    return [
        {"index": index, "item_id": items[index]["item_id"], "document_id": items[index]["document_id"], **sample}
        for index, sample in sorted(samples.items())
    ]


def _unscored(items: list[Row], model: ServedCompletions) -> Iterator[Row]:
    """What was answered before a task failed: kept, without scores."""
    for index, (asked_ns, answered_ns) in sorted(model.times.items()):
        prompt, answer = model.answered.get(index, ("", None))
        yield {
            "index": index,
            "item_id": items[index]["item_id"],
            "document_id": items[index]["document_id"],
            "score": None,
            "other_scores": {},
            "answer": answer,
            "target": None,
            "choice_logprobs": None,
            "prompt": prompt,
            "asked_ns": asked_ns,
            "answered_ns": answered_ns,
            "error": model.errors.get(index),
        }


def _sample(sample: Row, task: ConfigurableTask, model: ServedCompletions) -> Row:
    """One of lm-eval's logged samples, reduced to what pairs and explains a score."""
    index = sample["doc_id"]
    error = model.errors.get(index)
    logprobs: list[float] | None = None
    answer: str | None
    if task.OUTPUT_TYPE == "multiple_choice":
        choices = task.doc_to_choice(sample["doc"])
        logprobs = None if error else [found[0] for found in sample["filtered_resps"]]
        answer = choices[logprobs.index(max(logprobs))] if logprobs else None
        target = choices[sample["target"]]
    else:
        answer = None if error else sample["resps"][0][0]
        target = str(sample["target"])
    asked_ns, answered_ns = model.times[index]
    return {
        "answer": answer,
        "target": target,
        "choice_logprobs": logprobs,
        "prompt": sample["arguments"][0][0],
        "asked_ns": asked_ns,
        "answered_ns": answered_ns,
        "error": error,
    }


def _score(sample: Row, task: ConfigurableTask) -> float | None:
    """By the task's first metric, 0 to 1, also where the task's own function scores; None: scored elsewhere."""
    metric = task.config.metric_list[0]["metric"]
    score = sample.get(getattr(metric, "__name__", metric))
    if score is None:
        return None
    if not 0 <= float(score) <= 1:
        raise GivenUp(f"the task scored a question {score}; a score lies between 0 and 1")
    return float(score)


def main(job_path: str) -> None:
    """Read the job, carry it out, write the outcome."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    job = Job(**read_json(Path(job_path)))
    write_json(Path(job.out_path), asdict(run(job)))


if __name__ == "__main__":
    main(sys.argv[1])
