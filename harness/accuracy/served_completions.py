"""lm-eval's model of a served engine: every prompt whole, every answer checked, failures under their question."""

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any, TypeAlias, TypeVar

from lm_eval.models.openai_completions import LocalCompletionsAPI

from harness.accuracy.asking_order import ask_all
from harness.accuracy.chat import ChatTemplate
from harness.accuracy.completions import BadAnswer, EchoIgnored, ServerGone, complete, echoed_logprobs, first_choice
from harness.accuracy.job import Job
from harness.accuracy.shape_check import NotServed, check_output_length, check_read_whole, check_shape
from harness.accuracy.stop_list import Stop, stop_of_chat, stop_of_completion

A = TypeVar("A")

Ids: TypeAlias = "array[int]"

_AT_ONCE = 256
"""Texts that are encoded at a time."""
_ERRORS_AT_FIRST, _ERRORS_LATER = 3, 16
"""So many bad answers one after the other, and the task is given up; fewer where there was no good one before them."""


class GivenUp(Exception):
    """The task can't be finished; the text is the reason that the results carry."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as text and as token ids, in two parts: what others have in common with it, and the rest."""

    text: str
    ids: Ids
    more: Ids = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        return len(self.ids) + len(self.more)


class ServedCompletions(LocalCompletionsAPI):  # type: ignore[misc]
    """`local-completions` that checks every answer, keeps the items' order and notes what failed.

    Token ids are held as four bytes each, and what the choices of a question have in common once.

    Attributes
    ----------
    errors : dict
        Why a question has no usable answer, by its index.
    times : dict
        When a question was first asked and when its last answer came, monotonic ns, by its index.
    lengths : list of int
        Tokens of each prompt.
    stop : Stop
        What ended answers.
    finish_reasons : Counter
        How answers ended, as the server says.
    first_request : float or None
        When the asking began, monotonic seconds.
    """

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
        self.template = None if job.chat is None else ChatTemplate(job.tokenizer, job.chat)
        self.errors: dict[int, str] = {}
        self.times: dict[int, tuple[int, int]] = {}
        self.answered: dict[int, tuple[str, str]] = {}
        self.lengths: list[int] = []
        self.stop = Stop(())
        self.answer_tokens: int | None = None
        self.finish_reasons: Counter[str] = Counter()
        self.first_request: float | None = None
        self._in_a_row = 0
        self._any_good = False
        self._lock = threading.Lock()
        self._doubled = self._doubled_start()

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A question (lm-eval makes it the only message) as a chat, up to where the answer begins."""
        assert self.template is not None and [one["role"] for one in chat_history] == ["user"]
        return self.template.render(chat_history[0]["content"])

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers to prompts, document by document."""
        encoded = self._encoded(one.args[0] for one in requests)
        prompts = [Prompt(one.args[0], ids) for one, ids in zip(requests, encoded, strict=True)]
        settings: dict[str, Any] = dict(requests[0].args[1])  # the task's, the same for every question
        until = settings.pop("until", None) or []
        self.stop = self._stop([until] if isinstance(until, str) else until)
        self.answer_tokens = int(settings.get("max_gen_toks") or self._max_gen_toks)
        self._check(prompts, self.answer_tokens, log_likelihood=False)

        def answer(index: int) -> str:
            sent = {**settings, "until": list(self.stop.texts)}
            body = self._create_payload(self._as_sent(prompts[index]), generate=True, gen_kwargs=sent)
            if self.stop.token_ids:
                body["stop_token_ids"] = list(self.stop.token_ids)
            received = complete(self.job.base_url, body, self.job.timeout_s)
            check_read_whole(received, len(prompts[index]), as_ids=self.job.token_ids)
            check_output_length(received, body["max_tokens"])
            choice = first_choice(received)
            if not isinstance(text := choice.get("text"), str):
                raise BadAnswer("the answer has no text")
            with self._lock:
                self.finish_reasons[str(choice.get("finish_reason"))] += 1
                self.answered[requests[index].doc_id] = prompts[index].text, self.stop.cut(text)
            return self.stop.cut(text)

        documents = [str(one.doc["document_id"]) for one in requests]
        return [text or "" for text in self._ask_all(answer, requests, documents)]

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihoods of continuations."""
        prompts, before = self._split(requests)
        self._check(prompts, 1, log_likelihood=True)

        def answer(index: int) -> tuple[float, bool]:
            prompt = prompts[index]
            body = self._create_payload(self._as_sent(prompt), generate=False)
            received = complete(self.job.base_url, body, self.job.timeout_s)
            check_read_whole(received, len(prompt), as_ids=self.job.token_ids)
            logprobs = echoed_logprobs(received, len(prompt), generated_tokens=1)
            return sum(logprobs[before[index] - len(prompt) :]), False

        # The choices of a question, and questions on one text, follow each other in the items' order.
        found = self._ask_all(answer, requests, [None] * len(requests))
        return [(float("-inf"), False) if one is None else one for one in found]

    def _encoded(self, texts: Iterable[str]) -> Iterator[Ids]:
        """Token ids; special tokens only where a text itself has them, as a chat template writes them."""
        left = iter(texts)
        while some := list(islice(left, _AT_ONCE)):
            for ids in self.tokenizer(some, add_special_tokens=False, truncation=False).input_ids:
                yield array("I", ids)

    def _split(self, requests: Sequence[Any]) -> tuple[list[Prompt], list[int]]:
        """Contexts with their continuations, and the tokens before each; white space before one belongs to it."""
        contexts = [one.args[0].rstrip() for one in requests]
        firsts = [text for text, _ in groupby(contexts)]
        shared = self._encoded(firsts)
        wholes = self._encoded("".join(one.args) for one in requests)
        prompts: list[Prompt] = []
        before: list[int] = []
        context, ids = None, array("I")
        for request, text, whole in zip(requests, contexts, wholes, strict=True):
            if text != context:
                context, ids = text, next(shared)
            is_shared = whole[: len(ids)] == ids
            parts = (ids, whole[len(ids) :]) if is_shared else (whole, array("I"))
            prompts.append(Prompt("".join(request.args), *parts))
            before.append(max(min(len(ids), len(whole) - 1), 1))
        return prompts, before

    def _as_sent(self, prompt: Prompt) -> list[int] | str:
        if self.job.token_ids:
            return [*prompt.ids, *prompt.more]
        # A server that is sent text puts the beginning-of-text token before it itself.
        if self._doubled and prompt.text.startswith(self._doubled):
            return prompt.text.removeprefix(self._doubled)
        return prompt.text

    def _doubled_start(self) -> str | None:
        """The beginning-of-text token where the tokenizer writes it before every text, also one that has it."""
        first: str | None = self.tokenizer.bos_token
        if not first:
            return None
        return first if self.tokenizer(first).input_ids[:2] == [self.tokenizer.bos_token_id] * 2 else None

    def _stop(self, until: list[str]) -> Stop:
        if self.template is None:
            return stop_of_completion(until, self.tokenizer)
        return stop_of_chat(until, self.tokenizer, self.template)

    def _check(self, prompts: list[Prompt], output_tokens: int, log_likelihood: bool) -> None:
        """Raise `NotServed` where a prompt doesn't fit, or the server can't do what is asked of it."""
        self.lengths = [len(prompt) for prompt in prompts]
        longest = max(prompts, key=len)
        if len(longest) + output_tokens > self.job.context_tokens:
            raise NotServed(
                f"a prompt of {len(longest)} tokens with {output_tokens} to answer doesn't fit the context of "
                f"{self.job.context_tokens}; nothing is truncated"
            )
        self.first_request = time.monotonic()
        check_shape(
            self.job.base_url,
            self.job.served_name,
            self._as_sent(longest),
            prompt_tokens=len(longest),
            log_likelihood=log_likelihood,
            timeout_s=self.job.timeout_s,
        )

    def _ask_all(
        self, answer: Callable[[int], A], instances: Sequence[Any], documents: Sequence[str | None]
    ) -> list[A | None]:
        """Call `answer` for each index; a bad answer is None and noted under its item."""

        def asked(index: int) -> A | None:
            doc_id, asked_ns = instances[index].doc_id, time.monotonic_ns()
            try:
                found = answer(index)
            except (ServerGone, EchoIgnored, NotServed):
                raise
            except BadAnswer as error:
                self._note(doc_id, asked_ns, str(error))
                return None
            self._note(doc_id, asked_ns, None)
            return found

        return ask_all(asked, documents, self.job.num_concurrent)

    def _note(self, doc_id: int, asked_ns: int, error: str | None) -> None:
        with self._lock:
            first_ns, _ = self.times.get(doc_id, (asked_ns, 0))
            self.times[doc_id] = min(first_ns, asked_ns), time.monotonic_ns()
            self._in_a_row = 0 if error is None else self._in_a_row + 1
            if error is not None:
                self.errors.setdefault(doc_id, error)
            self._any_good |= error is None
            if self._in_a_row >= (_ERRORS_LATER if self._any_good else _ERRORS_AT_FIRST):
                raise GivenUp(f"{self._in_a_row} bad answers in a row: {error}")
