"""Whatever kills whom, no process of a launch lives on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness import guard
from harness.errors import ConfigError, LaunchError
from harness.guard import describe_exit, guarded, identify, sweep

ROOT = Path(__file__).parents[2]

TREE = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
if os.fork() == 0:  # a worker that leaves its session and its parent, as daemons do
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
print("tree is up", flush=True)
time.sleep(0.2 if "brief" in sys.argv else 600)
sys.exit(3)
"""


def tree(*words: str) -> list[str]:
    return [sys.executable, "-S", "-c", TREE, *words]


def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait for something that must come; the bound is for a test that fails, not for one that passes."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if identify(pid) is not None]


def up(running: guard.Guarded) -> list[int]:
    """The tree's processes, once all three are there: program, child, and the double-forked one."""
    eventually(lambda: len(running.pids()) == 3, "three processes")
    return running.pids()


def test_all_descendants_are_known_the_orphaned_too(tmp_path: Path) -> None:
    with guarded(tree(), log_path=tmp_path / "log") as running:
        pids = up(running)
        assert pids[0] == running.pid
        assert running.poll() is None and running.exit_reason() is None
        assert "tree is up" in (tmp_path / "log").read_text()
    assert alive(pids) == []


@pytest.mark.parametrize("words", [(), ("deaf",)], ids=["heeds SIGTERM", "ignores SIGTERM"])
def test_stop_leaves_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    running = guarded(tree(*words), log_path=tmp_path / "log")
    pids = up(running)
    code = running.stop(grace_s=0.3)
    assert code == (-signal.SIGKILL if words else -signal.SIGTERM)
    assert alive(pids) == []
    assert running.exit_reason() == f"ended by us: killed by {'SIGKILL' if words else 'SIGTERM'}"
    assert running.stop() == code  # again changes nothing


def test_workers_left_behind_by_the_program_are_ended(tmp_path: Path) -> None:
    running = guarded(tree("brief"), log_path=tmp_path / "log")
    pids = up(running)
    assert running.wait(30) == 3
    assert alive(pids) == []
    reason = running.exit_reason() or ""
    assert reason.startswith("exited with code 3")
    assert "2 of its processes lived on and were ended" in reason


def test_kill_9_of_the_program_ends_its_workers(tmp_path: Path) -> None:
    running = guarded(tree(), log_path=tmp_path / "log")
    pids = up(running)
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait(30) == -signal.SIGKILL
    assert alive(pids) == []
    assert "killed by SIGKILL (out of memory?)" in (running.exit_reason() or "")


def test_kill_9_of_the_guardian_ends_the_tree(tmp_path: Path) -> None:
    running = guarded(tree(), log_path=tmp_path / "log", record_dir=tmp_path / "record")
    pids = up(running)
    os.kill(psutil.Process(running.pid).ppid(), signal.SIGKILL)
    assert running.wait(30) is not None
    assert alive(pids) == []
    assert "guardian was killed" in (running.exit_reason() or "")
    assert list((tmp_path / "record").iterdir()) == []


HARNESS = """
import sys, time
from pathlib import Path
from harness.guard import guarded
running = guarded(sys.argv[2:], log_path=Path(sys.argv[1], "log"), record_dir=Path(sys.argv[1], "record"))
while len(running.pids()) < 3:
    time.sleep(0.02)
print(*running.pids(), flush=True)
time.sleep(600)
"""


def another_harness(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(folder), *tree()], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert harness.stdout is not None
    return harness, [int(word) for word in harness.stdout.readline().split()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_the_tree_ends_with_the_harness(tmp_path: Path, number: signal.Signals) -> None:
    harness, pids = another_harness(tmp_path)
    assert len(pids) == 3
    harness.send_signal(number)
    harness.communicate()
    eventually(lambda: alive(pids) == [], "the tree is gone")


def test_the_next_run_sweeps_what_a_killed_one_left(tmp_path: Path) -> None:
    harness, pids = another_harness(tmp_path)
    guardian_pid = psutil.Process(pids[0]).ppid()
    said: list[str] = []
    assert sweep(tmp_path / "record", said.append) == 0  # a run that lives is left alone
    assert alive(pids) == pids
    os.kill(harness.pid, signal.SIGSTOP)  # so that it can't clean up after its guardian
    os.kill(guardian_pid, signal.SIGKILL)
    os.kill(harness.pid, signal.SIGKILL)
    harness.communicate()
    eventually(lambda: identify(pids[0]) is None, "the kernel ends the program with its guardian")
    assert len(alive(pids)) == 2
    assert sweep(tmp_path / "record", said.append) == 2
    assert alive(pids) == []
    assert "ended 2 processes that an earlier run left" in said[0]
    assert list((tmp_path / "record").iterdir()) == []
    assert sweep(tmp_path / "record") == 0


@pytest.mark.parametrize("change", [{"started": 1}, {}], ids=["a later process with the number", "another boot"])
def test_sweep_spares_a_stranger_that_got_the_number(tmp_path: Path, change: dict[str, int]) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        found = identify(stranger.pid)
        assert found is not None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip() if change else "another"
        record = {"boot": boot, "marker": "x", "harness_pid": 1, "processes": [{**vars(found), **change}]}
        (tmp_path / "process-1.json").write_text(json.dumps(record))
        try:
            assert sweep(tmp_path) == 0
            assert stranger.poll() is None
            assert list(tmp_path.iterdir()) == []
        finally:
            stranger.kill()


def test_ctrl_c_in_the_terminal_does_not_reach_the_program(tmp_path: Path) -> None:
    with guarded(tree(), log_path=tmp_path / "log") as running:
        guardian = psutil.Process(running.pid).parent()
        assert guardian is not None
        groups = {os.getpgid(pid) for pid in (*up(running), guardian.pid)}
        assert os.getpgrp() not in groups
        assert os.getsid(running.pid) != os.getsid(0)


def test_the_program_gets_its_cores_environment_and_folder(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    code = "import os; print(os.sched_getaffinity(0), os.environ['COLOUR'], os.getcwd(), 'HOME' in os.environ)"
    argv = [sys.executable, "-c", code]
    with guarded(argv, env={"COLOUR": "green"}, log_path=tmp_path / "log", cwd=tmp_path, cores=[core]) as running:
        assert running.wait(30) == 0
    assert (tmp_path / "log").read_text().strip() == f"{{{core}}} green {tmp_path} True"


def test_a_core_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[4096\] can't be used; allowed"):
        guarded(["true"], log_path=tmp_path / "log", cores=[4096])


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no-such-program can't be started: FileNotFoundError"):
        guarded(["no-such-program"], log_path=tmp_path / "log")


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exited with code 0"), (1, "exited with code 1"), (-9, "killed by SIGKILL (out of memory?)"),
     (-11, "killed by SIGSEGV"), (-63, "killed by signal 63"), (None, "ended in an unknown way")],
)  # fmt: skip
def test_exit_reasons(code: int | None, words: str) -> None:
    assert describe_exit(code) == words


CHAIN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(25):  # each the child of the one before
    if os.fork():
        break
time.sleep(600)
"""


def test_a_long_chain_of_deaf_processes_ends_as_a_whole(tmp_path: Path) -> None:
    """While it is killed, parents die between two looks at their children, which must not count as gone."""
    for attempt in range(2):
        running = guarded([sys.executable, "-S", "-c", CHAIN], log_path=tmp_path / "log")
        eventually(lambda running=running: len(running.pids()) == 26, "26 processes")
        pids = running.pids()
        os.kill(running.pid, signal.SIGKILL) if attempt % 2 else running.stop(grace_s=0.0)
        assert running.wait(30) == -signal.SIGKILL
        assert alive(pids) == []


EMPTY_LOOK = """
import os, signal, time
from harness import guardian
guardian.descendants = lambda root: []  # as a walk over /proc may find it while a parent dies
program = os.fork()
if program == 0:
    os._exit(0)
worker = os.fork()
if worker == 0:
    time.sleep(600)
tree = guardian.Tree(program)
print(tree.wait(0.2, whole=True))
os.kill(worker, signal.SIGKILL)
print(tree.wait(30, whole=True))
"""


def test_a_tree_is_not_empty_because_a_look_at_the_processes_found_nobody() -> None:
    done = subprocess.run([sys.executable, "-c", EMPTY_LOOK], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
