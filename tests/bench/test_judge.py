"""What a probe of a saturation search is told: met, missed or client-bound, and by which statistics."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench.judge import judge_by
from harness.errors import LaunchError
from harness.saturation import Judgement
from harness.traffic.load import Load
from tests.bench.run_folder import request, table

CALM = {"transport": "pure", "cpu_s": 1.0, "wall_s": 10.0, "cpu_share_max": 0.1, "loop_lag_p99_ms": 1.0}
LOAD = Load(arrival={"kind": "poisson", "rate_rps": 1}, search={"over": "rate_rps", "sla": "chat"})


def rows(count: int = 20, *, ttft_ms: float = 100, tokens: int = 3, failed: int = 0) -> list[dict[str, Any]]:
    """Open loop, one a second; the last ones fail."""
    return [
        request(
            i,
            scheduled_ms=1000 * i,
            sent_ms=1000 * i,
            events_ms=[1000 * i + ttft_ms + 50 * k for k in range(tokens)],
            error="timeout" if i >= count - failed else None,
        )
        for i in range(count)
    ]


def judged(folder: Path, found: list[dict[str, Any]] | None, limits: dict[str, float], **facts: Any) -> Judgement:
    folder.mkdir(exist_ok=True)
    cell = {"state": "measured", "reason": None, "arrival": LOAD.arrival, "client": {**CALM, "exit_code": 0}, **facts}
    (folder / "cell.json").write_text(json.dumps(cell))
    if found is not None:
        pq.write_table(table(found), folder / "requests.parquet")
    return judge_by({"chat": {"title": "chat", **limits}})(LOAD, folder)


@pytest.mark.parametrize(
    ("found", "limits", "outcome", "evidence"),
    [
        (rows(), {"ttft_p90_ms": 100, "tpot_p90_ms": 50}, "met", {"ttft_p90_ms": 100, "tpot_p90_ms": 50}),
        (rows(), {"ttft_p90_ms": 99, "tpot_p90_ms": 50}, "missed", {"ttft_p90_ms": 100, "tpot_p90_ms": 50}),
        # Two of twenty may fail at P90, three may not; the ITL, which failures don't have, is no way around that.
        (rows(failed=2), {"ttft_p90_ms": 100}, "met", {"ttft_p90_ms": 100}),
        (rows(failed=3), {"ttft_p90_ms": 100}, "missed", {"ttft_p90_ms": "inf"}),
        (rows(failed=2), {"itl_p90_ms": 50}, "met", {"itl_p90_ms": 50}),
        (rows(failed=3), {"itl_p90_ms": 50}, "missed", {"itl_p90_ms": "inf"}),
        # An answer of one token has no TPOT that could be too long.
        (rows(tokens=1), {"ttft_p90_ms": 100, "tpot_p90_ms": 1}, "met", {"ttft_p90_ms": 100}),
        (rows(tokens=1, failed=3), {"tpot_p90_ms": 1}, "missed", {"tpot_p90_ms": "inf"}),
        (rows(failed=20), {"itl_p90_ms": 50}, "missed", {}),
    ],
)
def test_a_probe_is_held_against_every_limit(
    tmp_path: Path, found: list[dict[str, Any]], limits: dict[str, float], outcome: str, evidence: dict[str, Any]
) -> None:
    judgement = judged(tmp_path, found, limits)
    assert (judgement.outcome, judgement.evidence) == (outcome, evidence)
    assert (judgement.reason is None) == (outcome == "met")


@pytest.mark.parametrize(
    ("found", "facts", "reason"),
    [
        (None, {"state": "failed", "reason": "the load client died"}, "the load client died"),
        (rows(), {"state": "failed", "reason": "the load client died", "client": None}, "the load client died"),
        (
            rows(failed=20),
            {"client": {**CALM, "exit_code": 70, "lost_workers": [{"number": 1, "host": "h", "reason": "killed"}]}},
            "not comparable",
        ),
    ],
)
def test_a_client_that_failed_is_no_miss_of_the_server(
    tmp_path: Path, found: list[dict[str, Any]] | None, facts: dict[str, Any], reason: str
) -> None:
    with pytest.raises(LaunchError, match=reason):
        judged(tmp_path, found, {"ttft_p90_ms": 100}, **facts)


def test_a_server_that_fails_every_request_has_missed(tmp_path: Path) -> None:
    judgement = judged(tmp_path, rows(failed=20), {"ttft_p90_ms": 100}, state="failed", reason="all 20 requests failed")
    assert (judgement.outcome, judgement.reason) == ("missed", "all 20 requests failed")


def test_a_probe_that_the_client_could_not_send_is_client_bound(tmp_path: Path) -> None:
    busy = judged(tmp_path, rows(), {"ttft_p90_ms": 100}, client={**CALM, "cpu_share_max": 0.99, "exit_code": 0})
    assert busy.outcome == "client-bound" and busy.reason is not None and "99%" in busy.reason
