"""Which sandbox this machine has: found by running a program in it that tries what must be closed."""

import functools
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from harness.accuracy.sandbox import namespaces
from harness.accuracy.sandbox.process import ENVIRONMENT, LIBRARIES, SCRATCH_BYTES, Sandbox, python
from harness.errors import KVMarkError

FOLDER = "/tmp"
"""The only folder inside that can be written to."""
_SYSTEM_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/nix/store")
_PROBE = """
import json, os, socket, sys
def closed(call, *words):
    try:
        call(*words)
    except (OSError, RuntimeError):
        return True
    return False
open("own", "w").write("x")
found = {
    "files outside can be read": not closed(os.stat, sys.argv[1]) or os.path.exists("/proc/self"),
    "files can be written": not (closed(open, "/new", "w") and closed(open, os.__file__, "a")),
    "processes can be started": not closed(os.fork),
    "there are sockets": not closed(socket.socket),
    "the environment is there": not set(os.environ) <= {"PWD", *sys.argv[2:]},
}
print(json.dumps([what for what, so in found.items() if so]), flush=True)
"""


class NoSandbox(KVMarkError):
    """No sandbox works on this machine; the text says why."""


def sandbox() -> Sandbox:
    """The first that works; raises `NoSandbox`."""
    reasons = []
    for one, problem in probed():
        if problem is None:
            return one
        reasons.append(f"{one.name}: {problem}")
    raise NoSandbox("; ".join(reasons))


@functools.cache
def probed() -> tuple[tuple[Sandbox, str | None], ...]:
    """Each sandbox with what is wrong with it here; None: it works."""
    found = [(one, _problem(one)) for one in (_bubblewrap(), _unshare())]
    return tuple(found)


def _problem(one: Sandbox) -> str | None:
    if not one.prefix:
        return "not installed"
    try:
        said = one.output(_PROBE, __file__, *ENVIRONMENT, stderr=subprocess.STDOUT)
        open_ways = json.loads(said.splitlines()[-1])
    except OSError as error:
        return str(error)
    except (ValueError, IndexError):
        return said.decode(errors="replace").strip()[-300:] or "a program in it said nothing"
    return ", ".join(open_ways) or None


def _bubblewrap() -> Sandbox:
    program = shutil.which("bwrap")
    if program is None:
        return Sandbox("bubblewrap")
    unshared = "--unshare-user-try --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try"
    words = [program, *unshared.split(), "--new-session", "--die-with-parent", "--cap-drop", "ALL", "--clearenv"]
    for key, value in ENVIRONMENT.items():
        words += ["--setenv", key, value]
    for what, path, *more in _steps():
        words += {
            "bind": ["--ro-bind", path, path],
            "link": ["--symlink", *more, path],
            "hide": ["--tmpfs", path, "--remount-ro", path],
            "scratch": ["--size", *map(str, more), "--tmpfs", path],
        }[what]
    return Sandbox("bubblewrap", (*words, "--remount-ro", "/", "--chdir", FOLDER, "--"))


def _unshare() -> Sandbox:
    layout = json.dumps({"steps": _steps(), "environment": dict(ENVIRONMENT), "folder": FOLDER})
    return Sandbox("unshare", (python(), "-I", "-S", namespaces.__file__, layout))


def _steps() -> list[list[Any]]:
    """How the root inside is built: Python, its standard library and what they are linked with, all read-only."""
    links = [["link", path, os.readlink(path)] for path in _SYSTEM_LIBRARIES if os.path.islink(path)]
    base = {"platbase": sys.base_exec_prefix}  # not a virtual environment's
    standard = [Path(sysconfig.get_path(name, vars=base)) for name in ("stdlib", "platstdlib")]
    wanted = [Path(path) for path in _SYSTEM_LIBRARIES if not os.path.islink(path)]
    wanted += [LIBRARIES, *standard, Path(python()), Path("/etc/ld.so.cache")]
    bound: list[Path] = []
    for path in sorted({one.resolve() for one in wanted if one.exists()}):
        if not any(path.is_relative_to(one) for one in bound):
            bound.append(path)
    packages = [one / name for one in standard for name in ("site-packages", "dist-packages")]
    hidden = sorted({one.resolve() for one in (*packages, Path("/usr/lib/python3/dist-packages")) if one.is_dir()})
    return [
        *links,
        *(["bind", str(path)] for path in bound),
        *(["hide", str(path)] for path in hidden if any(path.is_relative_to(one) for one in bound)),
        ["scratch", FOLDER, SCRATCH_BYTES],
    ]
