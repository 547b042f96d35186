import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.traffic import shipping
from harness.traffic.shipping import Inbox, Outbox
from harness.traffic.spool import Spool, SpoolReader, stream_path
from harness.traffic.wire.exchange import Exchange

REQUESTS = 40


@given(st.lists(st.sampled_from(["record", "ship", "lose reply", "lose message"]), max_size=60), st.integers(64, 4096))
def test_what_a_worker_ships_is_what_it_wrote(tmp_path_factory: object, steps: list[str], piece_bytes: int) -> None:
    folder = tmp_path_factory.mktemp("ship")  # type: ignore[attr-defined]
    here, there = folder / "here", folder / "there"
    here.mkdir(), there.mkdir()
    spool, before = Spool(there, 3, REQUESTS, {}), shipping.PIECE_BYTES
    shipping.PIECE_BYTES = piece_bytes
    try:
        outbox, inbox = Outbox(there, 3), Inbox(here, 3, REQUESTS)
        ordinal = 0
        for step in [*steps, "ship"]:
            if step == "record" and ordinal < REQUESTS:
                outbox.start(ordinal, None, 1000 + ordinal)
                spool.start(ordinal, None, 1000 + ordinal)
                spool.end(ordinal, None, Exchange(sent_ns=5, ended_ns=9, raw=bytearray(os.urandom(50))))
                ordinal += 1
            elif step == "ship":
                while (piece := outbox.next()) is not None:
                    inbox.take(piece)
                    outbox.confirm(piece)
            elif (piece := outbox.next()) is not None and step == "lose reply":
                inbox.take(piece)  # it will come again, longer perhaps
        for name in ("stream-3.bin", "inflight-3.bin"):
            assert (here / name).read_bytes() == (there / name).read_bytes()
        assert outbox.next() is None
        inbox.close(), outbox.close(), spool.close()
    finally:
        shipping.PIECE_BYTES = before


def test_a_worker_that_dies_leaves_what_it_shipped(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    spool, outbox, inbox = Spool(there, 0, 3, {"host": "x"}), None, Inbox(here, 0, 3)
    outbox = Outbox(there, 0)
    for ordinal in (0, 2):
        outbox.start(ordinal, 7, 8)
    spool.end(0, 7, Exchange(sent_ns=8, ended_ns=9))
    piece = outbox.next()
    assert piece is not None
    inbox.take(piece)
    reader = SpoolReader(here, 3)
    found = [reader.read(ordinal) for ordinal in range(3)]
    assert found[0] is not None and found[0].exchange.error is None
    assert found[1] is None
    assert found[2] is not None and (found[2].scheduled_ns, found[2].exchange.error) == (7, "client_lost")
    reader.close()
    assert stream_path(here, 0).exists()
