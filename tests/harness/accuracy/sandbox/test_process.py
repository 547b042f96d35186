"""What a program in a sandbox can't do; each tried by a program that prints what it got."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.accuracy.sandbox import process
from harness.accuracy.sandbox.process import LIMITS, OUTPUT_BYTES, SCRATCH_BYTES, Sandbox, python

ROOT = Path(__file__).parents[4]
TRY = """
import os, sys
def attempt(call, *words, **named):
    try:
        print("got", repr(call(*words, **named))[:200], flush=True)
    except BaseException as error:
        print("refused", type(error).__name__, flush=True)
"""


def attempts(sandbox: Sandbox, code: str, *arguments: str, filtered: bool = True) -> list[str]:
    """First words of what was printed; without the filter of system calls: by the namespaces alone."""
    if filtered:
        said = sandbox.output(TRY + code, *arguments)
    else:
        argv = [*sandbox.prefix, python(), "-S", "-c", TRY + code, *arguments]
        said = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/", env={}).stdout
    return [line.split()[0] for line in said.decode().splitlines()]


def refused(count: int) -> list[str]:
    return ["refused"] * count


both = pytest.mark.parametrize("filtered", [True, False], ids=["whole", "namespaces alone"])


@pytest.fixture
def listeners() -> Iterator[dict[str, socket.socket]]:
    """A TCP port, a UDP port and an abstract Unix socket, waiting."""
    found = {
        "tcp": socket.socket(),
        "udp": socket.socket(type=socket.SOCK_DGRAM),
        "unix": socket.socket(socket.AF_UNIX),
    }
    found["tcp"].bind(("127.0.0.1", 0))
    found["udp"].bind(("127.0.0.1", 0))
    found["unix"].bind(f"\0kvmark-{uuid.uuid4().hex}")
    for name, one in found.items():
        one.setblocking(False)
        if name != "udp":
            one.listen()
    yield found
    for one in found.values():
        one.close()


@both
def test_no_network_not_even_this_machines(
    sandbox: Sandbox, listeners: dict[str, socket.socket], filtered: bool
) -> None:
    code = """
import socket
def udp(port):
    socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port))
def unix(name):
    socket.socket(socket.AF_UNIX).connect(bytes.fromhex(name))
attempt(socket.create_connection, ("127.0.0.1", int(sys.argv[1])), 2)
attempt(udp, int(sys.argv[2]))
attempt(unix, sys.argv[3])
attempt(socket.create_connection, ("1.1.1.1", 53), 2)
"""
    ports = [str(listeners[name].getsockname()[1]) for name in ("tcp", "udp")]
    said = attempts(sandbox, code, *ports, listeners["unix"].getsockname().hex(), filtered=filtered)
    # Namespaces alone have a loopback device of their own, into which a datagram may well be sent.
    assert said == refused(4) if filtered else [said[0], *said[2:]] == refused(3)
    for name, call in (("tcp", "accept"), ("unix", "accept"), ("udp", "recv")):
        with pytest.raises(BlockingIOError):
            getattr(listeners[name], call)(*([1] if call == "recv" else []))


@both
def test_the_users_files_and_environment_can_not_be_read(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filtered: bool
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    monkeypatch.setenv("KVMARK_SECRET", "hunter2")
    code = """
for path in sys.argv[1:]:
    attempt(os.stat, path)
attempt(lambda: os.environ["KVMARK_SECRET"])
attempt(lambda: [one for one in os.environ if one not in ("PWD", "LD_LIBRARY_PATH", "LC_ALL", "LC_CTYPE") and not one.startswith("PYTHON")][0])
"""  # noqa: E501
    paths = [secret, Path(__file__), ROOT / "README.md", Path.home() / ".bashrc", Path("/etc/passwd"), Path("/var"), Path("/dev")]  # fmt: skip  # noqa: E501
    assert attempts(sandbox, code, *map(str, paths), filtered=filtered) == refused(len(paths) + 2)


@both
def test_other_processes_can_not_be_seen_or_signalled(sandbox: Sandbox, filtered: bool) -> None:
    code = """
attempt(os.listdir, f"/proc/{sys.argv[1]}")
attempt(open, f"/proc/{sys.argv[1]}/environ")
attempt(open, "/proc/self/environ")
attempt(os.kill, int(sys.argv[1]), 0)
"""
    assert attempts(sandbox, code, str(os.getpid()), filtered=filtered) == refused(4)


@both
def test_nothing_outside_the_scratch_folder_can_be_written(sandbox: Sandbox, tmp_path: Path, filtered: bool) -> None:
    code = """
for path in sys.argv[1:]:
    attempt(open, path, "a")
attempt(os.mkdir, "/new")
attempt(os.chmod, os.__file__, 0o777)
attempt(os.unlink, os.__file__)
attempt(os.write, os.open("/tmp/own", os.O_CREAT | os.O_RDWR), b"x")
"""
    paths = [tmp_path / "x", ROOT / "x", Path.home() / "x", Path("/x"), Path("/usr/lib/x"), Path(os.__file__)]
    paths.append(Path(python()))
    assert attempts(sandbox, code, *map(str, paths), filtered=filtered) == [*refused(len(paths) + 3), "got"]
    assert not (tmp_path / "x").exists() and not Path("/tmp/own").exists()


def test_the_disk_can_not_be_filled(sandbox: Sandbox) -> None:
    code = """
total, i = 0, 0
try:
    while True:
        with open(str(i), "wb", buffering=0) as file:
            for _ in range(16):
                total += file.write(bytes(65536))
        i += 1
except OSError:
    print(total)
try:
    with open("0", "wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
except OSError as error:
    print(file.tell() if not file.closed else os.path.getsize("0"))
"""
    total, largest = sandbox.output("import os\n" + code).split()
    assert 0 < int(total) <= SCRATCH_BYTES
    assert int(largest) <= LIMITS["FSIZE"]


def test_no_process_thread_or_program_can_be_started(sandbox: Sandbox) -> None:
    code = """
import subprocess, threading
attempt(os.fork)
attempt(os.posix_spawn, sys.executable, [sys.executable, "-c", ""], {})
attempt(subprocess.run, [sys.executable, "-c", ""])
attempt(os.execv, sys.executable, [sys.executable, "-c", ""])
attempt(threading.Thread(target=print).start)
"""
    assert attempts(sandbox, code) == refused(5)


def test_kernel_objects_and_namespaces_are_out_of_reach(sandbox: Sandbox) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *words):
    if getattr(libc, name)(*words) < 0:
        raise OSError(ctypes.get_errno())
attempt(call, "unshare", 0x10000000)
attempt(call, "mount", b"tmpfs", b"/tmp", b"tmpfs", 0, None)
attempt(call, "shmget", 0, 1 << 20, 0o1600)
attempt(call, "msgget", 0, 0o1600)
attempt(call, "ptrace", 16, 1, 0, 0)
attempt(call, "chroot", b"/tmp")
import resource
attempt(resource.setrlimit, resource.RLIMIT_AS, (1 << 40, 1 << 40))
"""
    assert attempts(sandbox, code) == refused(7)


def test_memory_is_limited(sandbox: Sandbox) -> None:
    code = """
held = []
def eat():
    while True:
        held.append(bytearray(1 << 24))
attempt(eat)
print(len(held) << 24)
"""
    said = sandbox.output(TRY + code).split()
    assert said[:2] == [b"refused", b"MemoryError"]
    assert int(said[2]) < LIMITS["AS"]


def test_time_is_limited(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LIMITS", {**LIMITS, "CPU": 1})
    assert sandbox.output("print('on', flush=True)\nwhile True: pass") == b"on\n"
    assert sandbox.output("import time\nprint('on', flush=True)\ntime.sleep(60)", wall_s=1.0) == b"on\n"


def test_output_is_limited(sandbox: Sandbox) -> None:
    said = sandbox.output("import os\nwhile True: os.write(1, b'x' * 65536)")
    assert len(said) == OUTPUT_BYTES


def named(marker: str) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if marker in one.cmdline():
                found.append(one)
    return found


def gone(marker: str) -> bool:
    deadline = time.monotonic() + 10
    while named(marker) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not named(marker)


STAYS = "import os, signal, time\nfor one in (1, 2, 15): signal.signal(one, signal.SIG_IGN)\nprint('on', flush=True)\n"
STAYS += "time.sleep(60)"


def test_nothing_lives_on_when_it_is_left(sandbox: Sandbox) -> None:
    marker = uuid.uuid4().hex
    with sandbox.started(STAYS, marker, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stdout.readline() == b"on\n"
        assert named(marker)
    assert gone(marker)


def test_nothing_lives_on_when_the_harness_is_killed(sandbox: Sandbox) -> None:
    marker = uuid.uuid4().hex
    code = f"""
import subprocess, time
from harness.accuracy.sandbox.process import Sandbox
with Sandbox({sandbox.name!r}, {sandbox.prefix!r}).started({STAYS!r}, {marker!r}, stdout=subprocess.PIPE) as one:
    print(one.stdout.readline(), flush=True)
    time.sleep(60)
"""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None and b"on" in harness.stdout.readline()
        harness.send_signal(signal.SIGKILL)
    assert gone(marker)


def test_a_signal_to_all_ends_nothing_but_itself(sandbox: Sandbox) -> None:
    code = "attempt(os.kill, os.getppid() or 1, 9)\nattempt(os.killpg, os.getpgid(0), 9)\nattempt(os.kill, -1, 9)"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        attempts(sandbox, code)
        assert bystander.poll() is None
        bystander.kill()


def test_standard_library_is_there_and_installed_packages_are_not(sandbox: Sandbox) -> None:
    code = """
import collections, dataclasses, decimal, hashlib, heapq, itertools, json, math, random, re, statistics, typing
attempt(hashlib.md5, b"x")
attempt(__import__, "pytest")
attempt(__import__, "harness")
"""
    assert attempts(sandbox, code) == ["got", "refused", "refused"]


def test_answers_do_not_hang_on_the_order_of_a_set(sandbox: Sandbox) -> None:
    code = "print(list({str(i) for i in range(50)}))"
    assert sandbox.output(code) == sandbox.output(code)
