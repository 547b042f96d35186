"""What a client writes is read back, whenever it dies."""

import os
import signal
import subprocess
import sys
import tempfile
from array import array
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.clock import boot_id
from harness.errors import StorageError
from harness.traffic.spool import (
    Spool,
    SpoolReader,
    count_ended,
    inflight_path,
    remove_spool,
    stream_path,
)
from harness.traffic.wire.exchange import Exchange

NS = st.integers(0, 2**63 - 1)


def reads_of(*reads: tuple[int, bytes]) -> dict[str, Any]:
    return {
        "read_ns": array("q", [ns for ns, _ in reads]),
        "read_bytes": array("I", [len(data) for _, data in reads]),
        "raw": bytearray(b"".join(data for _, data in reads)),
    }


@st.composite
def exchanges(draw: st.DrawFn) -> Exchange:
    return Exchange(
        sent_ns=draw(st.none() | NS),
        ended_ns=draw(NS),
        error=draw(st.none() | st.sampled_from(["timeout", "reset"])),
        error_detail=draw(st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)),
        reused=draw(st.booleans()),
        resends=draw(st.integers(0, 3)),
        **reads_of(*draw(st.lists(st.tuples(NS, st.binary(max_size=20)), max_size=6))),
    )


def copy(exchange: Exchange) -> Exchange:
    return Exchange(
        exchange.sent_ns, exchange.ended_ns, exchange.read_ns[:], exchange.read_bytes[:], exchange.raw[:],
        exchange.error, exchange.error_detail, exchange.reused, exchange.resends,
    )  # fmt: skip


def cut(exchange: Exchange, start: int, stop: int) -> dict[str, Any]:
    """Some of an exchange's reads."""
    at, to = sum(exchange.read_bytes[:start]), sum(exchange.read_bytes[:stop])
    return {
        "read_ns": exchange.read_ns[start:stop],
        "read_bytes": exchange.read_bytes[start:stop],
        "raw": exchange.raw[at:to],
    }


@given(st.lists(st.tuples(exchanges(), st.lists(st.integers(0, 6), max_size=3)), min_size=1, max_size=5), st.data())
def test_an_exchange_comes_back_as_it_was_however_often_it_was_spilled_and_in_whatever_order(
    cases: list[tuple[Exchange, list[int]]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spools = [Spool(folder, worker, len(cases), {}) for worker in (0, 1)]
        steps: list[tuple[int, int, int, bool]] = []
        for ordinal, (exchange, cuts) in enumerate(cases):
            edges = [0, *sorted(min(at, len(exchange.read_ns)) for at in cuts), len(exchange.read_ns)]
            pairs = list(pairwise(edges))
            steps += [(ordinal, a, b, i == len(pairs) - 1) for i, (a, b) in enumerate(pairs)]
        queues = {ordinal: [step for step in steps if step[0] == ordinal] for ordinal, *_ in steps}
        # Requests take turns in any order; each one's own steps stay in order.
        for ordinal in data.draw(st.permutations([step[0] for step in steps])):
            _, start, stop, last = queues[ordinal].pop(0)
            exchange = cases[ordinal][0]
            piece = copy(exchange)
            for field, value in cut(exchange, start, stop).items():
                setattr(piece, field, value)
            if last:
                spools[ordinal % 2].end(ordinal, ordinal or None, piece)
            else:
                spools[ordinal % 2].part(ordinal, piece)
                assert not piece.read_ns and not piece.read_bytes and not piece.raw
        for spool in spools:
            spool.close()
        reader = SpoolReader(folder, len(cases))
        for ordinal, (exchange, _) in enumerate(cases):
            recorded = reader.read(ordinal)
            assert recorded is not None
            assert (recorded.worker, recorded.scheduled_ns) == (ordinal % 2, ordinal or None)
            assert recorded.exchange == exchange
        reader.close()


def test_a_stream_cut_anywhere_gives_its_whole_frames_and_the_map_the_rest(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 3, 4, {"transport": "pure"})
    spool.start(0, None, 100)
    spool.start(1, 150, 160)
    spool.part(1, Exchange(sent_ns=170, **reads_of((180, b"half "))))
    spool.end(0, None, Exchange(sent_ns=101, ended_ns=200, **reads_of((190, b"whole"))))
    spool.client({"cpu_s": 1.5})
    spool.close()
    whole = stream_path(tmp_path, 3).read_bytes()
    seen = set()
    for size in range(len(whole) + 1):
        stream_path(tmp_path, 3).write_bytes(whole[:size])
        reader = SpoolReader(tmp_path, 4)
        first, second, third = (reader.read(ordinal) for ordinal in (0, 1, 2))
        reader.close()
        assert first is not None and second is not None and third is None
        assert (second.scheduled_ns, second.started_ns, second.exchange.error) == (150, 160, "client_lost")
        assert second.exchange.raw in (b"", b"half ")
        ended = first.exchange.error is None
        assert first.exchange.raw == (b"whole" if ended else b"")
        assert count_ended(stream_path(tmp_path, 3))[0] == ended
        (worker,) = reader.workers
        assert worker.hello.get("transport", "pure") == "pure"
        seen.add((bool(worker.hello), bool(second.exchange.raw), ended, bool(worker.client)))
    assert seen == {(n > 0, n > 1, n > 2, n > 3) for n in range(5)}
    assert worker.hello["boot_id"] == boot_id() and worker.client["cpu_s"] == 1.5
    assert {"monotonic_ns", "wall_ns"} == worker.hello["clock"].keys() == worker.client["clock"].keys()


def test_what_a_killed_client_had_under_way_is_known(tmp_path: Path) -> None:
    program = (
        "import os, sys, time, pathlib\n"
        "from harness.traffic.spool import Spool\n"
        "spool = Spool(pathlib.Path(sys.argv[1]), 0, 1000, {})\n"
        "for ordinal in range(1000):\n"
        "    spool.start(ordinal, None, ordinal + 1)\n"
        "    if ordinal == 700: print('x', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        client.stdout.readline()
        os.kill(client.pid, signal.SIGKILL)
    reader = SpoolReader(tmp_path, 1000)
    known = [reader.read(ordinal) for ordinal in range(1000)]
    reader.close()
    assert [one.started_ns for one in known if one] == list(range(1, 702))
    assert {one.exchange.error for one in known if one} == {"client_lost"}


def test_ends_are_counted_going_on_from_an_earlier_count(tmp_path: Path) -> None:
    path = stream_path(tmp_path, 0)
    assert count_ended(path) == (0, 0)
    spool = Spool(tmp_path, 0, 9, {})
    done, at = count_ended(path)
    assert done == 0 and at == path.stat().st_size
    for ordinal in range(3):
        spool.end(ordinal, None, Exchange(ended_ns=1))
        done, at = count_ended(path, done, at)
        assert done == ordinal + 1
    spool.close()


def test_no_room_is_said_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"inflight-0\.bin: .*free room"):
        Spool(tmp_path, 0, 2**58, {})
    with pytest.raises(StorageError, match=r"inflight-0\.bin"):
        Spool(tmp_path / "absent", 0, 1, {})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_fills_up_is_the_callers_to_act_on(tmp_path: Path) -> None:
    stream_path(tmp_path, 0).symlink_to("/dev/full")
    with pytest.raises(StorageError, match="no space left"):
        Spool(tmp_path, 0, 1, {})


def test_an_earlier_replays_files_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for worker in range(3):
        Spool(tmp_path, worker, 1, {}).close()
    (tmp_path / "client.log").write_text("kept")
    remove_spool(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["client.log"]
    assert not inflight_path(tmp_path, 0).exists()
