"""Other load generators, each in an environment of its own: how to install one, ask it for a load, and read its answer.

Only versions that were looked at are known here: options and result files change. None is a dependency. Where one can't
be had on this machine, its figures are missing and the reason stands beside them.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.backends.interface import BackendOptions, EngineEnvironment
from harness.backends.vllm import CPU, GPU
from harness.cache import Say
from harness.environments import ensure
from harness.errors import SetupError
from harness.telemetry import gpus

PYTHONS = ((3, 11), (3, 12), (3, 13))
EXTRA_BODY = {"return_token_ids": True}
"""Asked of the server by all, so that all receive the same events."""


@dataclass(frozen=True)
class Ask:
    """A load in terms that every client knows.

    Attributes
    ----------
    requests, concurrency, prompt_tokens, output_tokens : int
        Requests in all and at a time, tokens of each.
    rate_rps : float or None
        Poisson arrivals, however many are under way; None: as many as `concurrency` allows.
    """

    requests: int
    concurrency: int
    output_tokens: int
    rate_rps: float | None = None
    prompt_tokens: int = 64


@dataclass(frozen=True)
class Place:
    """Where a peer finds its server and tokenizer, and may write."""

    base_url: str
    tokenizer: str
    folder: Path


@dataclass(frozen=True)
class Means:
    """A peer's own statement of mean TTFT and ITL, in ms."""

    ttft_ms: float
    itl_ms: float


@dataclass(frozen=True, eq=False)
class Peer:
    """A load generator.

    Attributes
    ----------
    name : str
        Its name.
    version : str
        The version that is known here.
    environment : EngineEnvironment or None
        What to install; None: it lies in our own environment.
    command : callable
        A program of its environment and arguments, for a load; files may be written to the place's folder.
    means : callable or None
        Reads its mean TTFT and ITL after a run.
    env : mapping
        Variables for it.
    """

    name: str
    version: str
    environment: EngineEnvironment | None
    command: Callable[[Ask, Place], list[str]]
    means: Callable[[Path], Means] | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"

    def python(self, say: Say) -> str:
        """The interpreter that has it, installed at first use; raises `SetupError` where it can't be had."""
        if self.environment is None:
            return sys.executable
        return ensure(self.environment, BackendOptions(), say).python


class Installed:
    """The peers that can be had here; what can't is remembered with its reason, and asked for once only."""

    def __init__(self, say: Say, wanted: frozenset[str] | None = None) -> None:
        self._say = say
        self._wanted = wanted
        self._pythons: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    def python(self, peer: Peer) -> str | None:
        """The peer's interpreter; None where it isn't to be had: `missing` says why."""
        if self._wanted is not None and peer.name not in self._wanted:
            self.missing[peer.name] = "left out by --peers"
        if peer.name in self.missing:
            return None
        if peer.name not in self._pythons:
            try:
                self._pythons[peer.name] = peer.python(self._say)
            except SetupError as error:
                self.missing[peer.name] = f"can't be installed here: {str(error).splitlines()[0]}"
                return None
        return self._pythons[peer.name]


def _own_environment(name: str, version: str, pythons: tuple[tuple[int, int], ...] = PYTHONS) -> EngineEnvironment:
    verify = ("-c", f"import importlib.metadata as m; print(m.version('{name}'))")
    return EngineEnvironment(f"peers-{name}", (f"{name}=={version}",), pythons, verify)


# vLLM's own benchmark client, out of the environment in which the engine runs.


def _vllm_bench(ask: Ask, place: Place) -> list[str]:
    rate = [] if ask.rate_rps is None else ["--request-rate", str(ask.rate_rps)]
    limit = ["--max-concurrency", str(ask.concurrency)] if ask.rate_rps is None else []
    return [
        "python", "-m", "vllm.entrypoints.cli.main", "bench", "serve",
        "--backend", "openai", "--base-url", place.base_url, "--endpoint", "/v1/completions",
        "--model", "paced", "--tokenizer", place.tokenizer,
        "--dataset-name", "random", "--random-input-len", str(ask.prompt_tokens),
        "--random-output-len", str(ask.output_tokens), "--ignore-eos", "--num-prompts", str(ask.requests),
        *limit, *rate, "--extra-body", json.dumps(EXTRA_BODY), "--disable-tqdm",
        "--save-result", "--result-dir", str(place.folder), "--result-filename", "vllm-bench.json",
    ]  # fmt: skip


def _vllm_bench_means(folder: Path) -> Means:
    result = _json(folder / "vllm-bench.json")
    return Means(result["mean_ttft_ms"], result["mean_itl_ms"])


VLLM_BENCH = Peer(
    "vllm bench",
    "0.32.0",
    GPU if gpus() else CPU,
    _vllm_bench,
    _vllm_bench_means,
    {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"},
)


# AIPerf.


def _aiperf(ask: Ask, place: Place) -> list[str]:
    load = ["--concurrency", str(ask.concurrency)]
    if ask.rate_rps is not None:
        load = ["--request-rate", str(ask.rate_rps), "--arrival-pattern", "poisson"]
    extra = [word for key, value in EXTRA_BODY.items() for word in ("--extra-inputs", f"{key}:{json.dumps(value)}")]
    return [
        "aiperf", "profile", "--model", "paced", "--url", place.base_url, "--endpoint-type", "completions",
        "--streaming", "--tokenizer", place.tokenizer, "--use-server-token-count", *load,
        "--request-count", str(ask.requests), "--synthetic-input-tokens-mean", str(ask.prompt_tokens),
        "--output-tokens-mean", str(ask.output_tokens),
        "--extra-inputs", "ignore_eos:true", *extra, "--artifact-dir", str(place.folder / "aiperf"), "--ui", "none",
    ]  # fmt: skip


def _aiperf_means(folder: Path) -> Means:
    result = _json(folder / "aiperf" / "profile_export_aiperf.json")
    return Means(result["time_to_first_token"]["avg"], result["inter_token_latency"]["avg"])


AIPERF = Peer("AIPerf", "0.13.0", _own_environment("aiperf", "0.13.0"), _aiperf, _aiperf_means)


# guidellm.


def _guidellm(ask: Ask, place: Place) -> list[str]:
    profile = f"kind=concurrent,streams={ask.concurrency}"
    if ask.rate_rps is not None:
        profile = f"kind=poisson,rate={ask.rate_rps}"
    lengths = f"prompt_tokens={ask.prompt_tokens},output_tokens={ask.output_tokens}"
    return [
        "guidellm", "run", "--disable-console",
        "--backend", f"kind=openai_http,target={place.base_url},model=paced,request_format=/v1/completions,http2=false",
        "--tokenizer", f"kind=hf_auto,model={place.tokenizer}", "--data", f"kind=synthetic_text,{lengths}",
        "--profile", profile, "--constraint", f"kind=max_requests,count={ask.requests}",
        "--output", f"kind=json,path={place.folder / 'guidellm.json'}",
    ]  # fmt: skip


GUIDELLM = Peer("guidellm", "0.8.1", _own_environment("guidellm", "0.8.1"), _guidellm)


# inference-perf.


def _inference_perf(ask: Ask, place: Place) -> list[str]:
    def lengths(tokens: int) -> dict[str, int]:
        return {"min": tokens, "max": tokens, "mean": tokens, "std_dev": 0, "total_count": ask.requests}

    if ask.rate_rps is None:
        load: dict[str, Any] = {
            "type": "concurrent",
            "stages": [{"num_requests": ask.requests, "concurrency_level": ask.concurrency}],
        }
    else:
        load = {"type": "poisson", "stages": [{"rate": ask.rate_rps, "duration": round(ask.requests / ask.rate_rps)}]}
    config = {
        "api": {"type": "completion", "streaming": True},
        "data": {
            "type": "random",
            "input_distribution": lengths(ask.prompt_tokens),
            "output_distribution": lengths(ask.output_tokens),
        },
        "load": {**load, "num_workers": 1, "worker_max_concurrency": ask.concurrency},
        "server": {"type": "vllm", "model_name": "paced", "base_url": place.base_url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": place.tokenizer},
        "report": {"request_lifecycle": {"summary": True, "per_stage": False, "per_request": False}},
        "storage": {"local_storage": {"path": str(place.folder / "inference-perf")}},
    }
    path = place.folder / "inference-perf.yaml"
    path.write_text(json.dumps(config))  # JSON is YAML
    return ["inference-perf", "-c", str(path)]


def _inference_perf_means(folder: Path) -> Means:
    latency = _json(folder / "inference-perf" / "summary_lifecycle_metrics.json")["successes"]["latency"]
    return Means(latency["time_to_first_token"]["mean"] * 1e3, latency["inter_token_latency"]["mean"] * 1e3)


INFERENCE_PERF = Peer(
    "inference-perf",
    "0.7.0",
    _own_environment("inference-perf", "0.7.0", ((3, 12), (3, 13))),
    _inference_perf,
    _inference_perf_means,
)


# Locust as it comes, with its FastHttpUser: one-token requests only, since it can't time a stream.


def _locust_fast_http(ask: Ask, place: Place) -> list[str]:
    return [
        "python", "-m", "locust", "-f", str(Path(__file__).with_name("fast_http_locustfile.py")), "--headless",
        "--only-summary", "--loglevel", "ERROR", "--host", place.base_url,
        "--users", str(ask.concurrency), "--spawn-rate", str(ask.concurrency),
        "--requests", str(ask.requests), "--output-tokens", str(ask.output_tokens),
        "--prompt-tokens", str(ask.prompt_tokens),
    ]  # fmt: skip


def _installed_version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


LOCUST = Peer("Locust FastHttp", _installed_version("locust"), None, _locust_fast_http)


def _json(path: Path) -> Any:
    return json.loads(path.read_text())
