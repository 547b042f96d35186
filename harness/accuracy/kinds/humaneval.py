"""HumanEval (Chen et al., 2021, arXiv:2107.03374): functions to write, scored by running their tests in a sandbox."""

from collections.abc import Sequence

from harness.accuracy import data_set
from harness.accuracy.code.answers import program
from harness.accuracy.code.judge import SandboxFailed, judged
from harness.accuracy.data_files import TEXT
from harness.accuracy.kinds.interface import Asking, Kind, Row, Share
from harness.accuracy.sandbox.available import NoSandbox, sandbox
from harness.accuracy.sandbox.process import NONE, Sandbox
from harness.accuracy.task import Task

_AS_CHAT = (
    "Complete the Python function below. Answer with the whole function, its imports included, in one code block and "
    "nothing else.\n\n```python\n{prompt}```"
)


def share(task: Task, asking: Asking) -> Share:
    """The block's problems."""
    rows = data_set.from_folder(task, KIND)[0] if task.data_dir is not None else data_set.from_hub(KIND, None, "test")
    return data_set.divided([_row(row, asking.chat is not None) for row in rows], task, asking)


def _row(row: Row, chat: bool) -> Row:
    text = row["prompt"]
    return {
        "item_id": row["task_id"],
        "document_id": row["task_id"],
        "text": _AS_CHAT.format(prompt=text if text.endswith("\n") else f"{text}\n") if chat else text,
        **{key: row[key] for key in ("prompt", "test", "entry_point")},
    }


def unsupported(task: Task) -> str | None:
    """Why answers can't be scored here: no sandbox, and the user doesn't insist."""
    try:
        sandbox()
    except NoSandbox as error:
        if not task.allow_unsandboxed_code:
            return (
                f"scoring runs code that the model wrote, and this machine has no sandbox for it ({error}); install "
                "bubblewrap, or, at your own risk, set the task's allow_unsandboxed_code=true"
            )
    return None


def score(name: str, task: Task, samples: Sequence[Row], rows: Sequence[Row]) -> Row:
    """Score generated functions by running their tests; what changes in the results."""
    if reason := unsupported(task):
        return {"state": "unsupported", "reason": reason, "sandbox": None}
    found = _sandbox()
    try:
        for sample, row in zip(samples, rows, strict=True):
            _score_one(found, task, sample, row)
    except SandboxFailed as error:
        return {"state": "failed", "reason": str(error), "sandbox": found.name}
    if samples and all(sample["score"] is None for sample in samples):
        return {
            "state": "unsupported",
            "reason": f"no test can be judged: {samples[0]['error']}",
            "sandbox": found.name,
        }
    return {"sandbox": found.name}


def _sandbox() -> Sandbox:
    try:
        return sandbox()
    except NoSandbox:
        return NONE


def _score_one(found: Sandbox, task: Task, sample: Row, row: Row) -> None:
    """A question without an answer is wrong; one whose test can't be judged has no score."""
    if sample["error"] is not None:
        sample["score"] = 0.0
        return
    name = row["entry_point"]
    code = program(row["prompt"], sample["answer"], name, chat=task.prompt == "chat")
    verdict = judged(found, prompt=row["prompt"], program=code, test=row["test"], entry_point=name)
    if verdict.passed is None:
        sample["error"] = f"not judged: {verdict.why}"
    sample["score"] = None if verdict.passed is None else float(verdict.passed)


def check(task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` where the data can't be had."""
    data_set.check(task, KIND)


KIND = Kind(
    modes={"generation": "humaneval"},
    share=share,
    check=check,
    size=data_set.size,
    output_tokens=384,
    files=("humaneval.jsonl.gz",),
    hub="openai/openai_humaneval",
    fields={"task_id": TEXT, "prompt": TEXT, "test": TEXT, "entry_point": TEXT},
    layout="humaneval: task_id, prompt, test, entry_point",
    unsupported=unsupported,
    score=score,
)
