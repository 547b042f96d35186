"""Runs one task with lm-eval, in a process of its own: `python -m harness.accuracy.lm_eval_worker JOB.json`.

lm-eval builds the prompts and scores the answers; its `local-completions` model is narrowed here, so that what would
go wrong silently goes wrong aloud: nothing is truncated (lm-eval cuts at 2,048 tokens by default), the stop list is
the same at any concurrency (lm-eval adds the end-of-text string only to sequential requests), no answer is taken from
a cache, and each answer is checked for the shape that its score rests on.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from datasets import Dataset  # type: ignore[import-untyped]
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import simple_evaluate
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from harness.accuracy.completions import BadAnswer, EchoIgnored, ServerGone, complete, echoed_logprobs, first_choice
from harness.accuracy.shape_check import NotServed, check_read_whole, check_shape
from harness.files import read_json, write_json

_ERRORS_IN_A_ROW = 3
"""So many bad answers one after the other, and the task is given up."""


class GivenUp(Exception):
    """The task can't be finished; the text is the reason that the results carry."""


@dataclass(frozen=True)
class Job:
    """What the worker is asked to do.

    Attributes
    ----------
    task_yaml, items_path : str
        The task and its items (JSON lines with `item_id` and `document_id`).
    base_url, served_name, tokenizer : str
        The server (root URL), its name of the model, and the model's folder.
    token_ids : bool
        Send prompts as token ids.
    context_tokens : int
        Longest sequence that the server takes.
    num_concurrent : int
        Requests at a time.
    timeout_s : float
        Longest wait for an answer.
    answer_tokens : int or None
        Most tokens of a generated answer, where the task's YAML is not to say it.
    out_path : str
        File for the `Outcome`.
    """

    task_yaml: str
    items_path: str
    base_url: str
    served_name: str
    tokenizer: str
    token_ids: bool
    context_tokens: int
    num_concurrent: int
    timeout_s: float
    out_path: str
    answer_tokens: int | None = None


@dataclass
class Outcome:
    """What came of it; `samples` is in the items' order."""

    state: str = "measured"
    reason: str | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class ServedCompletions(LocalCompletionsAPI):  # type: ignore[misc]
    """`local-completions` that checks every answer, keeps the items' order and notes what failed."""

    def __init__(self, job: Job) -> None:
        super().__init__(
            base_url=f"{job.base_url}/v1/completions",
            model=job.served_name,
            tokenizer=job.tokenizer,
            tokenizer_backend="huggingface",  # the default asks the server for its own
            tokenized_requests=job.token_ids,
            max_length=job.context_tokens,
            batch_size=1,
        )
        # A tokenizer passed by path skips lm-eval's own branch that sets this.
        self.tokenizer_backend = "huggingface"
        self.job = job
        self.errors: dict[int, str] = {}
        self.lengths: list[int] = []
        self.stop: list[str] = []
        self.first_request: float | None = None
        self._in_a_row = 0

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers to prompts, document by document."""
        prompts = [self.tok_encode(one.args[0]) for one in requests]
        for prompt, request in zip(prompts, requests, strict=True):
            self._must_fit(len(prompt), int(request.args[1].get("max_gen_toks", self._max_gen_toks)))
        self._check_server(prompts, [one.args[0] for one in requests], log_likelihood=False)

        def answer(index: int) -> str | None:
            request = requests[index]
            sent = prompts[index] if self.job.token_ids else request.args[0]
            body = self._create_payload(sent, generate=True, gen_kwargs=dict(request.args[1]), eos=self.eos_string)
            self.stop = body["stop"]
            received = complete(self.job.base_url, body, self.job.timeout_s)
            check_read_whole(received, len(prompts[index]), as_ids=self.job.token_ids)
            text = first_choice(received).get("text")
            if not isinstance(text, str):
                raise BadAnswer("the answer has no text")
            return text

        documents = [str(one.doc["document_id"]) for one in requests]
        return [text or "" for text in self._ask_all(answer, requests, documents)]

    def _loglikelihood_tokens(self, requests: Sequence[Any], **kwargs: Any) -> list[tuple[float, bool]]:
        """Log-likelihoods of continuations; `requests` are (texts, context ids, continuation ids)."""
        sequences = [context + continuation for _, context, continuation in requests]
        for sequence in sequences:
            self._must_fit(len(sequence), 1)
        self._check_server(sequences, ["".join(texts) for texts, _, _ in requests], log_likelihood=True)

        def answer(index: int) -> tuple[float, bool]:
            texts, _, continuation = requests[index]
            sent = sequences[index] if self.job.token_ids else "".join(texts)
            body = self._create_payload(sent, generate=False)
            received = complete(self.job.base_url, body, self.job.timeout_s)
            check_read_whole(received, len(sequences[index]), as_ids=self.job.token_ids)
            logprobs = echoed_logprobs(received, len(sequences[index]), generated_tokens=1)
            return sum(logprobs[-len(continuation) :]), False

        # The choices of a question, and questions on one text, follow each other in the items' order.
        found = self._ask_all(answer, self._instances, [None] * len(requests))
        return [(float("-inf"), False) if one is None else one for one in found]

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self._instances = list(requests)
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return found

    def _must_fit(self, prompt_tokens: int, output_tokens: int) -> None:
        self.lengths.append(prompt_tokens)
        if prompt_tokens + output_tokens > self.job.context_tokens:
            raise NotServed(
                f"a prompt of {prompt_tokens} tokens with {output_tokens} to answer doesn't fit the context of "
                f"{self.job.context_tokens}; nothing is truncated"
            )

    def _check_server(self, prompts: list[list[int]], texts: list[str], log_likelihood: bool) -> None:
        self.first_request = time.monotonic()
        longest = max(range(len(prompts)), key=lambda index: len(prompts[index]))
        check_shape(
            self.job.base_url,
            self.job.served_name,
            prompts[longest] if self.job.token_ids else texts[longest],
            prompt_tokens=len(prompts[longest]),
            log_likelihood=log_likelihood,
            timeout_s=self.job.timeout_s,
        )

    def _ask_all(self, answer: Any, instances: Sequence[Any], documents: Sequence[str | None]) -> list[Any]:
        """Call `answer` for each index; a bad answer is None and noted under its item."""

        def guarded_answer(index: int) -> Any:
            if self._in_a_row >= _ERRORS_IN_A_ROW:
                return None
            try:
                found = answer(index)
                self._in_a_row = 0
                return found
            except (ServerGone, EchoIgnored, NotServed):
                raise
            except BadAnswer as error:
                self._in_a_row += 1
                self.errors.setdefault(instances[index].doc_id, str(error))
                return None

        found: dict[int, Any] = {}
        with ThreadPoolExecutor(self.job.num_concurrent) as pool:
            for wave in _waves(documents):
                found |= dict(zip(wave, pool.map(guarded_answer, wave), strict=True))
        if self._in_a_row >= _ERRORS_IN_A_ROW:
            raise GivenUp(f"{self._in_a_row} bad answers in a row: {list(self.errors.values())[-1]}")
        return [found[index] for index in range(len(documents))]


def _waves(documents: Sequence[str | None]) -> Iterator[list[int]]:
    """Indices that may be asked at a time: of several questions on one document, the first goes ahead alone.

    It leaves the document in the prefix cache, where the others find it.
    """
    singles: list[int] = []
    for document, group in groupby(range(len(documents)), key=lambda index: documents[index]):
        indices = list(group)
        if document is None or len(indices) == 1:
            singles += indices
            continue
        yield indices[:1]
        yield indices[1:]
    if singles:
        yield singles


def run(job: Job) -> Outcome:
    """Carry the job out; a task that can't be scored is an outcome too, not an exception."""
    began = time.monotonic()
    with Path(job.items_path).open(encoding="utf-8") as file:  # `splitlines` would cut at U+2028 too
        items = [json.loads(line) for line in file]
    config = load_yaml(job.task_yaml, resolve_func=True)
    if job.answer_tokens is not None and "generation_kwargs" in config:
        config["generation_kwargs"]["max_gen_toks"] = job.answer_tokens
    # Rows as they are: the loader of JSON files takes texts that look like dates for times.
    config["custom_dataset"] = lambda **_: {"test": Dataset.from_list(items)}
    task = ConfigurableTask(config=config)
    model = ServedCompletions(job)
    outcome = Outcome()
    try:
        results = simple_evaluate(
            model,
            tasks=[task],
            task_manager=TaskManager(include_defaults=False),
            cache_requests=False,
            use_cache=None,
            bootstrap_iters=0,
            log_samples=True,
        )
        assert results is not None
        (samples,) = results["samples"].values()
        outcome.samples = [_sample(one, config, items, model.errors) for one in samples]
        outcome.samples.sort(key=lambda one: one["index"])
    except NotServed as error:
        outcome.state, outcome.reason = "unsupported", str(error)
    except (BadAnswer, GivenUp) as error:
        outcome.state, outcome.reason = "failed", str(error)
    ended = time.monotonic()
    first = model.first_request or ended
    outcome.stop = model.stop
    outcome.prompt_tokens = {"min": min(model.lengths), "max": max(model.lengths)} if model.lengths else {}
    outcome.seconds = {"prepare": round(first - began, 3), "ask": round(ended - first, 3)}
    return outcome


def _sample(
    sample: dict[str, Any], config: dict[str, Any], items: list[dict[str, Any]], errors: dict[int, str]
) -> dict[str, Any]:
    """One of lm-eval's logged samples, reduced to what pairs and explains a score."""
    index = sample["doc_id"]
    metric = config["metric_list"][0]["metric"]
    error = errors.get(index)
    logprobs: list[float] | None = None
    answer: str | None
    if config["output_type"] == "multiple_choice":
        choices = config["doc_to_choice"]
        logprobs = None if error else [found[0] for found in sample["filtered_resps"]]
        answer = choices[logprobs.index(max(logprobs))] if logprobs else None
        target = choices[sample["target"]]
    else:
        answer = None if error else sample["resps"][0][0]
        target = str(sample["target"])
    score = sample.get(metric)
    return {
        "index": index,
        "item_id": items[index]["item_id"],
        "document_id": items[index]["document_id"],
        "score": 0.0 if error else float(score) if isinstance(score, int | float) else None,
        "answer": answer,
        "target": target,
        "choice_logprobs": logprobs,
        "prompt": sample["arguments"][0][0],
        "error": error,
    }


def main(job_path: str) -> None:
    """Read the job, carry it out, write the outcome."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    job = Job(**read_json(Path(job_path)))
    write_json(Path(job.out_path), asdict(run(job)))


if __name__ == "__main__":
    main(sys.argv[1])
