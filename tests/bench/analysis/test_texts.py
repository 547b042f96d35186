"""BLEU-4 and ROUGE-L of answers: the libraries' own figures, in scripts with and without spaces, with intervals."""

import numpy as np
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from bench.analysis.texts import Texts, Words, agreement, tokenizer

ENGLISH = [
    "the cat sat on the mat",
    "a server keeps the keys and the values of every token",
    "it rains in the north, but not in the south",
]
SAID = [
    "the cat sat on a mat",
    "a server keeps keys and values of each token",
    "it rains in the north but never in the south",
]


def texts(mine: list[str], references: list[str]) -> Texts:
    return Texts(mine, references, [f"d{i}" for i in range(len(mine))])


def test_bleu_is_sacrebleus_and_rouge_is_rouge_scores() -> None:
    found = agreement(texts(SAID, ENGLISH))
    assert found.bleu4 == pytest.approx(sacrebleu.corpus_bleu(SAID, [ENGLISH]).score)
    scorer = RougeScorer(["rougeL"])
    expected = [scorer.score(a, b)["rougeL"].fmeasure for a, b in zip(ENGLISH, SAID, strict=True)]
    assert found.rouge_l == pytest.approx(100 * float(np.mean(expected)))
    assert "tok:13a" in found.method and "eff:no" in found.method and sacrebleu.__version__ in found.method


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Ein Satz, der Umlaute hat: über", "13a"),
        ("Кошка сидит на ковре", "13a"),
        ("今天天气很好, 我们去公园", "zh"),
        ("これは日本語の文です", "char"),
        ("안녕하세요 세계", "char"),
        ("สวัสดีชาวโลก", "char"),
        ("An English sentence about the word 猫 and nothing else at all", "13a"),
        ("12345", "13a"),
    ],
)
def test_the_tokenizer_follows_the_references_script(text: str, expected: str) -> None:
    assert tokenizer([text]) == expected


def test_words_are_rouge_scores_in_english_and_exist_in_other_scripts() -> None:
    from rouge_score.tokenizers import DefaultTokenizer

    text = "It's 3.5 Times faster; isn't it_now?"
    assert Words().tokenize(text) == DefaultTokenizer().tokenize(text)
    assert Words().tokenize("Über Кошка") == ["über", "кошка"]
    assert Words().tokenize("天气 good") == ["天", "气", "good"]


def test_texts_without_spaces_agree_by_character() -> None:
    found = agreement(
        texts(["今天天气很好我们去公园", "他喜欢喝茶和咖啡"], ["今天天气不好我们去公园", "他喜欢喝茶和咖啡"])
    )
    assert "tok:zh" in found.method and found.bleu4 is not None and 50 < found.bleu4 < 100
    assert 90 < found.rouge_l < 100


def test_answers_too_short_for_four_tokens_have_no_bleu() -> None:
    found = agreement(texts(["17", "18", "20"], ["17", "18", "19"]))
    assert found.bleu4 is None and found.bleu4_low is None
    assert found.rouge_l == pytest.approx(100 * 2 / 3)


def test_an_empty_answer_agrees_with_nothing() -> None:
    found = agreement(texts(["", "", ""], ENGLISH))
    assert (found.bleu4, found.rouge_l) == (0.0, 0.0)


def test_identical_answers_agree_wholly_even_without_a_word() -> None:
    assert agreement(texts(["", "…", "😀", "17"], ["", "…", "😀", "17"])).rouge_l == 100.0
    assert agreement(texts(["", "…"], ["…", ""])).rouge_l == 0.0


def test_intervals_cover_what_many_documents_show() -> None:
    """The figures of a dozen documents against those of a thousand of the same making."""
    draw = np.random.default_rng(6)
    vocabulary = [f"word{i}" for i in range(50)]

    def made(documents: int) -> Texts:
        references, mine, names = [], [], []
        for document in range(documents):
            spoiled = draw.beta(2, 6)
            for _ in range(3):
                words = list(draw.choice(vocabulary, 12))
                references.append(" ".join(words))
                mine.append(" ".join(draw.choice(vocabulary) if draw.random() < spoiled else word for word in words))
                names.append(f"d{document}")
        return Texts(mine, references, names)

    truth = agreement(made(1000))
    bleu = rouge = 0
    for _ in range(100):
        found = agreement(made(12))
        bleu += found.bleu4_low <= truth.bleu4 <= found.bleu4_high  # type: ignore[operator]
        rouge += found.rouge_l_low <= truth.rouge_l <= found.rouge_l_high  # type: ignore[operator]
    assert bleu >= 85 and rouge >= 85, (bleu, rouge)


def test_one_document_gives_no_interval() -> None:
    found = agreement(Texts(SAID, ENGLISH, ["d"] * 3))
    assert found.bleu4 is not None and found.bleu4_low is None and found.rouge_l_high is None
