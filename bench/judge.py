"""Whether a probe of a saturation search met its SLA: the same statistics that the report prints decide."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.analysis.client import client_figures, judge_client
from bench.analysis.measure import measure
from bench.analysis.metrics import held_against, itl_limits, launch_statistics
from bench.analysis.planned import planned_load
from bench.analysis.records import Records
from bench.analysis.state import cell_state
from harness.errors import KVMarkError, LaunchError
from harness.files import read_json
from harness.saturation import Judge, Judgement
from harness.traffic.load import Load
from harness.traffic.search import CLIENT_BOUND, MET, MISSED


def judge_by(slas: Mapping[str, Mapping[str, Any]]) -> Judge:
    """A judge of probes; `slas` are the scenario's, by name.

    It raises `LaunchError` where a probe says nothing of the server: its client failed, or its record can't be read.
    """

    def judge(load: Load, folder: Path) -> Judgement:
        assert load.search is not None
        facts = read_json(folder / "cell.json")
        limits = slas[load.search.sla]
        planned = planned_load({"loads": {"probe": asdict(load)}, "sla": {load.search.sla: limits}}, "probe")
        try:
            measured = measure(Records.open(folder / "requests.parquet"), planned.groups, itl_limits(limits))
        except (OSError, ValueError, KVMarkError) as error:  # pyarrow's own errors are ValueErrors
            raise LaunchError(f"probe {folder.name}: {facts.get('reason') or error}") from error
        client = client_figures(facts, measured, planned)
        state, reason = cell_state(facts, measured.window, client, judge_client(client, measured.window))
        if state == "client-bound":
            return Judgement(CLIENT_BOUND, reason)
        if state != "measured":
            # Only what the server did is a miss of its own: a client that died or lost a worker ends the search.
            if not facts.get("client") or client.lost_workers or measured.window.ok.any():
                raise LaunchError(f"probe {folder.name}: {reason}")
            return Judgement(MISSED, reason)
        return _held_against(limits, launch_statistics(measured.window, {load.search.sla: limits}))

    return judge


def _held_against(limits: Mapping[str, Any], values: Mapping[str, float]) -> Judgement:
    """Every limit at its percentile over the probe's requests, failures as infinite."""
    evidence: dict[str, float | str] = {}
    missed: list[str] = []
    for name, value, limit in held_against(limits, values):
        evidence[name] = value if math.isfinite(value) else "inf"
        if not value <= limit:
            missed.append(f"{name} {value:,.0f} over {limit:,.0f}")
    return Judgement(MISSED if missed else MET, "; ".join(missed) or None, evidence)
