"""The calibration's measurements: the real load client against the paced server, at rising load.

The path is that of a cell: a schedule on disk, `replay`, `requests.parquet`. The client has its own cores, and the
server the last one.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.traffic.calibrate.ceiling import WIDER_PCT, Step
from harness.traffic.calibrate.exactness import exactness
from harness.traffic.calibrate.paced_server import Pace, running
from harness.traffic.calibrate.plain_model import CONTEXT_TOKENS, plain_model
from harness.traffic.calibrate.server_log import read_log
from harness.traffic.client_options import ClientOptions
from harness.traffic.load import Load
from harness.traffic.replay import replay
from harness.traffic.schedule import build_schedule

TTFT_MS, ITL_MS = 50.0, 20.0
PROMPT_TOKENS = 64
CAPACITY_CONNECTIONS = 64
FINER_STEPS = 3
"""Steps between the highest load that holds and the next one of the ladder."""

ROUNDS = 2
"""Requests a stream: the first round starts when nothing else streams, the next one in the middle of others."""


@dataclass(frozen=True)
class Plan:
    """How far to climb.

    Attributes
    ----------
    streams, rates : tuple of int
        Loads to measure, rising.
    tokens : int
        Mean tokens of a stream; the longest has three times as many as the shortest, so that they end apart.
    rate_s : float
        How long each rate is kept.
    capacity_requests : int
        Requests of the capacity step; 0: none.
    thorough : bool
        Whether to measure a failing load again, and to look between the last load that holds and the next one.
    """

    streams: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
    rates: tuple[int, ...] = (250, 500, 1000, 2000, 4000, 8000, 16000)
    tokens: int = 64
    rate_s: float = 2.0
    capacity_requests: int = 30_000
    thorough: bool = True


QUICK = Plan(streams=(4, 16), rates=(100,), tokens=20, rate_s=0.5, capacity_requests=500, thorough=False)


@dataclass(frozen=True)
class Bench:
    """Where and with what a step is measured."""

    folder: Path
    client: ClientOptions
    server_core: int
    compiled_server: bool | None = None


@dataclass(frozen=True)
class Run:
    """What one step asks of the client."""

    load: Load
    pace: Pace


def split_cores(processes: int) -> tuple[list[int], int]:
    """Cores of the client, and the server's."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) <= processes:
        raise ConfigError(
            f"calibration needs a core for each of {processes} client processes and one for the server, and may use "
            f"{len(cores)}: on one core, client and server would measure each other"
        )
    return cores[:processes], cores[-1]


def climb(bench: Bench, plan: Plan, say: Callable[[Step], None]) -> list[Step]:
    """Measure all steps: each kind up to the first load at which the client is far off, then below it, finer."""
    steps: list[Step] = []

    def measure(kind: str, asked: int) -> Step:
        step = _measured(bench, plan, kind, asked)
        steps.append(step)
        say(step)
        return step

    for kind, loads in (("streams", plan.streams), ("rate", plan.rates)):
        held: dict[int, bool] = {}
        for asked in loads:
            step = measure(kind, asked)
            held[asked] = step.holds() and not step.server_bound
            if step.server_bound or not step.holds(WIDER_PCT):
                break
        good = max((asked for asked, holds in held.items() if holds), default=0)
        bad = min((asked for asked in held if asked > good), default=0)
        if plan.thorough and good and bad:
            _look_between(partial(measure, kind), good, bad)
    if plan.capacity_requests:
        measure("capacity", CAPACITY_CONNECTIONS)
    return steps


def _look_between(measure: Callable[[int], Step], good: int, bad: int) -> None:
    for _ in range(FINER_STEPS):
        middle = (good + bad) // 2
        if middle in (good, bad):
            return
        if measure(middle).holds():
            good = middle
        else:
            bad = middle


def _measured(bench: Bench, plan: Plan, kind: str, asked: int) -> Step:
    """A step; one that doesn't hold is measured again, and the smaller error counts."""
    run = run_of(plan, kind, asked)
    first = measure_once(bench, run, kind, asked)
    if kind == "capacity" or first.holds() or not plan.thorough:
        return first
    second = measure_once(bench, run, kind, asked)
    return replace(min(first, second, key=Step.error_pct), attempts=2)


def run_of(plan: Plan, kind: str, asked: int) -> Run:
    """What a step of the ladder asks."""
    if kind == "streams":
        rounds = max(ROUNDS, 128 // asked)
        lengths = {"kind": "uniform", "min_tokens": plan.tokens // 2, "max_tokens": plan.tokens * 3 // 2}
        return Run(closed_loop(asked, asked * rounds, lengths), Pace(TTFT_MS, ITL_MS, lockstep=True))
    if kind == "rate":
        return Run(poisson(asked, max(20, round(asked * plan.rate_s)), 1), Pace(TTFT_MS, ITL_MS))
    return Run(closed_loop(asked, plan.capacity_requests, 1), Pace(0, 0))


def closed_loop(concurrency: int, requests: int, tokens: int | dict[str, Any]) -> Load:
    """So many requests of so many tokens (or of such a distribution), so many at a time."""
    return _load({"kind": "closed", "concurrency": concurrency}, requests, tokens)


def poisson(rate_rps: float, requests: int, tokens: int) -> Load:
    """So many requests of so many tokens, arriving at random."""
    return _load({"kind": "poisson", "rate_rps": rate_rps}, requests, tokens)


def _load(arrival: dict[str, Any], requests: int, tokens: int | dict[str, Any]) -> Load:
    return Load(
        title="calibration",
        workload={"kind": "synthetic", "input_tokens_mean": PROMPT_TOKENS, "output_tokens": tokens},
        arrival=arrival,
        requests=requests,
        warmup_requests=0,
        timeout_s=60.0,
        cache_state="warm",
    )


def measure_once(bench: Bench, run: Run, kind: str, asked: float) -> Step:
    """One replay against a paced server of its own, compared with its log."""
    bench.folder.mkdir(parents=True, exist_ok=True)
    build_schedule(
        run.load,
        model=plain_model(bench.folder / "model"),
        served_name="paced",
        request_extras=lambda _: {"return_token_ids": True},
        context_tokens=CONTEXT_TOKENS,
        seed=1,
        path=bench.folder / "schedule.jsonl",
    )
    pace = replace(run.pace, compiled=bench.compiled_server)
    with running(pace, bench.folder / "server.log", core=bench.server_core) as server:
        report = replay(
            run.load,
            schedule_path=bench.folder / "schedule.jsonl",
            base_url=server.base_url,
            out_dir=bench.folder / "cell",
            env={},
            on_progress=lambda done, total: None,
            options=bench.client,
        )
    exact = exactness(bench.folder / "cell" / "requests.parquet", read_log(bench.folder / "server.log"))
    # Its times are absolute: where it can't keep up, it is later with every token.
    behind = exact.server_late_ms.mean > (run.pace.itl_ms or math.inf)
    return Step(kind, asked, exact, report.client.cpu_s, server_bound=behind)
