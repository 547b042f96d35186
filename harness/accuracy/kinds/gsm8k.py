"""GSM8K (Cobbe et al., 2021, arXiv:2110.14168): grade-school arithmetic by chain of thought, five worked examples.

The score is by flexible extraction (`extraction.number`): a right number counts in whatever form it is put. Beside it
stands the score `strict`, where only a number behind `####` counts, as in the examples; lm-eval reports the same two. A
model that loses the form but not the arithmetic falls in the second only.
"""

from harness.accuracy import data_set
from harness.accuracy.data_files import TEXT, item_name
from harness.accuracy.extraction import as_number
from harness.accuracy.kinds.interface import Asking, Kind, Row, Share
from harness.accuracy.task import Task

EXAMPLES = 5


def _worked(value: object) -> bool:
    return isinstance(value, str) and "####" in value and as_number(value.rpartition("####")[2]) is not None


def share(task: Task, asking: Asking) -> Share:
    """The block's questions, each with the worked examples."""
    test, examples = data_set.from_folder(task, KIND) if task.data_dir is not None else _hub()
    shown = [{"question": one["question"], "answer": one["answer"]} for one in examples[:EXAMPLES]]
    return data_set.divided([_row(one, shown) for one in test], task, asking)


def _hub() -> tuple[list[Row], list[Row]]:
    test = [{"id": f"gsm8k/test/{i}", **row} for i, row in enumerate(data_set.from_hub(KIND, "main", "test"))]
    train = [dict(row) for _, row in zip(range(EXAMPLES), data_set.from_hub(KIND, "main", "train"), strict=False)]
    return test, train


def _row(row: Row, examples: list[Row]) -> Row:
    name = item_name("gsm8k", row)
    return {
        "item_id": name,
        "document_id": name,
        "question": row["question"],
        "target": row["answer"].rpartition("####")[2].strip(),
        "examples": examples,
    }


def check(task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` where the data can't be had."""
    data_set.check(task, KIND)


KIND = Kind(
    modes={"generation": "gsm8k"},
    share=share,
    check=check,
    size=data_set.size,
    output_tokens=256,
    files=("gsm8k_test.jsonl.gz", "gsm8k_fewshot5.jsonl.gz"),
    hub="openai/gsm8k",
    fields={"question": TEXT, "answer": (_worked, 'a text that ends in "#### <number>"')},
    layout='gsm8k_test, gsm8k_fewshot5: id, question, answer (its last line is "#### <number>")',
)
