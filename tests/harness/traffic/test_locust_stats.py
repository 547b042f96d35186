import os
from typing import Any
from unittest import mock

with mock.patch.dict(os.environ, {"LOCUST_SKIP_MONKEY_PATCH": "1"}):  # the other tests' threads stay what they are
    from locust.env import Environment
    from locust.event import Events

from harness.traffic.locust_stats import Tally

REQUESTS = [(3.4, 100, None), (147.0, 50, "timeout"), (3.4, 10, None), (58760.0, 1, "timeout"), (12.0, 9, "reset")]


def environment() -> Environment:
    made = Environment(events=Events())
    made.create_local_runner()
    return made


def told(tally: Tally) -> None:
    for times in range(2):
        for took_ms, size, failure in REQUESTS:
            tally.add(took_ms, size, failure)
        if not times:
            tally.enter()
    tally.enter()


def figures(made: Environment) -> list[tuple[Any, ...]]:
    entries = [made.stats.total, made.stats.entries[("/v1/completions", "POST")]]
    return [
        (
            one.num_requests, one.num_failures, one.min_response_time, one.max_response_time, one.total_content_length,
            round(one.total_response_time, 3), dict(one.response_times), one.get_response_time_percentile(0.9),
            sum(one.num_reqs_per_sec.values()), sum(one.num_fail_per_sec.values()),
        )
        for one in entries
    ]  # fmt: skip


def test_many_at_once_come_to_what_locust_itself_counts() -> None:
    ours, theirs = environment(), environment()
    told(Tally(ours, "/v1/completions"))
    theirs.events.request.add_listener(lambda **_: None)  # somebody listens: one event a request
    told(Tally(theirs, "/v1/completions"))
    assert figures(ours) == figures(theirs)
    assert ours.stats.total.num_requests == 10
    assert sorted(error.occurrences for error in ours.stats.errors.values()) == [2, 4]


def test_a_listener_hears_every_request() -> None:
    heard: list[float] = []
    made = environment()
    made.events.request.add_listener(lambda response_time, **_: heard.append(response_time))
    told(Tally(made, "/v1/completions"))
    assert heard == [took for took, _, _ in REQUESTS] * 2
