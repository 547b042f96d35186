"""A server is measured only when it is ready, ours and itself; and it is gone afterwards. Real processes."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.errors import LaunchError
from harness.guard import identify
from harness.local_http import request
from harness.server import ServerSpec, free_port, listeners, serve

SMALL_SERVER = Path(__file__).with_name("small_server.py")


def small_server(port: int, *flags: str) -> list[str]:
    return [sys.executable, "-S", str(SMALL_SERVER), "--port", str(port), *flags]


@pytest.fixture
def spec(tmp_path: Path) -> ServerSpec:
    port = free_port()
    return ServerSpec(
        argv=small_server(port, "--name", "model-1"),
        log_path=tmp_path / "engine.log",
        port=port,
        served_name="model-1",
        start_timeout_s=60.0,
        record_dir=tmp_path / "record",
    )


@contextmanager
def squatter(port: int) -> Iterator[int]:
    """Another server on the port that answers 200 to everything."""
    with subprocess.Popen(small_server(port, "--answer-everything"), stderr=subprocess.DEVNULL) as process:
        while not listeners(port):
            time.sleep(0.02)
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize("flags", [(), ("--worker",)], ids=["one process", "listens in a worker"])
def test_a_server_is_handed_over_ready_and_leaves_nothing(spec: ServerSpec, flags: tuple[str, ...]) -> None:
    with serve(replace(spec, argv=[*spec.argv, *flags])) as server:
        assert server.alive() and server.exit_reason() is None
        assert server.start_seconds > 0
        assert request("GET", server.base_url + "/health").status == 200
        assert server.metrics_text() == "requests_total 3\n"
        assert "GET /health" in server.log_text()
        server.check()
        pids = server.pids()
        assert len(pids) == 1 + len(flags)
    assert [pid for pid in pids if identify(pid)] == []
    assert listeners(spec.port) == []
    assert not server.alive()
    assert spec.record_dir is not None and list(spec.record_dir.iterdir()) == []


def test_a_server_that_ignores_sigterm_is_ended_all_the_same(spec: ServerSpec) -> None:
    with serve(replace(spec, argv=[*spec.argv, "--ignore-sigterm"], stop_grace_s=0.3)) as server:
        pids = server.pids()
    assert [pid for pid in pids if identify(pid)] == []
    assert server.exit_reason() == "ended by us: killed by SIGKILL"


def test_an_exception_while_measuring_ends_the_server(spec: ServerSpec) -> None:
    pids = []
    with pytest.raises(KeyboardInterrupt), serve(spec) as server:
        pids = server.pids()
        raise KeyboardInterrupt
    assert pids and [pid for pid in pids if identify(pid)] == []


def test_a_squatter_is_named_before_anything_is_started(spec: ServerSpec) -> None:
    with squatter(spec.port) as pid, pytest.raises(LaunchError) as caught, serve(spec):
        pass
    assert f"port {spec.port} is taken by pid {pid}" in str(caught.value)
    assert "small_server.py" in str(caught.value)
    assert not spec.log_path.exists()


def test_a_squatter_that_comes_during_the_start_is_never_measured(spec: ServerSpec) -> None:
    slow_program = [sys.executable, "-c", "import time; time.sleep(600)"]
    squatting = f"import os, sys; os.execv(sys.executable, {small_server(spec.port, '--answer-everything')!r})"
    outsider: list[subprocess.Popen[bytes]] = []

    def start_outsider_then(argv: list[str]) -> ServerSpec:
        outsider.append(subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(0.5); {squatting}"]))
        return replace(spec, argv=argv)

    try:
        with pytest.raises(LaunchError) as caught, serve(start_outsider_then(slow_program)):
            pytest.fail("another's server was handed over")
        assert f"belongs to another process: pid {outsider[0].pid}" in str(caught.value)
    finally:
        outsider[0].kill()
        outsider[0].wait()


def test_a_second_listener_on_a_shared_port_is_found_while_measuring(spec: ServerSpec) -> None:
    shared = (
        "import socket, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1);"
        f"s.bind(('127.0.0.1', {spec.port})); s.listen(); time.sleep(600)"
    )
    code = (
        f"import socketserver, sys; sys.argv = {small_server(spec.port, '--name', 'model-1')[2:]!r};"
        "import http.server; http.server.ThreadingHTTPServer.allow_reuse_port = True;"
        f"exec(compile(open({str(SMALL_SERVER)!r}).read(), 'small_server', 'exec'))"
    )
    with serve(replace(spec, argv=[sys.executable, "-c", code])) as server:
        server.check()
        with subprocess.Popen([sys.executable, "-c", shared]) as other:
            while len(listeners(spec.port)) < 2:
                time.sleep(0.02)
            with pytest.raises(LaunchError, match=f"another process: pid {other.pid}"):
                server.check()
            other.kill()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--name", "another-model"], r"serves \['another-model'\], not ours"),
        (["--answer-everything"], "gave no list of models"),
    ],
)
def test_a_server_of_another_name_is_refused(spec: ServerSpec, flags: list[str], reason: str) -> None:
    with pytest.raises(LaunchError, match=reason), serve(replace(spec, argv=small_server(spec.port, *flags))):
        pass
    assert listeners(spec.port) == []


def test_a_server_that_dies_at_start_tells_why(spec: ServerSpec) -> None:
    program = "print('INFO loading'); raise ValueError('max seq len (6400) is larger than the KV cache')"
    with pytest.raises(LaunchError) as caught, serve(replace(spec, argv=[sys.executable, "-c", program])):
        pass
    text = str(caught.value)
    assert "ended before it was ready: exited with code 1" in text
    assert "ValueError: max seq len (6400) is larger than the KV cache" in text
    assert "INFO loading" not in text
    assert str(spec.log_path) in text


@pytest.mark.parametrize(
    ("argv_flags", "last"),
    [(["--never-ready"], "/health answered 503"), (None, "nothing listened on its port")],
)
def test_a_server_that_is_never_ready_times_out(spec: ServerSpec, argv_flags: list[str] | None, last: str) -> None:
    argv = [*spec.argv, *argv_flags] if argv_flags else [sys.executable, "-c", "import time; time.sleep(600)"]
    impatient = replace(spec, argv=argv, start_timeout_s=1.5)
    with pytest.raises(LaunchError, match=rf"not ready after 2 s \({last}\)"), serve(impatient):
        pass
    assert listeners(spec.port) == []


def test_death_while_measuring_is_seen(spec: ServerSpec) -> None:
    with serve(spec) as server:
        os.kill(server.pids()[0], signal.SIGKILL)
        while server.alive():
            time.sleep(0.02)
        with pytest.raises(LaunchError, match="the server ended: killed by SIGKILL"):
            server.check()


def test_a_log_of_an_earlier_launch_is_not_read_as_this_ones(spec: ServerSpec) -> None:
    spec.log_path.write_text("ERROR of yesterday\n")
    with serve(spec) as server:
        assert "yesterday" not in server.log_text()


def test_a_free_port_is_free() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))


def test_a_proxy_in_the_environment_is_never_used(spec: ServerSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with serve(spec) as server:
        assert server.metrics_text() == "requests_total 3\n"
