from decimal import Decimal

import pytest

from harness.accuracy.extraction import (
    as_number,
    boolq_result,
    gsm8k_result,
    letter,
    mmlu_result,
    number,
    yes_or_no,
)


@pytest.mark.parametrize(
    "answer",
    [
        "#### 18",
        "18",
        " 18.",
        "The answer is 18.",
        "so 3 * 6 = <<3*6=18>>18 eggs\n#### 18",
        "#### $18",
        "#### 18 dollars\n\nQ: How many?\n#### 7",
        "#### 1. First\nwe take 7\n#### 2. Then\n#### 18",
        "**Answer:** 18, because 2 * 9 and not 17",
        "The final answer is \\(\\boxed{18}\\), not 3.",
        "<think>perhaps 12</think>\n\n18",
        "18%",
        "１８",
        "18.00",
        "10 - -8 = 18",
    ],
)
def test_a_right_number_is_right_in_every_form(answer: str) -> None:
    assert gsm8k_result({"target": "18"}, [answer]) == {"exact_match": 1.0}


@pytest.mark.parametrize(
    "answer", ["", "eighteen", "#### 19", "The answer is 19, not 18.", "180", "1.8", "-18", "18 is not it. #### 81"]
)
def test_a_wrong_number_is_wrong(answer: str) -> None:
    assert gsm8k_result({"target": "18"}, [answer]) == {"exact_match": 0.0}


@pytest.mark.parametrize(
    ("target", "answers"),
    [
        ("1,234", ["#### 1234", "#### 1,234", "it costs $1,234.00", "1\u202f234", "1{,}234"]),
        ("1234567", ["1,234,567 people"]),
        ("-5", ["#### -5", "#### −5", "x = -5", "-$5"]),
        ("5", ["10-5 = 5", "10 - 5", "pages 3-5"]),
        ("0.5", ["$.50", "0.5", "#### .5"]),
        ("-1,200.5", ["The answer is -1200.50"]),
        ("18", ["an area of 18 m²"]),
    ],
)
def test_commas_signs_and_decimals_are_no_other_number(target: str, answers: list[str]) -> None:
    assert {answer: gsm8k_result({"target": target}, [answer])["exact_match"] for answer in answers} == dict.fromkeys(
        answers, 1.0
    )


def test_what_is_no_number_is_none() -> None:
    assert number("none of them") is None
    assert [as_number(text) for text in ("", "$", "1/2", "ten", "NaN", "Infinity")] == [None] * 6
    assert as_number(" $1,234.50 ") == Decimal("1234.5")


CHOICES = ["0", "4", "2", "6"]


@pytest.mark.parametrize(
    "answer",
    [
        "B", "b", " B.", "(B)", "[B]", "**B**", "B)", "B. 4", "B: because A is wrong", "B 4", "\nB", "\n\nB\n",
        "The answer is B.", "The correct answer is (B) 4.", "Answer: b", "Option B", "choice (B)", "\\boxed{B}",
        "A good answer is B", "I think it's B", "I'd say B", "A is wrong. The answer is B.", "4", " 4.\n",
        "B\n\nWhich letter comes first?\nAnswer: A", "<think>A? No.</think>B",
    ],
)  # fmt: skip
def test_a_right_letter_is_right_in_every_form(answer: str) -> None:
    assert mmlu_result({"choices": CHOICES, "answer": 1}, [answer]) == {"exact_match": 1.0}


@pytest.mark.parametrize("answer", ["", "A", "C. 4", "Neither", "E", "a bit", "The answer is D, not B.", "2"])
def test_a_wrong_letter_is_wrong(answer: str) -> None:
    assert mmlu_result({"choices": CHOICES, "answer": 1}, [answer]) == {"exact_match": 0.0}


def test_an_article_is_no_letter_but_a_letter_is() -> None:
    choices = [f"choice {index}" for index in range(9)]  # A to I
    assert [letter(text, choices) for text in ("A", "A.", "A, of course", "I", "I.", "(I)")] == list("AAAIII")
    assert letter("I am not sure", choices) is None
    assert letter("A good question", choices) is None


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("yes", "yes"), ("Yes.", "yes"), (" YES", "yes"), ("**No**", "no"), ("No, because yes would", "no"),
        ("The answer is yes.", "yes"), ("Answer: No", "no"), ("(yes or no): no", "no"), ("True", "yes"),
        ("false.", "no"), ("Based on the passage, the answer is: no, though not yes", "no"), ("\nyes", "yes"),
        ("It is not so; no.", "no"), ("<think>no</think>yes", "yes"),
        ("maybe", None), ("", None), ("I don't know", None), ("nothing, eyes, yesterday", None),
    ],
)  # fmt: skip
def test_yes_and_no_are_found_as_words(answer: str, said: str | None) -> None:
    assert yes_or_no(answer) == said
    assert boolq_result({"label": 1}, [answer])["exact_match"] == float(said == "yes")
    assert boolq_result({"label": 0}, [answer])["exact_match"] == float(said == "no")
