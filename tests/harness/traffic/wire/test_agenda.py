import time
from collections.abc import Iterator
from functools import partial

import gevent
import pytest

from harness.traffic.wire.agenda import NEVER, Agenda


@pytest.fixture
def agenda() -> Iterator[Agenda]:
    agenda = Agenda(gevent.get_hub().loop)
    yield agenda
    agenda.close()


def test_calls_are_made_in_the_order_of_their_times_and_never_early(agenda: Agenda) -> None:
    start_ns = time.monotonic_ns()
    due = [start_ns + i * 700_000 for i in range(60)]
    made: list[tuple[int, int]] = []

    def call(at_ns: int) -> None:
        made.append((at_ns, time.monotonic_ns()))

    for at_ns in (*due[::2], *reversed(due[1::2])):
        agenda.at(at_ns, partial(call, at_ns))
    assert agenda.next_ns == start_ns
    while len(made) < len(due):
        gevent.sleep(0.01)
    assert [at_ns for at_ns, _ in made] == due
    assert all(now >= at_ns for at_ns, now in made)
    assert agenda.next_ns == NEVER


def test_a_call_may_make_others_and_may_close_it(agenda: Agenda) -> None:
    made: list[str] = []

    def first() -> None:
        made.append("first")
        agenda.at(0, second)

    def second() -> None:
        made.append("second")
        agenda.at(time.monotonic_ns() + 1_000_000, third)

    def third() -> None:
        made.append("third")
        agenda.close()

    agenda.at(0, first)
    gevent.sleep(0.1)
    assert made == ["first", "second", "third"]
    agenda.at(0, first)
    gevent.sleep(0.02)
    assert made == ["first", "second", "third"]


def test_nothing_is_called_after_the_close(agenda: Agenda) -> None:
    made: list[int] = []
    agenda.at(time.monotonic_ns() + 5_000_000, partial(made.append, 1))
    agenda.close()
    gevent.sleep(0.03)
    assert not made
