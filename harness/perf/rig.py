"""What the rows of `make perf` are measured with: a paced server on one core, a client on another, in one folder."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from harness.errors import KVMarkError
from harness.perf.peers import EXTRA_BODY, Ask, Installed, Peer, Place
from harness.perf.program import Usage, run_program
from harness.traffic.calibrate.ladder import closed_loop, poisson
from harness.traffic.calibrate.paced_server import Pace, PacedServer, running
from harness.traffic.calibrate.plain_model import CONTEXT_TOKENS, plain_model
from harness.traffic.calibrate.server_log import ServerLog, read_log
from harness.traffic.schedule import build_schedule

ROOT = Path(__file__).resolve().parents[2]


class NotMeasured(KVMarkError):
    """A figure that could not be had, and why."""


@dataclass(frozen=True)
class Ran:
    """A client's run.

    Attributes
    ----------
    usage : Usage
        What it took.
    log : ServerLog
        What the server saw of it.
    folder : Path
        Where it wrote.
    """

    usage: Usage
    log: ServerLog
    folder: Path

    @property
    def tokens(self) -> int:
        """Sent to it."""
        return len(self.log.sent_ns)

    @property
    def requests_per_s(self) -> float:
        """Requests from the first's arrival to the last's end."""
        span = float(self.log.ended_ns.max() - self.log.arrived_ns.min()) / 1e9
        return len(self.log.ids) / span

    @property
    def arrivals_per_s(self) -> float:
        """Rate at which its requests arrived."""
        span = float(self.log.arrived_ns.max() - self.log.arrived_ns.min()) / 1e9
        return (len(self.log.ids) - 1) / span


@dataclass(frozen=True)
class Sizes:
    """How much is measured; `TINY` only shows that it works.

    Attributes
    ----------
    streams, stream_requests, tokens : int
        Of the row of real-time streams.
    lockstep, peer_lockstep : tuple of int
        Numbers of streams to try, rising.
    capacity_requests, peer_capacity_requests : int
        One-token requests.
    open_s : float
        How long an open loop is kept.
    memory_streams : int
        Of the row on memory.
    analysed_requests : int
        Of the row on the analysis.
    """

    streams: int = 256
    stream_requests: int = 1024
    tokens: int = 128
    lockstep: tuple[int, ...] = (256, 512, 1024, 1536, 2048)
    peer_lockstep: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512)
    capacity_requests: int = 60_000
    peer_capacity_requests: int = 8_000
    open_s: float = 6.0
    memory_streams: int = 2048
    analysed_requests: int = 1_000_000


TINY = Sizes(4, 8, 8, (2, 4), (2, 4), 50, 20, 0.5, 8, 1000)


@dataclass
class Rig:
    """Where and with what to measure.

    Attributes
    ----------
    folder : Path
        Scratch.
    client_core, server_core : int
        Cores.
    transports : list of str
        Ours to measure.
    installed : Installed
        The peers.
    sizes : Sizes
        How much.
    say : callable
        Takes a line of progress.
    """

    folder: Path
    client_core: int
    server_core: int
    transports: list[str]
    installed: Installed
    sizes: Sizes = field(default_factory=Sizes)
    say: Callable[[str], None] = print

    def own(self, transport: str, ask: Ask, pace: Pace, memory: bool = False) -> Ran:
        """Our client, as a program: replay, and its record turned into rows."""
        folder = self._fresh(f"own-{transport}")
        load = closed_loop(ask.concurrency, ask.requests, ask.output_tokens)
        if ask.rate_rps is not None:
            load = poisson(ask.rate_rps, ask.requests, ask.output_tokens)
        build_schedule(
            load,
            model=plain_model(self.folder / "model"),
            served_name="paced",
            request_extras=lambda _: dict(EXTRA_BODY),
            context_tokens=CONTEXT_TOKENS,
            seed=1,
            path=folder / "schedule.jsonl",
        )
        (folder / "load.json").write_text(json.dumps(asdict(load)))

        def command(server: PacedServer) -> list[str]:
            files = [str(folder / name) for name in ("load.json", "schedule.jsonl")]
            return [sys.executable, "-m", "harness.perf.own_client", *files, server.base_url, str(folder), transport]

        return self._run(f"own client ({transport})", folder, command, pace, {"PYTHONPATH": str(ROOT)}, memory)

    def peer(self, peer: Peer, ask: Ask, pace: Pace, memory: bool = False) -> Ran:
        """A peer's client; raises `NotMeasured` where it isn't to be had."""
        python = self.installed.python(peer)
        if python is None:
            raise NotMeasured(f"{peer.title}: {self.installed.missing[peer.name]}")
        folder = self._fresh(peer.name.replace(" ", "-"))
        model = plain_model(self.folder / "model")

        def command(server: PacedServer) -> list[str]:
            program, *arguments = peer.command(ask, Place(server.base_url, model.path, folder))
            return [str(Path(python).with_name(program)) if program != "python" else python, *arguments]

        env = {**peer.env, **({"PYTHONPATH": str(ROOT)} if peer.environment is None else {"PYTHONPATH": ""})}
        return self._run(peer.title, folder, command, pace, env, memory)

    def _run(
        self,
        title: str,
        folder: Path,
        command: Callable[[PacedServer], list[str]],
        pace: Pace,
        env: dict[str, str],
        memory: bool,
    ) -> Ran:
        with running(pace, folder / "server.log", core=self.server_core) as server:
            usage = run_program(
                command(server),
                core=self.client_core,
                folder=folder,
                name="client",
                requests_seen=lambda: server.counts().started,
                env=env,
                sample_memory=memory,
            )
        log = read_log(folder / "server.log")
        if usage.exit_code != 0 or not log.ids:
            how = (
                "took too long" if usage.exit_code is None else f"exit code {usage.exit_code}, {len(log.ids)} requests"
            )
            raise NotMeasured(f"{title}: {how}: {usage.tail()}")
        return Ran(usage, log, folder)

    def _fresh(self, name: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder
