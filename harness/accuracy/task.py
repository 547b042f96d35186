"""An accuracy task: what is asked, and the check that it can be asked at all. Schema of `scenarios/accuracy/*.yaml`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.accuracy.chat import ChatTemplate, chat_template
from harness.accuracy.kinds.interface import Asking
from harness.errors import ConfigError
from harness.model import Model

if TYPE_CHECKING:
    from harness.accuracy.kinds.interface import Kind
    from harness.backends.interface import Backend

TASKS_DIR = Path(__file__).parent / "tasks"
PROMPTS = ("completion", "chat")


@dataclass
class Task:
    """An accuracy task.

    Attributes
    ----------
    title : str
        Label for tables.
    kind : str
        A module of `harness/accuracy/kinds/`.
    mode : str
        ``loglikelihood``, ``generation``, or ``auto``: the kind's first way that the engine can do. The way is part
        of the item ids, so that answers to differently asked questions are never paired.
    prompt : str
        ``completion``, or ``chat``: one user message in the model's own chat template, applied before sending.
    chat_template_arguments : dict
        Passed to the template, such as ``enable_thinking: false``.
    context_tokens : int, list of int, or None
        Exact prompt lengths of generated kinds, in tokens.
    documents : int
        Documents of each length, of generated kinds.
    questions : int
        Questions to each document; the places that they ask for lie evenly over its depth.
    needles : int
        `multi-needle`: values that one question asks for.
    hops : int
        `variable-tracking`: assignments from the first variable of a chain to its last.
    path : str or None
        `own`: a file of a user's own questions (docs/accuracy.md).
    limit : int or None
        Items of a block, for kinds that have a data set; None: all. Blocks divide the data set among them.
    data_dir : str or None
        Folder with the data set; None: the hub.
    answer_tokens : int or None
        Most tokens of a generated answer; None: the kind's own number.
    num_concurrent : int
        Requests at a time, equal for all deployments.
    under_load : str or None
        Name of a selected load that runs while the questions are asked, so that batching, preemption and eviction are
        in play; None: the server is otherwise idle.
    margin_pp : float or None
        Largest loss that still counts as none, in percentage points.
    margin_relative_pct : float or None
        The same, in per cent of the baseline's score; exactly one of the two is set.
    timeout_s : float
        A question that takes longer is answered wrong.
    allow_unsandboxed_code : bool
        Run the code that the model wrote (`humaneval`) even where there is no sandbox.
    """

    title: str = ""
    kind: str = "retrieval"
    mode: str = "auto"
    prompt: str = "completion"
    chat_template_arguments: dict[str, Any] = field(default_factory=dict)
    context_tokens: Any = None
    documents: int = 2
    questions: int = 8
    needles: int = 4
    hops: int = 3
    path: str | None = None
    limit: int | None = None
    data_dir: str | None = None
    answer_tokens: int | None = None
    num_concurrent: int = 1
    under_load: str | None = None
    margin_pp: float | None = 10.0
    margin_relative_pct: float | None = None
    timeout_s: float = 300.0
    allow_unsandboxed_code: bool = False

    def __post_init__(self) -> None:
        from harness.accuracy.kinds import kinds  # the kinds need this class

        if self.kind not in kinds():
            raise ConfigError(f"kind: '{self.kind}' is unknown; allowed: {', '.join(kinds())}")
        modes = kind_of(self).modes
        if self.mode != "auto" and self.mode not in modes:
            raise ConfigError(f"mode: {self.kind} can't be asked by '{self.mode}'; allowed: auto, {', '.join(modes)}")
        if self.prompt not in PROMPTS:
            raise ConfigError(f"prompt: '{self.prompt}' is unknown; allowed: {', '.join(PROMPTS)}")
        for key in ("documents", "questions", "needles", "hops", "num_concurrent"):
            if getattr(self, key) < 1:
                raise ConfigError(f"{key}: {getattr(self, key)} must be >= 1")
        if self.answer_tokens is not None and self.answer_tokens < 1:
            raise ConfigError(f"answer_tokens: {self.answer_tokens} must be >= 1, or null for the kind's own number")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"limit: {self.limit} must be >= 1, or null for all items")
        if not 0 < self.timeout_s < float("inf"):
            raise ConfigError(f"timeout_s: {self.timeout_s} must be > 0")
        self._check_lengths()
        self._check_margin()

    def _check_lengths(self) -> None:
        given = self.context_tokens
        for one in given if isinstance(given, list) else [] if given is None else [given]:
            if not isinstance(one, int) or isinstance(one, bool) or one < 1:
                raise ConfigError(f"context_tokens: {one} must be a number of tokens >= 1, or a list of such")
        if isinstance(given, list) and (not given or len(set(given)) < len(given)):
            raise ConfigError("context_tokens: a list must hold lengths, each once")

    def _check_margin(self) -> None:
        # A margin of 10 pp stands where none is set, so that naming a relative one is enough.
        if self.margin_relative_pct is not None and self.margin_pp == Task.margin_pp:
            self.margin_pp = None
        margins = {"margin_pp": self.margin_pp, "margin_relative_pct": self.margin_relative_pct}
        stated = {key: value for key, value in margins.items() if value is not None}
        if len(stated) != 1:
            raise ConfigError("margin_pp, margin_relative_pct: set exactly one, and the other to null")
        for key, value in stated.items():
            if not 0 < value <= 100:
                raise ConfigError(f"{key}: {value} must be > 0 and at most 100")

    @property
    def lengths(self) -> list[int]:
        """Prompt lengths of generated kinds; empty where none is given."""
        given = self.context_tokens
        return [] if given is None else list(given) if isinstance(given, list) else [given]


def kind_of(task: Task) -> "Kind":
    """The task's kind."""
    from harness.accuracy.kinds import kinds

    return kinds()[task.kind]


def answer_tokens_of(task: Task) -> int:
    """Most tokens of a generated answer."""
    return task.answer_tokens or kind_of(task).output_tokens


def mode_of(task: Task, reads_echo: bool) -> str:
    """The way of asking on an engine that serves `echo`, or doesn't."""
    if task.mode != "auto":
        return task.mode
    modes = list(kind_of(task).modes)
    return next((mode for mode in modes if reads_echo or mode != "loglikelihood"), modes[0])


def unsupported_on(task: Task, backend: "Backend | type[Backend]") -> str | None:
    """Why an engine, or this machine, can't do the task; None: it can. Asks no engine, and needs no model."""
    here = kind_of(task).unsupported
    if here is not None and (reason := here(task)) is not None:
        return reason
    if mode_of(task, backend.reads_echo) == "loglikelihood" and not backend.reads_echo:
        return f"{backend.title} ignores `echo`: no prompt log-probabilities"
    return None


def exercises(task: Task, backend: "Backend | type[Backend]", prefix_reuse: bool) -> tuple[str, ...]:
    """The paths of the cache that a task goes through on an engine, with or without reuse of prefixes."""
    if mode_of(task, backend.reads_echo) == "loglikelihood":
        paths = ["prefill"]
        reused = prefix_reuse and backend.echo_reads_prefix_cache
    else:
        paths = ["prefill", "decode"]
        reused = prefix_reuse
    paths += ["prefix reuse"] if reused else []
    return (*paths, "under load") if task.under_load else tuple(paths)


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
    kind = kind_of(task)
    try:
        if task.path and not kind.takes_path:
            raise ConfigError(f"path: {task.kind} reads no file of questions; kind own does")
        if not kind.files and not kind.takes_path and not task.lengths:
            raise ConfigError(f"context_tokens: {task.kind} needs its prompts' length in tokens")
        if task.lengths and task.answer_tokens and max(task.lengths) + task.answer_tokens > context_tokens:
            raise ConfigError(
                f"answer_tokens: {max(task.lengths)} tokens and an answer of {task.answer_tokens} don't fit the "
                f"servers' {context_tokens}"
            )
        kind.check(task, context_tokens)
    except ConfigError as error:
        raise ConfigError(f"accuracy.{name}.{error}") from error


def check_on_model(name: str, task: Task, model: Model) -> None:
    """Raise `ConfigError` when the task can't be asked of a model: its chat template, or the questions themselves.

    The first block's questions are made once, so that lengths that its tokenizer can't give and data that can't be had
    show before anything is launched.
    """
    try:
        chat = _checked_template(task, model) if task.prompt == "chat" else None
        kind_of(task).share(task, Asking(model, seed=0, chat=chat))
    except ConfigError as error:
        raise ConfigError(f"accuracy.{name}.{error}") from error


def _checked_template(task: Task, model: Model) -> ChatTemplate:
    template = chat_template(model, task.chat_template_arguments)
    try:
        template.render("?")
    except Exception as error:  # a template is a program: it may raise anything
        raise ConfigError(f"chat_template_arguments: {type(error).__name__}: {error}") from error
    return template
