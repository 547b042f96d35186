"""What KVMark asks of an engine. One engine a file; nothing else in the project knows an engine's flags."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from harness.errors import ConfigError, Unsupported
from harness.model import Model, ModelShape
from harness.settings import Settings
from harness.strategy import Strategy


@dataclass(frozen=True)
class EngineEnvironment:
    """A Python environment that an engine needs, created on first use.

    Attributes
    ----------
    extra : str
        Name of the project extra, of the constraints file and of the environment's folder, e.g. ``vllm-cpu``.
    requirements : tuple of str
        What to install (pinned by `constraints/<extra>.txt`).
    python_versions : tuple of (int, int)
        CPython versions for which the packages exist, newest last.
    verify : tuple of str
        Arguments to the environment's python that must exit 0 and print the engine's version.
    repair : str or None
        Name of the module with `repair(python, run)`, which mends what the packages get wrong after installing, and
        `REVISION`, raised when the repair changes (see `harness/environments_vllm_cpu.py`).
    """

    extra: str
    requirements: tuple[str, ...]
    python_versions: tuple[tuple[int, int], ...]
    verify: tuple[str, ...]
    repair: str | None = None


@dataclass(frozen=True)
class Command:
    """A server's command line.

    Attributes
    ----------
    argv : tuple of str
        Program and arguments.
    env : mapping
        Variables set on top of the harness's own environment (recorded in the results).
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Effect:
    """What the engine says it does, held against the strategy (rule 1, proof of effect).

    Attributes
    ----------
    mismatches : tuple of str
        What differs from the strategy or settings; empty means in effect.
    evidence : tuple of str
        The engine's own words: log lines, metric lines.
    kv_dtype : str
        The engine's name for the stored format.
    capacity_tokens : int or None
        Tokens that the KV pool holds.
    pool_bytes : int or None
        Bytes of the KV pool.
    kv_bytes_per_token : float or None
        Bytes of one token's KV, as stored.
    slots : int or None
        Most requests that the engine can hold at once, where that is fixed at start.
    """

    mismatches: tuple[str, ...]
    evidence: tuple[str, ...]
    kv_dtype: str
    capacity_tokens: int | None
    pool_bytes: int | None
    kv_bytes_per_token: float | None
    slots: int | None = None

    @property
    def in_effect(self) -> bool:
        return not self.mismatches


@dataclass(frozen=True)
class ResetOutcome:
    """Whether a cache reset did what it says: the engine's answer, and what the hit counters showed afterwards."""

    done: bool
    evidence: str


@dataclass(frozen=True)
class EngineState:
    """One reading of an engine's own counters; None where the engine has none (never zero).

    Attributes
    ----------
    kv_cache_usage : float or None
        Share of the KV pool in use, 0 to 1.
    requests_running, requests_waiting : int or None
        Requests in the batch, and queued.
    preemptions_total, prefix_queries_total, prefix_hits_total : float or None
        Counters since the server's start; queries and hits in tokens.
    """

    kv_cache_usage: float | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None
    preemptions_total: float | None = None
    prefix_queries_total: float | None = None
    prefix_hits_total: float | None = None


@dataclass(frozen=True)
class NextToken:
    """Top-k log-probabilities of one next token: parallel tuples, most probable first (natural logarithm)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass
class BackendOptions:
    """A user's options for one backend; also the Hydra schema of `scenarios/backend/*.yaml`.

    Attributes
    ----------
    python : str or None
        An interpreter that already has the engine; None: the environment that KVMark creates.
    command : str or None
        A server program to start instead of the environment's (split as a shell would); takes the same arguments.
    extra_args : list of str
        Arguments appended to the command line.
    env : dict
        Variables for the server's process.
    port : int or None
        A fixed port; None: a free one.
    start_timeout_s : float
        Longest wait for readiness.
    """

    python: str | None = None
    command: str | None = None
    extra_args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    port: int | None = None
    start_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0 < self.start_timeout_s < float("inf"):
            raise ConfigError(f"start_timeout_s: {self.start_timeout_s} must be a time > 0")
        if self.port is not None and not 0 < self.port < 65536:
            raise ConfigError(f"port: {self.port} must be 1 to 65535, or null for a free one")


class Backend:
    """An engine. Subclasses override what their engine has; see `docs/add-a-backend.md`."""

    name: ClassVar[str]
    title: ClassVar[str]
    environment: ClassVar[EngineEnvironment]
    reads_echo: ClassVar[bool] = False
    """Whether `/v1/completions` with `echo` returns prompt log-probabilities (log-likelihood tasks need it)."""
    echo_reads_prefix_cache: ClassVar[bool] = True
    """Whether a prompt whose log-probabilities are asked for is answered out of the prefix cache as any other is."""
    takes_token_ids: ClassVar[bool] = True
    needs_gguf: ClassVar[bool] = False
    """Whether it loads a GGUF file only; a model that has none is unsupported."""
    health_path: ClassVar[str] = "/health"
    metrics_path: ClassVar[str | None] = "/metrics"

    def __init__(self, options: BackendOptions | None = None) -> None:
        self.options = options or BackendOptions()

    def kv_bits_per_value(self, strategy: Strategy) -> float:
        """Mean bits a stored KV value takes, scales included. Raises `Unsupported` with the reason."""
        raise NotImplementedError

    def check(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> None:
        """Raise `Unsupported` where this engine can't do `strategy` or `settings`; asks no engine."""
        self.kv_bits_per_value(strategy)

    def capacity_tokens(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> int | None:
        """Tokens that the pool will hold at `settings.kv_budget_bytes`; None without a budget."""
        raise NotImplementedError

    def program(self, python: str) -> tuple[str, ...]:
        """How the environment's `python` starts the server; `command` begins with it, `options.command` replaces it."""
        raise NotImplementedError

    def command(
        self, python: str, model: Model, strategy: Strategy, settings: Settings, port: int, served_name: str
    ) -> Command:
        """The command line, without `options.extra_args` and `options.env`, which the caller adds."""
        raise NotImplementedError

    def proof(self, model: Model, strategy: Strategy, settings: Settings, log_text: str, metrics_text: str) -> Effect:
        """Read back from log and metrics what the engine does, and hold it against what was asked."""
        raise NotImplementedError

    def state(self, metrics_text: str) -> EngineState:
        """Counters out of one reading of `/metrics`."""
        raise NotImplementedError

    def reset(self, base_url: str, served_name: str) -> ResetOutcome:
        """Empty the engine's caches, reading the answer; the caller verifies with the hit counters."""
        raise NotImplementedError

    def request_extras(self, output_tokens: int) -> dict[str, Any]:
        """Body fields that make a completion exactly `output_tokens` long on this engine."""
        raise NotImplementedError

    def next_token_extras(self, top_k: int) -> dict[str, Any]:
        """Body fields that ask for the top-k log-probabilities of one next token, by token id."""
        raise NotImplementedError

    def next_token(self, response: dict[str, Any]) -> NextToken:
        """The answer to such a request."""
        raise NotImplementedError

    def greedy_extras(self, output_tokens: int) -> dict[str, Any]:
        """Body fields of a greedy answer of `output_tokens` tokens, which names its tokens where the engine can."""
        return {**self.request_extras(output_tokens), "temperature": 0.0}

    def output_token_ids(self, response: dict[str, Any]) -> list[int] | None:
        """The generated tokens of an answer to such a request; None where the engine gives text alone."""
        return None

    def cached_tokens(self, response: dict[str, Any]) -> int | None:
        """Prompt tokens that the engine says it read from its cache (OpenAI's usage, or llama.cpp's timings)."""
        usage, timings = response.get("usage"), response.get("timings")
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        count = details.get("cached_tokens") if isinstance(details, dict) else None
        if count is None and isinstance(timings, dict):
            count = timings.get("cache_n")
        return count if isinstance(count, int) else None

    def confounders(self, strategy: Strategy, settings: Settings) -> dict[str, str]:
        """Non-KV settings of this engine that can't be made equal to the others', for the report."""
        return {}


def unsupported(engine: str, key: str, value: object, allowed: Mapping[str, object] | tuple[str, ...]) -> Unsupported:
    """The error for a vocabulary word that an engine has no switch for."""
    return Unsupported(f"{engine} has no {key}={value}; it has: {', '.join(allowed)}")
