"""What an analysis says: frozen, typed, and JSON-able, so that a report needs nothing else.

None always means "not measured" or "unbounded" as its field says, never zero. An infinite value (a percentile that
falls among failed requests) is written to JSON as the text ``"inf"``.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

VERDICTS = ("better", "worse", "equivalent", "inconclusive", "not informative", "not comparable")


@dataclass(frozen=True)
class Quantile:
    """A percentile over requests (or tokens) with its distribution-free 95 % interval.

    Attributes
    ----------
    percent : int
        50, 90 or 99.
    value : float
        The order statistic; infinite where it falls among failed requests.
    low, high : float or None
        Order-statistic interval; None: the sample doesn't bound it on that side.
    n : int
        Values that it was taken from.
    """

    percent: int
    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Series:
    """One launch over time, from the window's first arrival on; every request counts, those of the warm-up too.

    Attributes
    ----------
    width_s : int
        Length of a bin; counts are of the whole bin.
    arrivals, sends, completions, failures : tuple of int
        Requests due (closed loop: sent), sent, ended well, and ended otherwise.
    output_tokens_per_s : tuple of float
        Tokens that arrived, those of requests that failed later too.
    running : tuple of float
        Mean number of requests sent and not yet ended.
    ttft_p50_ms : tuple of float or None
        Median of the requests that arrived in the bin, failures infinite; None: none did.
    itl_p50_ms : tuple of float or None
        Median of the tokens that arrived in the bin, to 0.4 %.
    """

    width_s: int
    arrivals: tuple[int, ...]
    sends: tuple[int, ...]
    completions: tuple[int, ...]
    failures: tuple[int, ...]
    output_tokens_per_s: tuple[float, ...]
    running: tuple[float, ...]
    ttft_p50_ms: tuple[float | None, ...]
    itl_p50_ms: tuple[float | None, ...]


@dataclass(frozen=True)
class ClientFigures:
    """How the load client fared in one cell (rule 11); None: not recorded.

    Attributes
    ----------
    lost_workers : tuple of str
        Client processes that were lost, and why.
    cpu_share : float or None
        CPU ÷ wall time of the busiest of the client's processes.
    loop_lag_p99_ms, loop_lag_max_ms : float or None
        How late the client's event loop came to a timer.
    send_lag_p50_ms, … : float or None
        Send − schedule over the window's requests that have a schedule.
    attained_over_asked_rate : float or None
        Rate of first turns as sent ÷ as scheduled.
    asked_concurrency, attained_over_asked_concurrency : float or None
        Sessions at a time of the closed loops; and the mean in progress ÷ that.
    reused_connections_share : float or None
        Requests that went over a connection that had served before.
    peak_streams, peak_tokens_per_s, peak_requests_per_s : float
        Most streams between their first and last token at once; most tokens and sends in one second.
    ceiling : dict or None
        What this client was found to measure well on its host (``make calibrate``).
    calibration_asked : bool
        Whether the record can say: those of older versions can't.
    """

    transport: str | None
    processes: int
    lost_workers: tuple[str, ...]
    cpu_share: float | None
    loop_lag_p99_ms: float | None
    loop_lag_max_ms: float | None
    send_lag_p50_ms: float | None
    send_lag_p90_ms: float | None
    send_lag_p99_ms: float | None
    send_lag_max_ms: float | None
    attained_over_asked_rate: float | None
    asked_concurrency: float | None
    attained_over_asked_concurrency: float | None
    reused_connections_share: float | None
    peak_streams: int
    peak_tokens_per_s: float
    peak_requests_per_s: float
    ceiling: dict[str, Any] | None
    calibration_asked: bool


@dataclass(frozen=True)
class LaunchStatistics:
    """One launch under one load: the numbers that comparisons use (rule 13), by names of `docs/metrics.md`.

    `schedule_sha256` is the hash of the traffic that it was sent. Of a tenant's requests only `values` are told.
    """

    block: int
    replica: int
    values: dict[str, float]
    schedule_sha256: str | None = None
    client: ClientFigures | None = None
    series: Series | None = None


@dataclass(frozen=True)
class DriftResult:
    """Change of the ITL along the generation, ms per 1,000 tokens, over all launches, with its 95 % interval."""

    ms_per_1k_tokens: float
    low: float
    high: float
    requests: int


@dataclass(frozen=True)
class TenantResult:
    """One tenant's requests under a load of several, over all launches; fields as in `CellResult`.

    Attributes
    ----------
    sla : str or None
        The tenant's own SLA, by name; goodput and `sla_met` are of this one.
    """

    tenant: str
    sla: str | None
    requests: int
    failed_requests: int
    errors: dict[str, int]
    launches: tuple[LaunchStatistics, ...]
    quantiles: dict[str, tuple[Quantile, ...]]
    means: dict[str, float]
    sla_met: bool | None


@dataclass(frozen=True)
class CellResult:
    """A deployment under one load, over all its launches.

    Attributes
    ----------
    state : str
        measured, failed, or client-bound.
    reason : str or None
        Why not measured.
    requests, failed_requests : int
        In the windows of all launches.
    errors : dict
        Failed requests by kind.
    launches : tuple of LaunchStatistics
        One entry a measured launch.
    quantiles : dict
        Metric (``ttft_ms``, ``itl_ms``, ``tpot_ms``, ``e2e_ms``, ``normalised_latency_ms``) → percentiles that the
        sample supports.
    means : dict
        Mean over launches of the launch statistics that are rates or shares; absent where not measured.
    sla_met : dict
        SLA name → whether every launch kept every limit.
    cache_state : str
        Prefix cache at the start of the load: cold, warm, unverified, or mixed.
    notes : tuple of str
        What a reader must know (estimated token counts, output lengths, a pool that doesn't bind).
    drift : DriftResult or None
        None: no request of three tokens or more.
    tenants : dict
        Tenant → its own results, where the load has tenants.
    """

    load: str
    state: str
    reason: str | None
    requests: int = 0
    failed_requests: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    launches: tuple[LaunchStatistics, ...] = ()
    quantiles: dict[str, tuple[Quantile, ...]] = field(default_factory=dict)
    means: dict[str, float] = field(default_factory=dict)
    sla_met: dict[str, bool] = field(default_factory=dict)
    cache_state: str = "unverified"
    notes: tuple[str, ...] = ()
    drift: DriftResult | None = None
    tenants: dict[str, TenantResult] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryResult:
    """Memory of a deployment (rule 6); None: not measured. Names and units as in `docs/metrics.md`."""

    kv_dtype: str | None = None
    kv_bytes_per_token: float | None = None
    capacity_tokens: int | None = None
    pool_bytes: int | None = None
    slots: int | None = None
    peak_kv_cache_usage: float | None = None
    peak_kv_tokens: float | None = None
    peak_pss_bytes: float | None = None
    peak_gpu_memory_bytes: float | None = None
    preemptions: float | None = None
    working_set_over_pool: dict[str, float] = field(default_factory=dict)
    max_concurrency: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class OutputCheckResult:
    """Forced decode against the same engine's 16-bit launches (rule 2), worst block first in `reason`.

    Attributes
    ----------
    broken : bool
        Whether `state` is broken.
    nll, baseline_nll : float or None
        Mean negative log-likelihood of the text's own tokens, nats; with a true token outside the top k, a lower bound.
    top1_agreement, kl : float or None
        Share of positions with the same most probable token; mean divergence over the top k, nats.
    nll_band, top1_band : float or None
        Largest NLL increase and least agreement that still pass.
    reason : str
        One sentence with the numbers.
    state : str
        sound, in doubt, broken, or not compared (of other texts than the 16-bit launches').
    nll_shift_low, nll_shift_high : float or None
        95 % interval of `nll` less `baseline_nll` over the positions of one launch, the worst one.
    positions : int
        Of all texts, in one launch.
    """

    broken: bool
    nll: float | None
    baseline_nll: float | None
    top1_agreement: float | None
    kl: float | None
    nll_band: float | None
    top1_band: float | None
    reason: str
    state: str = "sound"
    nll_shift_low: float | None = None
    nll_shift_high: float | None = None
    positions: int = 0

    @property
    def narrow(self) -> bool:
        """Ranked, though the shift is neither shown to be above zero nor to lie within the band: it must be said."""
        return self.state == "in doubt"


@dataclass(frozen=True)
class Comparison:
    """One statistic of a deployment against a baseline.

    Attributes
    ----------
    against : str
        ``engine``: the same engine's 16-bit baseline; ``common``: the scenario's common baseline.
    role : str
        ``primary`` (adjusted over the compared deployments) or ``exploratory`` (not adjusted).
    effect_pct, low_pct, high_pct : float or None
        Ratio to the baseline less one, in per cent; None: can't be said.
    verdict, reason : str
        One of `VERDICTS`, and why.
    smallest_effect_pct : float or None
        What this comparison could have seen with 80 % power, from the residual found.
    equivalence_p : float or None
        The larger p-value of two one-sided tests against the margin, unadjusted.
    """

    metric: str
    load: str
    deployment: str
    baseline: str
    against: str
    role: str
    verdict: str
    reason: str
    effect_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    launches: int = 0
    baseline_launches: int = 0
    degrees_of_freedom: int | None = None
    residual_pct: float | None = None
    smallest_effect_pct: float | None = None
    equivalence_p: float | None = None
    method: str = ""


@dataclass(frozen=True)
class GridCell:
    """Right answers of one prompt length, to questions whose answer lies within a stretch of the document's depth."""

    context_tokens: int
    depth_low: float
    depth_high: float
    n: int
    score: float


@dataclass(frozen=True)
class AccuracyScore:
    """One task on one deployment, over its launches (of the baseline: A, and A′ only where A is missing).

    `grid` is its score by length × depth, where the questions have both; `notes` is what a reader must know of how they
    were asked and scored.
    """

    task: str
    state: str
    reason: str | None
    metric: str
    n: int
    score: float | None
    chance: float | None
    exercises: tuple[str, ...] = ()
    grid: tuple[GridCell, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AccuracyComparison:
    """A task's score against a baseline, paired by block and item (rule 12).

    Attributes
    ----------
    margin_pp : float
        Largest loss that counts as none, percentage points; of a relative margin, that share of the baseline's score
        (NaN, in JSON null, where there is no score).
    margin_relative_pct : float or None
        The margin as configured, where it is relative to the baseline's score.
    difference_pp, low_pp, high_pp : float or None
        Candidate less baseline, percentage points, with its 95 % interval; not adjusted over tasks.
    relative_pct, relative_low_pct, relative_high_pct : float or None
        The same in per cent of the baseline's score; None where that is 0. What a relative margin is held against.
    n, documents : int
        Paired items, and documents that they share.
    lost, gained : int
        Items that only the baseline, and only the candidate, got right (graded: that scored lower, higher).
    non_inferior : bool
        Whether a loss as large as the margin is excluded, adjusted over the tasks.
    non_inferiority_p, difference_p : float or None
        One-sided p-value of a loss of the margin or more, and two-sided of no difference, both in agreement with the
        interval; and
    non_inferiority_p_holm, difference_p_holm : float or None
        adjusted over the deployment's tasks (Holm, 1979): what the verdict rests on.
    mcnemar_p : float or None
        Exact McNemar test of lost against gained; ignores shared documents, and no verdict rests on it.
    tasks : int
        Size of that family: the tasks that were compared and are informative.
    flip_floor_pct : float or None
        Share of the same items whose score differs between the baseline's own two launches (A, A′).
    smallest_loss_pp : float or None
        The true loss that this comparison had 80 % power to find, from the discordance seen; None: not even all.
    method : str
        What the interval is.
    """

    task: str
    deployment: str
    baseline: str
    against: str
    margin_pp: float
    verdict: str
    reason: str
    n: int = 0
    documents: int = 0
    difference_pp: float | None = None
    low_pp: float | None = None
    high_pp: float | None = None
    lost: int = 0
    gained: int = 0
    non_inferior: bool = False
    method: str = ""
    margin_relative_pct: float | None = None
    non_inferiority_p: float | None = None
    non_inferiority_p_holm: float | None = None
    difference_p: float | None = None
    difference_p_holm: float | None = None
    mcnemar_p: float | None = None
    relative_pct: float | None = None
    relative_low_pct: float | None = None
    relative_high_pct: float | None = None
    tasks: int = 1
    flip_floor_pct: float | None = None
    smallest_loss_pp: float | None = None

    @property
    def margin(self) -> str:
        """The margin in words, and which of the two it is."""
        if self.margin_relative_pct is None:
            return f"{self.margin_pp:g} pp"
        return f"{self.margin_relative_pct:g} % of the baseline's score ({self.margin_pp:.1f} pp)"


@dataclass(frozen=True)
class FlipFloor:
    """Answers of the baseline's launch A′ against its launch A: what differs though nothing was changed.

    Attributes
    ----------
    blocks : dict
        Block → share of the items whose score differs there.
    lost, gained : int
        Items that only A, and only A′, got right, over all blocks.
    identical : float or None
        Share of generated answers that are equal text; None: nothing was generated.
    """

    task: str
    deployment: str
    n: int
    lost: int
    gained: int
    flips_pct: float
    blocks: dict[str, float]
    identical: float | None = None


@dataclass(frozen=True)
class TextAgreement:
    """Generated answers of one task held against other texts: BLEU-4 (sacrebleu) and ROUGE-L (rouge-score).

    Attributes
    ----------
    against : str
        ``references``: the task's own; ``engine`` or ``common``: the answers of that baseline.
    bleu4, rouge_l : float
        Corpus BLEU (None: the references have no four tokens in a row) and mean F-measure of ROUGE-L, 0 to 100.
    bleu4_low, bleu4_high, rouge_l_low, rouge_l_high : float or None
        95 % intervals; None: one document, or no spread between them.
    identical : float
        Share of answers equal to the reference text.
    """

    task: str
    deployment: str
    against: str
    n: int
    bleu4: float | None
    rouge_l: float
    identical: float
    bleu4_low: float | None = None
    bleu4_high: float | None = None
    rouge_l_low: float | None = None
    rouge_l_high: float | None = None
    method: str = ""


@dataclass(frozen=True)
class FidelityBand:
    """Forced decode over a stretch of the context, against the same engine's 16-bit launch of the block.

    Attributes
    ----------
    first_position, last_position : int
        Tokens of context before the prediction.
    nll, nll_delta, nll_delta_low, nll_delta_high : float or None
        Mean NLL of the text's own tokens, its change, and the change's 95 % interval; nats.
    top1_agreement, kl : float or None
        Share of positions with the same most probable token; mean KL divergence over the top k, nats.
    """

    name: str
    first_position: int
    last_position: int
    positions: int
    nll: float | None
    nll_delta: float | None
    nll_delta_low: float | None
    nll_delta_high: float | None
    top1_agreement: float | None
    kl: float | None


@dataclass(frozen=True)
class FidelityResult:
    """How near a deployment's predictions and greedy answers stay to the same engine's 16-bit launch.

    Of a 16-bit baseline it is A′ against A: the floor that the others are read against.

    Attributes
    ----------
    bands : tuple of FidelityBand
        ``all`` first, then stretches of the context from early to late.
    cache_hits_verified : bool or None
        Whether the engine's own counters show that prefixes were read from the cache; None: it has none.
    cache_hits : str
        What the counters showed.
    greedy_prompts, greedy_tokens : int
        Greedy continuations compared, and tokens of each.
    identical_outputs : float or None
        Share of them that are equal to the baseline's.
    divergence_tokens_median : float or None
        Tokens before the first difference, median over prompts (an identical output counts as its whole length).
    """

    baseline: str
    is_floor: bool
    blocks: int
    texts: int
    bands: tuple[FidelityBand, ...]
    cache_hits_verified: bool | None
    cache_hits: str
    greedy_prompts: int = 0
    greedy_tokens: int = 0
    identical_outputs: float | None = None
    divergence_tokens_median: float | None = None


@dataclass(frozen=True)
class DeterminismResult:
    """The same requests again and again: how often the whole output is the same.

    Attributes
    ----------
    identical_alone, identical_under_load : float or None
        Share of repeats whose output equals the first answer to the same request when it was alone.
    beside : int
        Other requests under way at a time while it was loaded.
    """

    launches: int
    prompts: int
    repeats: int
    output_tokens: int
    identical_alone: float | None
    identical_under_load: float | None
    beside: int


@dataclass(frozen=True)
class NoiseFloor:
    """Spread between A and A′, one engine and load: SD of a launch's statistic within a block, per cent."""

    deployment: str
    load: str
    metric: str
    sd_pct: float
    pairs: int


@dataclass(frozen=True)
class LaunchFacts:
    """What one launch was: for the parts of the report that let a reader repeat it."""

    block: int
    launch: str
    deployment: str
    replica: int
    state: str
    reason: str | None
    argv: tuple[str, ...]
    env: dict[str, str]
    engine_version: str | None
    settings: dict[str, Any]
    confounders: dict[str, str]
    seconds: dict[str, float]
    evidence: tuple[str, ...]
    mismatches: tuple[str, ...]
    errors: tuple[str, ...]
    schedule_sha256: dict[str, str]


@dataclass(frozen=True)
class DeploymentResult:
    """A candidate: what became of it and what was measured."""

    id: str
    backend: str
    model: str
    strategy: str
    backend_title: str
    strategy_title: str
    engine_baseline: bool
    common_baseline: bool
    check_only: bool
    state: str
    reason: str | None
    launches: int
    failed_launches: int
    memory: MemoryResult
    cells: dict[str, CellResult]
    accuracy: dict[str, AccuracyScore]
    output_check: OutputCheckResult | None
    fidelity: FidelityResult | None = None
    determinism: DeterminismResult | None = None

    @property
    def ranked(self) -> bool:
        """Whether its speed takes part in comparisons."""
        return self.state == "measured" and not self.check_only

    @property
    def label(self) -> str:
        """For people: engine + strategy, cut where absurdly long."""
        return f"{shortened(self.backend_title)} + {shortened(self.strategy_title)}"


@dataclass(frozen=True)
class Analysis:
    """Everything that is said about one run; `bench.report` reads nothing else.

    Attributes
    ----------
    blocks, blocks_planned : int
        Complete blocks, which alone are analysed, and those planned.
    interrupted : tuple of str
        Folders of blocks that were cut short: kept, not analysed.
    plan : dict
        The plan as carried out, for plan against actual.
    manifest : dict
        Identity, versions, hardware, hashes.
    """

    schema_version: int
    scenario: str
    title: str
    run: str
    status: str
    created: str | None
    finished: str | None
    precision: str
    blocks: int
    blocks_planned: int
    interrupted: tuple[str, ...]
    deployments: tuple[DeploymentResult, ...]
    comparisons: tuple[Comparison, ...]
    accuracy: tuple[AccuracyComparison, ...]
    noise: tuple[NoiseFloor, ...]
    launches: tuple[LaunchFacts, ...]
    seconds_by_block: dict[str, float]
    plan: dict[str, Any]
    manifest: dict[str, Any]
    problems: tuple[str, ...] = ()
    flip_floors: tuple[FlipFloor, ...] = ()
    texts: tuple[TextAgreement, ...] = ()

    def deployment(self, deployment_id: str) -> DeploymentResult:
        return next(d for d in self.deployments if d.id == deployment_id)

    def compared(self, deployment_id: str, against: str, role: str = "primary") -> list[Comparison]:
        """Comparisons of one deployment, in the order of loads and metrics."""
        return [c for c in self.comparisons if (c.deployment, c.against, c.role) == (deployment_id, against, role)]


def shortened(text: str, most: int = 60) -> str:
    """Text cut to `most` characters, with an ellipsis where something is missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


def to_json(analysis: Analysis) -> dict[str, Any]:
    """The analysis as plain JSON values; infinite numbers become ``"inf"``."""
    whole = asdict(analysis)
    for row, result in zip(whole["deployments"], analysis.deployments, strict=True):
        row["ranked"] = result.ranked
    return dict(plain(whole))


def plain(value: Any) -> Any:
    """A value of JSON: keys as text, infinite numbers as ``"inf"``, NaN as null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value
