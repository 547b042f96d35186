"""The output check (rule 2): what the engine would say next at fixed places of real texts, read through its cache.

The prompts are growing prefixes of a text, sent one after another, so that an engine that reuses prefixes answers
each from the KV entries it stored before: a cache that stores garbage shows here, whatever it costs in a task's score.
"""

from collections.abc import Callable
from statistics import fmean
from typing import Any

from harness.accuracy.completions import BadAnswer, echoed_logprobs, usable_logprob
from harness.accuracy.fidelity_options import FidelityOptions
from harness.accuracy.forced_texts import GRAINS, ForcedText, forced_texts, lengths
from harness.accuracy.passages import passage, text_sha256
from harness.accuracy.patient_client import GivenUp, PatientClient, in_words
from harness.backends.interface import Backend, EngineState
from harness.model import Model

SCHEMA_VERSION = 2
TOP_K = 20
"""vLLM's default limit on log-probabilities a token."""
ECHO_TOKENS = 1024

_Row = tuple[list[int], list[float | None], int | None]


def size(
    options: FidelityOptions, context_tokens: int, *, prefix_reuse: bool = True, echo: bool = True
) -> tuple[int, int]:
    """Tokens to prefill, and requests, of one output check; an engine with blocks reads a part of one again."""
    tokens, requests = 0, 0
    for positions in lengths(options, context_tokens, prefix_reuse=prefix_reuse):
        for before, position in zip([0, *positions], positions, strict=False):
            tokens += position - (before // GRAINS[0] * GRAINS[0] if prefix_reuse else 0)
        requests += len(positions)
    return (tokens + min(ECHO_TOKENS, context_tokens - 2), requests + 1) if echo else (tokens, requests)


def take(
    backend: Backend,
    base_url: str,
    served_name: str,
    model: Model,
    *,
    context_tokens: int,
    seed: int,
    state: Callable[[], EngineState],
    options: FidelityOptions | None = None,
    prefix_reuse: bool = True,
    timeout_s: float = 300.0,
) -> dict[str, Any]:
    """Force the model along the texts and record its next-token distributions; the content of `output_check.json`.

    Parameters
    ----------
    backend, base_url, served_name, model
        The running server (root URL, without `/v1`) and what it serves.
    context_tokens : int
        Longest sequence that the server takes.
    seed : int
        Which texts; equal seeds give equal texts.
    state : callable
        Reads the engine's counters.
    prefix_reuse : bool
        Whether the strategy lets the engine reuse prefixes.
    timeout_s : float
        Longest wait for one answer.

    Returns
    -------
    dict
        Schema `output_check.json`. An engine's bad answers never raise: they leave empty lists (or null for a value
        that is no number), and `error` says what happened.
    """
    texts = forced_texts(model, options or FidelityOptions(), context_tokens, seed=seed, prefix_reuse=prefix_reuse)
    client = PatientClient(backend, base_url, served_name, timeout_s)
    errors: list[str] = []
    before = _hits(state)
    # the deep text last: an engine that keeps one prompt still has it when greedy continuations begin there
    records = [_forced(client, text, model.shape.vocab, errors) for text in reversed(texts)][::-1]
    after = None if client.gave_up else _hits(state)
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "texts": records,
        "echo": None,
        "prefix_hits": None if before is None or after is None else {"before": before, "after": after},
        "error": None,
    }
    if backend.reads_echo and not client.gave_up:
        echo_ids = passage(model, min(ECHO_TOKENS, context_tokens - 2), seed=seed, stream="echo")
        try:
            record["echo"] = _echo(client, echo_ids)
        except BadAnswer as error:
            errors.append(f"echo: {error}")
    record["error"] = in_words(errors)
    return record


def _forced(client: PatientClient, text: ForcedText, vocab: int, errors: list[str]) -> dict[str, Any]:
    """One text's record: its next-token distributions, and how much of each prefix came from the cache."""
    rows: list[_Row] = []
    extras = {"max_tokens": 1, **client.backend.next_token_extras(TOP_K)}
    for position in text.positions:
        try:
            body = {"prompt": text.ids[:position], **extras}
            rows.append(client.ask(body, lambda answer: _read(client.backend, answer)))
        except BadAnswer as error:
            rows.append(([], [], None))
            if not isinstance(error, GivenUp):
                errors.append(f"after {position} tokens: {error}")
    return {
        "text_sha256": text_sha256(text.ids),
        "top_k": TOP_K,
        "vocab": vocab,
        "positions": text.positions,
        "next_token_ids": [text.ids[position] for position in text.positions],
        "top_token_ids": [ids for ids, _, _ in rows],
        "top_logprobs": [logprobs for _, logprobs, _ in rows],
        "cached_tokens": [cached for _, _, cached in rows],
    }


def _read(backend: Backend, answer: dict[str, Any]) -> _Row:
    """Top-k tokens, log-probabilities (None for what can't be one), and tokens that came from the cache."""
    try:
        token = backend.next_token(answer)
        ids = [int(one) for one in token.token_ids]
        logprobs = [usable_logprob(one) for one in token.logprobs]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise BadAnswer(f"no log-probabilities in the answer ({error!r})") from error
    if not ids or len(ids) != len(logprobs):
        raise BadAnswer("no log-probabilities in the answer")
    return ids, logprobs, backend.cached_tokens(answer)


def _hits(state: Callable[[], EngineState]) -> float | None:
    try:
        return state().prefix_hits_total
    except OSError:
        return None


def _echo(client: PatientClient, ids: list[int]) -> dict[str, Any]:
    body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
    logprobs = client.ask(body, lambda answer: echoed_logprobs(answer, len(ids), generated_tokens=0))
    return {"tokens": len(logprobs), "nll": -fmean(logprobs)}
