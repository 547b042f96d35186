"""The output check (rule 2): what the engine would say next at fixed places of a real text, read through its cache.

The prompts are growing prefixes of one text, sent one after another, so that an engine that reuses prefixes answers
each from the KV entries it stored before: a cache that stores garbage shows here, whatever it costs in a task's score.
"""

from collections.abc import Callable
from statistics import fmean
from typing import Any

from harness.accuracy.completions import BadAnswer, ServerGone, complete, echoed_logprobs, usable_logprob
from harness.accuracy.passages import passage, text_sha256
from harness.backends.interface import Backend, EngineState
from harness.model import Model

SCHEMA_VERSION = 1
TOP_K = 20
"""vLLM's default limit on log-probabilities a token."""
DENSE_POSITIONS = 20
LATE_POSITIONS = 4
FIRST_POSITION = 96
DENSE_UP_TO = 3072
"""Up to here positions are even; later ones are few, since an engine without prefix reuse reads each prefix anew."""
LATE_UP_TO = 4096
"""How far the late positions go, or to a quarter of the context: a slow engine reads 50 tokens a second (on 2 cores),
and retrieval goes through the whole context anyway."""
ECHO_TOKENS = 1024
_LONGEST_PREFIX = 32_768
_ERRORS_IN_A_ROW = 3


def positions(context_tokens: int) -> list[int]:
    """Lengths of the prefixes: even up to `DENSE_UP_TO`, then a few late ones."""
    last = min(context_tokens - 1, max(LATE_UP_TO, context_tokens // 4), _LONGEST_PREFIX)
    dense_last = min(last, DENSE_UP_TO)
    late = LATE_POSITIONS if last > dense_last else 0
    dense = DENSE_POSITIONS + LATE_POSITIONS - late
    first = min(FIRST_POSITION, dense_last // 3)
    even = [first + (dense_last - first) * i // (dense - 1) for i in range(dense)]
    return sorted({*even, *(dense_last + (last - dense_last) * (i + 1) // late for i in range(late))})


def take(
    backend: Backend,
    base_url: str,
    served_name: str,
    model: Model,
    *,
    context_tokens: int,
    seed: int,
    state: Callable[[], EngineState],
    timeout_s: float = 300.0,
) -> dict[str, Any]:
    """Force the model along a text and record its next-token distributions; the content of `output_check.json`.

    Parameters
    ----------
    backend, base_url, served_name, model
        The running server (root URL, without `/v1`) and what it serves.
    context_tokens : int
        Longest sequence that the server takes.
    seed : int
        Which text; equal seeds give equal texts.
    state : callable
        Reads the engine's counters.
    timeout_s : float
        Longest wait for one answer.

    Returns
    -------
    dict
        Schema `output_check.json`. An engine's bad answers never raise: they leave empty lists (or null for a value
        that is no number), and `error` says what happened.
    """
    lengths = positions(context_tokens)
    echo_tokens = min(ECHO_TOKENS, context_tokens - 2)
    ids = passage(model, lengths[-1] + 1, seed=seed, stream="forced-decode")
    echo_ids = passage(model, echo_tokens, seed=seed, stream="echo") if backend.reads_echo else []
    record: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "text_sha256": text_sha256(ids),
        "top_k": TOP_K,
        "vocab": model.shape.vocab,
        "positions": lengths,
        "next_token_ids": [ids[length] for length in lengths],
        "top_token_ids": [],
        "top_logprobs": [],
        "echo": None,
        "prefix_hits": None,
        "error": None,
    }
    errors: list[str] = []
    in_a_row = 0
    before = state().prefix_hits_total
    for length in lengths:
        top_ids: list[int] = []
        top_logprobs: list[float | None] = []
        if in_a_row < _ERRORS_IN_A_ROW:
            body = {"model": served_name, "prompt": ids[:length], "max_tokens": 1, "temperature": 0.0}
            try:
                answer = complete(base_url, {**body, **backend.next_token_extras(TOP_K)}, timeout_s)
                top_ids, top_logprobs = _read(backend, answer)
                in_a_row = 0
            except BadAnswer as error:
                errors.append(f"after {length} tokens: {error}")
                in_a_row = _ERRORS_IN_A_ROW if isinstance(error, ServerGone) else in_a_row + 1
        record["top_token_ids"].append(top_ids)
        record["top_logprobs"].append(top_logprobs)
    if in_a_row < _ERRORS_IN_A_ROW:
        after = state().prefix_hits_total
        record["prefix_hits"] = None if before is None or after is None else {"before": before, "after": after}
    if echo_ids and in_a_row < _ERRORS_IN_A_ROW:
        try:
            record["echo"] = _echo(base_url, served_name, echo_ids, timeout_s)
        except BadAnswer as error:
            errors.append(f"echo: {error}")
    if errors:
        record["error"] = "; ".join(errors[:3]) + (f"; and {len(errors) - 3} more" if len(errors) > 3 else "")
    return record


def _read(backend: Backend, answer: dict[str, Any]) -> tuple[list[int], list[float | None]]:
    """Top-k tokens and log-probabilities; values that are no log-probabilities become None."""
    try:
        token = backend.next_token(answer)
        ids = [int(one) for one in token.token_ids]
        logprobs = [usable_logprob(one) for one in token.logprobs]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise BadAnswer(f"no log-probabilities in the answer ({error!r})") from error
    if not ids or len(ids) != len(logprobs):
        raise BadAnswer("no log-probabilities in the answer")
    return ids, logprobs


def _echo(base_url: str, served_name: str, ids: list[int], timeout_s: float) -> dict[str, Any]:
    body = {"model": served_name, "prompt": ids, "max_tokens": 0, "temperature": 0.0, "echo": True, "logprobs": 1}
    logprobs = echoed_logprobs(complete(base_url, body, timeout_s), len(ids), generated_tokens=0)
    return {"tokens": len(logprobs), "nll": -fmean(logprobs)}
