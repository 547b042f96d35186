"""What a kind of accuracy task is: where its questions come from, how they may be asked, and how many there are."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.accuracy.chat import ChatTemplate
from harness.model import Model

if TYPE_CHECKING:
    from harness.accuracy.task import Task

Row = dict[str, Any]
Field = tuple[Callable[[object], bool], str]
"""Whether a value will do, and what will, in words."""


@dataclass(frozen=True)
class Share:
    """A block's questions, equal for all launches of the block.

    Attributes
    ----------
    rows : list of dict
        The questions, each with `item_id` and `document_id`, and what the kind's YAML reads; generated ones also have
        `context_tokens` (the prompt's length) and `depth` (0 to 1, where in the document the answer lies).
    data_set_items : int or None
        Questions that the whole data set has; None: they are generated.
    repeated : int
        How many of `rows` an earlier block of the run asked too, the data set being used up.
    """

    rows: list[Row]
    data_set_items: int | None = None
    repeated: int = 0


@dataclass(frozen=True)
class Asking:
    """For whom questions are made.

    Attributes
    ----------
    seed : int
        The block's: generated questions differ between blocks.
    block : int
        Its index: which part of a data set is asked.
    run_seed : int
        Equal for all blocks of a run: the order in which a data set is divided.
    chat : ChatTemplate or None
        How a question is posed as a chat; None: as a completion. Generated prompts have their exact length with it.
    """

    model: Model
    seed: int
    block: int = 0
    run_seed: int = 0
    chat: ChatTemplate | None = None


@dataclass(frozen=True)
class Size:
    """How much a block asks, for the plan's time estimate and sample sizes.

    Attributes
    ----------
    questions, documents : int
        Of one block; questions on one document are one cluster.
    prompt_tokens : int
        Of all prompts together.
    distinct_prompt_tokens : int
        What is left of them where a document that several questions share as their prefix is computed once.
    output_tokens : int
        Of all answers together, at most.
    data_set_questions, data_set_documents : int or None
        What the whole data set has: more blocks ask the same again. None: made from the seed, or not read yet.
    """

    questions: int
    documents: int
    prompt_tokens: int
    distinct_prompt_tokens: int
    output_tokens: int
    data_set_questions: int | None = None
    data_set_documents: int | None = None


@dataclass(frozen=True)
class Kind:
    """A kind of task; each module of this package has one as `KIND`, and its name is the module's.

    Attributes
    ----------
    modes : mapping of str to str
        Way of asking (``loglikelihood``, ``generation``) → name of the YAML in `tasks/`; the first is used where the
        engine can do it.
    share : callable
        The block's questions. Raises `ConfigError` where they can't be made.
    check : callable
        Called with the task and the longest sequence of the servers, in tokens, before anything is launched; raises
        `ConfigError` whose text begins with the task's key that is wrong.
    size : callable
        How much a block asks.
    output_tokens : int
        Most tokens of an answer, as the YAML has it.
    choices : int
        Number of choices; 0 for an open answer.
    files, hub, fields, layout
        Of a data set: files of `data_dir` (questions first), the hub's name of it, what each line must hold, and one
        line that describes the layout to a person. Empty: the items are generated.
    takes_path : bool
        Whether the questions come out of the file `task.path`.
    chance : callable or None
        What the best constant answer scores on these rows; None: as `choices` and the right answers have it.
    text_references : bool
        Whether the right answer is a text of several words, which BLEU and ROUGE can be held against.
    unsupported : callable or None
        Called with the task: why this machine can't do it, or None.
    score : callable or None
        Scores answers that lm-eval can't: called with the task's name, the task, the samples (changed in place) and
        the rows; returns what changes in the results.
    """

    modes: Mapping[str, str]
    share: "Callable[[Task, Asking], Share]"
    check: "Callable[[Task, int], None]"
    size: "Callable[[Task], Size]"
    output_tokens: int = 1
    choices: int = 0
    files: tuple[str, ...] = ()
    hub: str | None = None
    fields: Mapping[str, Field] = field(default_factory=dict)
    layout: str = ""
    takes_path: bool = False
    chance: "Callable[[Sequence[Row]], float] | None" = None
    text_references: bool = False
    unsupported: "Callable[[Task], str | None] | None" = None
    score: "Callable[[str, Task, Sequence[Row], Sequence[Row]], Row] | None" = None
