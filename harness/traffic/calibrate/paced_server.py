"""A streaming server that keeps a given pace and logs when it really sent each token.

    python -m harness.traffic.calibrate.paced_server --log FILE --ttft-ms 50 --itl-ms 20 [--lockstep]

It speaks `/v1/completions` and `/v1/chat/completions` and sends `max_tokens` tokens: the first `ttft_ms` after the
request has come, the others `itl_ms` apart, at absolute times. In lock-step all streams' tokens are due at the same
moments, as an engine's batch brings them. SIGTERM ends it; the log's first page says which port it took.
"""

import argparse
import contextlib
import gc
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.errors import LaunchError
from harness.guard import guarded
from harness.traffic.calibrate import server_log
from harness.traffic.calibrate.answers import answers
from harness.traffic.calibrate.paced_loop import TIMESTAMPNS

BACKLOG = 4096
START_S = 20.0
"""How long the server may take to start."""

STREAMS_MAX = 1 << 16


@dataclass(frozen=True)
class Pace:
    """What the server does.

    Attributes
    ----------
    ttft_ms, itl_ms : float
        From the request to its first token, and from token to token.
    lockstep : bool
        Whether all streams' tokens are due at the same moments.
    compiled : bool or None
        Whether the compiled loop serves; None: where it was built.
    """

    ttft_ms: float = 50.0
    itl_ms: float = 20.0
    lockstep: bool = False
    compiled: bool | None = None


@dataclass(frozen=True)
class PacedServer:
    """A running paced server."""

    base_url: str
    log_path: Path
    pid: int

    def counts(self) -> server_log.Counts:
        """What it has done so far."""
        counts = server_log.read_counts(self.log_path)
        assert counts is not None
        return counts


def has_compiled_loop() -> bool:
    """Whether the package was built with its compiled loop."""
    try:
        import harness.traffic.calibrate._paced  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def running(pace: Pace, log_path: Path, core: int | None = None) -> Iterator[PacedServer]:
    """A paced server in a process of its own, on `core` where one is given; its log is whole afterwards.

    Raises
    ------
    LaunchError
        When it doesn't start.
    """
    log_path.unlink(missing_ok=True)
    argv = [sys.executable, "-m", __name__, "--log", str(log_path.resolve())]
    argv += ["--ttft-ms", str(pace.ttft_ms), "--itl-ms", str(pace.itl_ms)]
    argv += ["--lockstep"] if pace.lockstep else []
    argv += [] if pace.compiled is None else [f"--{'compiled' if pace.compiled else 'python'}"]
    words = log_path.with_suffix(".out")
    env = {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    with guarded(argv, env=env, log_path=words, cores=None if core is None else [core]) as process:
        deadline = time.monotonic() + START_S
        while (counts := server_log.read_counts(log_path)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise LaunchError(f"the paced server didn't start: {words.read_text(errors='replace').strip()}")
            time.sleep(0.01)
        yield PacedServer(f"http://127.0.0.1:{counts.port}", log_path, process.pid)
        process.stop()


def main(arguments: list[str] | None = None) -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True, help="file for the binary log")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--ttft-ms", type=float, default=50.0)
    parser.add_argument("--itl-ms", type=float, default=20.0)
    parser.add_argument("--lockstep", action="store_true")
    loop = parser.add_mutually_exclusive_group()
    loop.add_argument("--compiled", action="store_true", default=None, help="the compiled loop, or an error")
    loop.add_argument("--python", action="store_false", dest="compiled", help="the loop in Python")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if has_compiled_loop() if options.compiled is None else options.compiled:
        from harness.traffic.calibrate._paced import serve
    else:
        from harness.traffic.calibrate.paced_loop import serve
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", options.port))
    listener.setsockopt(socket.SOL_SOCKET, TIMESTAMPNS, 1)  # its connections inherit it
    listener.listen(BACKLOG)
    listener.setblocking(False)
    ttft_ns, itl_ns = round(options.ttft_ms * 1e6), round(options.itl_ms * 1e6)
    made = answers()
    log, counts = server_log.create(options.log, listener.getsockname()[1], itl_ns)
    gc.collect()
    gc.disable()
    with contextlib.suppress(KeyboardInterrupt):
        serve(listener.fileno(), log, counts, made, ttft_ns, itl_ns, options.lockstep)


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
