"""A server from start to end: started under guard, ready, ours on its port, itself by name, and gone afterwards."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from harness.engine_log import useful_lines
from harness.errors import LaunchError
from harness.guard import Guarded, guarded
from harness.local_http import request

HOST = "127.0.0.1"


@dataclass(frozen=True)
class ServerSpec:
    """What to start and how to know that it is ready.

    Attributes
    ----------
    argv : sequence of str
        Program and arguments.
    env : mapping
        Variables on top of our own environment.
    log_path : Path
        File that takes what the server prints.
    port : int
        Port on loopback that the server was told to listen on.
    served_name : str
        Model name that only this server serves; `/v1/models` must list it alone.
    health_path : str
        Path that answers 200 when the server is ready.
    metrics_path : str or None
        Path of its metrics text; None where it has none.
    cores : sequence of int or None
        CPU cores that it may use.
    start_timeout_s : float
        Longest wait for readiness.
    stop_grace_s : float
        Time between SIGTERM and SIGKILL at the end.
    record_dir : Path or None
        Folder for the record of running processes (`harness.guard.sweep`).
    """

    argv: Sequence[str]
    log_path: Path
    port: int
    served_name: str
    env: Mapping[str, str] = field(default_factory=dict)
    health_path: str = "/health"
    metrics_path: str | None = "/metrics"
    cores: Sequence[int] | None = None
    start_timeout_s: float = 600.0
    stop_grace_s: float = 10.0
    record_dir: Path | None = None


class Server:
    """A server that is ready and proved to be ours; `serve` makes one."""

    def __init__(self, spec: ServerSpec, guard: Guarded, start_seconds: float = 0.0) -> None:
        self.spec = spec
        self.base_url = f"http://{HOST}:{spec.port}"
        self.served_name = spec.served_name
        self.start_seconds = start_seconds
        self._guard = guard

    def pids(self) -> list[int]:
        """Living processes of the server, the one that was started first."""
        return self._guard.pids()

    def alive(self) -> bool:
        """Whether the process that was started still runs."""
        return self._guard.poll() is None

    def exit_reason(self) -> str | None:
        """How the server ended, in words; None while it runs."""
        return self._guard.exit_reason()

    def log_text(self) -> str:
        """All that the server has printed in this launch."""
        with contextlib.suppress(OSError):
            return self.spec.log_path.read_text(errors="replace")
        return ""

    def metrics_text(self) -> str:
        """One reading of its metrics; empty where it has none. Raises `OSError` when it doesn't answer."""
        if self.spec.metrics_path is None:
            return ""
        answer = request("GET", self.base_url + self.spec.metrics_path)
        return answer.text if answer.status == 200 else ""

    def check(self) -> None:
        """Raise `LaunchError` unless the server lives and everything that listens on its port is its own."""
        if not self.alive():
            raise LaunchError(_report(self.spec, f"the server ended: {self.exit_reason()}", self.log_text()))
        _check_owner(self)


@dataclass(frozen=True)
class Listener:
    """A socket that listens on a port; `pid` is None when it belongs to a user whose processes we can't see."""

    pid: int | None
    address: str

    def __str__(self) -> str:
        if self.pid is None:
            return f"a process that we may not inspect, on {self.address}"
        command = "?"
        with contextlib.suppress(psutil.Error):
            command = " ".join(psutil.Process(self.pid).cmdline())[:200] or psutil.Process(self.pid).name()
        return f"pid {self.pid} ({command}), on {self.address}"


def listeners(port: int) -> list[Listener]:
    """All sockets of this host that listen on `port`."""
    return [
        Listener(connection.pid, f"{connection.laddr.ip}:{port}")
        for connection in psutil.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
    ]


def free_port() -> int:
    """A port on loopback that nothing listens on now."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if not listeners(port):
            return port


@contextlib.contextmanager
def serve(spec: ServerSpec, say: Callable[[str], None] = lambda text: None) -> Iterator[Server]:
    """Start a server, hand it over when it is ready, and leave no process of it behind.

    Raises
    ------
    LaunchError
        When the port is taken, or the server dies, isn't ready in time, isn't the one that answers on its port, or
        serves another name. The text holds the reason and the last useful lines of its log.
    """
    if taken := listeners(spec.port):
        raise LaunchError(f"port {spec.port} is taken by {taken[0]}; leave `port` unset to get a free one")
    spec.log_path.parent.mkdir(parents=True, exist_ok=True)
    spec.log_path.write_bytes(b"")
    started = time.monotonic()
    guard = guarded(spec.argv, env=spec.env, log_path=spec.log_path, cores=spec.cores, record_dir=spec.record_dir)
    try:
        server = Server(spec, guard)
        _wait_until_ready(server, started)
        server.start_seconds = time.monotonic() - started
        yield server
    finally:
        guard.stop(spec.stop_grace_s)
        for listener in _wait_for_release(spec.port):
            say(f"port {spec.port} of {spec.served_name} is still held by {listener}")


def _wait_until_ready(server: Server, started: float) -> None:
    spec = server.spec
    while True:
        if not server.alive():
            reason = f"the server ended before it was ready: {server.exit_reason()}"
            raise LaunchError(_report(spec, reason, server.log_text()))
        _check_owner(server)
        status = None
        with contextlib.suppress(OSError):
            status = request("GET", server.base_url + spec.health_path, timeout_s=5.0).status
        if status == 200 and listeners(spec.port):
            _check_owner(server)
            _check_identity(server)
            return
        if time.monotonic() - started > spec.start_timeout_s:
            last = "nothing listened on its port" if status is None else f"{spec.health_path} answered {status}"
            reason = f"the server was not ready after {spec.start_timeout_s:.0f} s ({last})"
            raise LaunchError(_report(spec, reason, server.log_text()))
        time.sleep(0.2)


def _foreign(server: Server) -> list[Listener]:
    """Listeners on the port that aren't ours. Sockets are read before processes: a child just forked is known."""
    held = listeners(server.spec.port)
    ours = set(server.pids()) if held else set()
    return [listener for listener in held if listener.pid not in ours]


def _check_owner(server: Server) -> None:
    if _foreign(server) and (foreign := _foreign(server)):  # twice: a process may have ended between two readings
        raise LaunchError(
            f"{server.served_name}: port {server.spec.port} belongs to another process: {foreign[0]}; "
            "nothing is measured there"
        )


def _check_identity(server: Server) -> None:
    """The one model that the server lists must be ours: a unique name can't be another server's."""
    try:
        answer = request("GET", server.base_url + "/v1/models")
        names = [model["id"] for model in answer.json()["data"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LaunchError(f"{server.served_name}: /v1/models gave no list of models: {error!r}") from error
    if names != [server.served_name]:
        raise LaunchError(f"{server.served_name}: the server at {server.base_url} serves {names}, not ours")


def _wait_for_release(port: int, timeout_s: float = 5.0) -> list[Listener]:
    deadline = time.monotonic() + timeout_s
    while (held := listeners(port)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return held


def _report(spec: ServerSpec, reason: str, log_text: str) -> str:
    lines = useful_lines(log_text)
    said = "".join(f"\n  | {line}" for line in lines) if lines else "\n  | (it printed nothing)"
    return f"{spec.served_name}: {reason}; it said:{said}\n  log: {spec.log_path}"
