"""A load profile: workload × arrival process. Also the Hydra schema of `scenarios/load/*.yaml`."""

from dataclasses import dataclass, field

from harness.errors import ConfigError

CACHE_STATES = ("cold", "warm")


@dataclass
class Workload:
    """What is asked.

    Attributes
    ----------
    kind : str
        ``sharegpt``: multi-turn sessions in the shape of ShareGPT, scaled to the mean lengths below;
        ``synthetic``: single requests of fixed lengths.
    input_tokens_mean, output_tokens_mean : int
        Mean prompt length (for sessions: cumulative context) and output length of a request, in tokens.
    input_tokens_max : int or None
        Longest prompt; None: the context less the output.
    output_tokens_fixed : bool
        Every request is exactly `output_tokens_mean` long; else the shape's distribution, scaled.
    turns_max : int
        Most turns of a session.
    shared_prefix_tokens : int
        Tokens at the start that all sessions share (a system prompt).
    """

    kind: str = "sharegpt"
    input_tokens_mean: int = 1024
    output_tokens_mean: int = 64
    input_tokens_max: int | None = None
    output_tokens_fixed: bool = True
    turns_max: int = 4
    shared_prefix_tokens: int = 0


@dataclass
class Arrival:
    """When it is asked.

    Attributes
    ----------
    kind : str
        ``closed``: `concurrency` sessions at a time; ``poisson`` or ``constant``: session starts at `rate_rps`.
    concurrency : int or None
        Sessions at a time (closed loop).
    rate_rps : float or None
        Session starts a second (open loop). For sessions of one turn these are requests a second.
    """

    kind: str = "closed"
    concurrency: int | None = None
    rate_rps: float | None = None


@dataclass
class Load:
    """A load profile.

    Attributes
    ----------
    title : str
        Label for tables.
    workload : Workload
    arrival : Arrival
    requests : int
        Requests in the measured window.
    warmup_requests : int
        Requests before the window, on prompts that the window never uses.
    think_time_s : float
        Pause between the end of a turn and the next one.
    timeout_s : float
        A request longer than this is a failure.
    cache_state : str
        State of the prefix cache at the start of the window: ``cold`` (reset and verified) or ``warm``.
    """

    title: str = ""
    workload: Workload = field(default_factory=Workload)
    arrival: Arrival = field(default_factory=Arrival)
    requests: int = 32
    warmup_requests: int = 2
    think_time_s: float = 0.0
    timeout_s: float = 300.0
    cache_state: str = "cold"

    def __post_init__(self) -> None:
        # The registries are filled by modules that need the classes above.
        from harness.traffic.arrivals import ARRIVALS
        from harness.traffic.workload import WORKLOADS

        for key, value, allowed in (
            ("workload.kind", self.workload.kind, tuple(sorted(WORKLOADS))),
            ("arrival.kind", self.arrival.kind, tuple(sorted(ARRIVALS))),
            ("cache_state", self.cache_state, CACHE_STATES),
        ):
            if value not in allowed:
                raise ConfigError(f"{key}: '{value}' is unknown; allowed: {', '.join(allowed)}")
        if self.arrival.kind == "closed" and not (self.arrival.concurrency or 0) > 0:
            raise ConfigError("arrival.concurrency: a closed loop needs a number > 0")
        if self.arrival.kind != "closed" and not (self.arrival.rate_rps or 0) > 0:
            raise ConfigError(f"arrival.rate_rps: a {self.arrival.kind} arrival needs a rate > 0")
        if self.requests < 1:
            raise ConfigError(f"requests: {self.requests} must be >= 1")
        for key in ("warmup_requests", "think_time_s"):
            if getattr(self, key) < 0:
                raise ConfigError(f"{key}: {getattr(self, key)} must be >= 0")
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout_s: {self.timeout_s} must be > 0")
