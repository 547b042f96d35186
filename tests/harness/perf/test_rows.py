"""Rows, small: their shape, and that a peer's absence is said."""

import json
from pathlib import Path

import pytest

from harness.backends.interface import EngineEnvironment
from harness.perf.__main__ import main
from harness.perf.figure import ROWS
from harness.perf.peers import VLLM_BENCH, Ask, Installed, Peer, Place


def test_every_row_of_the_table_is_known() -> None:
    assert list(ROWS) == ["cpu", "lockstep", "capacity", "open-loop", "memory", "analysis"]


def test_one_tiny_row(tmp_path: Path) -> None:
    out = tmp_path / "perf.json"
    code = main(["--only", "capacity", "--tiny", "--peers", "Locust FastHttp", "--out", str(out)])
    figures = json.loads(out.read_text())
    assert {"name", "value", "unit", "peer", "peer_value", "ratio", "bar", "holds"} <= set(figures[0])
    assert figures[0]["name"].startswith("one-token requests a second and core: pure")
    assert figures[0]["value"] > 0 and figures[0]["peer_value"] > 0
    assert figures[0]["bar"] == "value >= 15000"
    assert figures[-1]["peer_value"] is None and "left out by --peers" in figures[-1]["note"]
    assert code == (0 if all(one["holds"] is not False for one in figures) else 1)


def test_an_unknown_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "speed"])
    assert "unknown speed; allowed: cpu" in capsys.readouterr().err


def test_a_peer_that_cannot_be_installed_is_asked_for_once(tmp_path: Path) -> None:
    environment = EngineEnvironment("peers-none", ("none==1",), ((2, 7),), ("-c", ""))
    peer = Peer("none", "1", environment, lambda ask, place: [])
    said: list[str] = []
    installed = Installed(said.append)
    assert installed.python(peer) is None
    assert installed.python(peer) is None
    assert "can't be installed here" in installed.missing["none"] and "2.7" in installed.missing["none"]


def test_commands_name_the_load(tmp_path: Path) -> None:
    place = Place("http://127.0.0.1:1", "/tokenizer", tmp_path)
    closed = VLLM_BENCH.command(Ask(8, 4, 16), place)
    assert closed[closed.index("--max-concurrency") + 1] == "4"
    opened = VLLM_BENCH.command(Ask(8, 4, 16, rate_rps=2.0), place)
    assert "--max-concurrency" not in opened and opened[opened.index("--request-rate") + 1] == "2.0"
