"""Prompt text: real, of exact length, and never the same start twice."""

import pytest

from harness.errors import ConfigError, SetupError
from harness.model import Model
from harness.traffic.text import HEAD_TOKENS, corpus, corpus_of, encode, load_tokenizer


def test_slices_have_exactly_the_length_asked(model: Model) -> None:
    _, window = corpus(model.path).readers(seed=1)
    assert [len(window.take(n)) for n in (1, 31, 32, 5000)] == [1, 31, 32, 5000]


def test_text_is_the_language_reference(model: Model) -> None:
    text = load_tokenizer(model.path).decode(list(corpus(model.path).tokens[:200]))
    assert "assert" in text and "statement" in text


def test_equal_seeds_give_equal_slices_and_others_do_not(model: Model) -> None:
    text = corpus(model.path)
    assert text.readers(3)[1].take(500) == text.readers(3)[1].take(500)
    assert text.readers(3)[1].take(500) != text.readers(4)[1].take(500)


def test_no_start_is_handed_out_twice_however_often_the_text_is_used_up() -> None:
    tokens = corpus_of([i % 700 for i in range(8000)])  # much repeated text: 700 different starts
    warmup, window = tokens.readers(seed=1)
    starts = [tuple(reader.take_start(100)[:HEAD_TOKENS]) for reader in [window] * 300 + [warmup] * 50]
    assert len(set(starts)) == len(starts)


def test_warm_up_and_window_share_no_text() -> None:
    warmup, window = corpus_of(list(range(8000))).readers(seed=1)
    first = {token for _ in range(50) for token in warmup.take(60)}
    second = {token for _ in range(50) for token in window.take(60)}
    assert not first & second


def test_within_a_lap_slices_do_not_overlap() -> None:
    _, window = corpus_of(list(range(8000))).readers(seed=1)
    tokens = [token for _ in range(70) for token in window.take(100)]
    assert len(set(tokens)) == 7000


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
