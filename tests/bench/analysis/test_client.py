"""Whose the numbers of a cell are: the server's or the client's."""

from typing import Any

import pytest

from bench.analysis.client import NOT_CALIBRATED, Verdict, client_figures, judge_client, loop_lag_note
from bench.analysis.measure import CellMeasures, measure
from bench.analysis.planned import ALL, Group, PlannedLoad
from bench.analysis.records import Records
from bench.analysis.result import ClientFigures
from bench.analysis.state import cell_state
from tests.bench.run_folder import request, table

CALM = {"cpu_s": 1.0, "wall_s": 10.0, "cpu_share_max": 0.1, "loop_lag_p99_ms": 1.0, "exit_code": 0}
CEILING = {"streams": 100, "tokens_per_s": 1000, "requests_per_s": 50, "error_pct": 2, "transport": "pure"}
OPEN, FOUR = Group(True), Group(False, 4)


def judged(
    rows: list[dict[str, Any]], group: Group = OPEN, **client: Any
) -> tuple[Verdict, ClientFigures, CellMeasures]:
    load = PlannedLoad({ALL: group}, {}, {})
    measured = measure(Records.open(table(rows)), load.groups)
    figures = client_figures({"client": {"transport": "pure", "ceiling": None, **CALM, **client}}, measured, load)
    return judge_client(figures, measured.window), figures, measured


def arrivals(count: int = 20, *, every_ms: float = 100, late: float = 1.0, **more: Any) -> list[dict[str, Any]]:
    """Open loop: due every so often, sent at `late` times the schedule's pace."""
    return [
        request(
            i,
            scheduled_ms=every_ms * i,
            sent_ms=every_ms * i * late,
            events_ms=[every_ms * i * late + 500 + 20 * k for k in range(4)],
            **more,
        )
        for i in range(count)
    ]


def sessions(
    waves: int = 10, *, users: int = 4, busy_ms: float = 1000, pause_ms: float = 0, **more: Any
) -> list[dict[str, Any]]:
    """Closed loop: each user asks, and asks again a while after the answer."""
    return [
        request(
            wave * users + user,
            sent_ms=wave * (busy_ms + pause_ms),
            events_ms=[wave * (busy_ms + pause_ms) + busy_ms / 2, wave * (busy_ms + pause_ms) + busy_ms],
            **more,
        )
        for wave in range(waves)
        for user in range(users)
    ]


def test_a_calibrated_client_below_its_ceiling_needs_no_word() -> None:
    verdict, figures, _ = judged(arrivals(connection_reused=True), ceiling=CEILING)
    assert verdict == Verdict(None, ())
    assert figures.attained_over_asked_rate == 1
    assert figures.peak_requests_per_s == 10, "one every 100 ms"
    assert figures.peak_tokens_per_s == 40, "ten requests' four tokens a second"
    # Streams last 60 ms, from their first token, and begin every 100: never two at once, though six wait.
    assert figures.peak_streams == 1


def test_without_a_calibration_it_says_so() -> None:
    assert judged(arrivals())[0] == Verdict(None, (NOT_CALIBRATED,))


def test_records_from_before_there_was_a_calibration_are_not_blamed_for_it() -> None:
    load = PlannedLoad({ALL: OPEN}, {}, {})
    measured = measure(Records.open(table(arrivals())), load.groups)
    assert judge_client(client_figures({"client": CALM}, measured, load), measured.window) == Verdict(None, ())


@pytest.mark.parametrize(
    ("key", "limit", "words"),
    [
        ("streams", 0, "1 streams received at once"),
        ("tokens_per_s", 39, "40 tokens arrived within a second"),
        ("requests_per_s", 9, "10 requests were sent within a second"),
    ],
)
def test_past_its_ceiling_it_is_client_bound(key: str, limit: float, words: str) -> None:
    verdict, _, _ = judged(arrivals(), ceiling={**CEILING, key: limit})
    assert verdict.bound == f"{words}; this client is known to measure within 2 % up to {limit}"
    assert judged(arrivals(), ceiling={**CEILING, key: limit + 1})[0].bound is None


def test_requests_that_wait_in_an_overloaded_server_are_no_streams_of_the_client() -> None:
    """Two hundred arrive within two seconds, and the server answers them one by one."""
    rows = [
        request(i, scheduled_ms=10 * i, sent_ms=10 * i, events_ms=[5000 + 100 * i, 5050 + 100 * i]) for i in range(200)
    ]
    verdict, figures, measured = judged(rows, ceiling={**CEILING, "requests_per_s": 200})
    assert max(measured.series.running) == 200 and figures.peak_streams == 1
    assert verdict == Verdict(None, ())


def test_the_ceiling_of_another_transport_says_nothing() -> None:
    verdict, _, _ = judged(arrivals(), transport="compiled", ceiling={**CEILING, "streams": 0})
    assert verdict.bound is None
    assert verdict.notes == ("the compiled client is not calibrated, only the pure one is (make calibrate)",)


def test_a_busy_client_counts_only_where_it_is_not_calibrated() -> None:
    assert judged(arrivals(), cpu_share_max=0.95)[0].bound == "the load client used 95% of a core (limit 90%)"
    assert judged(arrivals(), cpu_share_max=0.95, ceiling=CEILING)[0].bound is None


@pytest.mark.parametrize(
    ("client", "reused", "why"),
    [
        ({"loop_lag_p99_ms": 40.0}, False, "its loop was 40 ms late (P99)"),
        ({"cpu_share_max": 0.97}, False, "it used 97% of a core"),
        ({}, True, "100% of the connections were open already"),
    ],
)
def test_a_client_that_falls_behind_the_schedule(client: dict[str, Any], reused: bool, why: str) -> None:
    verdict, _, _ = judged(arrivals(late=1.25, connection_reused=reused), ceiling=CEILING, **client)
    assert verdict.bound == f"the client attained 80 % of the asked rate: {why}"
    assert f"attained 80 % of the asked rate: {why}" in verdict.notes


def test_connections_that_open_slowly_are_not_the_clients() -> None:
    verdict, _, _ = judged(arrivals(late=1.25, connection_reused=False), ceiling=CEILING)
    assert verdict.bound is None
    why = "new connections were slow to open (the client was on time)"
    assert verdict.notes[0] == f"attained 80 % of the asked rate: {why}"
    assert verdict.notes[1].startswith("requests left") and verdict.notes[1].endswith(why)


def test_late_sends_count_where_nothing_clears_the_client() -> None:
    verdict, _, _ = judged(arrivals(late=1.25), loop_lag_p99_ms=None)
    assert str(verdict.bound).startswith("requests left 425 ms late (P90)"), "0.25 × 1,700"
    assert "attained 80 % of the asked rate" in verdict.notes


def test_a_slow_server_keeps_a_closed_loop_full() -> None:
    verdict, figures, _ = judged(sessions(busy_ms=30_000), FOUR, ceiling=CEILING)
    assert (figures.asked_concurrency, figures.attained_over_asked_concurrency) == (4, 1)
    assert verdict == Verdict(None, ())


def test_time_between_requests_of_a_closed_loop_is_the_clients() -> None:
    """Busy for 900 of every 1,000 ms, over open connections."""
    rows = sessions(busy_ms=900, pause_ms=100, connection_reused=True)
    verdict, figures, _ = judged(rows, FOUR, ceiling=CEILING)
    assert figures.attained_over_asked_concurrency == pytest.approx(0.9)
    assert (
        verdict.bound == "the client attained 90 % of the asked concurrency: 100% of the connections were open already"
    )


def test_time_to_think_is_asked_for() -> None:
    """Two sessions at a time, of two turns of 500 ms with 1,000 ms to think between, one after the other."""
    rows = []
    for session in range(10):
        begin = (session // 2) * 2000
        for turn, at in enumerate((begin, begin + 1500)):
            rows.append(
                request(
                    2 * session + turn,
                    sent_ms=at,
                    scheduled_ms=at if turn else None,
                    events_ms=[at + 250, at + 500],
                    session_id=f"s{session}",
                    turn=turn,
                    connection_reused=True,
                )
            )
    verdict, figures, _ = judged(rows, Group(False, 2), ceiling=CEILING)
    assert figures.attained_over_asked_concurrency == 1 and verdict == Verdict(None, ())


def test_users_that_run_out_of_sessions_are_not_missed() -> None:
    """The last session goes on for a minute alone, and each worker comes to its own end."""
    rows = [*sessions(5), request(99, sent_ms=5000, events_ms=[5500, 65_000])]
    assert judged(rows, FOUR)[1].attained_over_asked_concurrency == 1
    other = sessions(10, users=2, worker=1)
    both = [*sessions(5, users=2, worker=0), *({**row, "request_id": f"w1-{i}"} for i, row in enumerate(other))]
    assert judged(both, FOUR)[1].attained_over_asked_concurrency == 1


def test_a_server_that_refuses_connections_is_no_slow_client() -> None:
    refused = [request(500 + i, sent_ms=None, events_ms=[], error="connect", ended_ms=100 * i) for i in range(5)]
    _, figures, _ = judged([*sessions(busy_ms=900, pause_ms=100), *refused], FOUR)
    assert (figures.asked_concurrency, figures.attained_over_asked_concurrency) == (4, None)


def test_a_late_loop_is_noted_where_it_matters() -> None:
    _, figures, measured = judged(arrivals(), loop_lag_p99_ms=30.0)
    assert "30 ms late" in str(loop_lag_note(figures, measured.window.itl))
    _, figures, measured = judged(arrivals(), loop_lag_p99_ms=5.0)
    assert loop_lag_note(figures, measured.window.itl) is None


def test_a_lost_worker_makes_the_cell_incomparable() -> None:
    lost = [{"number": 1, "host": "node2", "reason": "killed by signal 9"}]
    verdict, figures, measured = judged(arrivals(), lost_workers=lost)
    state, reason = cell_state({"state": "measured"}, measured.window, figures, verdict)
    assert state == "failed"
    assert str(reason).endswith("the client lost worker 1 on node2: killed by signal 9")
    assert str(reason).startswith("not comparable")


def test_a_probe_of_a_search_is_held_against_its_own_concurrency() -> None:
    load = PlannedLoad({ALL: Group(False)}, {}, {})
    measured = measure(Records.open(table(sessions())), load.groups)
    facts = {"client": CALM, "arrival": {"kind": "closed", "concurrency": 4}}
    assert client_figures(facts, measured, load).asked_concurrency == 4
