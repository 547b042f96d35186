"""Does a server answer in the shape that a task needs? Asked before the task, on the task's own longest request.

A server that ignores `echo`, or that cuts prompts, answers every question politely and scores at chance. Found here,
the task is `unsupported` on that server, with the reason, and no score stands.
"""

from typing import Any

from harness.accuracy.completions import (
    BadAnswer,
    EchoIgnored,
    ServerGone,
    complete,
    echoed_logprobs,
    first_choice,
    prompt_tokens_read,
    tokens_generated,
)

TEXT_SLACK_TOKENS = 8
"""Prompts sent as text may be read with a few more or fewer tokens (special tokens, decoding and encoding again)."""


class NotServed(Exception):
    """The server can't do what a task asks for; the text is the reason that the results carry."""


def check_read_whole(answer: dict[str, Any], sent_tokens: int, as_ids: bool) -> None:
    """Raise `NotServed` unless the server says that it read the whole prompt."""
    read = prompt_tokens_read(answer)
    if read is None:
        raise NotServed(
            "the server doesn't say how many prompt tokens it read (usage.prompt_tokens): a cut can't be told"
        )
    slack = 0 if as_ids else TEXT_SLACK_TOKENS
    if abs(read - sent_tokens) > slack:
        raise NotServed(f"the server read {read} of the {sent_tokens} prompt tokens sent: prompts are cut or altered")


def check_output_length(answer: dict[str, Any], most_tokens: int) -> None:
    """Raise `BadAnswer` where the server says that it generated more than it was asked for."""
    generated = tokens_generated(answer)
    if generated is not None and generated > most_tokens:
        raise BadAnswer(f"the server generated {generated} tokens; at most {most_tokens} were asked for")


def check_shape(
    base_url: str,
    served_name: str,
    prompt: list[int] | str,
    *,
    prompt_tokens: int,
    log_likelihood: bool,
    timeout_s: float = 300.0,
) -> None:
    """Send one request of the task's kind and hold the answer against what the task needs.

    Parameters
    ----------
    base_url, served_name
        The server (root URL) and the model's name there.
    prompt : list of int or str
        The task's longest prompt, as it will be sent. Being first in line it is no waste: a server that reuses
        prefixes has it stored afterwards.
    prompt_tokens : int
        Its length.
    log_likelihood : bool
        Whether the task needs the prompt's own log-probabilities (`echo`).

    Raises
    ------
    NotServed
        The server ignores `echo`, refuses the length, or doesn't read the whole prompt.
    BadAnswer
        The server fails, or answers with values that are no numbers.
    """
    body: dict[str, Any] = {"model": served_name, "prompt": prompt, "max_tokens": 1, "temperature": 0.0}
    if log_likelihood:
        body |= {"echo": True, "logprobs": 1}
    try:
        answer = complete(base_url, body, timeout_s)
        first_choice(answer)
        if log_likelihood:
            echoed_logprobs(answer, prompt_tokens, generated_tokens=1)
    except EchoIgnored as error:
        raise NotServed(str(error)) from error
    except ServerGone:
        raise
    except BadAnswer as error:
        if str(error).startswith(("HTTP 400", "HTTP 413", "HTTP 422", "HTTP 501")):
            raise NotServed(f"the server refuses a prompt of {prompt_tokens} tokens: {error}") from error
        raise
    check_read_whole(answer, prompt_tokens, as_ids=not isinstance(prompt, str))
