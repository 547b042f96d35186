"""What became of a deployment and of each of its cells: measured, or why not. Nothing disappears."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from bench.analysis.load import CellRecord, LaunchRecord
from bench.analysis.metrics import Requests, quantile
from bench.analysis.result import OutputCheckResult

CLIENT_CPU_SHARE = 0.9
"""CPU ÷ wall time of the load client (one process, one core) above which it may set the pace, and not the server."""

SEND_LAG_MS, SEND_LAG_SHARE = 50.0, 0.1
"""A P90 send lag beyond both the milliseconds and this share of the median TTFT counts as the client's."""

LEAST_ATTAINED = 0.95
"""Least share of the requested rate that an open loop must send."""


def deployment_state(
    planned: dict[str, Any],
    launches: Sequence[LaunchRecord],
    check: OutputCheckResult | None,
    *,
    blocks: int,
    loads: Collection[str],
) -> tuple[str, str | None]:
    """State and reason of one deployment; the first that applies, gravest first.

    A deployment of which any launch failed before it had taken every load is `failed`: the launches that survived are
    no fair sample. A baseline, launched twice a block, may lose one of the two.
    """
    if reason := planned.get("unsupported"):
        return "unsupported", str(reason)
    if not launches:
        return "failed", "no launch of it lies in a complete block" if blocks else "no block was completed"
    for launch in launches:
        if launch.state == "not in effect" or launch.effect.get("mismatches"):
            mismatches = launch.effect.get("mismatches") or ()
            return "not in effect", "; ".join(mismatches) or launch.facts.get("reason") or "the engine does otherwise"
    if check is not None and check.broken:
        return "output broken", check.reason
    bad = [launch for launch in launches if not took_load(launch, loads)]
    covered = {launch.block for launch in launches if took_load(launch, loads)}
    if bad and not (planned.get("engine_baseline") and covered == {launch.block for launch in launches}):
        reasons = _distinct(launch.facts.get("reason") or "no reason was recorded" for launch in bad)
        return "failed", f"{len(bad)} of {len(launches)} launches failed: {reasons}"
    if missing := blocks - len({launch.block for launch in launches}) if not planned.get("check_only") else 0:
        return "failed", f"no record of it in {missing} of {blocks} complete blocks"
    if launches and all(launch.facts.get("check_only") for launch in launches):
        return "measured", "checked only (proof of effect and output check, no load), as planned"
    return "measured", None


def took_load(launch: LaunchRecord, loads: Collection[str]) -> bool:
    """Whether a launch can speak for speed: nothing failed, or only what came after the loads (accuracy)."""
    if launch.state == "measured":
        return True
    cells = [launch.cells.get(load) for load in loads]
    return bool(cells) and all(cell is not None and cell.facts.get("state") == "measured" for cell in cells)


def cell_state(cell: CellRecord, requests: Requests | None) -> tuple[str, str | None]:
    """State and reason of one cell: failed, client-bound, or measured."""
    facts = cell.facts
    if facts.get("state") != "measured":
        return "failed", str(facts.get("reason") or "no reason was recorded")
    if requests is None or not len(requests):
        return "failed", "requests.parquet holds no request of the window"
    if not requests.ok.any():
        kinds = ", ".join(f"{kind} ({count})" for kind, count in requests.failures().items())
        return "failed", f"every request failed: {kinds}"
    client = facts.get("client") or {}
    if client.get("exit_code") not in (0, None):
        return "failed", f"the load client ended with exit code {client['exit_code']}"
    if bound := _client_bound(facts, requests):
        return "client-bound", bound
    return "measured", None


def _client_bound(facts: dict[str, Any], requests: Requests) -> str | None:
    client = facts.get("client") or {}
    cpu, wall = client.get("cpu_s"), client.get("wall_s")
    if cpu is not None and wall and cpu / wall > CLIENT_CPU_SHARE:
        return f"the load client used {cpu / wall:.0%} of a core (limit {CLIENT_CPU_SHARE:.0%})"
    lags = requests.send_lag_ms[requests.send_lag_ms == requests.send_lag_ms]
    if len(lags) and requests.ok.any():
        lag, usual = quantile(lags, 90).value, quantile(requests.ttft_ms[requests.ok], 50).value
        if lag > SEND_LAG_MS and lag > SEND_LAG_SHARE * usual:
            return f"requests left {lag:.0f} ms late (P90), against a median TTFT of {usual:.0f} ms"
    return None


def _distinct(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(str(reason) for reason in reasons))
