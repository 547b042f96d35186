"""Hold a program against its test, the two in sandboxes apart from each other (`roles.py` says how they speak)."""

import contextlib
import json
import os
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from harness.accuracy.code.answers import alone
from harness.accuracy.sandbox.process import WALL_S, Sandbox, read_limited
from harness.errors import KVMarkError

_ROLES = Path(__file__).with_name("roles.py")


class SandboxFailed(KVMarkError):
    """A sandbox that works did not start; the text says which side's."""


@dataclass(frozen=True)
class Verdict:
    """Whether a program passed.

    Attributes
    ----------
    passed : bool or None
        None: the test can't be judged, whatever the program is.
    why : str or None
        What was wrong.
    """

    passed: bool | None
    why: str | None = None


def judged(sandbox: Sandbox, *, prompt: str, program: str, test: str, entry_point: str) -> Verdict:
    """Run `test`'s `check` on the function `entry_point` of `program`; a crash or a timeout is a no.

    Parameters
    ----------
    sandbox : Sandbox
    prompt : str
        The beginning of the function; what it imports and defines is there for the test.
    program, test : str
        Python. Neither sees the other's names; only plain values cross: numbers, texts, lists, functions and the like.
    entry_point : str
        Name of the function.

    Raises
    ------
    SandboxFailed
        A side did not start, so that nothing is known of the program.
    """
    roles = _ROLES.read_text()
    job = {"prompt_alone": alone(prompt), "program": program, "test": test, "entry_point": entry_point}
    answers, calls = os.pipe(), os.pipe()
    try:
        with (
            sandbox.started(roles, "candidate", stdin=calls[0], stdout=answers[1]),
            sandbox.started(
                roles,
                "judge",
                str(answers[0]),
                str(calls[1]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(answers[0], calls[1]),
            ) as process,
        ):
            for number in (*answers, *calls):
                os.close(number)
            answers = calls = (-1, -1)
            _write(process, json.dumps(job).encode())
            said = read_limited(process, WALL_S)
    finally:
        for number in (*answers, *calls):
            if number >= 0:
                os.close(number)
    ready, _, verdict = said.partition(b"\n")
    if ready != b"ready":
        raise SandboxFailed(f"{sandbox.name}: the judge's side did not start")
    try:
        found = json.loads(verdict)
    except ValueError:
        return Verdict(False, "no verdict within the limits of time and memory")
    if found["state"] == "no candidate":
        raise SandboxFailed(f"{sandbox.name}: {found['why']}")
    return Verdict({"passed": True, "failed": False}.get(found["state"]), found["why"])


def _write(process: subprocess.Popen[bytes], job: bytes) -> None:
    """Hand the job over beside the reading: a side that doesn't start must not hold us up."""

    def write() -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            process.stdin.write(job)
            process.stdin.close()

    threading.Thread(target=write, daemon=True).start()
