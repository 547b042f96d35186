import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
import pytest

from harness.traffic.wire.endpoint import Endpoint, parse_endpoint
from harness.traffic.wire.exchange import Exchange
from harness.traffic.wire.transport import Kind, Message, Transport, open_transport


@pytest.fixture(params=["pure", "compiled"])
def transport_kind(request: pytest.FixtureRequest) -> Kind:
    """Every kind of transport that there is here."""
    if request.param == "compiled" and not pytest.importorskip("harness.traffic.wire.compiled").built():
        pytest.skip("the extension was not built")
    kind: Kind = request.param
    return kind


@dataclass
class FaultServer:
    """The server of `fault_server.py`."""

    url: str
    log_path: Path

    def log(self, requests: int) -> list[dict[str, Any]]:
        """What it saw, as soon as it has written down so many requests."""
        deadline = time.monotonic() + 20
        lines: list[str] = []
        while len(lines) < requests and time.monotonic() < deadline:
            gevent.sleep(0.02)
            lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        return [json.loads(line) for line in lines]


@contextmanager
def started_fault_server(log: Path, address: str = "0", *certificate: Path) -> Iterator[FaultServer]:
    """One in a process of its own."""
    program = Path(__file__).with_name("fault_server.py")
    command = [sys.executable, program, address, log, *certificate]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        if port:
            url = f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
        else:
            url = "http+unix://" + address.replace("/", "%2F")
        yield FaultServer(url, log)
        process.kill()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    """One for all the tests of a module, whose log nobody reads."""
    with started_fault_server(tmp_path_factory.mktemp("server") / "log.jsonl") as server:
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FaultServer]:
    with started_fault_server(tmp_path / "log.jsonl") as server:
        yield server


class Asker:
    """Posts to one server over one transport."""

    def __init__(self, transport: Transport, endpoint: Endpoint) -> None:
        self.transport, self.endpoint = transport, endpoint

    def __call__(
        self, behaviour: str = "v1", *, timeout_s: float = 10.0, body: tuple[bytes, ...] = (b'{"max_tokens": 4}',),
        exchange: Exchange | None = None, keep_alive: bool = True, **message: Any,
    ) -> Exchange:  # fmt: skip
        path = "/v1/completions" if behaviour == "v1" else f"/{behaviour}/v1/completions"
        head = self.endpoint.head(path, sum(map(len, body)), "r.1", keep_alive)
        exchange = Exchange() if exchange is None else exchange
        due_ns = message.pop("due_ns", None)
        self.transport.post(Message(head, body, due_ns, timeout_s, **message), exchange)
        check(exchange)
        return exchange


def check(exchange: Exchange) -> None:
    """What holds for every exchange, however it ended."""
    assert exchange.ended_ns > 0
    assert (exchange.error is None) == (exchange.error_detail is None)
    assert len(exchange.read_ns) == len(exchange.read_bytes)
    assert sum(exchange.read_bytes) == len(exchange.raw)
    assert 0 not in exchange.read_bytes
    assert list(exchange.read_ns) == sorted(exchange.read_ns)
    if exchange.sent_ns is not None:
        assert exchange.sent_ns <= exchange.ended_ns
        assert not exchange.read_ns or exchange.sent_ns <= exchange.read_ns[0]
    else:
        assert not exchange.raw


class Opener:
    """Opens transports, and closes them in the end."""

    def __init__(self, kind: Kind, stack: ExitStack) -> None:
        self.kind, self._stack = kind, stack

    def __call__(self, url: str, keep_alive: bool = True, **endpoint: Any) -> Asker:
        where = parse_endpoint(url, **endpoint)
        if where.scheme == "https" and self.kind == "compiled":
            pytest.skip("https is always pure")
        transport = open_transport(where, self.kind, keep_alive)
        self._stack.callback(transport.close)
        return Asker(transport, where)


@pytest.fixture
def opener(transport_kind: Kind) -> Iterator[Opener]:
    with ExitStack() as stack:
        yield Opener(transport_kind, stack)


@pytest.fixture
def ask(opener: Opener, shared_server: FaultServer) -> Asker:
    return opener(shared_server.url)


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key; made here and now."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key,
            "-out", certificate,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key
