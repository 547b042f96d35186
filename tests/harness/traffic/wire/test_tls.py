"""TLS, API keys and what goes wrong with them. `https` is always pure."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.traffic.wire.endpoint import parse_endpoint
from harness.traffic.wire.framing import read_message
from harness.traffic.wire.transport import open_transport

from .conftest import Asker, FaultServer, Opener, started_fault_server


@pytest.fixture(scope="module")
def tls_server(tls_files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultServer]:
    with started_fault_server(tmp_path_factory.mktemp("tls-server") / "log.jsonl", "0", *tls_files) as server:
        yield server


@pytest.fixture
def secure() -> Iterator[Opener]:
    with ExitStack() as stack:
        yield Opener("pure", stack)


@pytest.fixture
def ask(secure: Opener, tls_server: FaultServer, tls_files: tuple[Path, Path]) -> Asker:
    return secure(tls_server.url, ca_file=tls_files[0])


ERRORS = {
    "v1": None, "at-once": None, "split": None, "drip": None, "crlf": None, "content-length": None, "processing": None,
    "close-delimited": None, "close-delimited-silent": None, "keep-alive-lie": None, "long-answer": None,
    "late-trailers": None, "held-open": None, "too-many": None,
    "truncated": "eof", "reset": "reset", "hang-up": "eof", "no-http": "malformed_http",
    "bad-chunk-size": "malformed_http",
}  # fmt: skip


@pytest.mark.parametrize("behaviour", ERRORS)
def test_answers_over_tls(behaviour: str, ask: Asker) -> None:
    for _ in range(2):
        exchange = ask(behaviour)
        assert exchange.error == ERRORS[behaviour], exchange.error_detail
        if exchange.error is None:
            message = read_message(exchange.raw)
            assert message.error is None and message.body


def test_connections_are_kept_over_tls(ask: Asker) -> None:
    assert [ask("content-length").reused for _ in range(3)] == [False, True, True]


def test_long_requests_over_tls(ask: Asker) -> None:
    assert ask("late-reader", body=(b'{"max_tokens": 2, "prompt": "', b"x" * 5_000_000, b'"}')).error is None


def test_silence_over_tls_is_a_timeout(ask: Asker) -> None:
    assert ask("silent-in-the-middle", timeout_s=0.5).error == "timeout"


def test_a_certificate_that_nobody_vouches_for(secure: Opener, tls_server: FaultServer) -> None:
    exchange = secure(tls_server.url)()
    assert (exchange.error, exchange.sent_ns) == ("tls", None)
    assert exchange.error_detail is not None and "certificate verify failed" in exchange.error_detail


def test_a_certificate_for_another_name(secure: Opener, tls_server: FaultServer, tls_files: tuple[Path, Path]) -> None:
    exchange = secure(tls_server.url.replace("127.0.0.1", "localhost"), ca_file=tls_files[0])()
    assert exchange.error == "tls"
    assert exchange.error_detail is not None and "localhost" in exchange.error_detail


def test_verification_can_be_turned_off(secure: Opener, tls_server: FaultServer) -> None:
    assert secure(tls_server.url, verify=False)().error is None


def test_a_port_that_speaks_no_tls(secure: Opener, tmp_path: Path) -> None:
    def speak(listener: socket.socket) -> None:
        for said in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):
            sock, _ = listener.accept()
            sock.recv(100)
            sock.sendall(said)
            sock.close()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=speak, args=(listener,))
        thread.start()
        ask = secure(f"https://127.0.0.1:{listener.getsockname()[1]}")
        for _ in range(2):
            exchange = ask()
            assert (exchange.error, exchange.sent_ns) == ("tls", None)
        thread.join()


def test_a_handshake_that_nobody_answers_is_a_timeout(secure: Opener) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        exchange = secure(f"https://127.0.0.1:{listener.getsockname()[1]}")(timeout_s=0.3)
        assert (exchange.error, exchange.sent_ns) == ("timeout", None)


def test_a_file_that_holds_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        open_transport(parse_endpoint("https://a", ca_file=tmp_path / "ca.pem"))


def test_tls_under_locusts_patched_modules(tls_server: FaultServer, tls_files: tuple[Path, Path]) -> None:
    program = f"""
from gevent import monkey; monkey.patch_all()
from pathlib import Path
from harness.traffic.wire.endpoint import parse_endpoint
from harness.traffic.wire.exchange import Exchange
from harness.traffic.wire.transport import Message, open_transport
endpoint = parse_endpoint({tls_server.url!r}, ca_file=Path({str(tls_files[0])!r}))
transport, body, exchange = open_transport(endpoint), b'{{"max_tokens": 2}}', Exchange()
transport.post(Message(endpoint.head("/v1/completions", len(body), "r"), (body,), None, 10.0), exchange)
print(exchange.error, exchange.raw.count(b"data:"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "None 4\n", done.stderr
