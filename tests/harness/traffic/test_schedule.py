"""What a schedule holds."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.model import Model
from harness.traffic.load import Arrival, Load, Workload
from harness.traffic.schedule import ScheduleFacts, build_schedule

SHAREGPT = Load(
    workload=Workload(input_tokens_mean=200, output_tokens_mean=8, turns_max=3),
    arrival=Arrival(concurrency=4),
    requests=40,
    warmup_requests=10,
)
SYNTHETIC = Load(
    workload=Workload("synthetic", input_tokens_mean=64, output_tokens_mean=8),
    arrival=Arrival("poisson", rate_rps=10.0),
    requests=200,
    warmup_requests=20,
)


def build(load: Load, model: Model, path: Path, seed: int = 1, name: str = "m", **extras: Any) -> ScheduleFacts:
    return build_schedule(
        load, model=model, served_name=name, request_extras=lambda tokens: {"min_tokens": tokens, **extras},
        context_tokens=1024, seed=seed, path=path,
    )  # fmt: skip


def sessions(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()][2:]


@pytest.mark.parametrize("load", [SHAREGPT, SYNTHETIC])
def test_no_two_sessions_share_their_first_block(load: Load, model: Model, tmp_path: Path) -> None:
    build(load, model, tmp_path / "s.jsonl")
    starts = [tuple(session["turns"][0]["new_token_ids"][:16]) for session in sessions(tmp_path / "s.jsonl")]
    assert len(set(starts)) == len(starts)


@pytest.mark.parametrize("load", [SHAREGPT, SYNTHETIC])
def test_token_ids_are_as_many_as_planned(load: Load, model: Model, tmp_path: Path) -> None:
    facts = build(load, model, tmp_path / "s.jsonl")
    prompts = []
    for session in sessions(tmp_path / "s.jsonl"):
        context = 0
        for turn in session["turns"]:
            context += len(turn["new_token_ids"])
            assert context == turn["prompt_tokens"]
            context += turn["output_tokens"]
            if session["phase"] == "window":
                prompts.append(turn["prompt_tokens"])
    assert (facts.requests, facts.prompt_tokens_max) == (len(prompts), max(prompts)) == (load.requests, max(prompts))
    assert facts.prompt_tokens_mean == pytest.approx(sum(prompts) / len(prompts))


def test_equal_seeds_give_equal_traffic_whatever_the_engine(model: Model, tmp_path: Path) -> None:
    one = build(SHAREGPT, model, tmp_path / "1.jsonl", name="a")
    two = build(SHAREGPT, model, tmp_path / "2.jsonl", name="b", ignore_eos=True)
    assert one == two
    assert sessions(tmp_path / "1.jsonl") == sessions(tmp_path / "2.jsonl")


def test_other_seeds_give_other_traffic(model: Model, tmp_path: Path) -> None:
    hashes = {build(SHAREGPT, model, tmp_path / "s.jsonl", seed=seed).sha256 for seed in (1, 2)}
    assert len(hashes) == 2


def test_a_shared_prefix_is_shared_within_a_phase_only(model: Model, tmp_path: Path) -> None:
    load = replace(SYNTHETIC, workload=replace(SYNTHETIC.workload, shared_prefix_tokens=32))
    facts = build(load, model, tmp_path / "s.jsonl")
    prefixes = json.loads((tmp_path / "s.jsonl").read_text().splitlines()[1])["prefixes"]
    assert len(prefixes["window"]) == len(prefixes["warmup"]) == 32
    assert prefixes["window"] != prefixes["warmup"]
    assert {len(session["turns"][0]["new_token_ids"]) for session in sessions(tmp_path / "s.jsonl")} == {32}
    assert facts.prompt_tokens_mean == 64


def test_an_open_loop_is_due_in_order_warm_up_first(model: Model, tmp_path: Path) -> None:
    build(SYNTHETIC, model, tmp_path / "s.jsonl")
    due = [session["due_ns"] for session in sessions(tmp_path / "s.jsonl")]
    assert due == sorted(due) and due[0] > 0
    assert [session["phase"] for session in sessions(tmp_path / "s.jsonl")] == ["warmup"] * 20 + ["window"] * 200


def test_without_warm_up_there_is_none(model: Model, tmp_path: Path) -> None:
    facts = build(replace(SHAREGPT, warmup_requests=0), model, tmp_path / "s.jsonl")
    assert facts.warmup_requests == 0
    assert {session["phase"] for session in sessions(tmp_path / "s.jsonl")} == {"window"}
