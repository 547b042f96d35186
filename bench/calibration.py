"""How fast this host was last time: start seconds, phase factors and noise, kept beside the other caches.

The plan's time estimate is a simple count of tokens over rates; what a host really takes is learned from finished
launches as a factor a phase. Figures before the first run come from a 2-core CPU machine and the 135M model.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median

from harness.cache import cache_dir
from harness.errors import StorageError
from harness.files import read_json, write_json
from harness.telemetry import gpus

PHASES = ("output_check", "fidelity", "load", "accuracy")
VERSION = 3
"""Of the stored file; what another version learned is not read."""
_KEPT = 9
"""Newest launches whose times are remembered; their median counts, so that one disturbed launch changes little."""
_FACTOR_MAX = 8.0
"""A launch that took longer than this against the count of tokens was disturbed, and says nothing about the host."""


@dataclass(frozen=True)
class EngineSpeed:
    """Speed of one engine on one host, for a model of `reference_parameters` weights.

    Attributes
    ----------
    seen : dict
        Of each phase the newest measured ÷ counted seconds, and of ``start`` the newest seconds.
    """

    start_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    request_s: float
    reference_parameters: int = 135_000_000
    seen: dict[str, list[float]] = field(default_factory=dict)

    def factor(self, phase: str) -> float:
        """What the counted seconds of a phase are multiplied with."""
        return median(self.seen[phase]) if self.seen.get(phase) else 1.0

    def start_seconds(self) -> float:
        """Seconds until the engine is ready."""
        return median(self.seen["start"]) if self.seen.get("start") else self.start_s


@dataclass(frozen=True)
class Noise:
    """Standard deviation of one deployment in one block, on the log scale, of the primary metrics.

    Assumed until a run has measured it; what is assumed is what results/example came to.
    """

    throughput: float = 0.10
    latency: float = 0.12
    measured: bool = False


DEFAULTS = {
    "vllm": EngineSpeed(start_s=25, prefill_tokens_per_s=450, decode_tokens_per_s=60, request_s=0.08),
    "llama-cpp": EngineSpeed(start_s=1, prefill_tokens_per_s=190, decode_tokens_per_s=45, request_s=0.05),
}
_UNKNOWN = EngineSpeed(start_s=90, prefill_tokens_per_s=1000, decode_tokens_per_s=60, request_s=0.15)
_ON_GPU = EngineSpeed(
    start_s=120,
    prefill_tokens_per_s=15_000,
    decode_tokens_per_s=1_000,
    request_s=0.03,
    reference_parameters=8_000_000_000,
)
"""The order of magnitude of one data-centre GPU with a few requests in flight, until the first launch is measured."""


@dataclass(frozen=True)
class Calibration:
    """What is known of this host."""

    engines: dict[str, EngineSpeed]
    noise: Noise

    def engine(self, backend: str, strategy: str, on_gpu: bool = False) -> EngineSpeed:
        """Speed of an engine with a strategy: a quantised cache may compute at half the rate of a 16-bit one."""
        default = _ON_GPU if on_gpu else DEFAULTS.get(backend, _UNKNOWN)
        return self.engines.get(f"{backend}+{strategy}") or default


def load(hardware_sha256: str) -> Calibration:
    """The stored calibration of this hardware; defaults where nothing was measured yet."""
    path = _path(hardware_sha256)
    if not path.exists():
        return Calibration({}, Noise())
    stored = read_json(path)
    if stored.get("version") != VERSION:
        return Calibration({}, Noise())
    engines = {name: EngineSpeed(**speed) for name, speed in stored["engines"].items()}
    return Calibration(engines, Noise(**stored["noise"]))


def learn_launch(
    hardware_sha256: str, backend: str, strategy: str, seconds: dict[str, float], counted_s: dict[str, float]
) -> None:
    """Remember one finished launch's phase times.

    Parameters
    ----------
    seconds : dict
        Measured seconds of each phase.
    counted_s : dict
        `LaunchEstimate.counted_s`: the plan's seconds *before* any learned factor, so that what was learned once is
        never multiplied into what is learned next.
    """
    known = load(hardware_sha256)
    speed = known.engine(backend, strategy, bool(gpus()))
    seen = {phase: list(values) for phase, values in speed.seen.items()}
    for phase in PHASES:
        if seconds.get(phase) and counted_s.get(phase):
            ratio = seconds[phase] / counted_s[phase]
            seen[phase] = [*seen.get(phase, []), min(ratio, _FACTOR_MAX)][-_KEPT:]
    if seconds.get("start"):
        seen["start"] = [*seen.get("start", []), seconds["start"]][-_KEPT:]
    _store(
        hardware_sha256, replace(known, engines={**known.engines, f"{backend}+{strategy}": replace(speed, seen=seen)})
    )


def learn_noise(hardware_sha256: str, throughput: float | None, latency: float | None) -> None:
    """Keep the launch-to-launch standard deviations of a finished run, as shares; None: not measured in that run."""
    if throughput is None and latency is None:
        return
    known = load(hardware_sha256)
    noise = replace(
        known.noise,
        throughput=throughput if throughput is not None else known.noise.throughput,
        latency=latency if latency is not None else known.noise.latency,
        measured=True,
    )
    _store(hardware_sha256, replace(known, noise=noise))


def _store(hardware_sha256: str, calibration: Calibration) -> None:
    try:
        write_json(_path(hardware_sha256), {"version": VERSION, **asdict(calibration)})
    except StorageError:
        return  # an estimate not kept costs the next plan's precision, never this run


def _path(hardware_sha256: str) -> Path:
    return cache_dir() / "calibration" / f"{hardware_sha256[:16]}.json"
