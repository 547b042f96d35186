from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.traffic.attained import COLUMNS, attained
from harness.traffic.playbook import Playbook

from .schedules import turn, write_schedule

TYPES = {"session_id": pa.string(), "phase": pa.string(), "tenant": pa.string(), "turn": pa.int32()}
MS = 1_000_000


def row(
    session: str, sent_ms: float | None, ended_ms: float, due_ms: float | None = None, **more: Any
) -> dict[str, Any]:
    lag = None if sent_ms is None or due_ms is None else round((sent_ms - due_ms) * 1000)
    times = {"sent_ns": sent_ms, "ended_ns": ended_ms, "scheduled_ns": due_ms}
    own = {name: None if at is None else round(at * MS) for name, at in times.items()}
    return {"session_id": session, "phase": "window", "tenant": None, "turn": 0, **own, "send_lag_us": lag, **more}


def figures(folder: Path, rows: list[dict[str, Any]], groups: dict[str, dict[str, Any]]) -> Any:
    schema = pa.schema([(name, TYPES.get(name, pa.int64())) for name in COLUMNS])
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / "requests.parquet")
    tenant = next(iter(groups))
    schedule = write_schedule(folder / "s", [{"turns": [turn(0, 3, 2)], "tenant": tenant, "due_ns": 0}], groups=groups)
    return attained(folder / "requests.parquet", Playbook(schedule))


def test_an_open_loops_rate_as_asked_and_as_sent(tmp_path: Path) -> None:
    due = [0, 100, 200, 300, 400]
    rows = [row(f"s{at}", at * 1.5, at + 900, at) for at in due]
    rows.append(row("s0", 5000, 6000, 4000, turn=1))  # a later turn follows its answer, not the schedule
    rows.append(row("w", 1, 2, 1, phase="warmup"))
    got = figures(tmp_path, rows, {"": {"kind": "open"}})
    assert got.asked_rps == pytest.approx(10)
    assert got.attained_rps == pytest.approx(10 / 1.5)
    assert got.attained_over_asked == pytest.approx(1 / 1.5)
    assert (got.asked_concurrency, got.attained_concurrency_mean) == (None, None)
    assert (got.send_lag_p50_ms, got.send_lag_max_ms) == (pytest.approx(125), pytest.approx(1000))
    assert got.streams_peak == 5  # the warm-up's request had ended


def test_requests_that_were_never_sent_lower_the_rate(tmp_path: Path) -> None:
    rows = [row(f"s{at}", None if at == 200 else at, at + 10, at) for at in (0, 100, 200, 300)]
    got = figures(tmp_path, rows, {"": {"kind": "open"}})
    assert (got.asked_rps, got.attained_rps) == (pytest.approx(10), pytest.approx(2 / 0.3))


def test_a_closed_loops_concurrency_counts_sessions_and_their_pauses(tmp_path: Path) -> None:
    rows = [
        row("a", 0, 100), row("a", 300, 400, turn=1),  # thinks from 100 to 300
        row("b", 0, 200), row("c", 200, 500), row("d", 400, 700),
    ]  # fmt: skip
    got = figures(tmp_path, rows, {"": {"kind": "closed", "concurrency": 2}})
    assert got.attained_concurrency_mean == pytest.approx(2)
    assert got.attained_over_asked == pytest.approx(1)
    assert got.streams_peak == 2


def test_a_place_that_stands_empty_lowers_it(tmp_path: Path) -> None:
    rows = [row("a", 0, 100), row("b", 0, 400), row("c", 200, 500), row("d", 400, 700)]
    got = figures(tmp_path, rows, {"x": {"kind": "closed", "concurrency": 2}})
    assert got.attained_concurrency_mean == pytest.approx((100 + 400 + 200) / 400)


def test_nothing_sent(tmp_path: Path) -> None:
    got = figures(tmp_path, [row("a", None, 5, 1)], {"": {"kind": "open"}})
    assert (got.streams_peak, got.attained_rps, got.send_lag_max_ms) == (0, None, None)
