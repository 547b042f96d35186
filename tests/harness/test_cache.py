"""The cache's place and its locks."""

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cache import cache_dir, locked


def taken(path: Path) -> bool:
    with path.with_name(f"{path.name}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_cache_can_be_put_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("KVMARK_CACHE", raising=False)
    assert cache_dir() == tmp_path / "xdg" / "kvmark"
    monkeypatch.setenv("KVMARK_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"


def test_a_lock_excludes_and_ends(tmp_path: Path) -> None:
    with locked(tmp_path / "thing", print):
        assert taken(tmp_path / "thing")
    assert not taken(tmp_path / "thing")


def test_a_child_that_outlives_its_killed_parent_keeps_the_lock(tmp_path: Path) -> None:
    """An orphaned pip must not write into a folder that somebody else is building already."""
    parent = (
        "import subprocess, sys; from pathlib import Path; from harness.cache import locked\n"
        f"with locked(Path({str(tmp_path / 'thing')!r}), print) as lock:\n"
        "    child = subprocess.Popen(['sleep', '60'], pass_fds=(lock,)); print(child.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    try:
        assert taken(tmp_path / "thing")
    finally:
        subprocess.run(["kill", str(child)], check=True)
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]:
        pass
    assert not taken(tmp_path / "thing")


def test_who_waits_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    waiter = (
        "from pathlib import Path; from harness.cache import locked\n"
        f"with locked(Path({str(tmp_path / 'thing')!r}), lambda text: print(text, flush=True)): print('got it')\n"
    )
    with locked(tmp_path / "thing", said.append):
        process = subprocess.Popen([sys.executable, "-c", waiter], stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert "another process is preparing" in process.stdout.readline()
    assert process.stdout.read() == "got it\n"
    process.wait()
    assert said == []
