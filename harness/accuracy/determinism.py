"""Determinism: is the same request answered the same way again, alone and beside others?

Greedy answers differ when the engine adds numbers in another order: another batch, another split of the prompt. What
differs here without any change is the floor under every flip of an answer.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.accuracy.completions import BadAnswer, ServerGone, complete
from harness.accuracy.fidelity_options import FidelityOptions
from harness.accuracy.greedy import continued
from harness.accuracy.passages import passage, text_sha256
from harness.accuracy.patient_client import PatientClient
from harness.backends.interface import Backend, EngineState
from harness.model import Model

PROMPTS = 2
PROMPT_TOKENS = 256
FILLER_PROMPT_TOKENS = 64
FILLER_OUTPUT_TOKENS = (64, 40, 56, 48)
"""Of different lengths, so that the others don't all end, and begin again, at the same time."""
_WAIT_FOR_OTHERS_S = 10.0
"""Longest wait for the engine's own word that the others run."""


def size(options: FidelityOptions, context_tokens: int) -> tuple[int, int, int]:
    """Tokens to prefill, tokens to generate and requests, without the others (they run beside them)."""
    if not options.repeats:
        return 0, 0, 0
    requests = PROMPTS * 2 * options.repeats
    return PROMPTS * _prompt_tokens(options, context_tokens), requests * options.greedy_tokens, requests


def take(
    backend: Backend,
    base_url: str,
    served_name: str,
    model: Model,
    *,
    context_tokens: int,
    seed: int,
    options: FidelityOptions,
    beside: int,
    state: Callable[[], EngineState],
    timeout_s: float = 300.0,
) -> dict[str, Any] | None:
    """Repeat each request alone, then beside others; `determinism` of `fidelity.json`, None for no repeats.

    Parameters
    ----------
    beside : int
        Other requests kept under way for the whole second part; at least 1.
    state : callable
        Reads the engine's counters, as evidence that they were.

    Returns
    -------
    dict
        Each prompt's answers `alone`, of which the first found the cache empty, and `beside_others`, in order. Bad
        answers never raise: an answer's `error` says what happened.
    """
    if not options.repeats:
        return None
    length = _prompt_tokens(options, context_tokens)
    prompts = [passage(model, length, seed=seed, stream=f"determinism-{i}") for i in range(PROMPTS)]
    client = PatientClient(backend, base_url, served_name, timeout_s)

    def ask(ids: list[int]) -> dict[str, Any]:
        return continued(client, ids, options.greedy_tokens)

    records: list[dict[str, Any]] = [
        {"prompt_sha256": text_sha256(ids), "alone": [ask(ids) for _ in range(options.repeats)], "beside_others": []}
        for ids in prompts
    ]
    under_way: list[int | None] = []
    fillers = _Fillers(backend, base_url, served_name, model, seed, context_tokens, timeout_s)
    with fillers.running(max(beside, 1)):
        _wait_for_others(state, max(beside, 1))
        for record, ids in zip(records, prompts, strict=True):
            for _ in range(options.repeats):
                under_way.append(_under_way(state))
                record["beside_others"].append(ask(ids))
    return {
        "prompt_tokens": length,
        "tokens": options.greedy_tokens,
        "repeats": options.repeats,
        "beside": max(beside, 1),
        "others_under_way": under_way,
        "others_answered": fillers.answered,
        "others_error": fillers.error,
        "prompts": records,
    }


class _Fillers:
    """Requests that keep the batch busy: each as soon as the one before it ended, no two with the same prompt."""

    def __init__(
        self,
        backend: Backend,
        base_url: str,
        served_name: str,
        model: Model,
        seed: int,
        context_tokens: int,
        timeout_s: float,
    ) -> None:
        self.answered = 0
        self.error: str | None = None
        self._prompt_tokens = max(min(FILLER_PROMPT_TOKENS, context_tokens // 4), 1)
        self._text = passage(model, 1 << 16, seed=seed, stream="determinism-fillers")
        self._bodies = [
            {"model": served_name, **backend.greedy_extras(max(min(tokens, context_tokens // 4), 1))}
            for tokens in FILLER_OUTPUT_TOKENS
        ]
        self._base_url, self._timeout_s = base_url, timeout_s
        self._over, self._lock = threading.Event(), threading.Lock()
        self._sent = 0

    @contextmanager
    def running(self, count: int) -> Iterator[None]:
        bodies = [self._bodies[i % len(self._bodies)] for i in range(count)]
        threads = [threading.Thread(target=self._ask_on, args=(body,), daemon=True) for body in bodies]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join(self._timeout_s)

    def _ask_on(self, head: dict[str, Any]) -> None:
        while not self._over.is_set():
            with self._lock:
                at = self._sent * (self._prompt_tokens + 1) % (len(self._text) - self._prompt_tokens)
                self._sent += 1
            body = {**head, "prompt": self._text[at : at + self._prompt_tokens]}
            try:
                complete(self._base_url, body, self._timeout_s)
                with self._lock:
                    self.answered += 1
            except BadAnswer as error:
                self.error = self.error or str(error)
                if isinstance(error, ServerGone):
                    return
                self._over.wait(0.1)  # a server that refuses isn't flooded


def _prompt_tokens(options: FidelityOptions, context_tokens: int) -> int:
    return max(min(PROMPT_TOKENS, context_tokens - options.greedy_tokens), 1)


def _under_way(state: Callable[[], EngineState]) -> int | None:
    """Requests that the engine says it has, running and waiting; None where it doesn't say."""
    try:
        now = state()
    except OSError:
        return None
    if now.requests_running is None:
        return None
    return now.requests_running + (now.requests_waiting or 0)


def _wait_for_others(state: Callable[[], EngineState], count: int) -> None:
    deadline = time.monotonic() + _WAIT_FOR_OTHERS_S
    while time.monotonic() < deadline:
        found = _under_way(state)
        if found is None or found >= count:
            return
        time.sleep(0.05)
