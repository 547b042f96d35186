"""MMLU (Hendrycks et al., 2021, arXiv:2009.03300): knowledge in 57 subjects.

Five examples of the same subject stand before the question, in lm-eval's form. By log-likelihood the most probable of
the four letters is the answer; generated, the letter is looked for in what the model says (`extraction.letter`).
"""

from collections import defaultdict

from harness.accuracy import data_set
from harness.accuracy.data_files import TEXT, item_name
from harness.accuracy.kinds.interface import Asking, Kind, Row, Share
from harness.accuracy.task import Task

EXAMPLES = 5


def _choices(value: object) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(isinstance(one, str) for one in value)


def _index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 3


def share(task: Task, asking: Asking) -> Share:
    """The block's questions, each with its subject's examples."""
    test, dev = data_set.from_folder(task, KIND) if task.data_dir is not None else _hub()
    examples: dict[str, list[Row]] = defaultdict(list)
    for one in dev:
        examples[one["subject"]].append({key: one[key] for key in ("question", "choices", "answer")})
    return data_set.divided([_row(one, examples[one["subject"]][:EXAMPLES]) for one in test], task, asking)


def _hub() -> tuple[list[Row], list[Row]]:
    test = [{"id": f"mmlu/test/{i}", **row} for i, row in enumerate(data_set.from_hub(KIND, "all", "test"))]
    return test, [dict(row) for row in data_set.from_hub(KIND, "all", "dev")]


def _row(row: Row, examples: list[Row]) -> Row:
    name = item_name("mmlu", row)
    return {
        "item_id": name,
        "document_id": name,
        "subject": row["subject"].replace("_", " "),
        "examples": examples,
        **{key: row[key] for key in ("question", "choices", "answer")},
    }


def check(task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` where the data can't be had."""
    data_set.check(task, KIND)


KIND = Kind(
    modes={"loglikelihood": "mmlu", "generation": "mmlu_generation"},
    share=share,
    check=check,
    size=data_set.size,
    output_tokens=16,
    choices=4,
    files=("mmlu_test.jsonl.gz", "mmlu_dev.jsonl.gz"),
    hub="cais/mmlu",
    fields={
        "subject": TEXT,
        "question": TEXT,
        "choices": (_choices, "a list of 4 texts"),
        "answer": (_index, "0, 1, 2 or 3"),
    },
    layout="mmlu_test, mmlu_dev: id, subject, question, choices (4 texts), answer (0-3)",
)
