"""CPU time and memory of a program's whole tree."""

import sys
from pathlib import Path

from harness.perf.program import run_program

BURN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: pass\n"


def burn(seconds: float) -> str:
    return BURN.format(seconds=seconds)


def test_children_count_and_what_was_before_the_first_request_does_not(tmp_path: Path) -> None:
    mark = tmp_path / "asked"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn(0.4)!r}])\n"
    done = f"open({str(tmp_path / 'done')!r}, 'w').close()"
    orphan = f"import os\nif os.fork() == 0:\n    os.fork() and os._exit(0)\n    exec({burn(0.3)!r})\n    {done}\n"
    orphan += "    time.sleep(60)\n"
    wait = f"os.wait()\nwhile not os.path.exists({str(tmp_path / 'done')!r}): time.sleep(0.01)\n"
    rest = f"open({str(mark)!r}, 'w').close()\nimport time; time.sleep(0.3)\n{child}{orphan}{wait}"
    usage = run_program(
        [sys.executable, "-c", burn(0.5) + rest],
        core=0,
        folder=tmp_path,
        name="program",
        requests_seen=lambda: int(mark.exists()),
        sample_memory=True,
    )
    assert usage.exit_code == 0
    assert usage.startup_cpu_s >= 0.5
    assert usage.cpu_s >= 0.6
    assert usage.peak_bytes is not None and usage.peak_bytes > 1_000_000


def test_a_program_that_takes_too_long_is_ended_and_quoted(tmp_path: Path) -> None:
    usage = run_program(
        [sys.executable, "-uc", "print('waiting')\nimport time; time.sleep(60)"],
        core=0,
        folder=tmp_path,
        name="program",
        requests_seen=lambda: 0,
        timeout_s=1,
    )
    assert usage.exit_code is None
    assert usage.tail() == "waiting"
