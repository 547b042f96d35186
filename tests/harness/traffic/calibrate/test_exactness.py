"""The calibration's arithmetic, on logs and records made by hand."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from harness.traffic.calibrate.exactness import Exactness, exactness
from harness.traffic.calibrate.server_log import ServerLog

MS = 1_000_000


def log_of(requests: dict[str, tuple[int, list[int]]], itl_ms: int = 20) -> ServerLog:
    """A log of requests: when they arrived and when their tokens were sent, in ms."""
    sends = [np.array(at, dtype=np.int64) * MS for _, at in requests.values()]
    sent = np.array([len(at) for at in sends])
    arrived = np.array([at for at, _ in requests.values()], dtype=np.int64) * MS
    due = np.array([at[0] if len(at) else 0 for at in sends], dtype=np.int64)
    zeros = np.zeros(len(sent), dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sent)])
    return ServerLog(itl_ms * MS, list(requests), zeros, arrived, due, zeros, sent, sent, np.concatenate(sends), starts)


def records_of(
    path: Path, rows: dict[str, tuple[float, float, list[float], str | None]], scheduled: bool = False
) -> Path:
    """Records: when requests were sent and ended, when their events came, in ms, and how they failed."""
    values = rows.values()
    table = pa.table(
        {
            "request_id": list(rows),
            "scheduled_ns": pa.array([round(row[0] * MS) - MS if scheduled else None for row in values], pa.int64()),
            "sent_ns": pa.array([round(row[0] * MS) for row in values], pa.int64()),
            "ended_ns": pa.array([round(row[1] * MS) for row in values], pa.int64()),
            "event_us": pa.array(
                [[round((at - row[0]) * 1000) for at in row[2]] for row in values], pa.list_(pa.uint32())
            ),
            "error": pa.array([row[3] for row in values], pa.string()),
        }
    )
    parquet.write_table(table, path)
    return path


def test_a_perfect_client_has_no_error(tmp_path: Path) -> None:
    log = log_of({"b-0.tag": (2000, [2050, 2070]), "a-0.tag": (1000, [1050, 1070, 1090])})
    rows = {"a-0": (1000, 1090, [1050, 1070, 1090], None), "b-0": (2000, 2070, [2050, 2070], None)}
    exact = exactness(records_of(tmp_path / "r.parquet", rows), log)
    assert exact.is_whole()
    assert exact.requests == 2
    for name, mean in (("ttft", 50.0), ("itl", 20.0), ("e2e", 80.0)):
        assert exact.metrics[name].truth.mean == pytest.approx(mean)
        assert exact.metrics[name].error_pct() == pytest.approx(0)
        assert exact.metrics[name].error_pct("p99") == pytest.approx(0)
    assert exact.delay_ms.mean == pytest.approx(0)
    assert exact.seconds == pytest.approx(1.07)
    assert exact.requests_per_s == pytest.approx(2 / 1.07)
    assert exact.tokens_per_s == pytest.approx(0)  # none in the middle half
    assert exact.worst_mean_pct() == pytest.approx(0)


def test_the_rate_of_tokens_leaves_out_the_beginning_and_the_end(tmp_path: Path) -> None:
    log = log_of({"a-0.t": (0, [0, 240, 250, 500, 740, 750, 1000])})
    exact = exactness(records_of(tmp_path / "r.parquet", {"a-0": (1, 1000, [], "reset")}), log)
    assert exact.tokens_per_s == pytest.approx(3 / 0.5)


def test_errors_are_relative_to_the_truth(tmp_path: Path) -> None:
    log = log_of({"a-0.t": (1000, [1050, 1070, 1090])})
    # Sent 1 ms before it arrived, the first token seen 1 ms late, the last one 3 ms late.
    rows = {"a-0": (999, 1094, [1051, 1072, 1093], None)}
    exact = exactness(records_of(tmp_path / "r.parquet", rows), log)
    assert exact.metrics["ttft"].error_pct() == pytest.approx(2 / 50 * 100)
    assert exact.metrics["itl"].error_pct() == pytest.approx(5.0)
    assert exact.metrics["e2e"].error_pct() == pytest.approx(5 / 90 * 100)
    assert exact.delay_ms.mean == pytest.approx(2.0)
    assert exact.worst_mean_pct() == pytest.approx(5.0)
    assert exact.worst_mean_pct(("ttft",)) == pytest.approx(4.0)


def test_requests_are_joined_not_counted(tmp_path: Path) -> None:
    log = log_of({"b-0.t": (1000, [1050]), "x.t": (1000, [1050]), "a-0.t": (1000, [1050, 1070]), "c-0.t": (0, [50])})
    rows = {
        "a-0": (1000.0, 1050.0, [1050.0], None),  # a token lost
        "b-0": (1000.0, 1050.0, [1050.0], None),
        "c-0": (0.0, 50.0, [50.0], "timeout"),
        "d-0": (1000.0, 1050.0, [1050.0], None),  # unknown to the server, as x is to the client
    }
    exact = exactness(records_of(tmp_path / "r.parquet", rows), log)
    assert (exact.requests, exact.failed, exact.unmatched, exact.wrong_tokens) == (4, 1, 2, 1)
    assert not exact.is_whole()
    assert exact.metrics["ttft"].truth.mean == pytest.approx(50)


def test_an_id_met_twice_is_no_match(tmp_path: Path) -> None:
    log = log_of({"a-0.t": (1000, [1050]), "a-0.u": (1000, [1050])})
    exact = exactness(records_of(tmp_path / "r.parquet", {"a-0": (1000, 1050, [1050], None)}), log)
    assert exact.unmatched == 1


def test_an_open_loops_lag_and_rate(tmp_path: Path) -> None:
    log = log_of({f"s{n}-0.t": (1000 + 10 * n, [1050 + 10 * n]) for n in range(5)})
    rows = {f"s{n}-0": (1000.0 + 10 * n, 1050.0 + 10 * n, [1050.0 + 10 * n], None) for n in range(5)}
    exact = exactness(records_of(tmp_path / "r.parquet", rows, scheduled=True), log)
    assert exact.send_lag_ms.mean == pytest.approx(1.0)
    assert exact.attained_over_asked == pytest.approx(1.0)
    assert np.isnan(exact.metrics["itl"].error_pct())
    assert exact.worst_mean_pct() == pytest.approx(0)


def test_nothing_at_all(tmp_path: Path) -> None:
    exact = exactness(
        records_of(tmp_path / "r.parquet", {"a-0": (1000, 1001, [], "reset")}), log_of({"a-0.t": (1000, [])})
    )
    assert isinstance(exact, Exactness)
    assert not exact.is_whole()
    assert np.isnan(exact.worst_mean_pct())
