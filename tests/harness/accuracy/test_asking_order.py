"""The order in which questions are asked, by threads that really run."""

import threading
import time

import pytest

from harness.accuracy.asking_order import ask_all

DOCUMENTS = ["a", "a", "a", "b", "b", None, None, "c", "d", "d"]


class Asked:
    """Answers after a moment, and remembers who was under way beside whom."""

    def __init__(self, seconds: float = 0.02) -> None:
        self.lock = threading.Lock()
        self.seconds = seconds
        self.under_way: set[int] = set()
        self.answered: set[int] = set()
        self.most = 0
        self.answered_before: dict[int, set[int]] = {}

    def __call__(self, index: int) -> int:
        with self.lock:
            self.under_way.add(index)
            self.most = max(self.most, len(self.under_way))
            self.answered_before[index] = set(self.answered)
        time.sleep(self.seconds)
        with self.lock:
            self.under_way.remove(index)
            self.answered.add(index)
        return index * 10


@pytest.mark.parametrize("num_concurrent", [1, 2, 4, 16])
def test_all_are_asked_once_and_the_first_on_a_document_is_answered_before_the_others_are_asked(
    num_concurrent: int,
) -> None:
    asked = Asked()
    assert ask_all(asked, DOCUMENTS, num_concurrent) == [index * 10 for index in range(10)]
    for first, others in ((0, (1, 2)), (3, (4,)), (8, (9,))):
        assert all(first in asked.answered_before[other] for other in others)
    assert asked.most <= num_concurrent


def test_so_many_are_under_way_at_a_time_also_while_documents_are_read_first() -> None:
    together = threading.Barrier(4, timeout=20)
    # Four documents of two questions: were one document read after the other, nobody would meet here.
    assert ask_all(lambda index: together.wait() * 0 + index, ["a", "a", "b", "b", "c", "c", "d", "d"], 4) == list(
        range(8)
    )


def test_questions_on_a_document_that_was_read_come_before_the_next_document() -> None:
    asked = Asked(0)
    order: list[int] = []

    def noted(index: int) -> int:
        order.append(index)
        return asked(index)

    ask_all(noted, DOCUMENTS, 1)
    assert order == list(range(10))


def test_an_error_ends_the_asking_and_is_raised() -> None:
    asked: list[int] = []

    def fails(index: int) -> None:
        asked.append(index)
        if index == 2:
            raise ValueError("enough")
        time.sleep(0.01)

    with pytest.raises(ValueError, match="enough"):
        ask_all(fails, [None] * 1000, 2)
    assert len(asked) < 10


def test_tens_of_thousands_take_no_more_than_their_number() -> None:
    assert len(ask_all(lambda index: index, [f"d{index // 4}" for index in range(50_000)], 3)) == 50_000
