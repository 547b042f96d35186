"""Key-value retrieval: the value of one key out of a JSON object (Liu et al., 2023, arXiv:2307.03172).

Made from a seed at an exact length, or, with `data_dir`, the paper's own objects of 75 pairs. A score says whether the
value stands in the answer, which is the paper's criterion. Keys and values are random, so that guessing scores 0.

Made objects have nouns as keys and numbers as values. SmolLM2-135M in 16 bits found no value of a UUID (0 of 6 at 900
tokens). Of these it found 5, 5 and 4 of 8 at 900, 1,900 and 4,000 tokens where the question goes on in JSON; 0 of 6
where it is worded as in the paper (500 tokens) or posed as a chat (900).
"""

import hashlib
import json
import re
from dataclasses import replace

from harness.accuracy import data_set
from harness.accuracy.data_files import TEXT, item_name
from harness.accuracy.haystack import (
    Blank,
    Question,
    check_lengths,
    depth_of,
    digits,
    evenly_long,
    fitted,
    generated,
    rows_of,
    size_of,
    spread,
)
from harness.accuracy.kinds.interface import Asking, Kind, Row, Share, Size
from harness.accuracy.names import distinct, shuffled
from harness.accuracy.task import Task, answer_tokens_of
from harness.errors import ConfigError

HEAD = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"
COMPLETION = '\n\n{{"{key}":'
_ITEMS, _ITEM_TOKENS = 500, 5300
"""The paper's file: objects, and tokens of one (SmolLM2's). For estimates."""
CHAT = '\n\nWhat is the value of the key "{key}"? Answer with the value only.'


def _is_object(value: object) -> bool:
    """Whether a text is a JSON object of texts."""
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and bool(found) and all(isinstance(one, str) for one in found.values())


def question(asking: Asking, key: str) -> str:
    """What is appended to the object."""
    return (CHAT if asking.chat else COMPLETION).format(key=key)


def written(pairs: list[tuple[str, str]], filler: str) -> str:
    """The prompt's part before the question; the filler is the value of a last key."""
    lines = [f'"{key}": "{value}"' for key, value in [*pairs, *([("note", filler)] if filler else [])]]
    return HEAD + "{" + ",\n ".join(lines) + "}"


def document(task: Task, asking: Asking, blank: Blank) -> list[Row]:
    """The questions on one object."""
    rng = blank.rng
    nouns = shuffled(rng)
    keys = evenly_long(asking, rng, nouns[: len(nouns) // 2], lambda key: question(asking, key), task.questions)
    rest = [noun for noun in nouns if noun not in keys]
    # A pair takes more than four tokens in any tokenizer.
    values = digits(rng, task.questions + blank.tokens // 4)
    asked = list(zip(keys, values, strict=False))
    others = list(zip(distinct(rest), values[task.questions :], strict=False))
    depths = spread(rng, task.questions)

    def write(count: int, filler: str) -> str:
        pairs = others[:count]
        for before, (depth, pair) in enumerate(zip(depths, asked, strict=True)):
            pairs.insert(int(depth * count) + before, pair)
        return written(pairs, filler)

    texts = [question(asking, key) for key in keys]
    whole = fitted(asking, write, len(others), texts, blank.tokens)
    found = [
        Question(key, text, (value,), depth_of(whole, f'"{key}"'))
        for (key, value), text in zip(asked, texts, strict=True)
    ]
    return rows_of(asking, blank.document_id, whole, found)


def _own(task: Task) -> list[Row]:
    """The items of the user's file; raises `ConfigError` where a key isn't in its object."""
    (rows,) = data_set.from_folder(task, KIND)
    for row in rows:
        if json.loads(row["records"]).get(row["key"]) != row["value"]:
            raise ConfigError(
                f"data_dir: {task.data_dir}, {item_name('key-value', row)}: records have another value under the key"
            )
    return rows


def share(task: Task, asking: Asking) -> Share:
    """The block's questions: of the user's objects, or made from its seed."""
    if task.data_dir is None:
        return Share(generated(task, asking, document))
    found = data_set.divided([_named(row) for row in _own(task)], task, asking)
    return replace(found, rows=[_row(asking, row) for row in found.rows])


def _named(row: Row) -> Row:
    """An item with the names that it keeps; questions on equal objects share one."""
    object_id = f"key-value/{hashlib.sha256(row['records'].encode()).hexdigest()[:16]}"
    return {**row, "item_id": item_name("key-value", row), "document_id": object_id}


def _row(asking: Asking, row: Row) -> Row:
    records: str = row["records"]
    if "\\" in records:  # an escaped key would stand otherwise in the object than in the question
        records = json.dumps(json.loads(records), ensure_ascii=False, separators=(",\n ", ": "))
    whole, key, value = HEAD + records, _inside(row["key"]), _inside(row["value"])
    (place,) = re.findall(rf'"{re.escape(key)}"\s*:', whole)[-1:]
    asked = Question(
        row["key"], question(asking, key), tuple(dict.fromkeys([row["value"], value])), depth_of(whole, place)
    )
    (found,) = rows_of(asking, row["document_id"], whole, [asked])
    return {**found, "item_id": row["item_id"]}


def _inside(text: str) -> str:
    """A text as it stands within the quotation marks of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def check(task: Task, context_tokens: int) -> None:
    """Raise `ConfigError` where prompts and answers don't fit the servers, or the user's file is spoiled."""
    if task.data_dir is None:
        check_lengths(task, context_tokens)
    else:
        _own(task)


def size(task: Task) -> Size:
    """How much a block asks."""
    if task.data_dir is None:
        return size_of(task)
    items = task.limit or _ITEMS
    return Size(items, items, items * _ITEM_TOKENS, items * _ITEM_TOKENS, items * answer_tokens_of(task))


KIND = Kind(
    modes={"generation": "key_value"},
    share=share,
    check=check,
    size=size,
    output_tokens=64,
    files=("kv75.jsonl.gz",),
    fields={"records": (_is_object, "a JSON object of texts, as a text"), "key": TEXT, "value": TEXT},
    layout="kv75: id, records (a JSON object of texts, as a text), key, value (what records have under key)",
)
