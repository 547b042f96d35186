"""Set KVMark up in `.venv`: what `make` runs first. Standard library only, on whatever Python the user has.

Usage: python3 harness/bootstrap.py [--venv FOLDER] [EXTRA ...]

Every check names what is missing and what brings it; nothing here needs root. A stamp, written last, makes the second
run take no time; an interrupted set-up is removed and made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ((3, 11), (3, 12), (3, 13))
CONSTRAINTS = ROOT / "constraints" / "harness.txt"
COMPILED = f"*{sysconfig.get_config_var('EXT_SUFFIX')}"
"""Name of what is built for this Python; it lies beside its C sources."""

CLIENT = ROOT / "harness" / "traffic" / "wire"

BUILD_TOOLS = ("pip", "setuptools", "wheel")
"""Installed first and pinned like the rest; packages that come as source are built with these, not with the newest."""

OURS, READY, LOG = "kvmark-venv", "kvmark-ready.json", "kvmark-setup.log"
"""Files in the virtual environment: whose it is, what is installed, and what pip said."""

STILL_BUSY_AFTER_S = 30.0
EXIT_SETUP, EXIT_INTERRUPTED = 3, 130

ADVICE = (
    ("No space left", "The disk is full: free about 2 GB."),
    ("Connection", "The package index can't be reached: check the network, proxy and pip's index settings."),
    ("Name or service not known", "The package index can't be reached: check the network, proxy and DNS."),
    ("No matching distribution", "The package index lacks a pinned version: check pip's settings (pip config list)."),
    ("ResolutionImpossible", "The package index lacks a pinned version: check pip's settings (pip config list)."),
    ("error: command 'gcc'", "A package is being compiled: install a C compiler, or use another supported Python."),
)
"""What to do, by what stands in pip's output; the first that fits."""


class SetupFailed(Exception):
    """The text says which step failed and what to do."""


def main(arguments: list[str]) -> int:
    """Set up; returns the exit code."""
    venv, extras = ROOT / ".venv", list(arguments)
    if extras[:1] == ["--venv"]:
        venv, extras = Path(extras[1]).resolve(), extras[2:]
    try:
        return _main(venv, extras)
    except SetupFailed as failure:
        print(f"setup failed: {failure}", file=sys.stderr)
        return EXIT_SETUP
    except OSError as error:
        print(f"setup failed: {error}", file=sys.stderr)
        return EXIT_SETUP
    except KeyboardInterrupt:
        print("setup interrupted; the next `make` starts it again", file=sys.stderr)
        return EXIT_INTERRUPTED


def _main(venv: Path, extras: list[str]) -> int:
    check_system(sys.platform, platform.python_implementation())
    if not supported(sys.version_info[:2]):
        other = find_python()
        argv = [other, str(Path(__file__).resolve()), "--venv", str(venv), *extras]
        os.execv(other, argv)
    check_modules(sys.version_info[:2])
    with open(f"{venv}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another set-up of this folder to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        ensure_venv(venv, extras, lock.fileno())
    return 0


def check_system(system: str, implementation: str) -> None:
    """Raise where KVMark can't run at all."""
    if system != "linux":
        raise SetupFailed(f"KVMark runs on Linux; this is {system}")
    if implementation != "CPython":
        raise SetupFailed(f"KVMark needs CPython; this is {implementation} ({sys.executable}). Use: make PYTHON=<path>")


def supported(version: tuple[int, ...]) -> bool:
    """Whether KVMark runs on this CPython."""
    return version[:2] in SUPPORTED


def find_python() -> str:
    """A supported interpreter on PATH, newest first; raises naming what was tried."""
    names = [f"python{major}.{minor}" for major, minor in reversed(SUPPORTED)]
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    versions = ", ".join(f"{major}.{minor}" for major, minor in SUPPORTED)
    raise SetupFailed(
        f"KVMark needs CPython {versions}; {sys.executable} is {platform.python_version()}, and none of "
        f"{', '.join(names)} is on PATH. Install one (on Debian and Ubuntu: python3.11 and python3.11-venv), "
        "or name one: make PYTHON=<path>"
    )


def check_modules(version: tuple[int, ...]) -> None:
    """Raise where this Python can't make virtual environments (Debian packs that apart)."""
    missing = []
    for module in ("venv", "ensurepip", "ssl"):
        try:
            __import__(module)
        except ImportError:
            missing.append(module)
    if missing:
        raise SetupFailed(
            f"{sys.executable} has no {' and no '.join(missing)} module, so it can't make a virtual environment. "
            f"On Debian and Ubuntu: apt install python{version[0]}.{version[1]}-venv (or python3-venv); "
            "without root, use a Python that has it: make PYTHON=<path>"
        )


def ensure_venv(venv: Path, extras: list[str], lock: int) -> None:
    """Make `venv` hold KVMark, its pinned dependencies and the extras' ones.

    pip inherits `lock`: should this process be killed, the next one waits until its pip has ended too.
    """
    recipe = recipe_hash()
    ready = _read_ready(venv)
    if ready is not None and ready["recipe"] == recipe:
        if set(extras) <= set(ready["extras"]):
            return
        extras = sorted({*extras, *ready["extras"]})
    else:
        _fresh(venv, lock)
    started = time.monotonic()
    python = str(venv / "bin" / "python")
    options = ["--progress-bar", "off", "--disable-pip-version-check", "-c", str(CONSTRAINTS)]
    pip = [python, "-m", "pip", "install", *options]
    log = venv / LOG
    (venv / READY).unlink(missing_ok=True)
    _run("installing build tools", [*pip, *BUILD_TOOLS], log, lock)
    target = str(ROOT) + (f"[{','.join(extras)}]" if extras else "")
    for built in (ROOT / "harness").rglob(COMPILED):
        built.unlink()  # from older sources perhaps; a compiler that is gone would leave it there
    step = "installing KVMark's packages (pinned in constraints/harness.txt)"
    _run(step, [*pip, "--no-build-isolation", "-e", target], log, lock)
    if not list(CLIENT.glob(COMPILED)):
        _say("no C compiler: using the pure-Python client (make perf shows the difference)")
    _write(venv / READY, json.dumps({"recipe": recipe, "extras": extras}))
    _say(f"ready ({time.monotonic() - started:.0f} s)")


def recipe_hash() -> str:
    """Hash over what decides the environment's content: a change makes it anew."""
    sources = [ROOT / "pyproject.toml", CONSTRAINTS, *sorted((ROOT / "harness").rglob("*.[ch]"))]
    parts = [*(source.read_text() for source in sources), str(ROOT), sys.version, sys.base_prefix]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _read_ready(venv: Path) -> dict | None:  # type: ignore[type-arg]
    try:
        ready = json.loads((venv / READY).read_text())
        works = subprocess.run([str(venv / "bin" / "python"), "-c", ""], capture_output=True).returncode == 0
    except (OSError, ValueError):
        return None
    return ready if works and {"recipe", "extras"} <= set(ready) else None


def _fresh(venv: Path, lock: int) -> None:
    if venv.exists():
        if not (venv / OURS).exists():
            raise SetupFailed(f"{venv} exists and KVMark didn't make it: move it away, or choose another: make VENV=…")
        _say(f"{venv.name} is out of date or unfinished: making it anew")
        shutil.rmtree(venv)
    venv.mkdir(parents=True)
    _write(venv / OURS, "This virtual environment was made by KVMark's `make` and is remade at will.\n")
    step = f"creating {venv.name} (Python {platform.python_version()})"
    _run(step, [sys.executable, "-m", "venv", str(venv)], venv / LOG, lock)


def _run(step: str, argv: list[str], log: Path, lock: int) -> None:
    _say(f"{step} …")
    started = time.monotonic()
    strange = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")
    environment = {k: v for k, v in os.environ.items() if k not in strange}
    with log.open("w") as output:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=(lock,),
        )
        try:
            while True:
                try:
                    code = child.wait(STILL_BUSY_AFTER_S)
                    break
                except subprocess.TimeoutExpired:
                    _say(f"  still {step.split(maxsplit=1)[0]} ({time.monotonic() - started:.0f} s)")
        except BaseException:
            child.terminate()
            child.wait()
            raise
    if code:
        text = log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        advice = next((what for sign, what in ADVICE if sign in text), "The whole output: " + str(log))
        tail = "".join(f"\n  {line}" for line in lines[-15:])
        raise SetupFailed(f"{step} (exit {code}): {' '.join(argv)}{tail}\n{advice}")


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def _say(text: str) -> None:
    print(f"setup: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
