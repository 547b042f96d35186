"""llama.cpp: what it is told, and what its own words prove. The recorded texts are of xllamacpp 2026.10."""

from dataclasses import replace

import pytest
from recorded_texts import recorded

from harness.backends import llama_cpp_launcher
from harness.backends.llama_cpp import LlamaCpp
from harness.errors import Unsupported
from harness.model import Model, ModelShape
from harness.settings import Settings
from harness.strategy import Strategy

SETTINGS = Settings(context_tokens=6400, max_num_seqs=4, kv_budget_bytes=8192 * 23_040)
INT8, INT4 = Strategy(kv_dtype="int8"), Strategy(kv_dtype="int4")


@pytest.mark.parametrize(
    ("name", "strategy", "dtype", "tokens", "slots", "per_token"),
    [
        ("llama-cpp-baseline", Strategy(), "f16", 8192, 1, 23_040),
        ("llama-cpp-kv-int8", INT8, "q8_0", 15_360, 2, 12_240),
        ("llama-cpp-kv-int4", INT4, "q4_0", 28_672, 4, 6_480),
    ],
)
def test_a_real_server_proves_its_strategy(
    name: str, strategy: Strategy, dtype: str, tokens: int, slots: int, per_token: float, model: Model
) -> None:
    effect = LlamaCpp().proof(model, strategy, SETTINGS, *recorded(name))
    assert effect.mismatches == ()
    assert (effect.kv_dtype, effect.capacity_tokens, effect.slots) == (dtype, tokens, slots)
    assert effect.kv_bytes_per_token == pytest.approx(per_token, rel=1e-4)  # the log rounds to 0.01 MiB
    assert effect.capacity_tokens == LlamaCpp().capacity_tokens(strategy, model.shape, SETTINGS)
    assert any("llama_kv_cache: size" in line for line in effect.evidence)


@pytest.mark.parametrize(
    ("name", "strategy", "words"),
    [
        ("llama-cpp-baseline", INT8, "type of K is f16, asked for q8_0"),
        ("llama-cpp-kv-int8", Strategy(), "type of V is q8_0, asked for f16"),
        ("llama-cpp-kv-int8", INT4, "tokens in the pool is 15360, asked for 28672"),
        ("llama-cpp-kv-int8", INT4, "slots is 2, asked for 4"),
    ],
)
def test_a_flag_that_changed_nothing_is_found(name: str, strategy: Strategy, words: str, model: Model) -> None:
    effect = LlamaCpp().proof(model, strategy, SETTINGS, *recorded(name))
    assert words in effect.mismatches


def test_a_pool_larger_than_the_budget_is_found(model: Model) -> None:
    log, metrics = recorded("llama-cpp-baseline")
    effect = LlamaCpp().proof(model, Strategy(), SETTINGS, log.replace("180.00 MiB", "190.00 MiB"), metrics)
    assert any("more than kv_budget_bytes" in mismatch for mismatch in effect.mismatches)


def test_counters_are_read() -> None:
    _, metrics = recorded("llama-cpp-baseline")
    busy = metrics.replace("prompt_tokens_total 0", "prompt_tokens_total 101")
    state = LlamaCpp().state(busy.replace("cached_total 0", "cached_total 99"))
    assert (state.requests_running, state.requests_waiting) == (0, 0)
    assert (state.prefix_queries_total, state.prefix_hits_total) == (200, 99)
    assert state.kv_cache_usage is None and state.preemptions_total is None


def test_every_slot_holds_a_full_context(shape: ModelShape) -> None:
    for strategy in (Strategy(), INT8, INT4):
        for seqs in (1, 2, 3, 16):
            settings = replace(SETTINGS, max_num_seqs=seqs)
            slots = LlamaCpp()._slots(strategy, shape, settings)
            capacity = LlamaCpp().capacity_tokens(strategy, shape, settings)
            assert capacity is not None and capacity // slots >= settings.context_tokens
            assert 1 <= slots <= seqs


def test_without_a_budget_every_request_gets_a_slot(model: Model) -> None:
    argv = LlamaCpp().command("py", model, Strategy(), replace(SETTINGS, kv_budget_bytes=None), 1, "x").argv
    assert argv[argv.index("-np") + 1] == "4"
    assert int(argv[argv.index("-c") + 1]) == 4 * 6400


def test_host_memory_is_no_second_tier_and_reuse_can_be_switched_off(model: Model) -> None:
    on = LlamaCpp().command("py", model, Strategy(), SETTINGS, 1, "x").argv
    off = LlamaCpp().command("py", model, Strategy(prefix_reuse=False), SETTINGS, 1, "x").argv
    assert on[on.index("-cram") + 1] == "0"
    assert "--cache-prompt" in on and "--no-cache-prompt" in off and "--cache-prompt" not in off


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (Strategy(kv_dtype="fp8_e4m3"), "llama.cpp has no kv_dtype=fp8_e4m3; it has: 16bit, int8, int4"),
        (Strategy(kv_dtype="int8", kv_granularity="token_head"), "kv_granularity=token_head; it has: group"),
        (Strategy(sliding_window_tokens=512), "sliding window"),
    ],
)
def test_what_it_lacks_is_said(strategy: Strategy, reason: str, shape: ModelShape) -> None:
    with pytest.raises(Unsupported, match=reason):
        LlamaCpp().check(strategy, shape, SETTINGS)


def test_a_model_without_a_gguf_is_refused(model: Model) -> None:
    with pytest.raises(Unsupported, match="needs a GGUF file, and model smollm2-135m has none"):
        LlamaCpp().command("py", replace(model, gguf=None), Strategy(), SETTINGS, 1, "x")


@pytest.mark.parametrize("strategy", [Strategy(), INT8, INT4, Strategy(prefix_reuse=False)])
def test_the_launcher_takes_the_command_line(strategy: Strategy, model: Model) -> None:
    command = LlamaCpp().command("py", model, strategy, SETTINGS, 18_555, "x")
    given = llama_cpp_launcher.parser().parse_args(command.argv[2:])
    assert (given.alias, given.port, given.host, given.metrics, given.ui) == ("x", 18_555, "127.0.0.1", True, False)
    assert given.cache_prompt is strategy.prefix_reuse
    assert given.cache_type_k == given.cache_type_v


def test_the_launcher_refuses_a_flag_that_it_does_not_pass_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        llama_cpp_launcher.parser().parse_args(["-m", "x", "-a", "y", "--port", "1", "--mlock"])
    assert "unrecognized arguments: --mlock" in capsys.readouterr().err


def test_a_next_token_is_read_most_probable_first() -> None:
    top = [{"id": 327, "logprob": -4.3}, {"id": 260, "logprob": -3.8}]
    token = LlamaCpp().next_token({"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]})
    assert token.token_ids == (260, 327)
    assert token.logprobs == (-3.8, -4.3)
