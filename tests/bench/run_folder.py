"""Builds small run folders by hand, in the layout and with the schemas of `docs/results.md`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.traffic.records import SCHEMA

MS = 1_000_000
S = 1_000 * MS

_NEW = ("tenant", "worker", "send_lag_us", "connection_reused", "resends")
_EVENTS_1 = {"event_us": ("event_ns", pa.list_(pa.int64())), "event_tokens": ("event_tokens", pa.list_(pa.int32()))}
SCHEMA_1 = pa.schema([_EVENTS_1.get(one.name, (one.name, one.type)) for one in SCHEMA if one.name not in _NEW])


def request(
    index: int = 0,
    *,
    sent_ms: float | None = 0,
    scheduled_ms: float | None = None,
    events_ms: Sequence[float] = (100, 150, 200),
    tokens: Sequence[int] | None = None,
    error: str | None = None,
    ended_ms: float | None = None,
    phase: str = "window",
    prompt_tokens: int = 100,
    **more: Any,
) -> dict[str, Any]:
    """One row of `requests.parquet`; times in milliseconds on the cell's clock."""
    counts = list(tokens) if tokens is not None else [1] * len(events_ms)
    end = ended_ms if ended_ms is not None else (events_ms[-1] if events_ms else sent_ms or 0)
    sent, scheduled = (None if t is None else round(t * MS) for t in (sent_ms, scheduled_ms))
    return {
        "request_id": f"{phase}-{index}",
        "phase": phase,
        "session_id": f"{phase}-s{index}",
        "turn": 0,
        "tenant": None,
        "worker": 0,
        "scheduled_ns": scheduled,
        "sent_ns": sent,
        "send_lag_us": None if sent is None or scheduled is None else (sent - scheduled) // 1000,
        "ended_ns": round(end * MS),
        "planned_prompt_tokens": prompt_tokens,
        "planned_output_tokens": sum(counts),
        "prompt_tokens": None if error else prompt_tokens,
        "cached_prompt_tokens": None if error else 0,
        "output_tokens": None if error else sum(counts),
        "event_us": [round((t - (sent_ms or 0)) * 1000) for t in events_ms],
        "event_tokens": None if all(count == 1 for count in counts) else counts,
        "tokens_estimated": False,
        "buffered": False,
        "finish_reason": None if error else "length",
        "http_status": 200,
        "error": error,
        "error_detail": None,
        "connection_reused": False,
        "resends": 0,
        "text": "text",
        **more,
    }


def table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


def table_version_1(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The same records as KVMark wrote them first."""
    old = []
    for row in rows:
        events = row["event_us"] or []
        counts = row["event_tokens"] or [1] * len(events)
        old.append({**row, "event_ns": [row["sent_ns"] + us * 1000 for us in events], "event_tokens": counts})
    return pa.Table.from_pylist(old, schema=SCHEMA_1)


def steady(
    *, requests: int = 12, concurrency: int = 4, output_tokens: int = 8, ttft_ms: float = 400, itl_ms: float = 20
) -> list[dict[str, Any]]:
    """Make a closed loop in which every request takes the same time, TTFT growing a little from one to the next."""
    rows, length = [], ttft_ms + itl_ms * (output_tokens - 1)
    for index in range(requests):
        sent = (index // concurrency) * length * 1.03
        first = sent + ttft_ms * (1 + 0.01 * (index % concurrency))
        events = [first + itl_ms * k for k in range(output_tokens)]
        rows.append(request(index, sent_ms=sent, events_ms=events))
    return [request(99, sent_ms=-1000, events_ms=[-900, -800], phase="warmup"), *rows]


def forced_decode(*, nll: float = 2.8, top1: Sequence[int] | None = None, text: str = "a" * 64) -> dict[str, Any]:
    """Make an `output_check.json` whose true tokens all have the given negative log-likelihood."""
    count = 20
    true_tokens = list(range(100, 100 + count))
    first = list(top1) if top1 is not None else [7] * count
    return {
        "schema_version": 1,
        "text_sha256": text,
        "top_k": 2,
        "vocab": 49152,
        "positions": [16 * (i + 1) for i in range(count)],
        "next_token_ids": true_tokens,
        "top_token_ids": [[a, b] for a, b in zip(first, true_tokens, strict=True)],
        "top_logprobs": [[-0.5 if nll > 0.6 else -3.0, -nll] for _ in range(count)],
        "echo": None,
        "prefix_hits": None,
        "error": None,
    }


def samples(right: int, n: int = 16, documents: int = 2, block: int = 0) -> list[dict[str, Any]]:
    """Items of which the first `right` are answered rightly."""
    return [
        {
            "item_id": f"b{block}-{i}",
            "document_id": f"b{block}-d{i % documents}",
            "context_tokens": 6000,
            "depth": 0.5,
            "score": 1.0 if i < right else 0.0,
            "answer": "1",
            "target": "1",
            "prompt_sha256": "0" * 64,
        }
        for i in range(n)
    ]


@dataclass
class LaunchSpec:
    """What one launch leaves behind; see `docs/results.md`."""

    rows: list[dict[str, Any]] | None = field(default_factory=steady)
    state: str = "measured"
    reason: str | None = None
    cell_state: str = "measured"
    cell_reason: str | None = None
    effect: dict[str, Any] | None = None
    output_check: dict[str, Any] | None = field(default_factory=forced_decode)
    items: list[dict[str, Any]] | None = None
    client: dict[str, Any] = field(default_factory=dict)
    cache_state: str = "cold"
    schedule_sha256: str | None = None
    items_sha256: str | None = None
    mode: str = "generation"
    chance: float = 0.0
    task: dict[str, Any] = field(default_factory=dict)
    kv_cache_usage: tuple[float, ...] = (0.2, 0.9, 0.4)


def effect(kv_dtype: str = "bfloat16", factor: float = 1.0, mismatches: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "mismatches": list(mismatches),
        "evidence": [f"kv_cache_dtype={kv_dtype}"],
        "kv_dtype": kv_dtype,
        "capacity_tokens": round(8000 / factor),
        "pool_bytes": 8000 * 23040,
        "kv_bytes_per_token": 23040 * factor,
        "slots": None,
    }


def deployment(backend: str, strategy: str, **more: Any) -> dict[str, Any]:
    titles = {"baseline": "16-bit (baseline)", "kv-fp8": "fp8 (e4m3)", "kv-int8": "int8", "kv-q8": "q8_0"}
    baseline = strategy == "baseline"
    return {
        "id": f"{backend}+tiny+{strategy}",
        "backend": backend,
        "model": "tiny",
        "strategy": strategy,
        "strategy_title": titles.get(strategy, strategy),
        "backend_title": {"vllm": "vLLM", "llama-cpp": "llama.cpp"}.get(backend, backend),
        "engine_baseline": baseline,
        "common_baseline": baseline and backend == "vllm",
        "check_only": False,
        **more,
    }


def plan(deployments: Sequence[Mapping[str, Any]], *, blocks: int = 3, **more: Any) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "scenario": "long-context",
        "title": "long-context",
        "baseline": {"backend": "vllm", "strategy": "baseline"},
        "deployments": list(deployments),
        "blocks": blocks,
        "loads": {"chat": {"title": "chat", "requests": 12, "arrival": {"kind": "closed", "concurrency": 4}}},
        "accuracy": {"retrieval": {"margin_pp": 10.0}},
        "sla": {"chat": {"title": "Chat", "ttft_p90_ms": 500.0, "tpot_p90_ms": 50.0}},
        "margin": {"throughput_pct": 5, "latency_pct": 10},
        "output_check": {"nll_increase_nats": 0.3, "top1_agreement_min": 0.5},
        "support": [],
        "dropped": [],
        "smallest_effect": {"throughput": 6.0, "latency": 12.0},
        "notes": [],
        "question": "What does a narrower KV cache buy at long context?",
        "seconds": 900.0,
        "estimates": {d["id"]: {"total_s": 80.0, "kv_bytes_per_token": 23040.0} for d in deployments},
        "kv_budget_bytes": {"tiny": 8000 * 23040},
        "precision": "normal",
        **more,
    }


Launches = Mapping[tuple[int, str, int], LaunchSpec]
"""(block, deployment id, replica) → what the launch left."""


def build(root: Path, the_plan: dict[str, Any], launches: Launches, *, interrupted: Sequence[int] = ()) -> Path:
    """Write a run folder and return it; `interrupted` blocks have no complete `block.json`."""
    run_dir = root / "results" / "long-context" / "2026-11-29T1341"
    _json(run_dir / "manifest.json", _manifest())
    _json(run_dir / "plan.json", the_plan)
    for block in range(the_plan["blocks"]):
        status = "running" if block in interrupted else "complete"
        _json(run_dir / "blocks" / str(block) / "block.json", {"schema_version": 1, "block": block, "status": status})
    facts = {d["id"]: d for d in the_plan["deployments"]}
    for (block, deployment_id, replica), spec in launches.items():
        name = deployment_id + ("+A2" if replica == 2 else "")
        _launch(run_dir / "blocks" / str(block) / name, block, facts[deployment_id], replica, spec)
    return run_dir


def _manifest() -> dict[str, Any]:
    return {
        "schema_version": 1,
        "scenario": "long-context",
        "run": "2026-11-29T1341",
        "status": "complete",
        "created": "2026-11-29T13:41:00+00:00",
        "finished": "2026-11-29T14:05:00+00:00",
        "identity": {"config_sha256": "c" * 64, "code_sha256": "d" * 64},
        "hardware": {"hostname": "node1", "cpu": "a CPU", "cores": 2, "memory_bytes": 8 << 30, "gpus": []},
        "software": {"python": "3.11.9", "platform": "Linux", "packages": {"pandas": "2.3.3"}},
        "git": {"commit": "abc1234", "dirty": False},
        "engines": {"vllm": {"version": "0.32.0", "python": "/env/bin/python", "packages_sha256": "e" * 64}},
        "models": {"tiny": {"source": "a package", "content_sha256": "f" * 64, "path": "/models/tiny", "facts": {}}},
        "seed": 1,
        "data": {"retrieval": "9" * 64},
    }


def _launch(folder: Path, block: int, facts: Mapping[str, Any], replica: int, spec: LaunchSpec) -> None:
    clock = [{"monotonic_ns": -2 * S, "wall_ns": 0}, {"monotonic_ns": 1000 * S, "wall_ns": 1}]
    _json(
        folder / "launch.json",
        {
            "schema_version": 1,
            "block": block,
            "backend": facts["backend"],
            "model": facts["model"],
            "strategy": facts["strategy"],
            "deployment": facts["id"],
            "replica": replica,
            "state": spec.state,
            "reason": spec.reason,
            "check_only": facts["check_only"],
            "command": {"argv": [facts["backend"], "serve", "--port", "1"], "env": {"HF_HUB_OFFLINE": "1"}},
            "engine": {"version": "0.32.0"},
            "settings": {"context_tokens": 8192},
            "effect": spec.effect,
            "confounders": {"threads": "2"},
            "seconds": {"start": 30.0, "load": 60.0},
            "clock": clock,
            "cells": ["chat"],
            "tasks": ["retrieval"],
            "errors": [],
        },
    )
    if spec.state == "failed" and spec.rows is None:
        return
    if spec.output_check is not None:
        _json(folder / "output_check.json", spec.output_check)
    if facts["check_only"]:
        return
    cell = folder / "cells" / "chat"
    _json(
        cell / "cell.json",
        {
            "schema_version": 1,
            "load": "chat",
            "state": spec.cell_state,
            "reason": spec.cell_reason,
            "seed": block,
            "requests": 12,
            "cache": {"state": spec.cache_state, "reset": "reset answered 200; hits 0"},
            "counters": {"before": {"preemptions_total": 2.0}, "after": {"preemptions_total": 5.0}},
            "working_set_over_pool": 1.5,
            "client": {"cpu_s": 1.0, "wall_s": 10.0, "exit_code": 0, **spec.client},
            "clock": clock,
            "schedule_sha256": spec.schedule_sha256 or f"{block}" * 64,
        },
    )
    if spec.rows is not None:
        pq.write_table(table(spec.rows), cell / "requests.parquet", write_page_checksum=True)
    usage = list(spec.kv_cache_usage)
    readings = {"t_ns": [i * S for i in range(len(usage))], "kv_cache_usage": usage}
    readings |= {"pss_bytes": [1 << 30] * len(usage), "gpu_memory_bytes": [None] * len(usage)}
    pq.write_table(pa.table(readings), folder / "telemetry.parquet")
    if spec.items is not None:
        score = sum(item["score"] for item in spec.items) / len(spec.items)
        results = {"task": "retrieval", "metric": "exact", "n": len(spec.items), "score": score, "chance": spec.chance}
        more = {"schema_version": 1, "exercises": ["decode"], "state": "measured", "reason": None}
        more |= {"mode": spec.mode, "items_sha256": spec.items_sha256 or f"{block}" * 64}
        _json(folder / "accuracy" / "retrieval" / "results.json", {**results, **more, **spec.task})
        lines = "".join(json.dumps(item) + "\n" for item in spec.items)
        (folder / "accuracy" / "retrieval" / "samples.jsonl").write_text(lines)


def _json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
