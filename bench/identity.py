"""What makes two configurations the same: their values, but for those that say where, and the files that they name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from bench.config import Config
from harness.accuracy.data_set import files_of
from harness.files import sha256_of, sha256_of_files

_NOT_IDENTITY = ("run_dir", "results_dir", "reports_dir", "block")
"""Keys that say where, not what."""


def config_sha256(config: Config) -> str:
    """Hash of what a configuration measures, and of the files that it names."""
    content = OmegaConf.to_container(OmegaConf.structured(config), resolve=True)
    assert isinstance(content, dict)
    identity = {key: value for key, value in content.items() if key not in _NOT_IDENTITY}
    files = file_hashes(config)
    return sha256_of({**identity, "files": files} if files else identity)


def reproduction_sha256(config: Config, blocks: int, reproduces: Mapping[str, Any]) -> str:
    """Of a run that repeats another one: never equal to that of an ordinary run, or of another one's repetition."""
    return sha256_of((config_sha256(config), blocks, reproduces))


def file_hashes(config: Config) -> dict[str, str]:
    """Hashes of the files that loads and tasks are read from: another file under the same name asks something else."""
    paths = {
        str(path): Path(path).expanduser().resolve()
        for load in config.load.values()
        for stream in load.streams
        if (path := getattr(stream.workload.parameters, "path", None))
    }
    paths |= {str(path): path for task in config.accuracy.values() for path in files_of(task)}
    return {f"file {name}": sha256_of_files([path], path.parent) for name, path in sorted(paths.items())}
