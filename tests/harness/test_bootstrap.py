"""What `make` runs first, on a small project of the same layout with pip run for real."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from wheels import write_wheel

import harness
from harness import bootstrap

BACKEND = """
import os, zipfile
def build_editable(directory, config_settings=None, metadata_directory=None):
    name = "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n"
                       "Provides-Extra: test\\nRequires-Dist: needed\\nRequires-Dist: tester; extra == 'test'\\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    return name
build_wheel = build_editable
"""


class Project:
    """A checkout with bootstrap.py, and an index of wheels."""

    def __init__(self, root: Path) -> None:
        self.root = root / "checkout"
        self.index = root / "index"
        self.venv = self.root / ".venv"
        (self.root / "harness").mkdir(parents=True)
        shutil.copy(bootstrap.__file__, self.root / "harness")
        (self.root / "backend.py").write_text(BACKEND)
        (self.root / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        )
        (self.root / "constraints").mkdir()
        self.pin("needed==1.0")
        for name in ("setuptools", "wheel"):  # what a new environment may lack
            write_wheel(self.index, name, "1.0", {})
        write_wheel(self.index, "tester", "1.0", {"tester.py": ""})

    def pin(self, text: str) -> None:
        (self.root / "constraints" / "harness.txt").write_text(text + "\n")

    def setup(self, *extras: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, str(self.root / "harness" / "bootstrap.py"), *extras],
            env={"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1",
                 "PIP_FIND_LINKS": str(self.index), "PYTHONPATH": "/somebody/elses"},
            capture_output=True,
            text=True,
        )  # fmt: skip

    def run(self, code: str) -> str:
        return subprocess.run([self.venv / "bin" / "python", "-c", code], capture_output=True, text=True).stdout.strip()


VERSION = "import importlib.metadata as m; print(m.version('{}'))"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


def test_set_up_from_nothing_to_everything(project: Project) -> None:
    """One story, since each environment takes seconds: fail, finish, run again, add an extra, change a pin."""
    failed = project.setup()
    assert failed.returncode == bootstrap.EXIT_SETUP
    assert "setup failed: installing KVMark's packages" in failed.stderr
    assert "The user requested (constraint) needed==1.0" in failed.stderr
    assert "check pip's settings" in failed.stderr

    for version in ("1.0", "2.0"):
        write_wheel(project.index, "needed", version, {"needed.py": ""})
    done = project.setup()
    assert done.returncode == 0, done.stderr
    assert "unfinished: making it anew" in done.stdout
    assert "no C compiler: using the pure-Python client" in done.stdout, "nothing was built in this checkout"
    assert project.run(VERSION.format("needed")) == "1.0"

    marker = project.venv / "untouched"
    marker.touch()
    again = project.setup()
    assert (again.returncode, again.stdout) == (0, ""), "the second run has nothing to do or say"

    more = project.setup("test")
    assert more.returncode == 0, more.stderr
    assert project.run(VERSION.format("tester")) == "1.0"
    assert marker.exists(), "an extra is added to the environment that is there"

    built = project.root / "harness" / "traffic" / "wire" / f"_receiver{sysconfig.get_config_var('EXT_SUFFIX')}"
    built.parent.mkdir(parents=True)
    built.touch()
    built.with_name("_receiver.c").touch()
    again = project.setup()
    assert again.returncode == 0, again.stderr
    assert not marker.exists() and not built.exists(), "another C source is another client"
    marker.touch()

    project.pin("needed==2.0")
    renewed = project.setup()
    assert renewed.returncode == 0, renewed.stderr
    assert not marker.exists()
    assert project.run(VERSION.format("needed")) == "2.0"


def test_an_environment_of_the_users_is_left_alone(tmp_path: Path) -> None:
    project = Project(tmp_path)
    (project.venv / "bin").mkdir(parents=True)
    done = project.setup()
    assert done.returncode == bootstrap.EXIT_SETUP
    assert "KVMark didn't make it" in done.stderr
    assert list(project.venv.iterdir()) == [project.venv / "bin"]


def test_a_python_without_venv_names_the_package_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(bootstrap.SetupFailed, match=r"no ensurepip module(.|\n)*python3\.12-venv"):
        bootstrap.check_modules((3, 12))


def test_an_unsupported_python_names_those_supported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not bootstrap.supported((3, 10, 4))
    assert bootstrap.supported((3, 13, 1))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(bootstrap.SetupFailed, match=r"needs CPython 3\.11, 3\.12, 3\.13(.|\n)*make PYTHON="):
        bootstrap.find_python()
    for name in ("python3.11", "python3.12"):
        (tmp_path / name).touch(mode=0o755)
    assert bootstrap.find_python() == str(tmp_path / "python3.12")


@pytest.mark.parametrize(("system", "implementation"), [("darwin", "CPython"), ("linux", "PyPy")])
def test_other_systems_are_refused(system: str, implementation: str) -> None:
    with pytest.raises(bootstrap.SetupFailed, match=r"this is (darwin|PyPy)"):
        bootstrap.check_system(system, implementation)


def test_supported_versions_are_those_of_the_project() -> None:
    text = (Path(harness.__file__).parent.parent / "pyproject.toml").read_text()
    first, last = bootstrap.SUPPORTED[0], bootstrap.SUPPORTED[-1]
    assert f'requires-python = ">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"' in text
