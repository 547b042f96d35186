"""What only the compiled transport has: a thread of its own, a lock, C's memory. The rest is in `test_transport.py`."""

import ctypes
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.traffic.wire import compiled
from harness.traffic.wire.ending import Ending, Malformed
from harness.traffic.wire.endpoint import parse_endpoint
from harness.traffic.wire.exchange import Exchange
from harness.traffic.wire.transport import HEAD_BYTES, Message, open_transport

from .conftest import Asker, FaultServer, check

SOURCES = Path(compiled.__file__).parent
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]
needs_extension = pytest.mark.skipif(not compiled.built(), reason="the extension was not built")
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C compiler")


@pytest.fixture
def ask(shared_server: FaultServer) -> Iterator[Asker]:
    endpoint = parse_endpoint(shared_server.url)
    transport = open_transport(endpoint, "compiled")
    yield Asker(transport, endpoint)
    transport.close()


def run(program: str, *arguments: object, **variables: str) -> str:
    """Run a program that must end by itself; what it printed."""
    start = """
        import os, sys, time, resource, gevent, gevent.os
        from harness.traffic.wire.endpoint import parse_endpoint
        from harness.traffic.wire.exchange import Exchange
        from harness.traffic.wire.transport import Message, open_transport
        endpoint = parse_endpoint(sys.argv[1])
        transport = open_transport(endpoint, "compiled")
        def post(behaviour="", size=0, timeout_s=20.0):
            exchange = Exchange()
            body = b'{"max_tokens": 4, "prompt": "' + b"x" * size + b'"}'
            head = endpoint.head(f"{behaviour}/v1/completions", len(body), "r")
            transport.post(Message(head, (body,), None, timeout_s), exchange)
            return exchange
        """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(start) + textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **variables},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# Life and death.


@needs_extension
def test_a_child_of_fork_has_a_thread_of_its_own(shared_server: FaultServer) -> None:
    program = """
        assert post().error is None
        sys.stdout.flush()
        child = gevent.os.fork_gevent()
        exchange = post()
        os.write(1, f"{'parent' if child else 'child'} {exchange.error} {exchange.reused}\\n".encode())
        if not child:
            transport.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert post().error is None
        transport.close()
        """
    assert sorted(run(program, shared_server.url).splitlines()) == ["child None False", "parent None True"]


@needs_extension
@pytest.mark.parametrize("end", ["", "sys.exit(0)", "transport.close()", "del transport, asked, post"])
def test_a_process_ends_with_requests_under_way(end: str, shared_server: FaultServer) -> None:
    program = f"""
        asked = [gevent.spawn(post, "/silent") for _ in range(10)]
        gevent.sleep(0.2)
        print("alive", flush=True)
        {end}
        """
    assert run(program, shared_server.url) == "alive\n"


@needs_extension
def test_thousands_under_way_are_aborted_and_leave_nothing_behind() -> None:
    """The listener takes connections up to its backlog and answers none."""
    program = """
        import socket
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        count = 3000
        if hard != resource.RLIM_INFINITY and hard < 2 * count:
            count = hard // 2
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count), hard))
        files = len(os.listdir("/proc/self/fd"))
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        url = "http://127.0.0.1:%d" % listener.getsockname()[1]
        endpoint = parse_endpoint(url)
        transport = open_transport(endpoint, "compiled")
        asked = [gevent.spawn(post, "", 10, 60.0) for _ in range(count)]
        while len(os.listdir("/proc/self/fd")) < files + 0.9 * count:
            gevent.sleep(0.01)
        transport.abort()
        gevent.joinall(asked, timeout=30, raise_error=True)
        assert {greenlet.value.error for greenlet in asked} == {"aborted"}
        assert post().error == "aborted"
        transport.close()
        listener.close()
        gevent.sleep(0.05)
        left = len(os.listdir("/proc/self/fd")) - files
        print(left - 1 if left > 0 else left)  # gevent's own loop
        """
    assert int(run(program, "http://127.0.0.1:1")) <= 2


@needs_extension
def test_bodies_and_answers_are_freed(shared_server: FaultServer) -> None:
    program = """
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
        def many(count):
            def user():
                for _ in range(count // 20):
                    assert post("/at-once", 200_000).error is None
            gevent.joinall([gevent.spawn(user) for _ in range(20)], raise_error=True)
        many(200)
        before = resident()
        many(1000)
        print(resident() - before)
        transport.close()
        """
    # Arenas would grow with the concurrency, not with the number of requests.
    assert int(run(program, shared_server.url, MALLOC_ARENA_MAX="1")) < 50_000_000, "200 MB were sent"


@needs_extension
def test_idle_connections_are_closed(ask: Asker, shared_server: FaultServer) -> None:
    def sockets() -> int:
        names = []
        for entry in os.listdir("/proc/self/fd"):
            try:
                names.append(os.readlink(f"/proc/self/fd/{entry}"))
            except OSError:
                continue
        return sum(name.startswith("socket:") for name in names)

    before = sockets()
    gevent.joinall([gevent.spawn(ask) for _ in range(30)], raise_error=True)
    assert sockets() > before
    deadline = time.monotonic() + 20
    while sockets() > before and time.monotonic() < deadline:
        gevent.sleep(0.05)
    assert sockets() == before


# Greenlets.


@needs_extension
def test_killed_at_any_moment(ask: Asker) -> None:
    """Before it is sent, while it is answered, after its end is known and not yet told."""
    rng = random.Random(3)
    for _ in range(8):
        exchanges = [Exchange() for _ in range(25)]
        asked = [gevent.spawn(partial(ask, exchange=exchange)) for exchange in exchanges]
        gevent.sleep(rng.random() * 0.02)
        gevent.killall(asked)
        assert all(greenlet.dead for greenlet in asked)
        for exchange in exchanges:
            if exchange.ended_ns:  # else it was killed before it ran
                check(exchange)
                assert exchange.error in (None, "aborted")
    assert ask().error is None


@needs_extension
def test_a_timeout_of_gevent_ends_the_request(ask: Asker) -> None:
    exchange = Exchange()
    with gevent.Timeout(0.1, False):
        ask("silent-in-the-middle", exchange=exchange)
    check(exchange)
    assert (exchange.error, bool(exchange.raw)) == ("aborted", True)


@needs_extension
def test_parts_that_nobody_took_yet_are_in_the_exchange_of_a_killed_request(ask: Asker) -> None:
    taken: list[Exchange] = []
    exchange = Exchange()
    asked = gevent.spawn(partial(ask, "long-answer", spill=taken.append, exchange=exchange))
    gevent.sleep(0)  # it is submitted
    time.sleep(0.2)  # gevent's hub can't take anything; the thread goes on
    asked.kill()
    check(exchange)
    assert not taken and len(exchange.raw) > 64 * 1024
    assert ask().error is None


@needs_extension
def test_another_ones_switch_does_not_end_a_request(ask: Asker) -> None:
    asked = gevent.spawn(ask, "slow")
    gevent.sleep(0.02)
    gevent.get_hub().loop.run_callback(asked.switch)
    exchange = asked.get()
    assert exchange.error is None and exchange.raw.endswith(b"0\r\n\r\n")


@needs_extension
def test_heavy_concurrency(ask: Asker) -> None:
    def user(i: int) -> set[str | None]:
        names = ("at-once", "content-length", "close-announced", "split")
        return {ask(names[(i + j) % len(names)], timeout_s=60).error for j in range(6)}

    users = [gevent.spawn(user, i) for i in range(300)]
    assert set().union(*(greenlet.get() for greenlet in users)) == {None}


@needs_extension
def test_a_body_of_memory_views(ask: Asker) -> None:
    body = memoryview(b'....{"max_tokens": 4}')[4:]
    assert ask(body=(body[:5], body[5:])).error is None  # type: ignore[arg-type]


@needs_extension
def test_a_body_that_is_no_bytes_is_a_type_error(ask: Asker) -> None:
    head = ask.endpoint.head("/v1/completions", 2, "r")
    with pytest.raises(TypeError):
        ask.transport.post(Message(head, ("{}",), None, 1.0), Exchange())  # type: ignore[arg-type]
    assert ask().error is None


# Framing: the two implementations say the same.

MARK = re.compile(rb"[\r\n]data: ?\[DONE\]")

Feed = Callable[[list[bytes]], tuple[str, bool]]


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    """The C framing, compiled alone; says `complete`, `open` or `malformed`, and whether `[DONE]` was seen."""
    library = tmp_path_factory.mktemp("framing") / "framing.so"
    command = [COMPILER, "-std=c11", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCES / "_framing.c")]
    subprocess.run(command, check=True)
    framing = ctypes.CDLL(str(library))
    framing.framing_feed.restype = ctypes.c_char_p
    framing.framing_feed.argtypes = [ctypes.c_void_p, ctypes.c_char_p, *[ctypes.c_size_t] * 3]

    def feed(pieces: list[bytes]) -> tuple[str, bool]:
        state = ctypes.create_string_buffer(256)
        framing.framing_init(state)
        raw = b""
        for piece in pieces:
            raw += piece
            if framing.framing_feed(state, raw, len(raw), len(piece), HEAD_BYTES):
                return "malformed", state.raw[6] != 0
        complete = int.from_bytes(state.raw[:4], sys.byteorder) == 8
        return "complete" if complete else "open", state.raw[6] != 0

    return feed


def ending(raw: bytes) -> tuple[str, bool]:
    """What the Python framing says about all of it at once."""
    end = Ending()
    try:
        end.feed(raw)
    except Malformed:
        return "malformed", False
    body = b"".join(raw[at : at + size] for at, size in zip(end.starts, end.sizes, strict=True))
    return "complete" if end.complete else "open", MARK.search(b"\n" + body) is not None


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    borders = [0, *sorted({place % (len(raw) + 1) for place in places}), len(raw)]
    return [raw[a:b] for a, b in pairwise(borders)]


HEADS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\nX:\r\n folded\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200\r\ntransfer-encoding: chunked\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 30, 30\r\nContent-Length: 30\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 30, 31\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 30\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 000 OK\r\n\r\n",
    ]
)
PIECES = st.sampled_from(
    [
        b"5\r\n: hi\n\r\n",
        b"1A;name=value\r\n" + b"x" * 26 + b"\r\n",
        b"d\r\ndata: [DONE]\n\r\n",
        b"c\r\ndata: [DONE]\r\n",
        b"6\r\n\ndata:\r\n8\r\n [DONE]\n\r\n",
        b"7\r\n\rdata: \r\n6\r\n[DONE]\r\n",
        b"f\r\n\ndata:  [DONE]\n\r\n",
        b"f\r\nxdata: [DONE]\n\n\r\n",
        b"3 \r\nabc\r\n",
        b"000000000000003\r\nabc\r\n",
        b"0000000000000003\r\nabc\r\n",
        b"3\r\nabc\n",
        b"3\r\nabcd\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"\r\n",
    ]
)
ENDS = st.sampled_from(
    [
        b"",
        b"0\r\n\r\n",
        b"0\r\nDigest: x\r\nMore: y\r\n\r\n",
        b"0\r\nno colon\r\n\r\n",
        b"00;x\r\n\r\n",
        b"0\r\n\r\nsurplus",
    ]
)


@needs_compiler
@given(HEADS, st.lists(PIECES, max_size=5), ENDS, st.lists(st.integers(0, 400), max_size=8))
def test_both_framings_agree_on_every_split(
    feed: Feed, head: bytes, pieces: list[bytes], end: bytes, places: list[int]
) -> None:
    raw = head + b"".join(pieces) + end
    state, marked = ending(raw)
    found = feed(cut(raw, places))
    assert found[0] == state
    assert state == "malformed" or found[1] == marked


@needs_compiler
@given(HEADS, st.lists(PIECES, max_size=4), ENDS, st.integers(0, 400), st.binary(min_size=1, max_size=3))
def test_both_framings_agree_on_damaged_answers(
    feed: Feed, head: bytes, pieces: list[bytes], end: bytes, at: int, damage: bytes
) -> None:
    raw = head + b"".join(pieces) + end
    at %= len(raw)
    raw = raw[:at] + damage + raw[at + 1 :]
    state, _ = ending(raw)
    for pieces in ([raw], [raw[i : i + 1] for i in range(len(raw))]):
        found, _ = feed(pieces)
        # Trailers that can't become right are malformed at once here, at their end there.
        assert found == state or (found, state) == ("malformed", "open")


# Building it.


def test_without_the_extension_the_client_is_pure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "harness.traffic.wire._receiver", None)
    compiled._extension.cache_clear()
    try:
        for _ in range(2):
            transport = open_transport(parse_endpoint("http://127.0.0.1:1"))
            assert transport.name == "pure"
            transport.close()
        assert [record.getMessage()[:24] for record in caplog.records] == ["no compiled client, usin"], "said once"
    finally:
        compiled._extension.cache_clear()


@pytest.mark.parametrize("compiler", [pytest.param(None, marks=needs_compiler), "/bin/false", "/no/such/compiler"])
def test_the_package_is_built_with_and_without_a_compiler(compiler: str | None, tmp_path: Path) -> None:
    if int(version("setuptools").split(".")[0]) < 77:
        pytest.skip("pyproject.toml needs setuptools 77")
    root = SOURCES.parents[2]
    shutil.copy(root / "pyproject.toml", tmp_path)
    shutil.copy(root / "README.md", tmp_path)
    shutil.copy(root / "LICENSE", tmp_path)
    for source in (root / "harness").rglob("*.[ch]"):
        copy = tmp_path / source.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    command = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "build_ext", "--inplace"]
    variables = {**os.environ} if compiler is None else {**os.environ, "CC": compiler}
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert len(list((tmp_path / "harness").rglob("_receiver*.so"))) == (1 if compiler is None else 0)
