"""What a schedule holds."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError, StorageError
from harness.files import write_lines
from harness.model import Model
from harness.traffic.load import Load, Tenant
from harness.traffic.schedule import ScheduleFacts, build_schedule
from harness.traffic.segments import segment_tokens
from harness.traffic.text import corpus, load_tokenizer

SHAREGPT = Load(
    workload={"kind": "sharegpt", "input_tokens_mean": 200, "output_tokens_mean": 8, "turns_max": 3},
    arrival={"kind": "closed", "concurrency": 4},
    requests=40,
    warmup_requests=10,
)
SYNTHETIC = Load(
    workload={"kind": "synthetic", "input_tokens_mean": 64, "output_tokens_mean": 8},
    arrival={"kind": "poisson", "rate_rps": 10.0},
    requests=200,
    warmup_requests=20,
)
TENANTS = Load(
    tenants={
        "chat": Tenant(
            workload={"kind": "sharegpt", "input_tokens_mean": 200, "output_tokens_mean": 8, "turns_max": 3},
            arrival={"kind": "poisson", "rate_rps": 5.0},
            share=3.0,
            think_time_s=2.0,
        ),
        "batch": Tenant(
            workload={"kind": "synthetic", "input_tokens_mean": 300, "output_tokens_mean": 4},
            arrival={"kind": "closed", "concurrency": 2},
            share=1.0,
        ),
    },
    requests=80,
    warmup_requests=8,
)
EVERY = [SHAREGPT, SYNTHETIC, TENANTS]


def build(load: Load, model: Model, path: Path, seed: int = 1, name: str = "m", **extras: Any) -> ScheduleFacts:
    return build_schedule(
        load, model=model, served_name=name, request_extras=lambda tokens: {"min_tokens": tokens, **extras},
        context_tokens=1024, seed=seed, path=path,
    )  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def sessions(path: Path) -> list[dict[str, Any]]:
    return lines(path)[2:]


def ids(segments: list[Any], model: Model) -> list[int]:
    pairs = [tuple(segment) if isinstance(segment, list) else segment for segment in segments]
    return list(corpus(model.path).ids(pairs))


@pytest.mark.parametrize("load", EVERY)
def test_no_two_sessions_share_their_first_block(load: Load, model: Model, tmp_path: Path) -> None:
    build(load, model, tmp_path / "s.jsonl")
    starts = [tuple(ids(session["turns"][0]["new"], model)[:16]) for session in sessions(tmp_path / "s.jsonl")]
    assert len(set(starts)) == len(starts)


@pytest.mark.parametrize("load", EVERY)
def test_prompts_are_as_long_as_planned(load: Load, model: Model, tmp_path: Path) -> None:
    facts = build(load, model, tmp_path / "s.jsonl")
    prompts = []
    for session in sessions(tmp_path / "s.jsonl"):
        context = 0
        for turn in session["turns"]:
            context += len(ids(turn["new"], model))
            assert context == turn["prompt_tokens"]
            context += turn["output_tokens"]
            if session["phase"] == "window":
                prompts.append(turn["prompt_tokens"])
    assert (facts.requests, facts.prompt_tokens_max) == (len(prompts), max(prompts)) == (load.requests, max(prompts))
    assert facts.prompt_tokens_mean == pytest.approx(sum(prompts) / len(prompts))
    assert facts.statistics["prompt_tokens"]["mean"] == pytest.approx(facts.prompt_tokens_mean)


@pytest.mark.parametrize("load", EVERY)
def test_requests_are_numbered_in_order_warm_up_first(load: Load, model: Model, tmp_path: Path) -> None:
    build(load, model, tmp_path / "s.jsonl")
    facts = lines(tmp_path / "s.jsonl")[1]
    expected = 0
    for session in sessions(tmp_path / "s.jsonl"):
        assert session["first_request"] == expected
        assert (session["phase"] == "warmup") == (expected < load.warmup_requests)
        expected += len(session["turns"])
    assert expected == facts["requests"] + facts["warmup_requests"] == load.requests + load.warmup_requests


@pytest.mark.parametrize("load", EVERY)
def test_equal_seeds_give_equal_traffic_whatever_the_engine(load: Load, model: Model, tmp_path: Path) -> None:
    one = build(load, model, tmp_path / "1.jsonl", name="a")
    two = build(load, model, tmp_path / "2.jsonl", name="b", ignore_eos=True)
    assert one == two
    first, second = ((tmp_path / f"{n}.jsonl").read_bytes().split(b"\n", 1) for n in (1, 2))
    assert first[0] != second[0]
    assert first[1] == second[1]
    assert one.sha256 == hashlib.sha256(first[1]).hexdigest()


def test_other_seeds_give_other_traffic(model: Model, tmp_path: Path) -> None:
    hashes = {build(SHAREGPT, model, tmp_path / "s.jsonl", seed=seed).sha256 for seed in (1, 2)}
    assert len(hashes) == 2


def test_the_text_lies_in_the_file_once_and_sessions_point_into_it(model: Model, tmp_path: Path) -> None:
    build(SYNTHETIC, model, tmp_path / "s.jsonl")
    engine, facts, first, *_ = lines(tmp_path / "s.jsonl")
    assert (engine["schema_version"], engine["extras"]) == (2, {"8": {"min_tokens": 8}})
    assert facts["corpus"] == ",".join(map(str, corpus(model.path).tokens))
    (start, count), *_ = first["turns"][0]["new"]
    assert ids(first["turns"][0]["new"], model)[:count] == [
        int(token) for token in facts["corpus"].split(",")[start : start + count]
    ]
    assert len((tmp_path / "s.jsonl").read_bytes()) < len(facts["corpus"]) + 220 * 300 + 10_000


def test_a_shared_prefix_is_shared_within_a_phase_only(model: Model, tmp_path: Path) -> None:
    load = replace(SYNTHETIC, workload={**SYNTHETIC.workload, "shared_prefix_tokens": 32})
    facts = build(load, model, tmp_path / "s.jsonl")
    prefixes: dict[str, set[tuple[int, ...]]] = {"warmup": set(), "window": set()}
    for session in sessions(tmp_path / "s.jsonl"):
        new = session["turns"][0]["new"]
        assert sum(map(segment_tokens, new)) == 64
        prefixes[session["phase"]].add(tuple(ids(new, model)[:32]))
    assert [len(found) for found in prefixes.values()] == [1, 1]
    assert prefixes["window"] != prefixes["warmup"]
    assert facts.prompt_tokens_mean == 64


def test_the_prefix_counts_once_in_the_working_set(model: Model, tmp_path: Path) -> None:
    four = replace(SYNTHETIC, arrival={"kind": "closed", "concurrency": 4})
    assert build(four, model, tmp_path / "s.jsonl").working_set_tokens == 4 * 72
    shared = replace(four, workload={**SYNTHETIC.workload, "shared_prefix_tokens": 32})
    assert build(shared, model, tmp_path / "s.jsonl").working_set_tokens == 4 * 40 + 32


def test_an_open_loop_is_due_in_order_warm_up_first(model: Model, tmp_path: Path) -> None:
    build(SYNTHETIC, model, tmp_path / "s.jsonl")
    due = [session["due_ns"] for session in sessions(tmp_path / "s.jsonl")]
    assert due == sorted(due) and due[0] > 0
    assert [session["phase"] for session in sessions(tmp_path / "s.jsonl")] == ["warmup"] * 20 + ["window"] * 200
    assert lines(tmp_path / "s.jsonl")[1]["groups"] == {"": {"kind": "open"}}


def test_without_warm_up_there_is_none(model: Model, tmp_path: Path) -> None:
    facts = build(replace(SHAREGPT, warmup_requests=0), model, tmp_path / "s.jsonl")
    assert facts.warmup_requests == 0
    assert {session["phase"] for session in sessions(tmp_path / "s.jsonl")} == {"window"}


def test_tenants_are_merged_by_due_time_each_with_its_own_share_times_and_text(model: Model, tmp_path: Path) -> None:
    facts = build(TENANTS, model, tmp_path / "s.jsonl")
    assert lines(tmp_path / "s.jsonl")[1]["groups"] == {
        "chat": {"kind": "open"},
        "batch": {"kind": "closed", "concurrency": 2},
    }
    window = [session for session in sessions(tmp_path / "s.jsonl") if session["phase"] == "window"]
    requests = dict.fromkeys(("chat", "batch"), 0)
    for session in window:
        requests[session["tenant"]] += len(session["turns"])
        assert (session["due_ns"] is None) == (session["tenant"] == "batch")
        thinks = [turn["think_ns"] for turn in session["turns"]]
        assert thinks == [0] + [2_000_000_000] * (len(thinks) - 1)
    assert requests == {"chat": 60, "batch": 20}
    due = [session["due_ns"] for session in window if session["due_ns"] is not None]
    assert due == sorted(due)
    assert {name: one["requests"] for name, one in facts.statistics["tenants"].items()} == requests
    assert len({session["session_id"] for session in window}) == len(window)


def test_a_tenant_more_changes_nothing_for_the_others(model: Model, tmp_path: Path) -> None:
    """Its lengths and its times are drawn from seeds of its own (the text of all comes from one source)."""
    build(
        replace(TENANTS, tenants={"chat": TENANTS.tenants["chat"]}, requests=60, warmup_requests=6),
        model,
        tmp_path / "1",
    )
    build(TENANTS, model, tmp_path / "2")
    plans = []
    for name in "12":
        own = [session for session in sessions(tmp_path / name) if session["tenant"] == "chat"]
        for session in own:
            for turn in session["turns"]:
                del turn["new"]
        plans.append([(session["due_ns"], session["turns"]) for session in own])
    assert plans[0] == plans[1]


def test_a_chats_text_is_what_its_token_ids_say(model: Model, tmp_path: Path) -> None:
    build(replace(SHAREGPT, api="chat"), model, tmp_path / "s.jsonl")
    tokenizer = load_tokenizer(model.path)
    assert lines(tmp_path / "s.jsonl")[1]["api"] == "chat"
    for session in sessions(tmp_path / "s.jsonl"):
        for turn in session["turns"]:
            assert turn["text"] == tokenizer.decode(ids(turn["new"], model))


def test_users_think_as_long_as_the_distribution_says(model: Model, tmp_path: Path) -> None:
    load = replace(SHAREGPT, think_time_s={"kind": "exponential", "mean_s": 3.0}, requests=600)
    build(load, model, tmp_path / "s.jsonl")
    thinks = [turn["think_ns"] / 1e9 for each in sessions(tmp_path / "s.jsonl") for turn in each["turns"][1:]]
    assert sum(thinks) / len(thinks) == pytest.approx(3.0, rel=0.2)
    assert {each["turns"][0]["think_ns"] for each in sessions(tmp_path / "s.jsonl")} == {0}


def test_a_file_that_cannot_be_written_leaves_what_was_there(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text("before")

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ConfigError("no further text")

    with pytest.raises(ConfigError):
        write_lines(path, broken())
    assert path.read_text() == "before"
    assert [each.name for each in tmp_path.iterdir()] == ["s.jsonl"]
    with pytest.raises(StorageError, match=r"s\.jsonl"):
        write_lines(path / "below" / "s.jsonl", [b"x"])
