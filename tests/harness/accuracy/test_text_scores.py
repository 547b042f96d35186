import pytest

from harness.accuracy.text_scores import contains, exact, f1, own_result, rouge_l, words


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        (" paris.", "Paris"), ("The  RED, car", "the red car"), ("1,234 km", "1234 km"), ("−5", "-5"),
        ("3.5.", "3.5"), ("“Straße”", "STRASSE"), ("café", "cafe\u0301"), ("２０２４年", "2024年"),
        ("\n北京。", "北京"),
        ("हिन्दी", "हिन्दी"), ("Paris\nQuestion: what else?", "Paris"), ("v1.2", "V1.2"),
        ("first\nsecond", "first\nsecond."),
    ],
)  # fmt: skip
def test_case_space_and_punctuation_do_not_count(answer: str, accepted: str) -> None:
    assert exact(answer, accepted) == 1.0


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [("35", "3.5"), ("5", "-5"), ("Paris, Texas", "Paris"), ("", "Paris"), ("हिन्दु", "हिन्दी"), ("12:30", "1230")],
)
def test_another_answer_is_another(answer: str, accepted: str) -> None:
    assert exact(answer, accepted) == 0.0


def test_contained_words_stand_together_and_whole() -> None:
    assert contains("It was founded in 1812 in New York City.", "new york") == 1.0
    assert contains("It was founded in 1812.", "18") == 0.0
    assert contains("New, as York is", "new york") == 0.0
    assert contains("首都是北京。", "北京") == 1.0
    assert contains("", "x") == 0.0


def test_f1_and_rouge_l_by_hand() -> None:
    assert f1("the red car", "a red car") == pytest.approx(2 / 3)
    assert f1("car red", "red car") == 1.0
    assert rouge_l("the red car", "a red car") == pytest.approx(2 / 3)
    assert rouge_l("car red", "red car") == pytest.approx(0.5)
    assert rouge_l("首都是北京", "北京是首都") == pytest.approx(0.4)  # 2 characters in order, of 5
    assert f1("", "x") == rouge_l("", "x") == 0.0


def test_the_nearest_accepted_answer_counts() -> None:
    row = {"choices": [], "scored_by": "f1", "answers": ["a blue car", "the red car"]}
    assert own_result(row, ["the red car"]) == {"score": 1.0}
    assert own_result({**row, "scored_by": "exact"}, ["<think>blue</think> A blue car."]) == {"score": 1.0}
    assert own_result({"choices": ["x", "y"], "target": "B"}, ["(b)"]) == {"score": 1.0}


def test_unspaced_scripts_are_compared_by_character() -> None:
    assert words("北京2008年") == ["北", "京", "2008", "年"]
    assert words("สวัสดี") != words("สวัสด")
