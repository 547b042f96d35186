"""A load profile: workload × arrival process, or several of them at once (tenants). Also the Hydra schema of
`scenarios/load/*.yaml`.

What a workload or an arrival has for keys depends on its kind, so in the schema both are open mappings; `Load` checks
them against the kind's own dataclass, and keeps them with every key filled in.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from omegaconf import DictConfig

from harness.errors import ConfigError
from harness.traffic.arrivals import Arrival, arrival_of, arrival_values
from harness.traffic.parameters import checked, need, unknown
from harness.traffic.search import Search
from harness.traffic.think import Think, think_of
from harness.traffic.workloads import Workload, workload_of

CACHE_STATES = ("cold", "warm")
APIS = ("completions", "chat")

TIMEOUT_MAX_S = 3600.0
"""Records keep an event's time as 32 bits of microseconds."""


def _mapping() -> Any:
    """An empty mapping that takes any key: which ones are right is known by its kind alone."""
    return DictConfig({}, flags={"struct": False})


@dataclass
class Tenant:
    """One of several who load the server at the same time, each in its own way.

    Attributes
    ----------
    workload, arrival : mapping
        As of a load.
    share : float or None
        Its part of the load's requests, relative to the others' shares, > 0. Where no tenant has a share or a number of
        requests, each has a part in proportion to its rate, so that all end at about the same time.
    requests : int or None
        Instead of `share`: its requests in the measured window.
    think_time_s : number, mapping or None
        As of a load; null: the load's.
    sla : str or None
        The service level that it is promised, as in `scenarios/sla/`.
    """

    workload: dict[str, Any] = field(default_factory=_mapping)
    arrival: dict[str, Any] = field(default_factory=_mapping)
    share: float | None = None
    requests: int | None = None
    think_time_s: Any = None
    sla: str | None = None


@dataclass(frozen=True)
class Stream:
    """What one tenant sends; a load without tenants is one stream without a name.

    Attributes
    ----------
    tenant : str
        Its name; empty in a load without tenants.
    workload : Workload
    arrival : Arrival
    requests, warmup_requests : int
        In the measured window, and before it.
    think : Think
        How long its users think, where its workload doesn't say.
    sla : str or None
        The service level that it is promised.
    """

    tenant: str
    workload: Workload
    arrival: Arrival
    requests: int
    warmup_requests: int
    think: Think
    sla: str | None = None

    @property
    def where(self) -> str:
        """What the keys of its workload stand under in the file."""
        return f"tenants.{self.tenant}.workload" if self.tenant else "workload"


@dataclass
class Load:
    """A load profile.

    Attributes
    ----------
    title : str
        Label for tables.
    workload : mapping
        What is asked: `kind`, and the keys of that kind (`harness/traffic/workloads/`).
    arrival : mapping
        When it is asked: `kind`, and the keys of that kind (`harness/traffic/arrivals/`).
    tenants : dict of Tenant
        Instead of `workload` and `arrival`: several at once, by name.
    api : str
        ``completions`` (prompts of token ids) or ``chat`` (messages of text).
    requests : int
        Requests in the measured window; where tenants have numbers of their own, their sum.
    warmup_requests : int
        Requests before the window, on prompts that the window never uses.
    think_time_s : number or mapping
        Pause between the end of a turn and the next one: seconds, or `kind` and its keys (`harness/traffic/think.py`).
        A workload that knows its users' pauses (a trace) has them instead.
    timeout_s : float
        A request longer than this is a failure; at most an hour.
    cache_state : str
        State of the prefix cache at the start of the window: ``cold`` (reset and verified) or ``warm``.
    search : Search, mapping or None
        Look for the highest rate or concurrency that meets an SLA, instead of measuring one.
    """

    title: str = ""
    workload: dict[str, Any] = field(default_factory=_mapping)
    arrival: dict[str, Any] = field(default_factory=_mapping)
    tenants: dict[str, Tenant] = field(default_factory=dict)
    api: str = "completions"
    requests: int = 32
    warmup_requests: int = 2
    think_time_s: Any = 0.0
    timeout_s: float = 300.0
    cache_state: str = "cold"
    search: Any = field(default_factory=_mapping)

    def __post_init__(self) -> None:
        for key, value, allowed in (("api", self.api, APIS), ("cache_state", self.cache_state, CACHE_STATES)):
            need(value in allowed, f"{key}: {unknown(str(value), allowed)}")
        need(self.requests >= 1, f"requests: {self.requests} must be >= 1")
        need(self.warmup_requests >= 0, f"warmup_requests: {self.warmup_requests} must be >= 0")
        need(0 < self.timeout_s <= TIMEOUT_MAX_S, f"timeout_s: {self.timeout_s} must be > 0 and <= {TIMEOUT_MAX_S:g}")
        think = think_of(self.think_time_s, "think_time_s")
        self._streams = self._tenants(think) if self.tenants else (self._single(think),)
        self.search = self._searched()

    @property
    def streams(self) -> tuple[Stream, ...]:
        """What is sent: one stream a tenant, or the only one."""
        return self._streams

    def with_requests(self, requests: int) -> "Load":
        """The same with about so many requests in the window; tenants keep their proportions."""
        if not self.tenants:
            return replace(self, requests=requests)
        parts = apportioned(requests, {stream.tenant: stream.requests for stream in self._streams})
        tenants = {
            name: replace(tenant, share=None, requests=max(1, parts[name])) for name, tenant in self.tenants.items()
        }
        return replace(self, tenants=tenants)

    def with_arrival(self, **values: Any) -> "Load":
        """The same with other values of the arrival."""
        return replace(self, arrival={**self.arrival, **values})

    def summary(self) -> str:
        """When it asks, in a few words."""
        if not self.tenants:
            return self._streams[0].arrival.summary()
        return "; ".join(f"{s.tenant}: {s.requests} requests, {s.arrival.summary()}" for s in self._streams)

    def _single(self, think: Think) -> Stream:
        workload, arrival = workload_of(self.workload), arrival_of(self.arrival)
        self.workload, self.arrival = workload.record(), arrival_values(arrival)
        return Stream("", workload, arrival, self.requests, self.warmup_requests, think)

    def _tenants(self, think: Think) -> tuple[Stream, ...]:
        for key in ("workload", "arrival"):
            need(not getattr(self, key), f"{key}: a load with tenants has none of its own; each tenant has one")
            setattr(self, key, {})
        read: dict[str, tuple[Workload, Arrival]] = {}
        for name, tenant in self.tenants.items():
            where = f"tenants.{name}"
            need(bool(re.fullmatch(r"[\w-]+", name)), f"{where}: a name consists of letters, digits, _ and -")
            share, requests = tenant.share, tenant.requests
            need(share is None or 0 < share < math.inf, f"{where}.share: {share} must be > 0")
            need(requests is None or requests >= 1, f"{where}.requests: {requests} must be >= 1")
            workload = workload_of(tenant.workload, f"{where}.workload")
            arrival = arrival_of(tenant.arrival, f"{where}.arrival")
            tenant.workload, tenant.arrival = workload.record(), arrival_values(arrival)
            read[name] = workload, arrival
        counts = self._requests_by_tenant({name: arrival for name, (_, arrival) in read.items()})
        warmup = apportioned(self.warmup_requests, counts)
        self.requests = sum(counts.values())
        return tuple(
            Stream(
                name,
                *read[name],
                counts[name],
                warmup[name],
                think if tenant.think_time_s is None else think_of(tenant.think_time_s, f"tenants.{name}.think_time_s"),
                tenant.sla,
            )
            for name, tenant in self.tenants.items()
        )

    def _requests_by_tenant(self, arrivals: dict[str, Arrival]) -> dict[str, int]:
        given = {name: tenant.requests for name, tenant in self.tenants.items() if tenant.requests is not None}
        shares = {name: tenant.share for name, tenant in self.tenants.items() if tenant.share is not None}
        if not given and not shares:
            rates = {name: arrival.mean_rps for name, arrival in arrivals.items()}
            for name, rate in rates.items():
                if rate is None:
                    raise ConfigError(
                        f"tenants.{name}: needs share or requests: an arrival of kind '{arrivals[name].kind}' has no "
                        "rate that would tell its part"
                    )
            shares = {name: rate for name, rate in rates.items() if rate is not None}
        for name in self.tenants:
            one = (name in given) != (name in shares)
            need(one and not (given and shares), f"tenants.{name}: all tenants need either share or requests")
        if given:
            return given
        counts = apportioned(self.requests, shares)
        for name, count in counts.items():
            need(count >= 1, f"tenants.{name}.share: {shares[name]:g} of {self.requests} requests is less than one")
        return counts

    def _searched(self) -> Search | None:
        """What the mapping under `search` stands for; empty, it stands for none."""
        given, search = self.search, None
        if isinstance(given, Search):
            search = given
        elif given:
            need(isinstance(given, Mapping), f"search: {given!r} must be a mapping, or null")
            search = checked(Search, given, "search")
        if search is not None:
            need(not self.tenants, "search: a load with tenants has no single rate or concurrency to vary")
            kind = self.arrival["kind"]
            need(search.over in self.arrival, f"search.over: an arrival of kind '{kind}' has no {search.over}")
        return search


def apportioned(total: int, weights: "dict[str, float] | dict[str, int]") -> dict[str, int]:
    """`total` in whole parts in proportion to the weights: rounded down, the largest remainders rounded up."""
    whole = sum(map(Fraction, weights.values()))
    exact = {name: total * Fraction(weight) / whole for name, weight in weights.items()}
    parts = {name: math.floor(part) for name, part in exact.items()}
    by_remainder = sorted(exact, key=lambda name: parts[name] - exact[name])
    for name in by_remainder[: total - sum(parts.values())]:
        parts[name] += 1
    return parts
