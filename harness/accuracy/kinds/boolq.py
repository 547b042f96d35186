"""BoolQ (Clark et al., 2019, arXiv:1905.10044): yes or no about a passage; questions on one passage are a cluster.

By log-likelihood the more probable of the two words is the answer, in lm-eval's form; generated, the question asks for
one of the two, and it is looked for in what the model says (`extraction.yes_or_no`).
"""

import hashlib

from harness.accuracy import data_set
from harness.accuracy.data_files import TEXT, item_name
from harness.accuracy.kinds.interface import Asking, Kind, Row, Share
from harness.accuracy.task import Task


def _yes_or_no(value: object) -> bool:
    return isinstance(value, int) and value in (0, 1)


def share(task: Task, asking: Asking) -> Share:
    """The block's questions."""
    rows = data_set.from_folder(task, KIND)[0] if task.data_dir is not None else _hub()
    return data_set.divided([_row(one) for one in rows], task, asking)


def _hub() -> list[Row]:
    rows = data_set.from_hub(KIND, None, "validation")
    return [{"id": f"boolq/val/{i}", **row, "label": int(row["answer"])} for i, row in enumerate(rows)]


def _row(row: Row) -> Row:
    passage = row["passage"]
    return {
        "item_id": item_name("boolq", row),
        "document_id": f"boolq/{hashlib.sha256(passage.encode()).hexdigest()[:16]}",
        "passage": passage,
        "question": row["question"].rstrip("?？ \n"),
        "label": int(row["label"]),
    }


def check(task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` where the data can't be had."""
    data_set.check(task, KIND)


KIND = Kind(
    modes={"loglikelihood": "boolq", "generation": "boolq_generation"},
    share=share,
    check=check,
    size=data_set.size,
    output_tokens=16,
    choices=2,
    files=("boolq_val.jsonl.gz",),
    hub="google/boolq",
    fields={"passage": TEXT, "question": TEXT, "label": (_yes_or_no, "0 or 1")},
    layout="boolq_val: id, passage, question, label (1 = yes)",
)
