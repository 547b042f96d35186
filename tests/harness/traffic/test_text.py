"""Prompt text: real, of exact length, and never the same start twice."""

import pytest

from harness.errors import ConfigError, SetupError
from harness.model import Model
from harness.traffic.segments import segment_tokens
from harness.traffic.text import HEAD_TOKENS, corpus, corpus_of, encode, load_tokenizer


def test_slices_have_exactly_the_length_asked(model: Model) -> None:
    text = corpus(model.path)
    _, window = text.readers(seed=1)
    assert [len(text.ids(window.take(n))) for n in (1, 31, 32, 5000, 1_000_000)] == [1, 31, 32, 5000, 1_000_000]


def test_text_is_the_language_reference(model: Model) -> None:
    text = load_tokenizer(model.path).decode(list(corpus(model.path).tokens[:200]))
    assert "assert" in text and "statement" in text


def test_equal_seeds_give_equal_slices_and_others_do_not(model: Model) -> None:
    text = corpus(model.path)
    assert text.readers(3)[1].take(500) == text.readers(3)[1].take(500)
    assert text.readers(3)[1].take(500) != text.readers(4)[1].take(500)


def test_no_start_is_handed_out_twice_however_often_the_text_is_used_up() -> None:
    text = corpus_of([i % 700 for i in range(8000)])  # much repeated text: 700 different starts
    warmup, window = text.readers(seed=1)
    texts = [text.ids(reader.take_start(100)) for reader in [window] * 3000 + [warmup] * 500]
    assert {len(ids) for ids in texts} == {100}
    assert len({tuple(ids[:HEAD_TOKENS]) for ids in texts}) == len(texts)


def test_a_start_is_salted_only_where_the_corpus_has_none_left() -> None:
    _, window = corpus_of([i % 700 for i in range(8000)]).readers(seed=1)
    salted = [isinstance(window.take_start(10)[0], str) for _ in range(900)]
    assert salted == [False] * 700 + [True] * 200


def test_warm_up_and_window_share_no_text() -> None:
    text = corpus_of(list(range(8000)))
    warmup, window = text.readers(seed=1)
    first = {token for _ in range(50) for token in text.ids(warmup.take(60))}
    second = {token for _ in range(50) for token in text.ids(window.take(60))}
    assert not first & second


def test_within_a_lap_slices_do_not_overlap() -> None:
    text = corpus_of(list(range(8000)))
    _, window = text.readers(seed=1)
    tokens = [token for _ in range(70) for token in text.ids(window.take(100))]
    assert len(set(tokens)) == 7000


def test_segments_are_slices_or_token_ids() -> None:
    text = corpus_of(list(range(1000, 9000)))
    assert list(text.ids([(3, 2), "7,8", (0, 1)])) == [1003, 1004, 7, 8, 1000]
    assert [segment_tokens(segment) for segment in [(3, 2), "7,8", "5"]] == [2, 2, 1]


def test_text_that_has_no_further_start_is_an_error() -> None:
    _, window = corpus_of([0] * 1000).readers(seed=1)
    window.take_start(50)
    with pytest.raises(ConfigError, match="no further distinct start"):
        window.take_start(50)


def test_encoding_adds_no_special_tokens(model: Model) -> None:
    tokenizer = load_tokenizer(model.path)
    assert tokenizer.decode(encode(tokenizer, "for x in y")) == "for x in y"


def test_a_model_without_tokenizer_is_named(tmp_path: object) -> None:
    with pytest.raises(SetupError, match=r"no tokenizer for .*tokenizer\.json"):
        load_tokenizer(str(tmp_path))
