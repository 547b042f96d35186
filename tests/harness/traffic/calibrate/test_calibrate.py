"""The whole calibration, quickly: the real client against the real paced server."""

import json
import os
import xml.etree.ElementTree
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.traffic.calibrate.__main__ import main
from harness.traffic.calibrate.ceiling import load_ceiling, path_for_host
from harness.traffic.calibrate.ladder import split_cores

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@two_cores
def test_a_quick_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVMARK_CACHE", str(tmp_path))
    assert main(["--quick", "--transport", "pure"]) == 0
    stored = json.loads(path_for_host().read_text())
    entry = stored["entries"]["pure-1-quick"]
    assert entry["steps"][0]["kind"] == "streams" and entry["steps"][0]["asked"] == 4
    assert {step["kind"] for step in entry["steps"]} == {"streams", "rate", "capacity"}
    for step in entry["steps"]:
        assert step["requests"] > 0
        assert step["failed"] == step["unmatched"] == step["wrong_tokens"] == 0
    xml.etree.ElementTree.parse(path_for_host().with_name(f"{path_for_host().stem}-pure-1-quick.svg"))
    assert load_ceiling("pure") is None  # a quick look is no ceiling
    assert "not taken for this host's ceiling" in capsys.readouterr().out


def test_on_one_core_it_says_that_it_cannot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    with pytest.raises(ConfigError, match="on one core, client and server would measure each other"):
        split_cores(1)
    assert main(["--quick", "--transport", "pure"]) == 1
    assert "may use 1" in capsys.readouterr().err
