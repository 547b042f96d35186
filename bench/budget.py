"""Trims a plan to its budget: optional deployments first, then requests; never A and A′, never the blocks."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from bench.config import Config, Scenario, choices
from bench.estimate import check_only_estimates
from bench.plan import Deployment, LaunchEstimate, Plan
from harness.errors import ConfigError
from harness.traffic.load import Load

MIN_REQUESTS = 8


def named(names: list[str], deployments: tuple[Deployment, ...], key: str) -> frozenset[str]:
    """Deployment ids matching ``backend/strategy`` names; a name whose parts aren't selected matches none."""
    chosen = set()
    for name in names:
        backend, _, strategy = name.partition("/")
        for group, part in (("backend", backend), ("strategy", strategy)):
            if strategy and part not in choices(group):
                raise ConfigError(f"scenario.{key}: '{name}': no {group} '{part}'; known: {', '.join(choices(group))}")
        if not strategy:
            raise ConfigError(f"scenario.{key}: '{name}' must be written backend/strategy")
        chosen |= {d.id for d in deployments if (d.backend, d.strategy) == (backend, strategy)}
    return frozenset(chosen)


def within_budget(
    plan: Plan, scenario: Scenario, config: Config, estimate: Callable[[Mapping[str, Load], Deployment], LaunchEstimate]
) -> Plan:
    """Trim optional deployments (first to a check, then away), then requests; never A/A′, never the blocks."""
    if scenario.budget_minutes is None:
        return plan
    budget_s, asked = 60 * scenario.budget_minutes, plan
    for name in scenario.optional:
        cut = _along_with(named([name], plan.deployments, "optional"), plan, config) - plan.check_only
        if plan.seconds() > budget_s and cut:
            check_only = plan.check_only | cut
            plan = replace(plan, check_only=check_only, estimates=check_only_estimates(plan.estimates, check_only))
    for name in scenario.optional:
        gone = _along_with(named([name], plan.deployments, "optional"), plan, config)
        if plan.seconds() > budget_s and gone:
            plan = replace(plan, deployments=tuple(d for d in plan.deployments if d.id not in gone))
    while plan.seconds() > budget_s:
        loads = {name: _fewer_requests(load) for name, load in plan.loads.items()}
        if all(load.requests == plan.loads[name].requests for name, load in loads.items()):
            break
        fresh = {d.id: estimate(loads, d) for d in plan.deployments}
        plan = replace(plan, loads=loads, estimates={**plan.estimates, **check_only_estimates(fresh, plan.check_only)})
    notes = plan.notes
    if plan.seconds() > budget_s:
        minutes = plan.seconds() / 60
        notes = (
            *notes,
            f"the least that this scenario can be cut to takes about {minutes:.0f} minutes, over its budget "
            f"of {scenario.budget_minutes:g}",
        )
    return replace(plan, dropped=tuple(_dropped(asked, plan, scenario.budget_minutes)), notes=notes)


def _dropped(asked: Plan, plan: Plan, budget_minutes: float) -> Iterator[str]:
    """Everything that `plan` has less of than what was asked for."""
    for deployment in asked.deployments:
        if deployment not in plan.deployments:
            yield f"{deployment.id}: dropped to stay within {budget_minutes:g} minutes"
        elif deployment.id in plan.check_only - asked.check_only:
            yield f"{deployment.id}: cut to a check without load, to stay within {budget_minutes:g} minutes"
    for name, load in plan.loads.items():
        if load.requests < asked.loads[name].requests:
            yield f"load {name}: {asked.loads[name].requests} requests trimmed to {load.requests}"


def _along_with(chosen: frozenset[str], plan: Plan, config: Config) -> frozenset[str]:
    """`chosen`, and what is compared with them: an engine's strategies go the way of its 16-bit baseline.

    The common baseline is never among them.
    """
    chosen -= {plan.baseline.id}
    own = {d.id: plan.engine_baseline(d, config.strategy) for d in plan.deployments}
    along = {name for name, baseline in own.items() if baseline is not None and baseline.id in chosen}
    return (chosen | along) - {plan.baseline.id}


def _fewer_requests(load: Load) -> Load:
    """A tenth less, for tenants in proportion: the first of a trace, the beginning of a profile."""
    if load.requests <= MIN_REQUESTS:
        return load
    fewer = load.with_requests(max(MIN_REQUESTS, math.floor(load.requests * 0.9)))
    return fewer if fewer.requests < load.requests else load
