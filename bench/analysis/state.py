"""What became of a deployment and of each of its cells: measured, or why not. Nothing disappears."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bench.analysis.client import Verdict
from bench.analysis.load import LaunchRecord
from bench.analysis.metrics import Requests
from bench.analysis.result import ClientFigures, OutputCheckResult


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


def cell_state(
    facts: Mapping[str, Any], requests: Requests | None, client: ClientFigures | None, verdict: Verdict | None
) -> tuple[str, str | None]:
    """State and reason of one cell: failed, client-bound, or measured."""
    if client is not None and client.lost_workers:
        words = "; ".join(client.lost_workers)
        return "failed", f"not comparable, for not all of the load was sent: the client lost {words}"
    if facts.get("state") != "measured":
        return "failed", str(facts.get("reason") or "no reason was recorded")
    if requests is None or not len(requests):
        return "failed", "requests.parquet holds no request of the window"
    if not requests.ok.any():
        kinds = ", ".join(f"{kind} ({count})" for kind, count in requests.failures().items())
        return "failed", f"every request failed: {kinds}"
    if (facts.get("search") or {}).get("state") == "client-bound":
        return "client-bound", "the search ended where the client could not ask for more"
    exit_code = (facts.get("client") or {}).get("exit_code")
    if exit_code not in (0, None):
        return "failed", f"the load client ended with exit code {exit_code}"
    if verdict is not None and verdict.bound:
        return "client-bound", verdict.bound
    return "measured", None


def _distinct(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(str(reason) for reason in reasons))
