"""What every generated kind promises, whatever tokenizer cuts its prompts."""

import hashlib
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers
from tokenizers_of_every_sort import SORTS, as_model

from harness.accuracy.chat import chat_template
from harness.accuracy.kinds import kinds
from harness.accuracy.kinds.interface import Asking, Row
from harness.accuracy.task import Task, check_task, kind_of
from harness.errors import ConfigError
from harness.model import Model

SIZES: dict[str, dict[str, Any]] = {
    "retrieval": {"questions": 5},
    "multi-needle": {"questions": 3, "needles": 3},
    "key-value": {"questions": 5},
    "variable-tracking": {"questions": 3, "hops": 2},
    "document-qa": {"questions": 3},
}
"""Of the kinds that make their questions."""


@pytest.fixture(scope="session", params=SORTS)
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return as_model(SORTS[request.param](), tmp_path_factory.mktemp("tokenizer") / request.param)


def rows(kind: str, model: Model, *, chat: bool = False, seed: int = 1, **more: Any) -> list[Row]:
    sizes = {"context_tokens": 1700, "documents": 2, **SIZES[kind], **more}
    task = Task(kind=kind, prompt="chat" if chat else "completion", **sizes)
    return kind_of(task).share(task, Asking(model, seed, chat=chat_template(model, {}) if chat else None)).rows


def test_every_generated_kind_is_met_here() -> None:
    assert set(SIZES) >= {name for name, kind in kinds().items() if not kind.files and not kind.takes_path}


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("kind", SIZES)
def test_every_prompt_has_exactly_the_tokens_asked_for_with_any_tokenizer(
    any_model: Model, kind: str, chat: bool
) -> None:
    tokenizer = Tokenizer.from_file(f"{any_model.path}/tokenizer.json")
    render = chat_template(any_model, {}).render if chat else str
    found = rows(kind, any_model, chat=chat, context_tokens=[1700, 2003])
    assert len(found) == 2 * 2 * SIZES[kind]["questions"]
    for row in found:
        sent = tokenizer.encode(render(row["prompt"]), add_special_tokens=False)
        assert len(sent.ids) == row["context_tokens"] == int(row["document_id"].split("/")[0].rpartition("-")[2])
        if chat:
            assert [sent.tokens.count(token) for token in ("<|start|>", "<|end|>")] == [2, 1], "one token each, once"


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("kind", SIZES)
def test_questions_of_a_document_share_it_as_their_prefix(any_model: Model, kind: str, chat: bool) -> None:
    by_document: dict[str, list[str]] = defaultdict(list)
    for row in rows(kind, any_model, chat=chat):
        by_document[row["document_id"]].append(row["prompt"])
    documents = [{prompt.rpartition("\n\n")[0] for prompt in prompts} for prompts in by_document.values()]
    assert [len(found) for found in documents] == [1, 1]
    assert documents[0] != documents[1]
    assert all(len(set(prompts)) == len(prompts) for prompts in by_document.values())


@pytest.mark.parametrize("kind", SIZES)
def test_answers_stand_in_the_document_only_and_differ_between_questions(any_model: Model, kind: str) -> None:
    by_document: dict[str, list[str]] = defaultdict(list)
    for row in rows(kind, any_model):
        document, _, question = row["prompt"].rpartition("\n\n")
        for target in row["targets"]:
            assert re.search(rf"\b{target}\b", document)
            assert not re.search(rf"\b{target}\b", question)
        by_document[row["document_id"]] += row["targets"]
    for targets in by_document.values():
        assert len(set(targets)) == len(targets)


@pytest.mark.parametrize("kind", SIZES)
def test_depths_are_spread_over_the_document_and_true(any_model: Model, kind: str) -> None:
    found = rows(kind, any_model, documents=1, context_tokens=6000)
    depths = [row["depth"] for row in found]
    assert depths == sorted(depths)
    assert depths[0] < 0.5 < depths[-1]
    for row in found:
        document = row["prompt"].rpartition("\n\n")[0]
        places = [re.search(rf"\b{target}\b", document).start() / len(document) for target in row["targets"]]  # type: ignore[union-attr]
        assert sum(places) / len(places) == pytest.approx(row["depth"], abs=0.12)


@pytest.mark.parametrize("kind", SIZES)
def test_equal_seeds_give_equal_questions_and_other_seeds_others(model: Model, kind: str) -> None:
    one, same, other = (rows(kind, model, seed=seed) for seed in (5, 5, 6))
    assert one == same
    assert not {row["item_id"] for row in one} & {row["item_id"] for row in other}
    assert {row["prompt"] for row in one}.isdisjoint(row["prompt"] for row in other)
    assert len({row["item_id"] for row in one}) == len(one)


@pytest.mark.parametrize("kind", SIZES)
def test_what_can_not_be_made_is_refused_by_key(model: Model, kind: str) -> None:
    with pytest.raises(ConfigError, match=r"^context_tokens: 60 are too few"):
        rows(kind, model, context_tokens=60)
    with pytest.raises(ConfigError, match=r"^questions: 200 are too many|^context_tokens: .* too few"):
        rows(kind, model, questions=200)


@pytest.mark.parametrize("kind", SIZES)
def test_prompts_and_answers_must_fit_the_servers(kind: str) -> None:
    longest = 900 + kinds()[kind].output_tokens
    check_task("t", Task(kind=kind, context_tokens=[500, 900]), context_tokens=longest)
    with pytest.raises(ConfigError, match=r"accuracy\.t\.context_tokens: 900 .*up to 899"):
        check_task("t", Task(kind=kind, context_tokens=[500, 900]), context_tokens=longest - 1)
    with pytest.raises(ConfigError, match=r"accuracy\.t\.context_tokens: .*needs its prompts' length"):
        check_task("t", Task(kind=kind), context_tokens=4096)


@pytest.mark.parametrize("kind", SIZES)
def test_a_tokenizer_that_gives_only_even_lengths_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    tokenizer = SORTS["characters"]()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(one, one * 2) for one in map(chr, range(9, 127))])
    pairs = as_model(tokenizer, tmp_path / "pairs")
    with pytest.raises(ConfigError, match=r"^context_tokens: prompts of exactly 4001 tokens can't be made .* of pairs"):
        rows(kind, pairs, context_tokens=4001, documents=1)
    assert {row["context_tokens"] for row in rows(kind, pairs, context_tokens=4000, documents=1)} == {4000}


@pytest.mark.parametrize("kind", SIZES)
def test_very_long_prompts_can_be_made(tmp_path: Path, kind: str) -> None:
    """Of 131,072 tokens, where names and numbers must not run out."""
    model = as_model(SORTS["byte-level-bpe"](), tmp_path / "long")
    found = rows(kind, model, context_tokens=131_072, documents=1)
    assert {row["context_tokens"] for row in found} == {131_072}


PINNED = {
    "retrieval": "9cf88bfa3310ed9241868c7c7717de8b6c2af8598fc4447d787eb81b2c076572",
    "multi-needle": "68b78dbece4fc26fb536fd1b3a8ab2543b723e38fb350372ffb0538f937cf87b",
    "key-value": "149c6a9c90c57af943cecd786f0c8a28de64716ffdbd676058c9f8017fed2eeb",
    "variable-tracking": "d4b8c3c94a8b2377937e08dd14ac780b55e429304e9c14c288e9c8b2bd5d1a44",
    "document-qa": "eeaa569b114761b1dc7ea96e16adb8180a840bfe1ca07ea9dbdf5484d9dfad2e",
}


@pytest.mark.parametrize("kind", PINNED)
def test_the_generator_is_pinned(tmp_path: Path, kind: str) -> None:
    """A change of the generator changes what scores mean: it must be seen, and then this hash is set anew.

    Characters are tokens here, so that no tokenizer's training counts; the text is the generator's own.
    """
    model = as_model(SORTS["characters"](), tmp_path)
    content = json.dumps(rows(kind, model, context_tokens=[2500, 3001], seed=11), sort_keys=True).encode()
    assert hashlib.sha256(content).hexdigest() == PINNED[kind]
