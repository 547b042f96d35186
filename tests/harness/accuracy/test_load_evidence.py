"""Did the questions meet the load? Times by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.accuracy.load_evidence import Reading, Sent, evidence, mean_under_way, sent_by, share_met
from harness.backends.interface import EngineState


def spans(*pairs: tuple[int, int]) -> Any:
    return np.array(pairs, np.int64).reshape(-1, 2)


LOAD = spans((100, 200), (150, 160), (190, 250), (400, 500), (90, 110))


@pytest.mark.parametrize(
    ("question", "met"),
    [
        ((0, 80), False), ((0, 95), True), ((251, 399), False), ((240, 260), True), ((300, 600), True),
        ((450, 460), True), ((500, 510), False), ((250, 260), False), ((80, 90), False),
    ],
)  # fmt: skip
def test_a_question_met_the_load_if_a_request_was_under_way_meanwhile(question: tuple[int, int], met: bool) -> None:
    assert share_met(spans(question), LOAD) == met


def test_the_share_agrees_with_looking_at_every_pair() -> None:
    rng = np.random.default_rng(5)
    starts = rng.integers(0, 10_000, (2, 300))
    questions = np.column_stack([starts[0], starts[0] + rng.integers(1, 40, 300)])
    load = np.column_stack([starts[1], starts[1] + rng.integers(1, 30, 300)])
    pairs = (questions[:, :1] < load[:, 1]) & (questions[:, 1:] > load[:, 0])
    share = share_met(questions, load)
    assert share == pytest.approx(pairs.any(axis=1).mean()) and 0 < (share or 0) < 1


def test_no_questions_and_no_load() -> None:
    assert share_met(spans(), LOAD) is None and mean_under_way(spans(), LOAD) is None
    assert (share_met(spans((1, 2)), spans()), mean_under_way(spans((1, 2)), spans())) == (0.0, 0.0)


def test_the_mean_is_over_the_time_from_the_first_question_to_the_last_answer() -> None:
    # 100..300: 100 of the first, 10 of the second, 60 of the third, 10 of the last
    assert mean_under_way(spans((100, 120), (280, 300)), LOAD) == pytest.approx((100 + 10 + 60 + 10) / 200)


def test_the_engines_counters_are_those_between_the_first_question_and_the_last_answer() -> None:
    readings = [
        Reading(at, EngineState(requests_running=running, preemptions_total=total))
        for at, running, total in ((50, 9, 1.0), (100, 2, 3.0), (200, 4, 5.0), (310, 9, 90.0))
    ]
    samples = [{"asked_ns": 100, "answered_ns": 120}, {"asked_ns": 280, "answered_ns": 300}]
    found = evidence(samples, Sent(LOAD, {"timeout": 2}), readings)
    assert (found["requests_running_mean"], found["preemptions"]) == (3.0, 2.0)
    assert found["kv_cache_usage_mean"] is None, "not zero where the engine says nothing"
    assert (found["share_of_questions_under_load"], found["failed_requests"]) == (0.5, {"timeout": 2})


def test_questions_between_two_readings_have_those_around_them() -> None:
    readings = [
        Reading(at, EngineState(requests_running=running, preemptions_total=total))
        for at, running, total in ((310, 9, 90.0), (50, 5, 1.0), (400, 7, 95.0))
    ]
    found = evidence([{"asked_ns": 100, "answered_ns": 120}], Sent(LOAD, {}), readings)
    assert (found["requests_running_mean"], found["preemptions"]) == (5.0, 89.0)


def test_what_was_cut_off_at_the_end_is_no_failure(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {
        "sent_ns": [10, 20, 30, None],
        "ended_ns": [15, 28, 40, 40],
        "error": [None, "timeout", "aborted", "not_sent"],
    }
    for number in ("000", "001"):
        (tmp_path / number).mkdir()
        pq.write_table(pa.table(rows), tmp_path / number / "requests.parquet")
    found = sent_by([tmp_path / "000", tmp_path / "001", tmp_path / "never-ended"])
    assert found.failed == {"timeout": 2}
    assert found.spans.tolist() == [[10, 15], [20, 28], [30, 40]] * 2
    assert sent_by([]).spans.shape == (0, 2)
