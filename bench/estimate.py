"""How long a launch takes and how much memory it needs: a count of tokens over rates, and what the host has taught."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.calibration import Calibration
from bench.config import Config
from bench.plan import Deployment, LaunchEstimate
from bench.plan_load import LoadSize
from bench.plan_memory import weight_bytes
from harness.accuracy import determinism, greedy, output_check
from harness.accuracy.task import kind_of, unsupported_on
from harness.backends.interface import Backend
from harness.settings import Settings
from harness.traffic.load import Load

STOP_S = 1.0
TASK_START_S = 3.0
"""Start of the lm-eval process and loading of its task."""
UNDER_LOAD_FACTOR = 3.0
"""Questions beside a load share the engine with it; what it is on this host is learned."""


@dataclass(frozen=True)
class _Rates:
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    request_s: float

    def seconds(self, prefill_tokens: int, output_tokens: int, requests: int) -> float:
        """Of requests that are sent one after another."""
        computed = prefill_tokens / self.prefill_tokens_per_s + output_tokens / self.decode_tokens_per_s
        return computed + requests * self.request_s


def estimate(
    deployment: Deployment,
    config: Config,
    backend: Backend,
    settings: Settings,
    loads: Sequence[tuple[Load, LoadSize]],
    calibration: Calibration,
    on_gpu: bool,
) -> LaunchEstimate:
    spec, strategy = config.model[deployment.model], config.strategy[deployment.strategy]
    speed = calibration.engine(deployment.backend, deployment.strategy, on_gpu)
    slower = max(spec.shape.parameters, 1) / speed.reference_parameters / (settings.tensor_parallel if on_gpu else 1)
    prefill, decode = speed.prefill_tokens_per_s / slower, speed.decode_tokens_per_s / slower
    load_s = sum(size.seconds(load, prefill, decode, speed.request_s) for load, size in loads)
    rates = _Rates(prefill, decode, speed.request_s)
    reuse, context_tokens, options = strategy.prefix_reuse, settings.context_tokens, config.scenario.fidelity
    accuracy_s = 0.0
    for task in config.accuracy.values():
        if unsupported_on(task, backend) is None:
            asked = kind_of(task).size(task)
            prompt_tokens = asked.distinct_prompt_tokens if reuse else asked.prompt_tokens
            asking_s = rates.seconds(prompt_tokens, asked.output_tokens, asked.questions)
            accuracy_s += TASK_START_S + (UNDER_LOAD_FACTOR * asking_s if task.under_load else asking_s)
    check_tokens, checks = output_check.size(options, context_tokens, prefix_reuse=reuse, echo=backend.reads_echo)
    fidelity_s = rates.seconds(*greedy.size(options, context_tokens, prefix_reuse=reuse))
    # Repeats are asked in the first block only.
    fidelity_s += rates.seconds(*determinism.size(options, context_tokens)) / config.scenario.blocks
    capacity = backend.capacity_tokens(strategy, spec.shape, settings)
    bytes_per_token = spec.shape.kv_bytes_per_token(backend.kv_bits_per_value(strategy))
    working_set = max(size.working_set_tokens(load) for load, size in loads)
    counted_s = {
        "output_check": rates.seconds(check_tokens, 0, checks),
        "fidelity": fidelity_s,
        "load": load_s,
        "accuracy": accuracy_s,
    }
    learned_s = {phase: speed.factor(phase) * seconds for phase, seconds in counted_s.items()}
    return LaunchEstimate(
        deployment=deployment.id,
        seconds={"start": speed.start_seconds(), **learned_s, "stop": STOP_S},
        counted_s=counted_s,
        kv_bytes_per_token=bytes_per_token,
        capacity_tokens=capacity,
        pool_bytes=None if capacity is None else math.ceil(capacity * bytes_per_token),
        weight_bytes=weight_bytes(spec.shape),
        working_set_tokens=working_set,
        working_set_bytes=working_set * bytes_per_token,
    )


def check_only_estimates(estimates: dict[str, LaunchEstimate], check_only: frozenset[str]) -> dict[str, LaunchEstimate]:
    none = {"load": 0.0, "accuracy": 0.0}
    return {
        name: replace(e, seconds=e.seconds | none, counted_s=e.counted_s | none) if name in check_only else e
        for name, e in estimates.items()
    }
