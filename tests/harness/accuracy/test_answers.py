import pytest

from harness.accuracy.answers import chain_result, numbers_result, text_result


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        (" 11, 22, 33", 1.0),
        ("33 and 11.", 2 / 3),
        ("They are 22, 22, 22, 11, 33.", 1.0),
        ("1, 2, 3, 11, 22, 33", 0.0),
        ("111, 222", 0.0),
        ("", 0.0),
        ("<think>11 22 33</think>11", 1 / 3),
    ],
)
def test_of_many_numbers_only_the_first_ones_count(answer: str, share: float) -> None:
    assert numbers_result({"targets": ["11", "22", "33"]}, [answer]) == {"share": pytest.approx(share)}


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        (" KLM = VAR ABC = 12345.", 1.0),
        ("VAR XYZ = VAR KLM. VAR KLM = VAR ABC. VAR ABC = 12345.", 1.0),
        (" KLM.", 1 / 3),
        ("QQQ, RRR, KLM, ABC, 12345", 1 / 3),
    ],
)
def test_a_chain_may_be_written_in_any_way(answer: str, share: float) -> None:
    assert chain_result({"key": "XYZ", "targets": ["KLM", "ABC", "12345"]}, [answer]) == {"share": pytest.approx(share)}


@pytest.mark.parametrize(
    ("answer", "right"),
    [(' "Velomard"', 1.0), ("in old  velomard.", 1.0), ("Velomards", 0.0), ("Kadosk", 0.0), ("", 0.0)],
)
def test_a_text_counts_as_whole_words_in_any_case(answer: str, right: float) -> None:
    assert text_result({"targets": ["Velomard"]}, [answer]) == {"exact_match": right}
