"""A load profile: checked against its kinds, with every key filled in; tenants share it out."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from harness.errors import ConfigError
from harness.traffic.load import Load, Tenant, apportioned

SYNTHETIC = {"kind": "synthetic", "input_tokens_mean": 64, "output_tokens_mean": 8}
CLOSED = {"kind": "closed", "concurrency": 4}
POISSON = {"kind": "poisson", "rate_rps": 2.0}
RAMP = {"kind": "ramp", "from_rps": 1.0, "to_rps": 2.0, "duration_s": 10.0}


def load_of(record: dict[str, Any]) -> Load:
    """As YAML or a record becomes a load."""
    made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Load), record))
    assert isinstance(made, Load)
    return made


def tenant(**values: Any) -> Tenant:
    return Tenant(**{"workload": SYNTHETIC, "arrival": POISSON, **values})


def test_every_key_of_the_kinds_is_filled_in() -> None:
    load = Load(workload=SYNTHETIC, arrival={"kind": "gamma", "rate_rps": 1, "cv": 2})
    assert load.workload["shared_prefix_tokens"] == 0
    assert load.arrival == {"kind": "gamma", "rate_rps": 1.0, "cv": 2.0, "burstiness": None}
    assert Load(arrival={"concurrency": 2}).workload["kind"] == "sharegpt"


@pytest.mark.parametrize(
    "load",
    [
        Load(workload=SYNTHETIC, arrival=CLOSED),
        Load(workload=SYNTHETIC, arrival={"kind": "stages", "stages": [{"rate_rps": 1.0, "duration_s": 2.0}]}),
        Load(tenants={"a": tenant(share=1.0, sla="chat"), "b": tenant(share=2.0, arrival=CLOSED)}, api="chat"),
        Load(workload=SYNTHETIC, arrival=CLOSED, think_time_s={"kind": "exponential", "mean_s": 2.0}),
    ],
)
def test_a_load_survives_its_record(load: Load) -> None:
    assert load_of(json.loads(json.dumps(asdict(load)))) == load
    assert replace(load) == load


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            {"arrival": CLOSED, "workload": {"kind": "sharegtp"}},
            ["workload.kind", "sharegtp", "Did you mean 'sharegpt'"],
        ),
        ({"arrival": CLOSED, "workload": {"turns_maxx": 2}}, ["workload", "turns_maxx", "Did you mean 'turns_max'"]),
        ({"arrival": CLOSED, "workload": {"turns_max": "two"}}, ["workload.turns_max", "two", "whole number"]),
        ({"arrival": {"kind": "poison"}}, ["arrival.kind", "Did you mean 'poisson'"]),
        ({"arrival": {"kind": "closed"}}, ["arrival.concurrency"]),
        ({"arrival": CLOSED, "api": "assistants"}, ["api", "assistants", "completions, chat"]),
        ({"arrival": CLOSED, "cache_state": "lukewarm"}, ["cache_state", "lukewarm", "cold, warm"]),
        ({"arrival": CLOSED, "requests": 0}, ["requests", ">= 1"]),
        ({"arrival": CLOSED, "warmup_requests": -1}, ["warmup_requests", ">= 0"]),
        ({"arrival": CLOSED, "timeout_s": 0}, ["timeout_s", "> 0"]),
        ({"arrival": CLOSED, "timeout_s": 3601}, ["timeout_s", "3600"]),
        ({"arrival": CLOSED, "think_time_s": -1}, ["think_time_s", ">= 0"]),
        ({"arrival": CLOSED, "think_time_s": {"kind": "exponentail"}}, ["think_time_s.kind", "exponential"]),
        ({"arrival": CLOSED, "search": {"over": "rate_rps", "sla": "chat"}}, ["search.over", "closed", "rate_rps"]),
        ({"arrival": CLOSED, "tenants": {"a": {"arrival": CLOSED, "share": 1}}}, ["arrival", "tenants"]),
        ({"tenants": {"a b": {"arrival": CLOSED, "share": 1}}}, ["tenants.a b", "letters"]),
        ({"tenants": {"a": {"arrival": {"kind": "closed"}, "share": 1}}}, ["tenants.a.arrival.concurrency"]),
        ({"tenants": {"a": {"arrival": CLOSED, "workload": {"x": 1}, "share": 1}}}, ["tenants.a.workload", "'x'"]),
        ({"tenants": {"a": {"arrival": CLOSED}}}, ["tenants.a", "needs share or requests", "closed"]),
        ({"tenants": {"a": {"arrival": RAMP}, "b": {"arrival": POISSON}}}, ["tenants.a", "share or requests", "ramp"]),
        ({"tenants": {"a": {"arrival": CLOSED, "share": 1}, "b": {"arrival": CLOSED}}}, ["tenants.b", "either"]),
        ({"tenants": {"a": {"arrival": CLOSED, "share": 1, "requests": 2}}}, ["tenants.a", "either"]),
        (
            {"tenants": {"a": {"arrival": CLOSED, "share": 1}, "b": {"arrival": CLOSED, "requests": 2}}},
            ["tenants.", "either"],
        ),
        ({"tenants": {"a": {"arrival": CLOSED, "share": 0}}}, ["tenants.a.share", "> 0"]),
        (
            {"requests": 3, "tenants": {"a": {"arrival": CLOSED, "share": 1}, "b": {"arrival": CLOSED, "share": 99}}},
            ["tenants.a.share", "3 requests", "less than one"],
        ),
        ({"tenants": {"a": {"arrival": POISSON}}, "search": {"sla": "chat"}}, ["search", "tenants"]),
    ],
)
def test_what_is_wrong_is_named(record: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_of(record)
    for word in words:
        assert word in str(caught.value)


def requests_of(load: Load) -> dict[str, tuple[int, int]]:
    return {stream.tenant: (stream.requests, stream.warmup_requests) for stream in load.streams}


def test_a_load_without_tenants_is_one_stream() -> None:
    assert requests_of(Load(workload=SYNTHETIC, arrival=CLOSED, requests=9, warmup_requests=3)) == {"": (9, 3)}


def test_tenants_share_the_requests() -> None:
    tenants = {"a": tenant(share=1.0), "b": tenant(share=3.0)}
    assert requests_of(Load(tenants=tenants, requests=40, warmup_requests=4)) == {"a": (10, 1), "b": (30, 3)}


def test_tenants_may_have_requests_of_their_own() -> None:
    load = Load(tenants={"a": tenant(requests=5), "b": tenant(requests=20)}, warmup_requests=5)
    assert requests_of(load) == {"a": (5, 1), "b": (20, 4)}
    assert load.requests == 25


def test_without_either_the_rates_decide_so_that_all_end_together() -> None:
    tenants = {"a": tenant(), "b": tenant(arrival={"kind": "gamma", "rate_rps": 6.0, "cv": 2.0})}
    load = Load(tenants=tenants, requests=40, warmup_requests=0)
    assert requests_of(load) == {"a": (10, 0), "b": (30, 0)}
    assert {stream.arrival.seconds(stream.requests) for stream in load.streams} == {5.0}


@pytest.mark.parametrize(
    "tenants",
    [
        {"a": tenant(share=1.0), "b": tenant(share=3.0)},
        {"a": tenant(requests=25), "b": tenant(requests=75)},
        {"a": tenant(), "b": tenant(arrival={**POISSON, "rate_rps": 6.0})},
    ],
)
def test_fewer_requests_keep_the_proportions(tenants: dict[str, Tenant]) -> None:
    load = Load(tenants=tenants, requests=100, warmup_requests=0)
    assert requests_of(load.with_requests(40)) == {"a": (10, 0), "b": (30, 0)}
    assert requests_of(load.with_requests(1)) == {"a": (1, 0), "b": (1, 0)}, "each keeps at least one"


def test_another_rate_keeps_everything_else() -> None:
    load = Load(workload=SYNTHETIC, arrival={"kind": "gamma", "rate_rps": 1.0, "cv": 2.0}, title="x")
    assert load.with_arrival(rate_rps=3.0) == replace(load, arrival={"kind": "gamma", "rate_rps": 3.0, "cv": 2.0})


def test_a_tenants_own_think_time_wins() -> None:
    load = Load(tenants={"a": tenant(), "b": tenant(think_time_s=5.0)}, think_time_s=1.0)
    assert {stream.tenant: stream.think.at(0.5) for stream in load.streams} == {"a": 1.0, "b": 5.0}


@given(st.integers(0, 10_000), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9))
def test_parts_sum_up_and_are_off_by_less_than_one(total: int, weights: list[float]) -> None:
    parts = apportioned(total, {str(i): weight for i, weight in enumerate(weights)})
    assert sum(parts.values()) == total
    for i, weight in enumerate(weights):
        assert abs(parts[str(i)] - total * weight / sum(weights)) < 1 + 1e-6
