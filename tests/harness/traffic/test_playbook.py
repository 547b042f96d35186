from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.traffic.playbook import Playbook

from .schedules import turn, write_schedule


def own_memory() -> int:
    """Bytes that are this process's, not the mapped files'."""
    status = Path("/proc/self/status").read_text().split("RssAnon:")[1]
    return 1024 * int(status.split()[0])


def sessions_of(playbook: Playbook) -> set[str]:
    return {playbook.session(at).session_id for group in playbook.groups.values() for at in group.offsets}


def test_sessions_are_read_where_they_lie(tmp_path: Path) -> None:
    path = write_schedule(tmp_path / "s", [{"turns": [turn(0, 9, 2), turn(9, 1, 3, 12)]}, {"turns": [turn(20, 4, 5)]}])
    playbook = Playbook(path)
    assert (playbook.all_requests, playbook.requests, playbook.has_later_turns) == (3, 3, True)
    first, second = (playbook.session(at) for at in playbook.groups[""].offsets)
    assert (first.session_id, first.first_request, first.turns[1].prompt_tokens) == ("window-00000", 0, 12)
    assert (second.first_request, second.turns[0].new, second.due_ns) == (2, [(20, 4)], None)


def test_a_file_that_is_no_whole_schedule_is_named(tmp_path: Path) -> None:
    path = write_schedule(tmp_path / "s", [{"turns": [turn(0, 9, 2)]}] * 3)
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1)
    for content, why in (
        (b"", "is not a schedule: cannot mmap an empty file"),
        (whole[:20], "is not a schedule: Input data was truncated"),
        (whole[: last + 9], "is not a schedule: Input data was truncated"),
        (whole[: last + 1], "is not a schedule: it holds 2 of its 3 requests"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=f"{path} {why}"):
            Playbook(path)
    with pytest.raises(ConfigError, match=r"schedule .*none can't be read: No such file"):
        Playbook(tmp_path / "none")


def test_workers_share_a_schedule_without_loss(tmp_path: Path) -> None:
    groups = {"a": {"kind": "closed", "concurrency": 3}, "b": {"kind": "open"}}
    sessions = [
        {"turns": [turn(0, 9, 2)], "tenant": "ab"[index % 2], "due_ns": index if index % 2 else None}
        for index in range(41)
    ]
    path = write_schedule(tmp_path / "s", sessions, groups=groups)
    books = [Playbook(path, worker, 4) for worker in range(4)]
    shares = [sessions_of(book) for book in books]
    assert sum(map(len, shares)) == len(set().union(*shares)) == 41
    assert sum(book.requests for book in books) == 41 == books[0].all_requests
    assert sum(book.groups["a"].places for book in books if "a" in book.groups) == 3
    assert all(book.asked_concurrency == 3 for book in books)


def test_arrivals_of_all_open_loops_come_by_due_time(tmp_path: Path) -> None:
    groups = {"a": {"kind": "open"}, "b": {"kind": "open"}}
    due = [5_000, 1_000, 3_000, 9_000, 2_000]
    sessions = [{"turns": [turn(0, 9, 2)], "tenant": "ab"[index % 2], "due_ns": at} for index, at in enumerate(due)]
    playbook = Playbook(write_schedule(tmp_path / "s", sessions, groups=groups))
    arrivals = list(playbook.arrivals())
    assert [at for at, _ in arrivals] == sorted(due)
    assert [playbook.session(offset).due_ns for _, offset in arrivals] == sorted(due)
    assert playbook.longest_gap_ns() == 4_000


def test_a_schedule_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    long = {"turns": [turn(0, 9, 2) | {"new": [",".join(["12345"] * 20_000)]}]}
    path = write_schedule(tmp_path / "s", [long] * 400)
    assert path.stat().st_size > 45_000_000
    before = own_memory()
    playbook = Playbook(path)
    for at in playbook.groups[""].offsets:
        playbook.session(at)
    assert own_memory() - before < 12_000_000
