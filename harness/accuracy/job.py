"""What the harness and the process that runs lm-eval say to each other: a job, and what came of it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Job:
    """What the worker is asked to do.

    Attributes
    ----------
    task_yaml : str
        The task.
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
    chat : dict or None
        Arguments of the chat template in the model's folder; None: questions are posed as completions.
    items_path : str
        The items (JSON lines with `item_id` and `document_id`).
    out_path : str
        File for the `Outcome`.
    """

    task_yaml: str
    base_url: str
    served_name: str
    tokenizer: str
    token_ids: bool
    context_tokens: int
    num_concurrent: int
    timeout_s: float
    answer_tokens: int | None = None
    chat: dict[str, Any] | None = None
    items_path: str = ""
    out_path: str = ""


@dataclass
class Outcome:
    """What came of a job; `samples` is in the items' order.

    Attributes
    ----------
    state, reason : str, str or None
        ``measured``, ``unsupported`` or ``failed``, and why.
    samples : list of dict
        An answer each; `prompt` is the text as it was sent.
    stop, stop_token_ids : list
        What ended an answer.
    answer_tokens : int or None
        Most tokens of a generated answer.
    answers_at_limit : int
        Answers that were cut off there.
    prompt_tokens : dict
        `min` and `max` of the prompts' lengths.
    seconds : dict
        To build the prompts, and to ask.
    """

    state: str = "measured"
    reason: str | None = None
    samples: list[dict[str, Any]] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    answer_tokens: int | None = None
    answers_at_limit: int = 0
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
