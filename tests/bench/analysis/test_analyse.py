"""Whole run folders: states, exclusions and verdicts."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench.analysis import analyse, save
from bench.analysis.result import VERDICTS
from harness.errors import KVMarkError
from tests.bench.run_folder import (
    LaunchSpec,
    build,
    deployment,
    effect,
    forced_decode,
    plan,
    request,
    samples,
    steady,
    table_version_1,
)
from tests.bench.runs import BASE, FP8, INT8, LLAMA, Q8, five, spec

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_a_whole_run(tmp_path: Path) -> None:
    analysis = analyse(build(tmp_path, *five()))
    states = {d.id: d.state for d in analysis.deployments}
    assert states == {
        BASE: "measured",
        FP8: "measured",
        INT8: "output broken",
        LLAMA: "measured",
        Q8: "measured",
        "llama-cpp+tiny+kv-fp8": "unsupported",
    }
    throughput, latency = analysis.compared(FP8, "engine")
    assert (throughput.verdict, latency.verdict) == ("better", "better")
    assert latency.metric == "ttft_p90_ms" and latency.effect_pct == pytest.approx(100 * (261 / 402 - 1), abs=1)
    assert throughput.low_pct is not None and throughput.low_pct > 0
    assert analysis.compared(Q8, "engine")[1].verdict == "worse"
    assert all(c.verdict in VERDICTS and c.reason for c in analysis.comparisons)


def test_the_second_column_is_against_the_common_baseline(tmp_path: Path) -> None:
    analysis = analyse(build(tmp_path, *five()))
    throughput, latency = analysis.compared(Q8, "common")
    assert throughput.baseline == BASE and throughput.verdict == "worse"
    assert latency.verdict == "not comparable" and "closed loop" in latency.reason
    same_engine = analysis.compared(FP8, "common")[0]
    assert same_engine.effect_pct == analysis.compared(FP8, "engine")[0].effect_pct


def test_memory_figures(tmp_path: Path) -> None:
    found = analyse(build(tmp_path, *five())).deployment(FP8).memory
    assert found.kv_bytes_per_token == 11520 and found.capacity_tokens == 16000
    assert found.max_concurrency == {"chat": pytest.approx(16000 / 108)}, "100 prompt + 8 output tokens"
    assert found.peak_kv_cache_usage == 0.9 and found.peak_kv_tokens == pytest.approx(14400)
    assert found.preemptions == 9, "5 − 2 in each of three launches, never since boot"
    assert found.peak_pss_bytes == 1 << 30
    assert found.peak_gpu_memory_bytes is None, "no GPU reading is not zero"
    assert found.working_set_over_pool == {"chat": 1.5}


def test_a_broken_output_is_not_ranked(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, FP8, 1].output_check = forced_decode(nll=9.4, top1=[9] * 20)
    analysis = analyse(build(tmp_path, the_plan, launches))
    found = analysis.deployment(FP8)
    assert found.state == "output broken" and "9.4 against 2.8" in str(found.reason)
    assert not found.ranked
    assert {c.verdict for c in analysis.comparisons if c.deployment == FP8} == {"not comparable"}


def test_output_that_breaks_late_in_the_context_is_broken(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        record = forced_decode()
        for i in range(15, 20):
            record["top_token_ids"][i][0], record["top_logprobs"][i] = 9, [-0.001, -8.0]
        launches[block, FP8, 1].output_check = record
    assert analyse(build(tmp_path, the_plan, launches)).deployment(FP8).state == "output broken"


def test_a_strategy_a_little_off_is_not_broken(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, FP8, 1].output_check = forced_decode(nll=2.9, top1=[7] * 17 + [9] * 3)
    check = analyse(build(tmp_path, the_plan, launches)).deployment(FP8).output_check
    assert check is not None and not check.broken
    assert check.nll == pytest.approx(2.9) and check.top1_agreement == pytest.approx(0.85)


def test_random_weights_are_not_broken_by_near_ties(tmp_path: Path) -> None:
    the_plan, launches = five()
    for key, one in launches.items():
        one.output_check = forced_decode(nll=10.7, top1=[key[0] + len(key[1])] * 20)
        one.output_check["top_logprobs"] = [[-10.6, -10.7]] * 20
    assert analyse(build(tmp_path, the_plan, launches)).deployment(FP8).state == "measured"


def test_noisy_16bit_launches_widen_the_band(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, BASE, 2].output_check = forced_decode(nll=3.0)
        launches[block, FP8, 1].output_check = forced_decode(nll=3.6)
    assert analyse(build(tmp_path, the_plan, launches)).deployment(FP8).state == "measured"


def test_an_interrupted_block_is_excluded(tmp_path: Path) -> None:
    the_plan, launches = five()
    launches[2, FP8, 1] = spec(2, ttft_ms=9000)
    run_dir = build(tmp_path, the_plan, launches, interrupted=[2])
    (run_dir / "blocks" / "1.interrupted-1").mkdir()
    analysis = analyse(run_dir)
    assert (analysis.blocks, analysis.blocks_planned) == (2, 3)
    assert analysis.interrupted == ("2", "1.interrupted-1")
    assert analysis.compared(FP8, "engine")[1].verdict == "better"
    assert analysis.deployment(FP8).launches == 2


def test_one_block_gives_no_verdict(tmp_path: Path) -> None:
    analysis = analyse(build(tmp_path, *five(blocks=1)))
    found = analysis.compared(FP8, "engine")[0]
    assert (found.verdict, found.reason) == ("inconclusive", "no verdict: one block")
    assert found.effect_pct is not None and found.low_pct is None


def test_not_in_effect_says_what_the_engine_does(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, FP8, 1] = spec(block, effect=effect("bfloat16", mismatches=["kv_dtype: bfloat16, not fp8"]))
    found = analyse(build(tmp_path, the_plan, launches)).deployment(FP8)
    assert (found.state, found.reason) == ("not in effect", "kv_dtype: bfloat16, not fp8")


def test_survivors_of_failed_launches_are_not_ranked(tmp_path: Path) -> None:
    the_plan, launches = five()
    launches[1, FP8, 1] = LaunchSpec(rows=None, state="failed", reason="the server died: out of memory")
    found = analyse(build(tmp_path, the_plan, launches)).deployment(FP8)
    assert found.state == "failed" and not found.ranked
    assert found.reason == "1 of 3 launches failed: the server died: out of memory"


def test_a_failure_after_the_load_leaves_the_speed(tmp_path: Path) -> None:
    the_plan, launches = five()
    launches[1, FP8, 1].state, launches[1, FP8, 1].reason = "failed", "accuracy retrieval: the scorer died"
    analysis = analyse(build(tmp_path, the_plan, launches))
    assert analysis.deployment(FP8).state == "measured"
    assert analysis.compared(FP8, "engine")[0].verdict == "better"


def test_caches_in_another_state_are_not_compared(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, FP8, 1].cache_state = "unverified"
    analysis = analyse(build(tmp_path, the_plan, launches))
    found = analysis.compared(FP8, "engine")[0]
    assert found.verdict == "not comparable" and "unverified" in found.reason
    assert "the cache reset before the load could not be verified" in analysis.deployment(FP8).cells["chat"].notes


def test_a_baseline_may_lose_one_of_two_launches(tmp_path: Path) -> None:
    the_plan, launches = five()
    launches[1, BASE, 2] = LaunchSpec(rows=None, state="failed", reason="did not start")
    analysis = analyse(build(tmp_path, the_plan, launches))
    assert analysis.deployment(BASE).state == "measured"
    assert analysis.compared(FP8, "engine")[0].baseline_launches == 5


def test_a_launch_without_a_record_is_missed(tmp_path: Path) -> None:
    the_plan, launches = five()
    del launches[1, FP8, 1]
    assert "no record of it in 1 of 3" in str(analyse(build(tmp_path, the_plan, launches)).deployment(FP8).reason)


def test_a_lost_load_client_makes_the_cell_not_comparable(tmp_path: Path) -> None:
    the_plan, launches = five()
    launches[0, FP8, 1].cell_state, launches[0, FP8, 1].cell_reason = "failed", "the load client died"
    analysis = analyse(build(tmp_path, the_plan, launches))
    assert analysis.compared(FP8, "engine")[0].verdict == "not comparable"
    assert "the load client died" in str(analysis.deployment(FP8).cells["chat"].reason)


def test_a_busy_client_makes_the_cell_client_bound(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, FP8, 1].client = {"cpu_s": 9.8}
    found = analyse(build(tmp_path, the_plan, launches)).deployment(FP8)
    assert found.state == "client-bound" and "98%" in str(found.reason)


def test_failing_requests_can_not_win(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        rows = steady(ttft_ms=50)
        rows[3:6] = [request(900 + i, error="http", events_ms=[], ended_ms=60) for i in range(3)]
        launches[block, FP8, 1].rows = rows
    analysis = analyse(build(tmp_path, the_plan, launches))
    latency = analysis.compared(FP8, "engine")[1]
    assert latency.verdict == "worse" and "infinite in 3 of 3" in latency.reason
    cell = analysis.deployment(FP8).cells["chat"]
    assert (cell.requests, cell.failed_requests, cell.errors) == (36, 9, {"http": 9})


def test_accuracy_is_paired_within_the_engine(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, Q8, 1].items = samples(2, block=block)
    analysis = analyse(build(tmp_path, the_plan, launches))
    by_id = {a.deployment: a for a in analysis.accuracy if a.against == "engine"}
    one = by_id[FP8]
    assert (one.n, one.documents, one.difference_pp) == (48, 6, 0)
    assert one.verdict == "inconclusive", "six documents don't speak for the next one, though no answer changed"
    assert by_id[Q8].verdict == "worse" and by_id[Q8].lost == 42


def test_outputs_of_another_length_are_reported(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, FP8, 1].rows = steady(output_tokens=6)
    notes = analyse(build(tmp_path, the_plan, launches)).deployment(FP8).cells["chat"].notes
    assert "mean output 6.0 tokens, the common baseline's 8.0" in notes


def test_every_cell_failed(tmp_path: Path) -> None:
    the_plan, launches = five()
    failed = {key: LaunchSpec(rows=None, state="failed", reason="no memory") for key in launches}
    analysis = analyse(build(tmp_path, the_plan, failed))
    assert {d.state for d in analysis.deployments} == {"failed", "unsupported"}
    assert {c.verdict for c in analysis.comparisons} == {"not comparable"}


def test_one_cell_alone(tmp_path: Path) -> None:
    run_dir = build(tmp_path, plan([deployment("vllm", "baseline")], blocks=1), {(0, BASE, 1): spec(0)})
    analysis = analyse(run_dir)
    assert analysis.comparisons == ()
    assert analysis.deployment(BASE).cells["chat"].means["output_tokens_per_s"] > 0


def test_the_noise_floor_is_a_against_a_prime(tmp_path: Path) -> None:
    noise = {n.metric: n for n in analyse(build(tmp_path, *five())).noise}
    assert noise["ttft_p90_ms"].pairs == 3
    assert noise["ttft_p90_ms"].sd_pct == pytest.approx(100 * (404 / 400 - 1) / 2**0.5, abs=0.02)


def test_the_analysis_is_saved_as_strict_json(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        launches[block, FP8, 1].rows = [request(0), *(request(i, error="http", events_ms=[]) for i in range(1, 12))]
    run_dir = build(tmp_path, the_plan, launches)
    path = save(analyse(run_dir), run_dir)
    text = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert text["schema_version"] == 1
    fp8 = next(d for d in text["deployments"] if d["id"] == FP8)
    assert fp8["cells"]["chat"]["quantiles"]["ttft_ms"][1]["value"] == "inf"


def test_a_half_written_parquet_counts_as_not_measured(tmp_path: Path) -> None:
    run_dir = build(tmp_path, *five())
    (run_dir / "blocks" / "0" / FP8 / "cells" / "chat" / "requests.parquet").write_bytes(b"PAR1 nonsense")
    analysis = analyse(run_dir)
    assert any("requests.parquet" in problem for problem in analysis.problems)
    assert analysis.deployment(FP8).cells["chat"].state == "failed"


@pytest.mark.parametrize("where", [0.01, 0.2, 0.5, 0.8])
@pytest.mark.parametrize("damage", ["zeros", "flipped"])
def test_a_parquet_damaged_within_fails_its_cell_only(tmp_path: Path, damage: str, where: float) -> None:
    run_dir = build(tmp_path, *five())
    path = run_dir / "blocks" / "0" / FP8 / "cells" / "chat" / "requests.parquet"
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8).copy()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4].tobytes(), "little")
    part = slice(4 + int(where * (footer - 4)), 4 + int((where + 0.15) * (footer - 4)))
    content[part] = 0 if damage == "zeros" else content[part] ^ 0xA5
    path.write_bytes(content.tobytes())
    analysis = analyse(run_dir)
    cell = analysis.deployment(FP8).cells["chat"]
    assert cell.state == "failed" and str(cell.reason).startswith("block 0: requests.parquet can't be read")
    assert analysis.deployment(BASE).state == "measured"


def test_records_of_the_first_version_come_to_the_same(tmp_path: Path) -> None:
    run_dir = build(tmp_path, *five())
    new = analyse(run_dir).deployment(FP8).cells["chat"]
    for path in run_dir.glob("blocks/*/*/cells/*/requests.parquet"):
        rows = pq.read_table(path).to_pylist()
        pq.write_table(table_version_1(rows), path)
    old = analyse(run_dir).deployment(FP8).cells["chat"]
    assert old.means == pytest.approx(new.means) and old.quantiles == new.quantiles and old.drift == new.drift


def test_a_cell_past_the_clients_ceiling_is_client_bound(tmp_path: Path) -> None:
    the_plan, launches = five()
    launches[1, FP8, 1].client = {"transport": "pure", "ceiling": {"streams": 3, "transport": "pure", "error_pct": 2}}
    analysis = analyse(build(tmp_path, the_plan, launches))
    cell = analysis.deployment(FP8).cells["chat"]
    words = "4 streams received at once; this client is known to measure within 2 % up to 3"
    assert (cell.state, cell.reason) == ("client-bound", f"block 1: {words}")
    assert analysis.compared(FP8, "engine")[0].verdict == "not comparable"


def test_a_cell_with_a_lost_worker_is_not_comparable(tmp_path: Path) -> None:
    the_plan, launches = five()
    launches[1, FP8, 1].client = {"lost_workers": [{"number": 1, "host": "node2", "reason": "killed by signal 9"}]}
    analysis = analyse(build(tmp_path, the_plan, launches))
    assert "worker 1 on node2: killed by signal 9" in str(analysis.deployment(FP8).cells["chat"].reason)
    assert analysis.compared(FP8, "engine")[0].verdict == "not comparable"


def test_what_is_to_be_known_of_the_traffic_is_noted(tmp_path: Path) -> None:
    the_plan, launches = five()
    for block in range(3):
        slowing = [100 + 20 * k + 2 * k * k for k in range(8)]
        rows = [request(i, sent_ms=0, events_ms=[i + t for t in slowing]) for i in range(12)]
        rows[0] = request(0, events_ms=[100, 200], tokens=[4, 4])
        launches[block, FP8, 1].rows, launches[block, FP8, 1].client = rows, {"ceiling": None}
    notes = analyse(build(tmp_path, the_plan, launches)).deployment(FP8).cells["chat"].notes
    assert any(note.startswith("chunks carried several tokens (8.3% of all)") for note in notes)
    assert any(note.startswith("ITL drifts by +3.9") and note.endswith("late tokens come slower") for note in notes)
    assert notes.count("client not calibrated (make calibrate)") == 1, "once, of three launches"


@pytest.mark.parametrize("version", [None, 2])
def test_an_unknown_version_is_refused(tmp_path: Path, version: int | None) -> None:
    run_dir = build(tmp_path, *five(1))
    (run_dir / "manifest.json").write_text(json.dumps({"schema_version": version}))
    with pytest.raises(KVMarkError, match=f"schema_version {version} is unknown"):
        analyse(run_dir)


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KVMarkError, match="holds no run"):
        analyse(tmp_path)


def test_a_cell_that_was_sent_other_traffic_is_compared_with_nothing(tmp_path: Path) -> None:
    the_plan, launches = five()
    launches[1, FP8, 1] = spec(1, ttft_ms=260, schedule_sha256="e" * 64)
    analysis = analyse(build(tmp_path, the_plan, launches))
    assert analysis.deployment(FP8).state == "measured"
    for one in (*analysis.compared(FP8, "engine"), *analysis.compared(FP8, "common")):
        assert one.verdict == "not comparable" and one.effect_pct is None
        assert one.reason == "traffic differs in block 1 (schedule_sha256)"
    assert all(one.verdict != "not comparable" for one in analysis.compared(Q8, "engine"))


def keys_of(value: object, *, free: frozenset[str]) -> set[str]:
    """Names of a JSON object's keys, but for those under names that hold anything."""
    if isinstance(value, list):
        return set().union(*(keys_of(item, free=free) for item in value))
    if not isinstance(value, dict):
        return set()
    return set(value) | set().union(*(keys_of(value[key], free=free) for key in value if key not in free))


def test_every_key_and_every_metric_is_documented(tmp_path: Path) -> None:
    the_plan, launches = five()
    run_dir = build(tmp_path, the_plan, launches)
    plain = json.loads(save(analyse(run_dir), run_dir).read_text())
    free = {"plan", "manifest", "env", "settings", "confounders", "seconds", "seconds_by_block", "schedule_sha256"}
    named = {"cells", "accuracy", "working_set_over_pool", "max_concurrency", "errors", "sla_met", "tenants", "values"}
    named |= {"means", "quantiles", "blocks"}
    documented = (DOCS / "results.md").read_text() + (DOCS / "metrics.md").read_text()
    for key in keys_of(plain, free=frozenset(free | named)):
        assert re.search(rf"\b{key}\b", documented), key
    (cell,) = next(d for d in plain["deployments"] if d["id"] == FP8)["cells"].values()
    for key in keys_of(cell, free=frozenset(named)):
        assert re.search(rf"\b{key}\b", documented), key
    for name in cell["launches"][0]["values"]:
        general = re.sub(r"_p\d+_ms$", "_ms", name).split(".")[0]
        assert re.search(rf"\b({general}|{name})", documented), name


@pytest.mark.parametrize("damage", ['{"item_id": "a', '{"item_id": "a", "score": 17}\n', "[]\n"])
def test_damaged_answers_are_named_and_end_no_analysis(damage: str, tmp_path: Path) -> None:
    run_dir = build(tmp_path, *five())
    path = run_dir / "blocks" / "0" / FP8 / "accuracy" / "retrieval" / "samples.jsonl"
    path.write_text(damage)
    analysis = analyse(run_dir)
    assert any(str(path) in problem for problem in analysis.problems)
    assert analysis.deployment(FP8).accuracy["retrieval"].n == 32
