"""From measured steps to a ceiling, and from the stored ceilings to that of a client."""

import math
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

from harness.traffic.calibrate import ceiling
from harness.traffic.calibrate.ceiling import Ceiling, Step, ceiling_of, load_ceiling, path_for_host, store
from harness.traffic.calibrate.exactness import Compared, Exactness, Figures
from harness.traffic.calibrate.ladder import Plan, climb
from harness.traffic.calibrate.plot import plot

NOTHING = Figures(*[math.nan] * 4)


def step(kind: str, asked: float, error_pct: float, failed: int = 0, attained: float = 1.0) -> Step:
    truth, seen = Figures(50, 50, 50, 50), Figures(*[50 + error_pct / 2] * 4)
    metrics = {name: Compared(truth, seen) for name in ("ttft", "itl", "e2e")}
    rate = attained if kind == "rate" else math.nan
    exact = Exactness(10, failed, 0, 0, metrics, NOTHING, rate, seen, 1.0, asked * 0.9, asked * 50, truth)
    return Step(kind, asked, exact)


def test_the_ceiling_is_the_highest_step_that_holds() -> None:
    steps = [
        *(step("streams", asked, error) for asked, error in ((16, 0.1), (64, -1.9), (32, 2.5), (128, 2.1), (256, 4.0))),
        *(step("rate", asked, 0.1, attained=attained) for asked, attained in ((100, 1.0), (200, 0.99), (400, 0.97))),
        step("capacity", 64, 400.0),
    ]
    assert ceiling_of(steps) == Ceiling(64, 3200.0, 180.0, 2.0, False)
    assert ceiling_of(steps, 5.0) == Ceiling(256, 12800.0, 180.0, 5.0, True)


def test_a_failed_request_is_never_within() -> None:
    assert step("streams", 16, 0.0, failed=1).error_pct() == math.inf
    assert ceiling_of([step("streams", 16, 0.0, failed=1)]) == Ceiling(0, 0.0, 0.0, 2.0, True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVMARK_CACHE", str(tmp_path))
    return tmp_path


def stored(transport: str, streams: int, processes: int = 1, quick: bool = False) -> dict[str, Any]:
    steps = [step("streams", streams, 0.0), step("rate", 100, 0.0)]
    return store(
        path_for_host(), steps, transport=transport, processes=processes, server="python", created="now", quick=quick
    )


def test_a_ceiling_is_found_by_transport_and_processes(cache: Path) -> None:
    assert load_ceiling("pure") is None
    stored("pure", 64)
    stored("compiled", 256)
    stored("pure", 128, processes=2)
    found = load_ceiling("pure")
    assert found == {
        "streams": 64,
        "tokens_per_s": 3200.0,
        "requests_per_s": 90.0,
        "error_pct": 2.0,
        "is_lower_bound": True,
        "transport": "pure",
        "processes": 1,
        "created": "now",
    }
    assert (load_ceiling("compiled") or {})["streams"] == 256
    assert (load_ceiling("pure", 2) or {})["streams"] == 128
    assert (load_ceiling("pure", 8) or {})["processes"] == 2
    stored("pure", 32)
    assert (load_ceiling("pure") or {})["streams"] == 32


def test_a_quick_look_or_another_python_is_no_ceiling(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored("pure", 64, quick=True)
    assert load_ceiling("pure") is None
    stored("pure", 64)
    stored("pure", 8, quick=True)  # and it takes no whole one's place
    assert (load_ceiling("pure") or {})["streams"] == 64
    monkeypatch.setattr(ceiling, "_python", lambda: "2.7")
    assert load_ceiling("pure") is None


def test_more_processes_were_calibrated_than_asked(cache: Path) -> None:
    stored("pure", 64, processes=2)
    assert load_ceiling("pure", 1) is None


def test_the_picture_is_well_formed_and_shows_every_step(cache: Path) -> None:
    entry = stored("pure", 64)
    entry["steps"] += [ceiling.step_record(step("streams", asked, error)) for asked, error in ((128, 3.0), (256, 5e9))]
    root = xml.etree.ElementTree.fromstring(plot(entry))
    titles = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert [title for title in titles if title.startswith("TTFT")] == [
        "TTFT at 64: +0.00 %",
        "TTFT at 128: +3.00 %",
        "TTFT at 256: +5000000000.00 %",
        "TTFT at 100: +0.00 %",
    ]


def climbed(monkeypatch: pytest.MonkeyPatch, streams_up_to: float, rate_up_to: float) -> dict[str, list[float]]:
    def measured(bench: object, plan: object, kind: str, asked: int) -> Step:
        most = streams_up_to if kind == "streams" else rate_up_to
        return step(kind, asked, 0.5 if asked <= most else 3.0 if asked <= 1.2 * most else 50.0)

    monkeypatch.setattr("harness.traffic.calibrate.ladder._measured", measured)
    steps = climb(None, Plan(), lambda _: None)  # type: ignore[arg-type]
    return {kind: [step.asked for step in steps if step.kind == kind] for kind in ("streams", "rate", "capacity")}


def test_the_ladder_looks_finer_below_the_first_load_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = climbed(monkeypatch, 1000, 16000)
    assert asked["streams"] == [16, 32, 64, 128, 256, 512, 1024, 2048, 768, 896, 960]
    assert asked["rate"] == [250, 500, 1000, 2000, 4000, 8000, 16000]
    assert asked["capacity"] == [64]


def test_the_ladder_ends_where_the_lowest_load_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = climbed(monkeypatch, 1, 1)
    assert asked["streams"] == [16]
    assert asked["rate"] == [250]
