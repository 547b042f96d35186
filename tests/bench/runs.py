"""The run that most tests of analysis and report start from."""

from typing import Any

from tests.bench.run_folder import LaunchSpec, deployment, effect, forced_decode, plan, samples, steady

BASE, FP8, INT8 = "vllm+tiny+baseline", "vllm+tiny+kv-fp8", "vllm+tiny+kv-int8"
LLAMA, Q8 = "llama-cpp+tiny+baseline", "llama-cpp+tiny+kv-q8"


def spec(block: int, *, ttft_ms: float = 400, right: int = 16, **more: Any) -> LaunchSpec:
    more.setdefault("effect", effect())
    return LaunchSpec(rows=steady(ttft_ms=ttft_ms * (1 + 0.01 * block)), items=samples(right, block=block), **more)


def five(blocks: int = 3) -> tuple[dict[str, Any], dict[tuple[int, str, int], LaunchSpec]]:
    """One run: vLLM 16-bit, fp8 (a third faster) and a broken int8 checked once; llama.cpp 16-bit and q8 (slower)."""
    deployments = [
        deployment("vllm", "baseline"),
        deployment("vllm", "kv-fp8"),
        deployment("vllm", "kv-int8", check_only=True),
        deployment("llama-cpp", "baseline"),
        deployment("llama-cpp", "kv-q8"),
    ]
    no_fp8 = {"backend": "llama-cpp", "model": "tiny", "strategy": "kv-fp8"}
    support = [{**no_fp8, "state": "unsupported", "reason": "no fp8 type"}]
    launches: dict[tuple[int, str, int], LaunchSpec] = {}
    for b in range(blocks):
        launches[b, BASE, 1] = spec(b)
        launches[b, BASE, 2] = spec(b, ttft_ms=404)
        launches[b, FP8, 1] = spec(b, ttft_ms=260 + b, effect=effect("fp8_e4m3", 0.5))
        launches[b, LLAMA, 1] = spec(b, ttft_ms=600 + 3 * b)
        launches[b, Q8, 1] = spec(b, ttft_ms=800 - 2 * b, effect=effect("q8_0", 0.53))
    broken = forced_decode(nll=9.4, top1=[9] * 20)
    launches[0, INT8, 1] = LaunchSpec(rows=None, effect=effect("int8", 0.5), output_check=broken)
    return plan(deployments, blocks=blocks, support=support), launches
