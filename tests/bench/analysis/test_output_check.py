"""The output check: garbage is found whatever else went wrong, and one odd token is no garbage."""

from typing import Any

import pytest

from bench.analysis.load import LaunchRecord
from bench.analysis.output_check import band, check

POSITIONS = list(range(100, 124))
TOLERANCES = {"nll_increase_nats": 0.3, "top1_agreement_min": 0.5}
SOUND, OUTSIDE, GARBAGE = ([1, 2], [-0.3, -2.0]), ([3, 4], [-0.01, -6.0]), ([8, 9], [-1.0, -2.0])


def record(answers: list[tuple[list[int], list[float]]], error: str | None = None) -> dict[str, Any]:
    """A forced-decode record whose text's own token is always 1."""
    return {
        "schema_version": 1, "text_sha256": "t", "top_k": 2, "vocab": 49152, "positions": POSITIONS,
        "next_token_ids": [1] * len(POSITIONS), "top_token_ids": [a[0] for a in answers],
        "top_logprobs": [a[1] for a in answers], "echo": None, "prefix_hits": None, "error": error,
    }  # fmt: skip


def launch(name: str, found: dict[str, Any], state: str = "measured") -> LaunchRecord:
    facts = {"deployment": name, "replica": 1, "state": state, "reason": None, "check_only": False, "block": 0}
    return LaunchRecord(block=0, name=name, facts=facts, cells={}, tasks={}, telemetry=None, output_check=found)


def judged(found: dict[str, Any]) -> Any:
    baseline = [launch("base", record([SOUND] * 24)), launch("base+A2", record([SOUND] * 24))]
    return check([launch("candidate", found)], baseline, band(baseline, TOLERANCES))


def test_an_equal_record_is_sound() -> None:
    assert not judged(record([SOUND] * 24)).broken


def test_garbage_is_broken_with_its_numbers() -> None:
    result = judged(record([GARBAGE] * 24))
    assert result.broken
    assert result.nll > 8
    assert result.baseline_nll == pytest.approx(0.3)
    assert "NLL" in result.reason


def test_garbage_is_found_by_its_numbers_though_the_echo_crashed_the_engine() -> None:
    result = judged(record([GARBAGE] * 24, error="echo: HTTP 500"))
    assert result.broken
    assert result.nll is not None


def test_one_token_that_leaves_the_top_k_is_no_garbage() -> None:
    result = judged(record([OUTSIDE] + [SOUND] * 23))
    assert result.nll - result.baseline_nll > TOLERANCES["nll_increase_nats"]
    assert not result.broken
    assert result.narrow
    assert "over the limit" in result.reason


def test_a_sound_record_within_the_limit_is_not_in_doubt() -> None:
    result = judged(record([SOUND] * 24))
    assert not result.narrow
    assert "limit" not in result.reason


def test_answers_that_stopped_half_way_are_broken_without_numbers() -> None:
    result = judged(record([SOUND] * 12 + [([], [])] * 12, error="after 200 tokens: HTTP 500"))
    assert result.broken
    assert "HTTP 500" in result.reason


def test_a_server_that_was_killed_half_way_is_not_called_broken() -> None:
    baseline = [launch("base", record([SOUND] * 24)), launch("base+A2", record([SOUND] * 24))]
    killed = record([SOUND] * 12 + [([], [])] * 12, error="after 200 tokens: the connection broke")
    assert check([launch("candidate", killed, "failed")], baseline, band(baseline, TOLERANCES)) is None


def test_a_baseline_whose_echo_failed_still_serves_as_reference() -> None:
    baseline = [launch("base", record([SOUND] * 24, error="echo: HTTP 500"))]
    result = check([launch("candidate", record([GARBAGE] * 24))], baseline, band(baseline, TOLERANCES))
    assert result is not None
    assert result.broken
