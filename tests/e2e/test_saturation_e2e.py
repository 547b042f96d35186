"""The saturation search on a real engine: brackets a rate, keeps every probe, and is what the launch is judged by."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]


def test_a_launch_finds_the_rate_that_its_engine_can_take(tmp_path: Path) -> None:
    load = "load.short-chat-saturation"
    overrides = [
        "scenario=saturation", "backend=llama-cpp", "strategy=baseline", "scenario.blocks=1", "scenario.optional=[]",
        "scenario.check_only=[]", "sla.chat.tpot_p90_ms=null", "sla.chat.ttft_p90_ms=1500",
        f"{load}.requests=8", f"{load}.search.low=0.5", f"{load}.search.probe_s=4", f"{load}.search.precision_pct=100",
        f"{load}.timeout_s=20", f"{load}.workload.output_tokens_mean=8",
        f"results_dir={tmp_path}", f"reports_dir={tmp_path / 'reports'}",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "bench", *overrides], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cells = sorted(tmp_path.glob("*/*/blocks/0/*/cells/short-chat-saturation"))
    assert len(cells) == 2, "A and A′"
    for cell in cells:
        facts = json.loads((cell / "cell.json").read_text())
        search = facts["search"]
        assert search["state"] == "found", search
        low, high = search["interval"]
        assert low <= search["highest"] < high
        assert len(search["probes"]) == len(list(cell.glob("probes/*/cell.json")))
        prompts: list[str] = []
        for name, (value, _) in search["probes"].items():
            probe = json.loads((cell / name / "cell.json").read_text())
            assert probe["arrival"]["rate_rps"] == value
            assert probe["probe"]["outcome"] == ("met" if value <= search["highest"] else "missed")
            prompts.append(probe["schedule_sha256"])
        assert len(set(prompts)) == len(prompts), "no probe repeats another one's traffic"
        shown, own = (pq.read_table(folder / "requests.parquet") for folder in (cell / search["shown"], cell))
        assert shown.equals(own)
    assert "max requests/s" in done.stdout
