"""What the plan asks of a load, as the analysis needs it: how each tenant's requests arrive, and under which SLA."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ALL = ""
"""The one group of a load without tenants."""

Limits = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """One tenant's traffic, or all of a load without tenants.

    Attributes
    ----------
    open_loop : bool
        Requests are due at times of their own; latency counts from there (rule 7).
    concurrency : int or None
        Sessions at a time, of a closed loop.
    sla : str or None
        Name of the tenant's own SLA.
    """

    open_loop: bool
    concurrency: int | None = None
    sla: str | None = None


@dataclass(frozen=True)
class PlannedLoad:
    """A load's groups by tenant (`ALL` where it has none); the scenario's SLAs, and those that tenants name."""

    groups: Mapping[str, Group]
    slas: Mapping[str, Limits]
    own_slas: Mapping[str, Limits]

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(name for name in self.groups if name != ALL)

    @property
    def has_closed_loop(self) -> bool:
        return any(not group.open_loop for group in self.groups.values())


def planned_load(plan: Mapping[str, Any], load: str) -> PlannedLoad:
    """Read one load of `plan.json`."""
    facts: Mapping[str, Any] = plan["loads"][load]
    slas = {name: limits or {} for name, limits in (plan.get("sla") or {}).items()}
    tenants: Mapping[str, Any] = facts.get("tenants") or {}
    if not tenants:
        return PlannedLoad({ALL: _group(facts.get("arrival") or {}, None)}, slas, {})
    groups: dict[str, Group] = {}
    own: dict[str, Limits] = {}
    for name, tenant in tenants.items():
        label, limits = _own_sla(name, tenant.get("sla"), slas)
        groups[name] = _group(tenant.get("arrival") or facts.get("arrival") or {}, label)
        if label is not None and limits:
            own[label] = limits
    return PlannedLoad(groups, slas, own)


def groups_as_sent(cell: Mapping[str, Any], planned: PlannedLoad) -> Mapping[str, Group]:
    """The groups as `cell.json` has them: a search asks another concurrency of each of its probes."""
    if planned.tenants or not cell.get("arrival"):
        return planned.groups
    return {ALL: _group(cell["arrival"], None)}


def _own_sla(tenant: str, sla: Any, slas: Mapping[str, Limits]) -> tuple[str | None, Limits]:
    """A tenant's SLA: one of the scenario's by name, or limits that stand at the tenant and take its name."""
    if not sla:
        return None, {}
    return (sla, slas.get(sla, {})) if isinstance(sla, str) else (tenant, sla)


def throughput_metric(load: Mapping[str, Any]) -> str:
    """The statistic that says how much a server can take: where a load searches for that, what was found."""
    search = load.get("search")
    return f"saturation_{search['over']}" if search else "output_tokens_per_s"


def is_closed(load: Mapping[str, Any]) -> bool:
    """Whether any of a load's requests arrive in a closed loop: its latencies are then not ranked across engines."""
    return planned_load({"loads": {"": load}}, "").has_closed_loop


def _group(arrival: Mapping[str, Any], sla: str | None) -> Group:
    concurrency = arrival.get("concurrency")
    if arrival.get("kind") != "closed":
        return Group(True, None, sla)
    return Group(False, None if concurrency is None else int(concurrency), sla)
