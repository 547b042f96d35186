"""The plain, non-streaming side of `/v1/completions`: one request, one checked answer."""

import math
from typing import Any

from harness import local_http


class BadAnswer(Exception):
    """An engine's answer that can't be used; the text says what was wrong with it."""


class ServerGone(BadAnswer):
    """Nobody answers on the port any more."""


class EchoIgnored(BadAnswer):
    """The server doesn't serve `echo`: log-likelihood tasks would score at chance."""


def complete(base_url: str, body: dict[str, Any], timeout_s: float = 300.0) -> dict[str, Any]:
    """Post `body` to `<base_url>/v1/completions` and return the JSON object, or raise `BadAnswer`."""
    try:
        response = local_http.request("POST", f"{base_url.rstrip('/')}/v1/completions", body, timeout_s)
    except TimeoutError as error:
        raise BadAnswer(f"no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise ServerGone(f"the connection broke: {error}") from error
    if response.status != 200:
        raise BadAnswer(f"HTTP {response.status}: {response.text[:300].strip()}")
    try:
        answer = response.json()
    except ValueError as error:
        raise BadAnswer(f"the answer is not JSON: {error}") from error
    if not isinstance(answer, dict):
        raise BadAnswer(f"the answer is no JSON object but {type(answer).__name__}")
    if answer.get("error"):
        raise BadAnswer(f"the engine reports an error: {str(answer['error'])[:300]}")
    return answer


def first_choice(answer: dict[str, Any]) -> dict[str, Any]:
    """The first (only) choice of an answer."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BadAnswer("the answer has no choices")
    choice: dict[str, Any] = choices[0]
    return choice


def prompt_tokens_read(answer: dict[str, Any]) -> int | None:
    """How many prompt tokens the server says it read; None where it doesn't say."""
    return _usage(answer, "prompt_tokens")


def tokens_generated(answer: dict[str, Any]) -> int | None:
    """How many tokens the server says it generated; None where it doesn't say."""
    return _usage(answer, "completion_tokens")


def _usage(answer: dict[str, Any], key: str) -> int | None:
    usage = answer.get("usage")
    count = usage.get(key) if isinstance(usage, dict) else None
    return count if isinstance(count, int) else None


def usable_logprob(value: object) -> float | None:
    """A log-probability as a float, or None for what can't be one (null, NaN, infinity, a positive number).

    Rounding makes engines answer a little above zero; that much is let through, as zero.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value > 1e-3:
        return None
    return min(float(value), 0.0)


def echoed_logprobs(answer: dict[str, Any], sent_tokens: int, generated_tokens: int) -> list[float]:
    """Log-probabilities of the prompt's tokens 1 … n−1 out of an answer to `echo` with `logprobs`.

    Raises
    ------
    EchoIgnored
        The answer doesn't hold one log-probability for each prompt token.
    BadAnswer
        It does, but some are no numbers.
    """
    logprobs = first_choice(answer).get("logprobs")
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    if not isinstance(values, list):
        raise EchoIgnored("asked for the prompt's log-probabilities (`echo`), the server returned none")
    if len(values) != sent_tokens + generated_tokens:
        raise EchoIgnored(
            f"asked for the log-probabilities of {sent_tokens} prompt and {generated_tokens} generated tokens "
            f"(`echo`), the server returned {len(values)}"
        )
    usable = [usable_logprob(value) for value in values[1:sent_tokens]]
    if any(value is None for value in usable):
        bad = sum(value is None for value in usable)
        raise BadAnswer(f"{bad} of {len(usable)} prompt log-probabilities are no numbers")
    return [value for value in usable if value is not None]
