"""`python -m bench questions from=FOLDER out=FILE`: long-document questions out of a user's own texts."""

import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from bench.config import Config
from harness.accuracy.builder import Built, Texts, Wanted, build, read_texts
from harness.accuracy.own_file import read_own
from harness.cache import Say
from harness.errors import ConfigError
from harness.files import write_bytes
from harness.models import prepare
from harness.traffic.text import load_tokenizer

Resolve = Callable[[list[str]], tuple[list[str], Config]]
KEYS = ("from", "out", "model", *(field.name for field in fields(Wanted)))


def make(arguments: list[str], resolve: Resolve, say: Say) -> list[str]:
    """Write the file that `arguments` ask for; what to print about it.

    Parameters
    ----------
    arguments : list of str
        ``from=`` (folder of .txt and .md files) and ``out=`` (a .jsonl file); perhaps ``model=`` (whose tokens are
        counted; the embedded model's if none is named), ``context_tokens=``, ``documents=``, ``questions=``, ``seed=``.
    resolve : callable
        Arguments → configuration: names the model.
    say : callable
        Told of progress.

    Raises
    ------
    ConfigError
        Naming the key that is wrong or missing.
    """
    given = dict(argument.partition("=")[::2] for argument in arguments)
    if unknown := sorted(set(given) - set(KEYS)):
        raise ConfigError(f"questions: unknown key {', '.join(unknown)}; allowed: {', '.join(KEYS)}")
    for key, example in (("from", "from=my-texts"), ("out", "out=questions.jsonl")):
        if not given.get(key):
            raise ConfigError(f"{key}: needed, such as {example}")
    out = Path(given["out"]).expanduser()
    if out.suffix != ".jsonl":
        raise ConfigError(f"out: {out} must be a .jsonl file")
    wanted = Wanted(**{field.name: _whole(given, field.name) for field in fields(Wanted) if field.name in given})
    texts = read_texts(given["from"])
    _, config = resolve([f"model={given.get('model', 'smollm2-135m')}"])
    if len(config.model) != 1:
        raise ConfigError(f"model: one whose tokens are counted; got {', '.join(config.model)}")
    name, spec = next(iter(config.model.items()))
    tokenizer = load_tokenizer(prepare(name, spec, say).path)
    built = build(texts.stream, tokenizer, wanted)
    if not built.rows:
        raise ConfigError(f"from: no question can be made of these texts: {'; '.join(built.missing)}")
    write_bytes(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in built.rows).encode())
    read_own(str(out))  # what was written can be asked
    return _summary(texts, built, wanted, out, name)


def _whole(given: dict[str, str], key: str) -> int:
    try:
        return int(given[key])
    except ValueError as error:
        raise ConfigError(f"{key}: '{given[key]}' must be a whole number") from error


def _summary(texts: Texts, built: Built, wanted: Wanted, out: Path, model: str) -> list[str]:
    documents = len({row["document_id"] for row in built.rows})
    lengths = [row["context_tokens"] for row in built.rows]
    return [
        f"{len(built.rows)} questions on {documents} documents, prompts of {min(lengths)} to {max(lengths)} tokens of "
        f"{model}; asked for {wanted.documents * wanted.questions} on {wanted.documents}",
        f"{len(texts.contents)} texts, {len(texts.stream):,} characters: {built.stretches} documents of this length",
        *(f"fewer because {reason}" for reason in built.missing),
        *(f"skipped {name}: {reason}" for name, reason in texts.skipped.items()),
        f"to ask them: accuracy=[own] accuracy.own.path={os.path.relpath(out)}",
    ]
