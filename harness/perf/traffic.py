"""What the load client is held to: its cost, its exactness and its speed beside other load generators."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow.parquet as parquet

from harness.perf.figure import Bar, Figure, row
from harness.perf.peers import AIPERF, GUIDELLM, INFERENCE_PERF, LOCUST, VLLM_BENCH, Ask, Peer
from harness.perf.rig import ROOT, NotMeasured, Ran, Rig
from harness.traffic.calibrate.ceiling import WIDER_PCT, Step
from harness.traffic.calibrate.exactness import exactness
from harness.traffic.calibrate.paced_server import Pace

REAL_TIME = Pace(50, 20)
LOCKSTEP = Pace(50, 20, lockstep=True)
AT_ONCE = Pace(0, 0)

CPU_RATIO = {"pure": 0.75, "compiled": 0.6}
"""Our CPU time a token over that of vLLM's benchmark client, at most."""

SLIP_P99_MS = {"pure": 50.0, "compiled": 5.0}
"""How much later than due 99 of 100 requests of an open loop may be sent, at most."""

LOCKSTEP_STREAMS = 1024
CAPACITY_RPS = 15_000
WITHIN_2_PCT = Bar(at_least=98, at_most=102)
MEMORY_MB = 300
TABLES_S = 15

CONNECTIONS = 64
RATE_RPS, SLOW_RATE_RPS, RATE_TOKENS = 800.0, 200.0, 32


def _tried(measure: Callable[[], float]) -> tuple[float | None, str]:
    """A figure, or why there is none."""
    try:
        return measure(), ""
    except NotMeasured as error:
        return None, str(error)


def _beside(
    rig: Rig,
    name: str,
    unit: str,
    own: Callable[[str], float],
    peers: dict[Peer, Callable[[], float]],
    bar: Callable[[str], Bar],
) -> Iterator[Figure]:
    """Our transports beside the first peer, with a bar; the default transport beside the others, without."""
    ours = {transport: _tried(partial(own, transport)) for transport in rig.transports}
    for place, (peer, measure) in enumerate(peers.items()):
        theirs, why = _tried(measure)
        for transport in rig.transports if place == 0 else rig.transports[-1:]:
            value, own_why = ours[transport]
            note = "; ".join(filter(None, (own_why, why)))
            limit = bar(transport) if place == 0 else None
            yield Figure(f"{name}: {transport}", value, unit, peer.title, theirs, limit, note)


@row("cpu")
def cpu_per_token(rig: Rig) -> Iterator[Figure]:
    """CPU time a streamed token: from the first request on, less the same of a run of one token."""
    sizes = rig.sizes
    ask = Ask(sizes.stream_requests, sizes.streams, sizes.tokens)

    def microseconds(run: Callable[[Ask, Pace], Ran]) -> float:
        fixed, ran = run(Ask(1, 1, 1), REAL_TIME), run(ask, REAL_TIME)
        return (ran.usage.cpu_s - fixed.usage.cpu_s) / (ran.tokens - fixed.tokens) * 1e6

    yield from _beside(
        rig,
        f"CPU a streamed token, {sizes.streams} streams in real time",
        "µs",
        lambda transport: microseconds(partial(rig.own, transport)),
        {
            peer: partial(microseconds, partial(rig.peer, peer))
            for peer in (VLLM_BENCH, INFERENCE_PERF, AIPERF, GUIDELLM)
        },
        lambda transport: Bar("ratio", at_most=CPU_RATIO[transport]),
    )


@row("lockstep")
def lockstep_streams(rig: Rig) -> Iterator[Figure]:
    """Streams in lock-step up to which mean TTFT and ITL are within 5 % of the truth."""

    def ask(streams: int) -> Ask:
        return Ask(streams, streams, rig.sizes.tokens)

    def own_error_pct(transport: str, streams: int) -> float:
        ran = rig.own(transport, ask(streams), LOCKSTEP)
        return Step("streams", streams, exactness(ran.folder / "requests.parquet", ran.log)).error_pct()

    def peer_error_pct(peer: Peer, streams: int) -> float:
        return _error_of_statement_pct(peer, rig.peer(peer, ask(streams), LOCKSTEP))

    yield from _beside(
        rig,
        f"streams in lock-step within {WIDER_PCT:g} %",
        "streams",
        lambda transport: _highest(rig.sizes.lockstep, partial(own_error_pct, transport)),
        {
            peer: partial(_highest, rig.sizes.peer_lockstep, partial(peer_error_pct, peer))
            for peer in (VLLM_BENCH, INFERENCE_PERF)
        },
        lambda _: Bar(at_least=min(LOCKSTEP_STREAMS, rig.sizes.lockstep[-1])),
    )


def _highest(loads: tuple[int, ...], error_pct: Callable[[int], float]) -> float:
    """The last load before the first that isn't within the limit twice in a row; 0: not even the lowest."""
    best = 0
    for load in loads:
        if error_pct(load) > WIDER_PCT and error_pct(load) > WIDER_PCT:
            break
        best = load
    return float(best)


def _error_of_statement_pct(peer: Peer, ran: Ran) -> float:
    """Largest difference of a peer's own mean TTFT and ITL from the server's, in percent."""
    assert peer.means is not None
    said, log = peer.means(ran.folder), ran.log
    first, last = log.starts[:-1], log.starts[1:] - 1
    ttft_ms = float((log.sent_ns[first] - log.arrived_ns).mean()) / 1e6
    itl_ms = float((log.sent_ns[last] - log.sent_ns[first]).sum()) / max(1, int((log.sent - 1).sum())) / 1e6
    return max(abs(said.ttft_ms / ttft_ms - 1), abs(said.itl_ms / itl_ms - 1)) * 100


@row("capacity")
def one_token_requests(rig: Rig) -> Iterator[Figure]:
    """One-token requests a second that one core sends and reads, over 64 connections."""
    ask = Ask(rig.sizes.capacity_requests, CONNECTIONS, 1)
    few = Ask(rig.sizes.peer_capacity_requests, CONNECTIONS, 1)
    yield from _beside(
        rig,
        "one-token requests a second and core",
        "1/s",
        lambda transport: rig.own(transport, ask, AT_ONCE).requests_per_s,
        {peer: partial(_capacity, rig, peer, few) for peer in (LOCUST, VLLM_BENCH)},
        lambda _: Bar(at_least=CAPACITY_RPS),
    )


def _capacity(rig: Rig, peer: Peer, ask: Ask) -> float:
    return rig.peer(peer, ask, AT_ONCE).requests_per_s


@row("open-loop")
def open_loop(rig: Rig) -> Iterator[Figure]:
    """Poisson arrivals: the rate that is attained, and how late requests are sent."""
    for rate, peer in ((RATE_RPS, VLLM_BENCH), (SLOW_RATE_RPS, GUIDELLM)):
        requests = max(2, round(rate * rig.sizes.open_s))
        ask = Ask(requests, requests, RATE_TOKENS, rate)
        slips_ms: dict[str, float] = {}
        name = f"open loop, Poisson {rate:g}/s × {RATE_TOKENS} tokens"

        def attained_pct(transport: str, ask: Ask = ask, slips_ms: dict[str, float] = slips_ms) -> float:
            ran = rig.own(transport, ask, REAL_TIME)
            slips_ms[transport] = _slip_p99_ms(ran)
            return exactness(ran.folder / "requests.parquet", ran.log).attained_over_asked * 100

        def theirs_pct(peer: Peer = peer, ask: Ask = ask, rate: float = rate) -> float:
            return rig.peer(peer, ask, REAL_TIME).arrivals_per_s / rate * 100

        yield from _beside(rig, f"{name}, rate attained", "%", attained_pct, {peer: theirs_pct}, lambda _: WITHIN_2_PCT)
        if rate == RATE_RPS:
            for transport in rig.transports:
                limit = Bar(at_most=SLIP_P99_MS[transport])
                yield Figure(f"{name}, P99 send slip: {transport}", slips_ms.get(transport), "ms", bar=limit)


def _slip_p99_ms(ran: Ran) -> float:
    table = parquet.read_table(ran.folder / "requests.parquet", columns=["scheduled_ns", "sent_ns"]).drop_null()
    lag = table.column("sent_ns").to_numpy() - table.column("scheduled_ns").to_numpy()
    return float(np.percentile(lag, 99)) / 1e6


@row("memory")
def peak_memory(rig: Rig) -> Iterator[Figure]:
    """Memory of the whole process tree at its largest, conversion to rows included."""
    sizes = rig.sizes
    ask = Ask(sizes.memory_streams, sizes.memory_streams, sizes.tokens)

    def peak_mb(run: Callable[..., Ran]) -> float:
        return (run(ask, REAL_TIME, memory=True).usage.peak_bytes or 0) / 1e6

    yield from _beside(
        rig,
        f"peak memory, {sizes.memory_streams:,} streams × {sizes.tokens} tokens",
        "MB",
        lambda transport: peak_mb(partial(rig.own, transport)),
        {VLLM_BENCH: lambda: peak_mb(partial(rig.peer, VLLM_BENCH))},
        lambda _: Bar(at_most=MEMORY_MB),
    )


@row("analysis")
def all_tables(rig: Rig) -> Iterator[Figure]:
    """From raw records to all tables."""
    count = rig.sizes.analysed_requests
    name = f"{count:,} requests × 128 tokens from raw records to all tables"
    seconds, why = _tried(lambda: _seconds_to_tables(rig, count))
    yield Figure(name, seconds, "s", bar=Bar(at_most=TABLES_S), note=why)


def _seconds_to_tables(rig: Rig, requests: int) -> float:
    """By a program of the tests, which makes such records and times the analysis: `bench` is not ours to import."""
    program = ROOT / "tests" / "bench" / "analysis" / "many_requests.py"
    if not program.exists():
        raise NotMeasured(f"needs the project's checkout: {program}")
    argv = [sys.executable, str(program), str(rig.folder / "analysis"), str(requests), "128"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, timeout=300)
    found = re.search(r"tables in ([\d.]+) s", done.stdout)
    if done.returncode or found is None:
        raise NotMeasured(f"{program.name} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return float(found[1])
