"""Reading `requests.parquet`: both versions, in any number of row groups, with whatever is null."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.analysis.measure import measure
from bench.analysis.metrics import launch_statistics, meets
from bench.analysis.planned import ALL, Group
from bench.analysis.records import Records
from harness.errors import KVMarkError
from tests.bench.analysis.many_requests import synthetic_requests
from tests.bench.run_folder import request, table, table_version_1

LIMITS = {"itl_p90_ms": 40.0, "ttft_p90_ms": 200.0}


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Requests of all kinds: failed, never sent, held back, without output, of chunks with none or several tokens."""
    found = []
    for index in range(draw(st.integers(1, 12))):
        sent = draw(st.one_of(st.none(), st.integers(0, 5000)))
        gaps = draw(st.lists(st.integers(0, 90), max_size=8)) if sent is not None else []
        events = [(sent or 0) + total for total in np.cumsum(gaps).tolist()]
        tokens = draw(st.one_of(st.none(), st.lists(st.integers(0, 4), min_size=len(events), max_size=len(events))))
        error = "not_sent" if sent is None else draw(st.sampled_from([None, None, "timeout"]))
        found.append(
            request(
                index,
                sent_ms=sent,
                scheduled_ms=draw(st.one_of(st.none(), st.integers(0, 5000))),
                events_ms=events,
                tokens=tokens,
                error=error,
                ended_ms=9000,
                phase=draw(st.sampled_from(["window", "window", "warmup"])),
                buffered=draw(st.booleans()),
            )
        )
    return found


def statistics(records: Records) -> dict[str, float]:
    limits = {(90, 40.0)}
    found = measure(records, {ALL: Group(True)}, limits)
    values = launch_statistics(found.window, {"chat": LIMITS})
    return values | {f"steady.{i}": float(v) for i, v in enumerate(found.everything.steady_tokens)}


@given(rows(), st.integers(1, 5))
def test_batches_and_versions_change_nothing(tmp_path_factory: pytest.TempPathFactory, found: Any, size: int) -> None:
    whole = table(found)
    expected = statistics(Records.open(whole))
    path = tmp_path_factory.mktemp("parquet") / "requests.parquet"
    pq.write_table(whole, path, row_group_size=size)
    assert statistics(Records.open(path)) == pytest.approx(expected, nan_ok=True)
    unsent = [row for row in found if row["sent_ns"] is not None or not row["event_us"]]
    assert statistics(Records.open(table_version_1(unsent))) == pytest.approx(expected, nan_ok=True)


@given(rows())
def test_every_request_is_counted_once(found: Any) -> None:
    requests = measure(Records.open(table(found)), {ALL: Group(True)}).window
    window = [row for row in found if row["phase"] == "window"]
    assert len(requests) == len(window)
    assert int(requests.ok.sum()) + sum(requests.failures().values()) == len(window)
    good = [row for row in window if row["error"] is None and row["event_us"]]
    expected = 0
    for row in good:
        counts = row["event_tokens"] or [1] * len(row["event_us"])
        expected += 0 if row["buffered"] else sum(counts[1:])
    assert len(requests.itl) == expected


@given(rows())
def test_an_itl_limit_is_kept_as_sorting_would_have_it(found: Any) -> None:
    requests = measure(Records.open(table(found)), {ALL: Group(False)}, {(90, 40.0)}).window
    kept = []
    for row in (row for row in found if row["phase"] == "window"):
        counts = row["event_tokens"] or [1] * len(row["event_us"])
        gaps, last = [], None
        for at, count in zip(row["event_us"], counts, strict=True):
            if last is not None and count:
                gaps += [(at - last) / 1000 / count] * count
            if last is None or count:
                last = at
        ok = row["error"] is None and bool(row["event_us"])
        rank = max(1, int(np.ceil(len(gaps) * 0.9 - 1e-9)))
        kept.append(ok and (row["buffered"] or not gaps or sorted(gaps)[rank - 1] <= 40 + 1e-12))
    assert meets(requests, {"itl_p90_ms": 40.0}).tolist() == kept


def test_a_file_of_many_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = synthetic_requests(tmp_path / "requests.parquet", 45_000, 3)
    whole = statistics(Records.open(pq.read_table(path)))
    monkeypatch.setattr("bench.analysis.records._BATCH_EVENTS", 10_000)
    assert statistics(Records.open(path)) == pytest.approx(whole)


def test_a_version_that_is_not_known_is_refused() -> None:
    strange = table([request(0)]).replace_schema_metadata({"kvmark_requests_version": "3"})
    with pytest.raises(KVMarkError, match="version 3 of the request records is unknown"):
        Records.open(strange)


def test_a_file_without_a_version_is_known_by_its_columns() -> None:
    assert Records.open(table_version_1([request(0)])).version == 1
    assert Records.open(table([request(0)]).replace_schema_metadata(None)).version == 2


def test_no_rows_at_all(tmp_path: Path) -> None:
    path = tmp_path / "requests.parquet"
    pq.write_table(table([]), path)
    found = measure(Records.open(path), {ALL: Group(False)})
    assert len(found.window) == 0 and found.steady is None and launch_statistics(found.window, {}) == {}


def test_lists_that_are_null_hold_no_event() -> None:
    rows = table([request(0), request(1, error="timeout", event_us=None, event_tokens=None)])
    assert rows["event_us"].null_count == 1
    assert measure(Records.open(rows), {ALL: Group(False)}).window.failures() == {"timeout": 1}


def test_times_beyond_a_signed_32_bit_number_of_microseconds() -> None:
    hour = 3_600_000
    found = measure(
        Records.open(table([request(0, sent_ms=0, events_ms=[hour - 5, hour])])), {ALL: Group(False)}
    ).window
    assert found.itl.listed().tolist() == [5] and found.e2e_ms.tolist() == [hour]


def test_a_file_of_something_else_is_refused_by_its_columns() -> None:
    with pytest.raises(KVMarkError, match="lack the columns phase, ended_ns"):
        Records.open(table([request(0)]).drop_columns(["phase", "ended_ns"]))
