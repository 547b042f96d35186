"""Python environments for engines: made on first use from pinned packages, or the user's own.

An engine gets an environment of its own, because engines pin packages that no other engine (nor the harness) can live
with. A folder is ready when its `.ready` stamp says so; the stamp is written last, so whatever was interrupted is
removed and made again.
"""

import hashlib
import importlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.backends.interface import BackendOptions, EngineEnvironment
from harness.cache import Say, cache_dir, locked
from harness.errors import SetupError

__all__ = ["EnginePython", "cache_dir", "ensure"]

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints"
READY = ".ready"
STILL_BUSY_AFTER_S = 60.0
"""How often a long step says that it is still running."""

SHOWN_LINES = 12
"""Of a failed command's output."""

LIST_PACKAGES = (
    "import importlib.metadata as m, json;"
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}, sort_keys=True))"
)

ADVICE = (
    (
        ("+cpu",),
        "This is PyTorch's CPU build, which lies in PyTorch's own package index: name that index with "
        "PIP_EXTRA_INDEX_URL=<url> (for make: `make bench PIP_EXTRA_INDEX_URL=<url>`)",
    ),
    (("No space left",), "The disk is full: free some space, or set KVMARK_CACHE=<folder> on another disk"),
    (
        ("NewConnectionError", "ConnectTimeout", "Name or service not known", "Could not fetch"),
        "The package index can't be reached: check the network, proxy and pip's index settings",
    ),
)
"""What to do, by what stands in pip's output; the first that fits."""


@dataclass(frozen=True)
class EnginePython:
    """An interpreter that has an engine.

    Attributes
    ----------
    python : str
        The interpreter; with `backend.command`, the program instead.
    version : str
        The engine's version, in its own words.
    packages : dict
        Installed packages and their versions.
    packages_sha256 : str
        Hash over them; for a program, over its file.
    """

    python: str
    version: str
    packages: dict[str, str]
    packages_sha256: str


def ensure(environment: EngineEnvironment, options: BackendOptions, say: Say) -> EnginePython:
    """The environment of an engine, created at first use; the user's own where `options` names one.

    Raises
    ------
    SetupError
        Saying which step failed, the last lines of its output, and what to do.
    """
    if options.command:
        return _program(options.command)
    if options.python:
        return _users_own(environment, options.python)
    interpreter, tag = find_interpreter(environment)
    constraints = CONSTRAINTS / f"{environment.extra}.txt"
    folder = cache_dir() / "engines" / f"{environment.extra}-{tag}-{_recipe_hash(environment, constraints)}"
    with locked(folder, say) as lock:
        found = _ready(folder, say)
        return found or _create(environment, interpreter, constraints, folder, lock, say)


def find_interpreter(environment: EngineEnvironment) -> tuple[str, str]:
    """An interpreter that the engine's packages exist for, and its tag (``cp311``): this one, else one on PATH."""
    this = sys.version_info[:2]
    if this in environment.python_versions:
        return sys.executable, f"cp{this[0]}{this[1]}"
    tried = [f"{sys.executable} (is {this[0]}.{this[1]})"]
    for major, minor in reversed(environment.python_versions):
        name = f"python{major}.{minor}"
        path = shutil.which(name)
        if path is None:
            tried.append(f"{name} (not on PATH)")
        elif subprocess.run([path, "-c", "import ensurepip, venv"], check=False, capture_output=True).returncode:
            tried.append(f"{path} (has no venv module: on Debian and Ubuntu, package {name}-venv)")
        else:
            return path, f"cp{major}{minor}"
    supported = ", ".join(f"{major}.{minor}" for major, minor in environment.python_versions)
    raise SetupError(
        f"engine {environment.extra}: needs CPython {supported}; tried {'; '.join(tried)}. Install one of them, or "
        "name an interpreter that already has the engine: backend.<name>.python=<path>"
    )


def _create(
    environment: EngineEnvironment, interpreter: str, constraints: Path, folder: Path, lock: int, say: Say
) -> EnginePython:
    extra, python = environment.extra, str(folder / "bin" / "python")
    if folder.exists():
        say(f"engine {extra}: an unfinished environment is removed and made again")
        shutil.rmtree(folder)
    say(f"engine {extra}: creating its environment in {folder} (once)")
    started = time.monotonic()
    steps = _Steps(extra, lock, say)
    steps.run("create", [interpreter, "-m", "venv", str(folder)])
    pins = ["-c", str(constraints)] if constraints.exists() else []
    steps.run("install", [python, "-m", "pip", "install", "--progress-bar", "off", *pins, *environment.requirements])
    if environment.repair:
        say(f"engine {extra}: repairing what its packages get wrong")
        importlib.import_module(environment.repair).repair(python, steps.run)
    version = _last_line(steps.run("verify", [python, *environment.verify]))
    made = _described(python, version)
    (folder / READY).write_text(json.dumps(asdict(made), indent=2) + "\n")
    say(f"engine {extra}: {version} is ready ({time.monotonic() - started:.0f} s)")
    return made


def _ready(folder: Path, say: Say) -> EnginePython | None:
    """The finished environment in `folder`; None where there is none, or it isn't what was made."""
    try:
        made = EnginePython(**json.loads((folder / READY).read_text()))
        now = _described(str(folder / "bin" / "python"), made.version)
    except (OSError, ValueError, TypeError, SetupError):
        return None
    if now != made:
        changed = {name for name, version in {*now.packages.items()} ^ {*made.packages.items()}}
        say(f"{folder} isn't as it was made any more (changed: {', '.join(sorted(changed)) or 'its place'})")
        return None
    return made


def _users_own(environment: EngineEnvironment, python: str) -> EnginePython:
    path = shutil.which(os.path.expanduser(python))
    if path is None:
        raise SetupError(f"backend.python: '{python}' is no program that can be run")
    path = os.path.abspath(path)  # not resolved: an environment's python is a link, and must be started as that link
    try:
        version = _last_line(_Steps(environment.extra).run("verify", [path, *environment.verify]))
    except SetupError as error:
        packages = ", ".join(environment.requirements)
        raise SetupError(f"backend.python: {path} has no working engine ({packages} needed).\n{error}") from error
    return _described(path, version)


def _program(command: str) -> EnginePython:
    words = shlex.split(command)
    path = shutil.which(os.path.expanduser(words[0])) if words else None
    if path is None:
        raise SetupError(f"backend.command: '{command}' names no program that can be run")
    path = os.path.abspath(path)
    version = _answer_to_version([path, *words[1:]])
    with Path(path).open("rb") as file:
        return EnginePython(path, version, {}, hashlib.file_digest(file, "sha256").hexdigest())


def _answer_to_version(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run([*argv, "--version"], capture_output=True, stdin=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = (done.stdout + done.stderr).decode(errors="replace").splitlines()
    return next((line.strip() for line in lines if "version" in line.lower()), "unknown")


def _described(python: str, version: str) -> EnginePython:
    text = _Steps("python").run("list packages", [python, "-I", "-c", LIST_PACKAGES])
    packages: dict[str, str] = json.loads(_last_line(text))
    lines = "".join(f"{name}=={number}\n" for name, number in sorted(packages.items()))
    return EnginePython(python, version, packages, hashlib.sha256(lines.encode()).hexdigest())


def _recipe_hash(environment: EngineEnvironment, constraints: Path) -> str:
    parts = [*environment.requirements, constraints.read_text() if constraints.exists() else ""]
    if environment.repair:
        parts.append(f"{environment.repair} {importlib.import_module(environment.repair).REVISION}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class _Steps:
    """Commands of one set-up. A child inherits `lock`: if this process is killed, the next one waits for the child."""

    extra: str
    lock: int | None = None
    say: Say | None = None

    def run(self, step: str, argv: Sequence[str]) -> str:
        """Standard output of a command that must succeed."""
        started = time.monotonic()
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=_clean_environment(os.environ),
                pass_fds=() if self.lock is None else (self.lock,),
            )
        except OSError as error:
            raise SetupError(f"engine {self.extra}: {step} failed: {argv[0]} can't be started ({error})") from error
        with child:
            try:
                out, err = self._wait(child, step, started)
            except BaseException:
                child.terminate()
                raise
        if child.returncode:
            raise SetupError(_failure(self.extra, step, argv, child.returncode, f"{out}\n{err}"))
        return out

    def _wait(self, child: "subprocess.Popen[str]", step: str, started: float) -> tuple[str, str]:
        while True:
            try:
                return child.communicate(timeout=STILL_BUSY_AFTER_S)
            except subprocess.TimeoutExpired:
                if self.say:
                    self.say(f"engine {self.extra}: {step} still running ({time.monotonic() - started:.0f} s)")


def _failure(extra: str, step: str, argv: Sequence[str], returncode: int, output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    advice = next((text for signs, text in ADVICE if any(sign in output for sign in signs)), None)
    return "\n".join(
        [f"engine {extra}: {step} failed (exit {returncode}): {shlex.join(argv)}"]
        + [f"  {line}" for line in lines[-SHOWN_LINES:]]
        + ([advice] if advice else [])
    )


def _clean_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The user's variables without those that make one Python see another one's packages."""
    drop = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"}
    kept = {name: value for name, value in variables.items() if name not in drop}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise SetupError("the engine's version check printed nothing")
    return lines[-1]
