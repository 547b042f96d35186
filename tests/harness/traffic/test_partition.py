from hypothesis import given
from hypothesis import strategies as st

from harness.traffic.partition import split

GROUPS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), st.tuples(st.none() | st.integers(1, 9), st.integers(1, 40)), min_size=1
)


@given(GROUPS, st.integers(1, 12))
def test_every_session_is_played_by_exactly_one_worker(groups: dict[str, tuple[int | None, int]], workers: int) -> None:
    concurrency = {name: places for name, (places, _) in groups.items()}
    sessions = {name: count for name, (_, count) in groups.items()}
    parts = split(concurrency, sessions, workers)
    assert len(parts) == workers
    for name, count in sessions.items():
        owners = [sum(name in part and part[name].has(index) for part in parts) for index in range(count)]
        assert owners == [1] * count


@given(GROUPS, st.integers(1, 12))
def test_a_closed_loops_places_are_divided_and_nobody_has_places_without_sessions(
    groups: dict[str, tuple[int | None, int]], workers: int
) -> None:
    sessions = {name: count for name, (_, count) in groups.items()}
    parts = split({name: places for name, (places, _) in groups.items()}, sessions, workers)
    for name, (places, count) in groups.items():
        own = [part[name].places for part in parts if name in part]
        assert sum(own) == (0 if places is None else min(places, count))
        for part in parts:
            if name in part:
                assert any(part[name].has(index) for index in range(count))


def test_places_of_all_groups_are_spread_evenly() -> None:
    parts = split({"a": 3, "b": 3, "c": 2}, {"a": 100, "b": 100, "c": 100}, 4)
    assert [sum(part.places for part in own.values()) for own in parts] == [2, 2, 2, 2]


def test_sessions_follow_the_places() -> None:
    first, second = split({"": 3}, {"": 30}, 2)
    assert (first[""].places, second[""].places) == (2, 1)
    assert sum(first[""].has(index) for index in range(30)) == 20


def test_with_fewer_sessions_than_workers_some_have_nothing() -> None:
    assert [bool(part) for part in split({"": None}, {"": 2}, 5)] == [True, True, False, False, False]
