import hashlib
import json
from collections import defaultdict
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from harness.accuracy import passages
from harness.accuracy.kinds.retrieval import as_rows, items
from harness.errors import ConfigError
from harness.model import Model, ModelShape
from harness.traffic.text import corpus_of


@pytest.mark.parametrize("context_tokens", [500, 901, 1500])
def test_every_prompt_has_exactly_the_tokens_asked_for(model: Model, context_tokens: int) -> None:
    tokenizer = Tokenizer.from_file(f"{model.path}/tokenizer.json")
    found = items(model, documents=2, questions=5, context_tokens=context_tokens, seed=1)
    assert len(found) == 10
    assert {len(tokenizer.encode(item.prompt, add_special_tokens=False).ids) for item in found} == {context_tokens}
    assert {item.context_tokens for item in found} == {context_tokens}


def test_the_answer_stands_in_its_needle_and_not_in_the_question(model: Model) -> None:
    for item in items(model, documents=2, questions=4, context_tokens=700, seed=1):
        city = item.item_id.rpartition("/")[2]
        assert item.prompt.count(item.target) == item.prompt.count(f"{city} {item.target}") == 2
        assert item.target not in item.prompt.rpartition("\n\n")[2]


def test_questions_of_a_document_share_it_as_their_prefix(model: Model) -> None:
    by_document = defaultdict(list)
    for item in items(model, documents=2, questions=4, context_tokens=700, seed=1):
        by_document[item.document_id].append(item.prompt.rpartition("\n\n")[0])
    assert [len(set(haystacks)) for haystacks in by_document.values()] == [1, 1]
    assert len({haystacks[0] for haystacks in by_document.values()}) == 2


def test_depths_cover_the_haystack_and_are_true(model: Model) -> None:
    found = items(model, documents=1, questions=8, context_tokens=1500, seed=1)
    assert [int(item.depth * 8) for item in found] == pytest.approx(list(range(8)), abs=1)
    for item in found:
        assert item.prompt.index(item.target) / len(item.prompt) == pytest.approx(item.depth, abs=0.1)


def test_equal_seeds_give_equal_prompts_and_other_seeds_others(model: Model) -> None:
    one, same, other = (items(model, documents=1, questions=3, context_tokens=500, seed=seed) for seed in (5, 5, 6))
    assert one == same
    assert not {item.item_id for item in one} & {item.item_id for item in other}
    assert one[0].prompt != other[0].prompt


def test_too_short_a_context_is_refused_by_name(model: Model) -> None:
    with pytest.raises(ConfigError, match="context_tokens"):
        items(model, documents=1, questions=8, context_tokens=100, seed=1)
    with pytest.raises(ConfigError, match="questions"):
        items(model, documents=1, questions=500, context_tokens=6000, seed=1)


def test_the_generator_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the generator changes what scores mean: it must be seen, and then this hash is set anew.

    Words are tokens here and the text is fixed, so that neither a tokenizer's training nor the Python version counts.
    """
    vocabulary = {"?": 0, **{f"word{n}": n for n in range(1, 98)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = corpus_of([1 + n * n * n % 97 for n in range(4000)])
    monkeypatch.setattr(passages, "corpus", lambda path: text)
    words = Model("words", ModelShape(vocab=len(vocabulary)), str(tmp_path), None, "", "")
    found = as_rows(items(words, documents=2, questions=4, context_tokens=300, seed=11))
    content = json.dumps(found, sort_keys=True).encode()
    assert hashlib.sha256(content).hexdigest() == "83db63006f44b7d2491a8a42dbb61f810264f5f2d0e4e3539961ff39cca5a128"
