"""lm-eval's model of a served engine: every prompt whole, every answer checked, failures under their question."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from lm_eval.models.openai_completions import LocalCompletionsAPI

from harness.accuracy.asking_order import ask_all
from harness.accuracy.chat import ChatTemplate
from harness.accuracy.completions import BadAnswer, EchoIgnored, ServerGone, complete, echoed_logprobs, first_choice
from harness.accuracy.job import Job
from harness.accuracy.shape_check import NotServed, check_output_length, check_read_whole, check_shape
from harness.accuracy.stop_list import Stop, stop_of_chat, stop_of_completion

A = TypeVar("A")

_ERRORS_IN_A_ROW = 3
"""So many bad answers one after the other, and the task is given up."""


class GivenUp(Exception):
    """The task can't be finished; the text is the reason that the results carry."""


class ServedCompletions(LocalCompletionsAPI):  # type: ignore[misc]
    """`local-completions` that checks every answer, keeps the items' order and notes what failed.

    Token ids are made when they are sent, and not kept: of tens of thousands of questions only the lengths are held.

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
        self.lengths: list[int] = []
        self.stop = Stop(())
        self.answer_tokens: int | None = None
        self.finish_reasons: Counter[str] = Counter()
        self.first_request: float | None = None
        self._in_a_row = 0
        self._lock = threading.Lock()
        self._encoding = threading.Lock()
        # The choices of a question have its text in common, and follow each other.
        self._encoded = lru_cache(maxsize=4)(self._encode)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A question (lm-eval makes it the only message) as a chat, up to where the answer begins."""
        assert self.template is not None and [one["role"] for one in chat_history] == ["user"]
        return self.template.render(chat_history[0]["content"])

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answers to prompts, document by document."""
        texts = [one.args[0] for one in requests]
        settings: dict[str, Any] = dict(requests[0].args[1])  # the task's, the same for every question
        until = settings.pop("until", None) or []
        self.stop = self._stop([until] if isinstance(until, str) else until)
        self.answer_tokens = int(settings.get("max_gen_toks") or self._max_gen_toks)
        lengths = [self._must_fit(len(self._encoded(text)), self.answer_tokens) for text in texts]
        self._check_server(texts, lengths, log_likelihood=False)

        def answer(index: int) -> str:
            sent = {**settings, "until": list(self.stop.texts)}
            body = self._create_payload(self._as_sent(texts[index]), generate=True, gen_kwargs=sent)
            if self.stop.token_ids:
                body["stop_token_ids"] = list(self.stop.token_ids)
            received = complete(self.job.base_url, body, self.job.timeout_s)
            check_read_whole(received, lengths[index], as_ids=self.job.token_ids)
            check_output_length(received, body["max_tokens"])
            choice = first_choice(received)
            if not isinstance(text := choice.get("text"), str):
                raise BadAnswer("the answer has no text")
            with self._lock:
                self.finish_reasons[str(choice.get("finish_reason"))] += 1
            return self.stop.cut(text)

        documents = [str(one.doc["document_id"]) for one in requests]
        return [text or "" for text in self._ask_all(answer, requests, documents)]

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Log-likelihoods of continuations."""
        pairs = [self._split(*one.args) for one in requests]
        lengths = [self._must_fit(whole, 1) for _, whole in pairs]
        texts = ["".join(one.args) for one in requests]
        self._check_server(texts, lengths, log_likelihood=True)

        def answer(index: int) -> tuple[float, bool]:
            body = self._create_payload(self._as_sent(texts[index]), generate=False)
            received = complete(self.job.base_url, body, self.job.timeout_s)
            check_read_whole(received, lengths[index], as_ids=self.job.token_ids)
            logprobs = echoed_logprobs(received, lengths[index], generated_tokens=1)
            context, whole = pairs[index]
            return sum(logprobs[context - whole :]), False

        # The choices of a question, and questions on one text, follow each other in the items' order.
        found = self._ask_all(answer, requests, [None] * len(requests))
        return [(float("-inf"), False) if one is None else one for one in found]

    def _encode(self, text: str) -> list[int]:
        """Token ids; special tokens only where the text itself has them, as a chat template writes them."""
        with self._encoding:  # transformers' tokenizers can't be used by two threads at once
            ids: list[int] = self.tokenizer(text, add_special_tokens=False, truncation=False).input_ids
        return ids

    def _split(self, context: str, continuation: str) -> tuple[int, int]:
        """Lengths of the context, and of all, in tokens; white space before a continuation belongs to it."""
        whole = len(self._encoded(context + continuation))
        before = min(len(self._encoded(context.rstrip())), whole - 1)
        return max(before, 1), whole

    def _as_sent(self, text: str) -> list[int] | str:
        if self.job.token_ids:
            return self._encoded(text)
        # A server that is sent text puts the beginning-of-text token before it itself.
        first: str | None = self.tokenizer.bos_token
        if first and text.startswith(first):
            with self._encoding:
                ids = self.tokenizer(text).input_ids
            if ids[:2] == [self.tokenizer.bos_token_id] * 2:
                return text.removeprefix(first)
        return text

    def _stop(self, until: list[str]) -> Stop:
        if self.template is None:
            return stop_of_completion(until, self.tokenizer)
        return stop_of_chat(until, self.tokenizer, self.template)

    def _must_fit(self, prompt_tokens: int, output_tokens: int) -> int:
        self.lengths.append(prompt_tokens)
        if prompt_tokens + output_tokens > self.job.context_tokens:
            raise NotServed(
                f"a prompt of {prompt_tokens} tokens with {output_tokens} to answer doesn't fit the context of "
                f"{self.job.context_tokens}; nothing is truncated"
            )
        return prompt_tokens

    def _check_server(self, texts: list[str], lengths: list[int], log_likelihood: bool) -> None:
        self.first_request = time.monotonic()
        longest = max(range(len(texts)), key=lambda index: lengths[index])
        check_shape(
            self.job.base_url,
            self.job.served_name,
            self._as_sent(texts[longest]),
            prompt_tokens=lengths[longest],
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
            if self._in_a_row >= _ERRORS_IN_A_ROW:
                raise GivenUp(f"{self._in_a_row} bad answers in a row: {error}")
