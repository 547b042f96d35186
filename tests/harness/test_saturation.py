"""What a saturation search asks of a server and what it leaves; the search on a real engine is in tests/e2e."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.files import write_json
from harness.saturation import _record, at_value, probe_seed
from harness.traffic.load import Load
from harness.traffic.search import MET, MISSED, Probe, Saturation, Search


def load_over(over: str, **keys: float) -> Load:
    arrival = {"rate_rps": {"kind": "poisson", "rate_rps": 1}, "concurrency": {"kind": "closed", "concurrency": 1}}
    return Load(
        workload={"kind": "synthetic", "input_tokens_mean": 64, "output_tokens_mean": 8},
        arrival=arrival[over],
        requests=10,
        search=Search(over=over, sla="chat", low=1, **keys),  # type: ignore[arg-type]
    )


def test_a_probe_is_the_load_at_one_value() -> None:
    probe = at_value(load_over("rate_rps"), 2.5)
    assert (probe.arrival["rate_rps"], probe.requests, probe.search) == (2.5, 10, None)
    assert at_value(load_over("concurrency"), 16.0).arrival["concurrency"] == 16


@pytest.mark.parametrize(("value", "requests"), [(0.5, 10), (4.0, 80)])
def test_a_probe_lasts_long_enough_to_see_a_queue_grow(value: float, requests: int) -> None:
    assert at_value(load_over("rate_rps", probe_s=20.0), value).requests == requests


def test_every_probe_has_traffic_of_its_own_and_every_deployment_the_same() -> None:
    probes = [Probe(value, repeat) for value in (1.0, 2.0, 1.5) for repeat in range(3)]
    seeds = [probe_seed(7, probe) for probe in probes]
    assert len(set(seeds)) == len(probes)
    assert seeds == [probe_seed(7, probe) for probe in probes]
    assert seeds != [probe_seed(8, probe) for probe in probes]


@pytest.mark.parametrize(
    ("highest", "shown"), [(2.0, Probe(2.0, 1)), (None, Probe(1.0, 0))], ids=["the first that met it", "none did"]
)
def test_the_load_s_own_record_is_that_of_the_highest_value_met(
    highest: float | None, shown: Probe, tmp_path: Path
) -> None:
    runs = {1.0: (MET,), 2.0: (MISSED, MET, MET), 4.0: (MISSED, MISSED)}
    if highest is None:
        runs = {value: (MISSED,) * len(outcomes) for value, outcomes in runs.items()}
    cells = {}
    for value, outcomes in runs.items():
        for repeat in range(len(outcomes)):
            folder = cells[Probe(value, repeat)] = tmp_path / "probes" / f"{value:g}-{repeat}"
            write_json(folder / "cell.json", {"state": "measured", "value": value, "repeat": repeat, "probe": {}})
            pq.write_table(pa.table({"value": [value], "repeat": [repeat]}), folder / "requests.parquet")
    found = Saturation("found" if highest else "none met", highest, None, None, runs)
    facts = _record(load_over("rate_rps"), 7, tmp_path, cells, found)
    assert facts == json.loads((tmp_path / "cell.json").read_text())
    assert (facts["value"], facts["repeat"]) == (shown.value, shown.repeat)
    assert "probe" not in facts
    assert facts["search"]["highest"] == highest
    assert {name: Probe(*probe) for name, probe in facts["search"]["probes"].items()} == {
        str(folder.relative_to(tmp_path)): probe for probe, folder in cells.items()
    }
    assert pq.read_table(tmp_path / "requests.parquet").to_pylist() == [{"value": shown.value, "repeat": shown.repeat}]
