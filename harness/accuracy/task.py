"""An accuracy task: what is asked, and the check that it can be asked at all. Schema of `scenarios/accuracy/*.yaml`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.accuracy.data_files import DATA_LAYOUT, read
from harness.errors import ConfigError

TASKS_DIR = Path(__file__).parent / "tasks"


@dataclass(frozen=True)
class Kind:
    """What a kind of task needs and exercises.

    Attributes
    ----------
    modes : mapping of str to str
        Way of asking → name of the YAML in `tasks/`; the first is used where the engine can do it.
    files : tuple of str
        Files of `data_dir`, questions first. Empty: the items are generated.
    hub : str or None
        Data set on the hub, used without a `data_dir`.
    output_tokens : int
        Most tokens of an answer.
    choices : int
        Number of choices; 0 for an open answer.
    """

    modes: Mapping[str, str]
    files: tuple[str, ...] = ()
    hub: str | None = None
    output_tokens: int = 1
    choices: int = 0


KINDS: Mapping[str, Kind] = {
    "retrieval": Kind({"generation": "retrieval"}, output_tokens=8),
    "gsm8k": Kind(
        {"generation": "gsm8k"},
        files=("gsm8k_test.jsonl.gz", "gsm8k_fewshot5.jsonl.gz"),
        hub="openai/gsm8k",
        output_tokens=256,
    ),
    "mmlu": Kind(
        {"loglikelihood": "mmlu", "generation": "mmlu_generation"},
        files=("mmlu_test.jsonl.gz", "mmlu_dev.jsonl.gz"),
        hub="cais/mmlu",
        output_tokens=4,
        choices=4,
    ),
    "boolq": Kind(
        {"loglikelihood": "boolq", "generation": "boolq_generation"},
        files=("boolq_val.jsonl.gz",),
        hub="google/boolq",
        output_tokens=4,
        choices=2,
    ),
    "humaneval": Kind(
        {"generation": "humaneval"},
        files=("humaneval.jsonl.gz",),
        hub="openai/openai_humaneval",
        output_tokens=384,
    ),
}

EXERCISES: Mapping[str, tuple[str, ...]] = {
    "loglikelihood": ("prefill",),
    "generation": ("prefill", "decode", "prefix reuse"),
}
"""Which paths of the cache a way of asking goes through. Prompt log-probabilities bypass vLLM's prefix cache."""


@dataclass
class Task:
    """An accuracy task.

    Attributes
    ----------
    title : str
        Label for tables.
    kind : str
        One of `KINDS`.
    mode : str
        ``loglikelihood``, ``generation``, or ``auto``: the kind's first way that the engine can do. The way is part
        of the item ids, so that answers to differently asked questions are never paired.
    context_tokens : int or None
        Exact prompt length of `retrieval`, in tokens.
    documents, questions : int
        Haystacks of `retrieval`, and questions to each.
    limit : int or None
        Items of a block, for kinds that have a data set; None: all. Blocks divide the data set among them.
    data_dir : str or None
        Folder with the data set (layout: `data_files.DATA_LAYOUT`); None: the hub.
    num_concurrent : int
        Requests at a time, equal for all deployments.
    margin_pp : float
        Largest loss that still counts as none, in percentage points.
    timeout_s : float
        A question that takes longer is answered wrong.
    allow_code_execution : bool
        Run the code that the model wrote (`humaneval`), without a sandbox.
    """

    title: str = ""
    kind: str = "retrieval"
    mode: str = "auto"
    context_tokens: int | None = None
    documents: int = 2
    questions: int = 8
    limit: int | None = None
    data_dir: str | None = None
    num_concurrent: int = 1
    margin_pp: float = 10.0
    timeout_s: float = 300.0
    allow_code_execution: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind: '{self.kind}' is unknown; allowed: {', '.join(KINDS)}")
        modes = KINDS[self.kind].modes
        if self.mode != "auto" and self.mode not in modes:
            raise ConfigError(f"mode: {self.kind} can't be asked by '{self.mode}'; allowed: auto, {', '.join(modes)}")
        for key, value in (
            ("documents", self.documents),
            ("questions", self.questions),
            ("num_concurrent", self.num_concurrent),
        ):
            if value < 1:
                raise ConfigError(f"{key}: {value} must be >= 1")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit: {self.limit} must be >= 1, or null for all items")
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout_s: {self.timeout_s} must be > 0")
        if self.margin_pp <= 0:
            raise ConfigError(f"margin_pp: {self.margin_pp} must be > 0 percentage points")


def mode_of(task: Task, reads_echo: bool) -> str:
    """The way of asking on an engine that serves `echo`, or doesn't."""
    if task.mode != "auto":
        return task.mode
    modes = list(KINDS[task.kind].modes)
    return next((mode for mode in modes if reads_echo or mode != "loglikelihood"), modes[0])


def check_task(name: str, task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` when the task can't be asked on a server of `context_tokens`; asks no server.

    A user's data files are read whole: what is wrong with them shows here, not after the first launch.

    Parameters
    ----------
    name : str
        Its key in the configuration, for the error texts.
    task : Task
    context_tokens : int
        Longest sequence (prompt + answer) of the servers.
    """
    kind = KINDS[task.kind]
    key = f"accuracy.{name}"
    if task.kind == "retrieval":
        if task.context_tokens is None:
            raise ConfigError(f"{key}.context_tokens: retrieval needs its prompts' length in tokens")
        if task.context_tokens + kind.output_tokens > context_tokens:
            raise ConfigError(
                f"{key}.context_tokens: {task.context_tokens} tokens and an answer of {kind.output_tokens} don't fit "
                f"the servers' {context_tokens}; allowed: up to {context_tokens - kind.output_tokens}"
            )
        return
    if task.data_dir is None:
        if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
            raise ConfigError(
                f"{key}.data_dir: {task.kind} needs the hub's data set {kind.hub} or a folder, and HF_HUB_OFFLINE "
                f"forbids the hub. A folder holds {', '.join(kind.files)}; {DATA_LAYOUT}"
            )
        return
    try:
        read(task.kind, kind.files, task.data_dir)
    except ConfigError as error:
        raise ConfigError(f"{key}.data_dir: {error}") from error
