"""What is compared: a run, or one deployment of it, read from its folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from bench.analysis import analyse
from bench.analysis.load import SCHEMA_VERSIONS, LaunchRecord, RunRecord, load_run
from bench.analysis.result import Analysis, DeploymentResult
from bench.config import CONFIG_FILE
from harness.errors import ConfigError
from harness.files import read_json


@dataclass(frozen=True)
class Named:
    """A run's folder, and the deployment that was named with it (None: all)."""

    path: Path
    deployment: str | None = None

    @property
    def schema_version(self) -> Any:
        return read_json(self.path / "manifest.json").get("schema_version")

    @property
    def is_known(self) -> bool:
        """Whether this version of KVMark can read it."""
        return self.schema_version in SCHEMA_VERSIONS

    @property
    def label(self) -> str:
        """``long-context/2026-11-29T1341:vllm+smollm2-135m+kv-fp8``."""
        run = f"{self.path.parent.name}/{self.path.name}"
        return run if self.deployment is None else f"{run}:{self.deployment}"


def named(text: str, key: str, whole: bool = False) -> Named:
    """Read `results/<scenario>/<run>` or `results/<scenario>/<run>:<deployment>`; raises `ConfigError`.

    With `whole` only a run is taken.
    """
    path = Path(text).expanduser()
    if (path / "manifest.json").is_file():
        return Named(path.resolve())
    folder, colon, deployment = text.rpartition(":")
    run = Path(folder).expanduser()
    if whole or not colon or not (run / "manifest.json").is_file():
        more = "" if whole else ", and a deployment of it after a colon if only one is meant"
        raise ConfigError(
            f"{key}={text} is no run: name a folder that has a manifest.json, results/<scenario>/<run>{more}"
        )
    return Named(run.resolve(), deployment)


@dataclass(frozen=True)
class Side:
    """One of the two that are compared.

    Attributes
    ----------
    record : RunRecord
        What lies in the folder.
    analysis : Analysis
        What was made of it.
    """

    named: Named
    record: RunRecord
    analysis: Analysis

    @staticmethod
    def of(named: Named) -> "Side":
        """Read and analyse a run; raises `KVMarkError` where there is none, `ConfigError` for a deployment it lacks."""
        return Side(named, load_run(named.path), analyse(named.path))._checked()

    def again(self, named: Named) -> "Side":
        """Another deployment of the same run."""
        return replace(self, named=named)._checked()

    def _checked(self) -> "Side":
        wanted, known = self.named.deployment, [one.id for one in self.analysis.deployments]
        if wanted is not None and wanted not in known:
            raise ConfigError(f"{self.path} has no deployment '{wanted}'; allowed: {', '.join(known)}")
        return self

    @property
    def path(self) -> Path:
        return self.record.path

    @property
    def plan(self) -> Mapping[str, Any]:
        return self.record.plan

    @property
    def manifest(self) -> Mapping[str, Any]:
        return self.record.manifest

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """`config.yaml` as plain values, of whatever version; empty where it can't be read."""
        try:
            content = OmegaConf.to_container(OmegaConf.load(self.path / CONFIG_FILE))
        except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException):
            return {}
        return {str(key): value for key, value in content.items()} if isinstance(content, dict) else {}

    def deployment(self, deployment_id: str) -> DeploymentResult | None:
        return next((one for one in self.analysis.deployments if one.id == deployment_id), None)

    def family(self, one: DeploymentResult) -> list[DeploymentResult]:
        """The deployments of one's engine and model, itself among them."""
        return [d for d in self.analysis.deployments if (d.backend, d.model) == (one.backend, one.model)]

    def engine_baseline(self, one: DeploymentResult) -> DeploymentResult | None:
        """The same engine's 16-bit deployment."""
        return next((d for d in self.family(one) if d.engine_baseline), None)

    def launches(self, deployment_id: str) -> Sequence[LaunchRecord]:
        return [one for one in self.record.launches if one.deployment == deployment_id]
