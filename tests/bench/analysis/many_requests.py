"""Writes a large `requests.parquet` quickly: what the analysis must turn into tables in seconds.

    python tests/bench/analysis/many_requests.py FOLDER [REQUESTS [TOKENS]]

makes a run of one such cell under FOLDER, and times the analysis and the tables.
"""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP = 20_000
RATE_RPS = 1_000
TTFT_MS, ITL_MS = 50.0, 20.0


def synthetic_requests(path: Path, requests: int, tokens: int, *, seed: int = 0) -> Path:
    """Write a `requests.parquet` of version 2: Poisson arrivals of single-turn requests, exactly `tokens` tokens each.

    TTFT and ITL are lognormal around 50 and 20 ms; one request in a thousand times out; nothing else fails.
    """
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    due_ns = 10**12 + (np.cumsum(rng.exponential(1 / RATE_RPS, requests)) * 1e9).astype(np.int64)
    writer: pq.ParquetWriter | None = None
    for begin in range(0, requests, ROW_GROUP):
        group = _group(due_ns[begin : begin + ROW_GROUP], begin, tokens, rng)
        writer = writer or pq.ParquetWriter(path, group.schema.with_metadata({"kvmark_requests_version": "2"}))
        writer.write_table(group.replace_schema_metadata({"kvmark_requests_version": "2"}))
    if writer is not None:
        writer.close()
    return path


def _group(due_ns: np.ndarray, begin: int, tokens: int, rng: np.random.Generator) -> pa.Table:
    n = len(due_ns)
    sent_ns = due_ns + rng.exponential(200_000, n).astype(np.int64)
    gaps_us = rng.lognormal(np.log(ITL_MS * 1000), 0.15, (n, tokens))
    gaps_us[:, 0] = rng.lognormal(np.log(TTFT_MS * 1000), 0.3, n)
    event_us = np.cumsum(gaps_us, axis=1).astype(np.uint32)
    failed = rng.random(n) < 0.001
    flat = pa.array(event_us.reshape(-1))
    offsets = pa.array(np.arange(0, (n + 1) * tokens, tokens, dtype=np.int32))
    names = [f"s{i}-0" for i in range(begin, begin + n)]

    def constant(value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), n)

    return pa.table(
        {
            "request_id": names,
            "phase": constant("window", pa.string()),
            "session_id": [name[:-2] for name in names],
            "turn": constant(0, pa.int32()),
            "tenant": pa.nulls(n, pa.string()),
            "worker": constant(0, pa.int16()),
            "scheduled_ns": due_ns,
            "sent_ns": sent_ns,
            "send_lag_us": (sent_ns - due_ns) // 1000,
            "ended_ns": sent_ns + event_us[:, -1].astype(np.int64) * 1000 + 100_000,
            "planned_prompt_tokens": constant(512, pa.int32()),
            "planned_output_tokens": constant(tokens, pa.int32()),
            "prompt_tokens": constant(512, pa.int32()),
            "cached_prompt_tokens": constant(0, pa.int32()),
            "output_tokens": constant(tokens, pa.int32()),
            "event_us": pa.ListArray.from_arrays(offsets, flat),
            "event_tokens": pa.nulls(n, pa.list_(pa.uint16())),
            "tokens_estimated": constant(False, pa.bool_()),
            "buffered": constant(False, pa.bool_()),
            "finish_reason": constant("length", pa.string()),
            "http_status": constant(200, pa.int32()),
            "error": pa.array(np.where(failed, "timeout", None), pa.string()),
            "error_detail": pa.nulls(n, pa.string()),
            "connection_reused": constant(True, pa.bool_()),
            "resends": constant(0, pa.int16()),
            "text": constant("token " * tokens, pa.string()),
        }
    )


def synthetic_run(root: Path, requests: int, tokens: int) -> Path:
    """Make a run folder of one launch of one deployment under one load of so many requests."""
    run = root / "results" / "many" / "2026-11-29T1341"
    cell = run / "blocks" / "0" / "vllm+tiny+baseline" / "cells" / "chat"
    ids = {"backend": "vllm", "model": "tiny", "strategy": "baseline"}
    deployment = {"id": "vllm+tiny+baseline", **ids, "engine_baseline": True, "common_baseline": True}
    load = {"title": "chat", "requests": requests, "arrival": {"kind": "poisson", "rate_rps": RATE_RPS}}
    sla = {"title": "Chat", "ttft_p90_ms": 100.0, "itl_p90_ms": 25.0, "tpot_p90_ms": 50.0}
    client = {"cpu_s": 100.0, "wall_s": 1000.0, "exit_code": 0, "ceiling": None}
    for path, value in {
        run / "manifest.json": {"schema_version": 1, "run": run.name, "status": "complete"},
        run / "plan.json": {"blocks": 1, "deployments": [deployment], "loads": {"chat": load}, "sla": {"chat": sla}},
        run / "blocks" / "0" / "block.json": {"status": "complete"},
        cell.parents[1] / "launch.json": {"block": 0, "deployment": deployment["id"], "state": "measured"},
        cell / "cell.json": {"load": "chat", "state": "measured", "client": client},
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
    synthetic_requests(cell / "requests.parquet", requests, tokens)
    return run


def main(root: str, requests: str = "1e6", tokens: str = "128") -> None:
    run = synthetic_run(Path(root), int(float(requests)), int(tokens))
    began, cpu = time.perf_counter(), time.process_time()
    from bench.analysis import analyse, save
    from bench.report.tables import write_tables

    imported = time.perf_counter()
    analysis = analyse(run)
    analysed = time.perf_counter()
    save(analysis, run)
    written = write_tables(analysis, run)
    ended = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{requests} requests of {tokens} tokens → {len(written)} tables in {ended - imported:.1f} s "
        f"(analysis {analysed - imported:.1f}, {time.process_time() - cpu:.1f} s of CPU), imports "
        f"{imported - began:.1f} s, peak {peak:.2f} GiB"
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    main(*sys.argv[1:])
