"""The output check: garbage is found whatever else went wrong, and one odd token is no garbage."""

import math
from typing import Any

import pytest

from bench.analysis.load import LaunchRecord
from bench.analysis.output_check import band, check

POSITIONS = [100 * (i + 1) for i in range(24)]
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


def two_texts(first: list[Any], second: list[Any], sha: str = "t") -> dict[str, Any]:
    """A record of schema version 2: a deep text, and a short one."""
    deep, short = record(first), record(second)
    deep |= {"text_sha256": f"{sha}0", "positions": [200 * (i + 1) for i in range(24)]}
    short |= {"text_sha256": f"{sha}1"}
    return {"schema_version": 2, "texts": [deep, short], "echo": None, "prefix_hits": None, "error": None}


def judged_2(found: dict[str, Any]) -> Any:
    baseline = [launch("base", two_texts([SOUND] * 24, [SOUND] * 24))]
    return check([launch("candidate", found)], baseline, band(baseline, TOLERANCES))


def worse_by(nats: float) -> tuple[list[int], list[float]]:
    return [1, 2], [-0.3 - nats, -2.0 - nats]


def test_all_positions_of_all_texts_count() -> None:
    result = judged_2(two_texts([SOUND] * 24, [GARBAGE] * 24))
    assert result.state == "broken"
    assert result.positions == 48
    assert result.nll == pytest.approx((24 * 0.3 + 24 * -math.log((1 - math.exp(-1) - math.exp(-2)) / 49150)) / 48)


def test_garbage_in_the_later_half_alone_is_broken() -> None:
    result = judged_2(two_texts([SOUND] * 20 + [GARBAGE] * 4, [SOUND] * 24))
    assert result.state == "broken"


def test_a_later_half_over_the_limit_is_broken_though_the_mean_is_within_it() -> None:
    result = judged_2(two_texts([worse_by(0.45), worse_by(0.55)] * 12, [SOUND] * 24))
    assert result.nll - result.baseline_nll < TOLERANCES["nll_increase_nats"]
    assert result.state == "broken"
    assert "later half" in result.reason


def test_the_interval_is_a_t_interval_over_the_positions() -> None:
    result = judged_2(two_texts([SOUND, worse_by(0.2)] * 12, [SOUND, worse_by(0.2)] * 12))
    # 48 shifts, half 0 and half 0.2: standard deviation 0.1 · √(48/47), t(0.975, 47) = 2.0117
    half = 2.0117 * 0.1 * math.sqrt(48 / 47) / math.sqrt(48)
    assert (result.nll_shift_low, result.nll_shift_high) == pytest.approx((0.1 - half, 0.1 + half), abs=1e-5)
    assert result.state == "sound"


def test_positions_that_follow_each_other_are_one_observation() -> None:
    def in_runs(answers: list[Any]) -> dict[str, Any]:
        runs = [128 * (anchor + 1) + step for anchor in range(12) for step in range(4)]
        return {**record(answers), "positions": runs, "next_token_ids": [1] * len(runs)}

    baseline = [launch("base", in_runs([SOUND] * 48))]
    found = in_runs([one for anchor in range(12) for one in [worse_by(0.2 * (anchor % 2))] * 4])
    result = check([launch("candidate", found)], baseline, band(baseline, TOLERANCES))
    # 12 runs, half 0 and half 0.2: standard deviation 0.1 · √(12/11), t(0.975, 11) = 2.2010; not 48 positions
    half = 2.2010 * 0.1 * math.sqrt(12 / 11) / math.sqrt(12)
    assert (result.nll_shift_low, result.nll_shift_high) == pytest.approx((0.1 - half, 0.1 + half), abs=1e-5)
    assert result.positions == 48


def test_an_interval_that_reaches_the_limit_is_in_doubt() -> None:
    result = judged_2(two_texts([worse_by(8.0)] + [SOUND] * 23, [SOUND] * 24))
    assert result.nll - result.baseline_nll < TOLERANCES["nll_increase_nats"] < result.nll_shift_high
    assert result.state == "in doubt"
    assert result.narrow and not result.broken
    assert "reaches the limit" in result.reason


def test_the_quantile_follows_the_number_of_positions() -> None:
    few, many = (
        check(
            [launch("candidate", {**record([OUTSIDE] + [SOUND] * (n - 1)), "positions": list(range(1, n + 1)),
                                  "next_token_ids": [1] * n})],
            [launch("base", {**record([SOUND] * n), "positions": list(range(1, n + 1)), "next_token_ids": [1] * n})],
            band([], TOLERANCES),
        )
        for n in (4, 400)
    )  # fmt: skip
    assert few is not None and many is not None
    assert few.state == "in doubt"
    assert many.state == "sound"


def test_every_launch_must_be_sound() -> None:
    baseline = [launch("base", two_texts([SOUND] * 24, [SOUND] * 24))]
    sound, doubt, broken = (
        launch("candidate", two_texts(one, [SOUND] * 24))
        for one in ([SOUND] * 24, [OUTSIDE] + [SOUND] * 23, [GARBAGE] * 24)
    )
    for launches, state in (
        ([sound, sound], "sound"),
        ([sound, doubt], "in doubt"),
        ([doubt, sound], "in doubt"),
        ([doubt, broken, sound], "broken"),
    ):
        result = check(launches, baseline, band(baseline, TOLERANCES))
        assert result is not None
        assert result.state == state


def test_other_texts_are_not_compared_and_that_is_said() -> None:
    baseline = [launch("base", two_texts([SOUND] * 24, [SOUND] * 24, sha="other"))]
    result = check([launch("x", two_texts([GARBAGE] * 24, [GARBAGE] * 24))], baseline, band(baseline, TOLERANCES))
    assert result is not None
    assert result.state == "not compared"
    assert not result.broken
    assert result.nll is None
    assert "other texts" in result.reason


def test_no_baseline_no_verdict() -> None:
    assert check([launch("x", two_texts([SOUND] * 24, [SOUND] * 24))], [], band([], TOLERANCES)) is None
    assert check([], [launch("base", record([SOUND] * 24))], band([], TOLERANCES)) is None


def test_values_that_are_no_numbers_are_broken() -> None:
    nulls: list[Any] = [([1, 2], [None, None])] * 24
    result = judged_2(two_texts([SOUND] * 24, nulls))
    assert result.state == "broken"
    assert "no usable log-probabilities at 24 positions" in result.reason


def test_fewer_prefixes_of_the_same_texts_are_compared_where_both_have_them() -> None:
    fewer = two_texts([GARBAGE] * 24, [GARBAGE] * 24)
    for text in fewer["texts"]:
        for key in ("positions", "next_token_ids", "top_token_ids", "top_logprobs"):
            text[key] = text[key][::4]
    result = judged_2(fewer)
    assert result.state == "broken"
    assert result.positions == 12


def test_an_equal_launch_is_sound_whatever_its_order_among_the_blocks() -> None:
    found = judged_2(two_texts([SOUND] * 24, [SOUND] * 24))
    assert (found.state, found.nll_shift_low, found.nll_shift_high) == ("sound", 0.0, 0.0)
