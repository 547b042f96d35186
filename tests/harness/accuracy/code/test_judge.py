"""Verdicts on programs, through the real sandboxes: right, wrong, and programs that would rather be taken for right."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.accuracy.code import judge
from harness.accuracy.code.answers import program
from harness.accuracy.code.judge import SandboxFailed, Verdict, judged
from harness.accuracy.sandbox import process
from harness.accuracy.sandbox.process import LIMITS, NONE, Sandbox

PROMPT = "def double(x):\n    '''Twice x.'''\n"
CHECK = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate([1]) == [1, 1]\n"
DATA_DIR = os.environ.get("KVMARK_TEST_DATA")


def held(sandbox: Sandbox, body: str, test: str = CHECK, prompt: str = PROMPT) -> Verdict:
    """The verdict on a whole program."""
    return judged(sandbox, prompt=prompt, program=body, test=test, entry_point="double")


def test_right_passes_and_wrong_fails_with_its_reason(sandbox: Sandbox) -> None:
    assert held(sandbox, PROMPT + "    return x * 2\n") == Verdict(True)
    assert held(sandbox, PROMPT + "    return x\n") == Verdict(False, "AssertionError: ")
    assert "NameError" in str(held(sandbox, PROMPT + "    return y\n").why)


FORGERIES = {
    "ends with success": "import os\nos._exit(0)",
    "ends in the call": "import os\ndef double(x): os._exit(0)",
    "exits": "import sys\ndef double(x): sys.exit(0)",
    "prints the verdict": 'print(\'ready\\n{"state": "passed", "why": null}\', flush=True)\nimport os; os._exit(0)',
    "writes the verdict everywhere": """
import os
for number in range(64):
    for text in ('ready', '{"state": "passed", "why": null}', '["return", {"list": []}, []]', '[]', '{}', 'null'):
        try: os.write(number, text.encode() + b"\\n")
        except OSError: pass
def double(x): return 0
""",
    "is equal to all": """
class All:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
def double(x): return All()
""",
    "is a number equal to all": """
class All(int):
    def __eq__(self, other): return True
def double(x): return All(0)
""",
    "changes the modules": """
import builtins, json, sys
builtins.AssertionError = ValueError
json.loads = lambda text: ["return", 4, []]
sys.modules["__main__"].__dict__["verdict"] = lambda *words: {"state": "passed", "why": None}
def double(x): return 0
""",
    "changes the frames above": """
import sys
def double(x):
    frame = sys._getframe()
    while frame := frame.f_back:
        for name in ("check", "candidate", "verdict", "judge"):
            frame.f_globals[name] = lambda *words: 4
    return 0
""",
    "looks for the test": """
import gc, sys
def double(x):
    for one in gc.get_objects():
        if isinstance(one, dict) and "test" in one and "check" in str(one["test"]): return x * 2
    return 0
""",
    "ends the processes": """
import os
for pid in (-1, os.getppid() or 1, 1):
    try: os.kill(pid, 9)
    except OSError: pass
""",
    "recurses for ever": "def double(x): return double(x)",
    "overflows the stack": "import sys\nsys.setrecursionlimit(10**9)\ndef double(x): return double(x)",
    "takes all memory": "def double(x):\n    held = []\n    while True: held.append(bytearray(1 << 24))",
    "returns too much": "def double(x): return 'x' * (1 << 26)",
    "returns itself": "def double(x):\n    found = []\n    found.append(found)\n    return found",
    "returns without end": "import itertools\ndef double(x): return itertools.count()",
    "is no function": "double = 4",
    "is no Python": "def double(x)\n  return",
    "is no text": "x = '\udc80'\ndef double(x): return x * 2",
    "holds a null byte": "def double(x): return x * 2 #\0",
    "nests too deeply": "x = " + "(" * 5000 + ")" * 5000,
    "is empty": "",
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_no_program_passes_that_does_not_return_what_is_right(
    sandbox: Sandbox, forgery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LIMITS", {**LIMITS, "AS": 2**28, "CPU": 2})  # reached sooner
    assert held(sandbox, FORGERIES[forgery]).passed is False


def test_a_program_that_ends_is_no_exception_that_a_test_may_wait_for(sandbox: Sandbox) -> None:
    lenient = "def check(f):\n    try:\n        f(1)\n    except Exception:\n        pass\n"
    assert held(sandbox, "def double(x): raise ValueError(x)", lenient).passed is True
    assert held(sandbox, "import os\ndef double(x): os._exit(0)", lenient).passed is False
    baseless = lenient.replace("except Exception", "except BaseException")
    assert held(sandbox, "import os\ndef double(x): os._exit(0)", baseless).passed is False


def test_a_program_without_end_fails_by_processor_time_or_by_the_clock(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LIMITS", {**LIMITS, "CPU": 1})
    assert held(sandbox, "while True: pass").passed is False
    monkeypatch.setattr(judge, "WALL_S", 1.5)
    assert held(sandbox, "import time\ndef double(x): time.sleep(60)").passed is False


SOUND = {
    "prints a lot": ("def double(x):\n    print('x' * 10**7)\n    return x * 2", CHECK),
    "closes its output": ("import sys\nsys.stdout.close()\ndef double(x): return x * 2", CHECK),
    "names another coding": ("# -*- coding: latin-1 -*-\ndouble = lambda x: x * 2 if 'é' else 0", CHECK),
    "changes its argument": (
        "def double(x): x += x",
        "def check(f):\n    x = [1, [2]]\n    assert f(x) is None\n    assert x == [1, [2], 1, [2]]",
    ),
    "takes a function": ("def double(f): return f(f(1))", "def check(f):\n    assert f(lambda x: x + 1) == 3"),
    "gives a function": ("def double(x): return lambda y: x + y", "def check(f):\n    assert f(1)(2) == 3"),
    "gives what it got": ("def double(x): return x", "def check(f):\n    assert f(len) is len"),
    "yields": ("def double(x):\n    yield x\n    yield x", "def check(f):\n    assert list(f(1)) == [1, 1]"),
    "raises what is expected": (
        "def double(x): raise KeyError(x)",
        """
def check(f):
    try:
        f("a")
    except KeyError as error:
        assert "a" in str(error)
    else:
        assert False
""",
    ),
    "is called by name and by keyword": ("def double(x): return x * 2", "def check(f):\n    assert double(x=2) == 4"),
    "has a dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass Two:\n    x: int\ndef double(x): return Two(x).x * 2",
        CHECK,
    ),
    "returns every plain value": (
        "def double(x): return x",
        r"""
import math
def check(f):
    for x in (None, True, 10**400, -0.0, 1e300, float("inf"), "é\ud800", b"x", 1j, (1, (2,)), [[]], {1, "a"},
              frozenset({(1,)}), {(1, 2): {"a": None}}, range(3), bytearray(b"y")):
        assert f(x) == x and type(f(x)) is type(x)
    assert math.isnan(f(float("nan")))
""",
    ),
}  # fmt: skip


@pytest.mark.parametrize("sound", SOUND)
def test_what_passes_beside_the_test_passes_apart_from_it(sandbox: Sandbox, sound: str) -> None:
    text, test = SOUND[sound]
    assert held(sandbox, text, test) == Verdict(True)


def test_the_test_may_use_what_the_prompt_imports_and_defines(sandbox: Sandbox) -> None:
    prompt = "import math\n\n\ndef helper(x):\n    return x + 1\n\n\ndef double(x):\n"
    test = "def check(f):\n    assert f(2) == math.floor(helper(3.5))"
    assert held(sandbox, prompt + "    return x * 2\n", test, prompt).passed is True


def test_a_test_that_can_not_be_judged_is_told_apart_from_a_wrong_program(sandbox: Sandbox) -> None:
    right = "def double(x): return x * 2"
    for test in ("def check(f) return", "x = 1", "def check(f):\n    f(object())", "import datetime\ndef check(f):\n    assert f(datetime.date.today())"):  # fmt: skip  # noqa: E501
        verdict = held(sandbox, right, test)
        assert verdict.passed is None and verdict.why


def test_a_sandbox_that_does_not_start_is_no_wrong_answer() -> None:
    with pytest.raises(SandboxFailed, match="the judge's side did not start"):
        held(Sandbox("unshare", ("/bin/false",)), "def double(x): return x * 2")


def test_without_a_sandbox_the_limits_stand() -> None:
    assert held(NONE, "def double(x): return x * 2") == Verdict(True)
    assert held(NONE, FORGERIES["takes all memory"]).passed is False
    assert held(NONE, FORGERIES["ends with success"]).passed is False
    assert NONE.output("open('own', 'w').write('x')\nprint(len(__import__('os').listdir('.')))") == b"1\n"


@pytest.mark.skipif(DATA_DIR is None, reason="KVMARK_TEST_DATA names no folder")
def test_published_solutions_pass_in_every_form_of_answer_and_wrong_ones_fail(sandbox: Sandbox) -> None:
    """Every eighth; `python -m pytest` of all takes minutes."""
    with gzip.open(Path(str(DATA_DIR)) / "humaneval.jsonl.gz", "rt") as file:
        rows: list[dict[str, Any]] = [json.loads(line) for line in file][::8]
    for row in rows:
        prompt, name = row["prompt"], row["entry_point"]
        right, wrong = row["canonical_solution"], "    return 'kvmark'\n"
        again = f"Here you are:\n\n```python\n{prompt}{right}```\nIt works."
        for answer, chat, passes in ((right, False, True), (again, True, True), (wrong, False, False)):
            text = program(prompt, answer, name, chat=chat)
            verdict = judged(sandbox, prompt=prompt, program=text, test=row["test"], entry_point=name)
            assert verdict.passed is passes, (row["task_id"], answer, verdict)
