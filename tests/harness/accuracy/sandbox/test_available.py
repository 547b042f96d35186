"""What counts as a sandbox, and the refusal where there is none: tested in a process that may make no namespace."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.accuracy.sandbox.available import NoSandbox, probed, sandbox

ROOT = Path(__file__).parents[4]
NO_NAMESPACES = """
import ctypes, os, pathlib
uid = os.getuid()
if ctypes.CDLL(None).unshare(ctypes.c_int(0x10000000)) == 0:
    pathlib.Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    pathlib.Path("/proc/sys/user/max_user_namespaces").write_text("0")
"""
"""Where user namespaces can be made: make one in which they can't."""
SCORE = """
import json, sys
from harness.accuracy import Task
from harness.accuracy.kinds import kinds
samples = [{"error": None, "answer": "    return 1\\n", "score": None} for _ in range(2)]
test = "def check(f):\\n    assert f() == "
rows = [{"prompt": "def one():\\n", "entry_point": "one", "test": test + str(i)} for i in (1, 2)]
task = Task(kind="humaneval", data_dir=".", allow_unsandboxed_code=sys.argv[1] == "allowed")
kind = kinds()["humaneval"]
result = kind.score("mine", task, samples, rows)
print(json.dumps([kind.unsupported(task), result, [one["score"] for one in samples]]))
"""


def without_sandbox(code: str, *arguments: str) -> str:
    env = {**os.environ, "PATH": "/nonexistent", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    argv = [sys.executable, "-c", NO_NAMESPACES + code, *arguments]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_sandbox_is_the_first_that_works_or_the_reasons_are_told() -> None:
    working = [one for one, problem in probed() if problem is None]
    if working:
        assert sandbox() == working[0]
    else:
        with pytest.raises(NoSandbox, match=r"bubblewrap: .*unshare: "):
            sandbox()


def test_without_namespaces_and_bubblewrap_code_is_refused_with_both_reasons() -> None:
    reason, result, scores = json.loads(without_sandbox(SCORE, "refused"))
    assert "bubblewrap: not installed; unshare: " in reason
    assert "allow_unsandboxed_code=true" in reason
    assert result == {"state": "unsupported", "reason": reason, "sandbox": None}
    assert scores == [None, None]


def test_a_user_who_insists_gets_scores_and_it_is_recorded() -> None:
    assert json.loads(without_sandbox(SCORE, "allowed")) == [None, {"sandbox": "none"}, [1.0, 0.0]]
