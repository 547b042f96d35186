"""llama.cpp's server. Flags and endpoints: tools/server/README.md of llama.cpp; started out of `xllamacpp` 2026.10."""

import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from harness.backends import backend, llama_cpp_launcher
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
from harness.prometheus import totals
from harness.settings import Settings
from harness.strategy import Strategy

# kv_dtype -> (name, mean bits a value). 32 values share one f16 scale (ggml-common.h: block_q8_0, block_q4_0).
KV_TYPES = {"16bit": ("f16", 16.0), "int8": ("q8_0", 8.5), "int4": ("q4_0", 4.5)}
CELLS_MULTIPLE = 256
"""Cells of a slot are rounded up to a multiple of this (llama-context.cpp)."""

SIZE = re.compile(
    r"llama_kv_cache: size =\s*(?P<mib>[\d.]+) MiB \(\s*(?P<cells>\d+) cells,\s*(?P<layers>\d+) layers,\s*"
    r"(?P<sequences>\d+)/\d+ seqs\), K \((?P<k>\w+)\):\s*[\d.]+ MiB, V \((?P<v>\w+)\)"
)
SETTING = re.compile(r"llama_context: (?P<key>n_ctx|n_ctx_seq|n_seq_max|flash_attn|kv_unified)\s*= (?P<value>\S+)")


@backend("llama-cpp")
class LlamaCpp(Backend):
    """llama.cpp's server: a fixed number of slots, each with its own share of the KV pool."""

    title = "llama.cpp"
    environment = EngineEnvironment(
        extra="llama-cpp",
        requirements=("xllamacpp==2026.10.11549",),
        python_versions=((3, 11), (3, 12), (3, 13)),
        verify=("-c", "import importlib.metadata as m, xllamacpp; print('xllamacpp', m.version('xllamacpp'))"),
    )
    reads_echo = False
    needs_gguf = True

    def kv_bits_per_value(self, strategy: Strategy) -> float:
        return _kv_type(strategy)[1]

    def check(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> None:
        self.kv_bits_per_value(strategy)
        if strategy.sliding_window_tokens is not None:
            raise Unsupported("llama.cpp takes a sliding window from the model's file only; a server can't set one")
        if settings.swap_space_gib:
            raise Unsupported(
                "llama.cpp never swaps: a slot's context is reserved at start. Prompts kept in host memory are "
                "--cache-ram <MiB>, by backend.llama-cpp.extra_args; leave swap_space_gib unset"
            )
        if settings.block_size_tokens is not None:
            raise Unsupported("llama.cpp's cache has no blocks; leave block_size_tokens unset")
        if settings.gpu_memory_utilization is not None:
            raise Unsupported("llama.cpp has no memory utilisation setting; set kv_budget_bytes instead")
        if settings.tensor_parallel != 1:
            raise Unsupported("llama.cpp spreads over all devices that it sees; tensor_parallel must be 1")
        if settings.threads is not None and settings.threads > _cores(settings):
            raise ConfigError(f"threads: {settings.threads} on {_cores(settings)} cores would stall one another")
        if self._slot_tokens(strategy, shape, settings) < settings.context_tokens:
            needed = _round_up(settings.context_tokens) * shape.kv_bytes_per_token(self.kv_bits_per_value(strategy))
            raise Unsupported(
                f"kv_budget_bytes {settings.kv_budget_bytes} holds no slot of context_tokens "
                f"{settings.context_tokens}: llama.cpp needs {math.ceil(needed)} bytes"
            )

    def _pool_tokens(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> int:
        """Cells that the budget pays for; without one, every slot gets a full context."""
        if settings.kv_budget_bytes is None:
            return _round_up(settings.context_tokens) * settings.max_num_seqs
        return int(settings.kv_budget_bytes / shape.kv_bytes_per_token(self.kv_bits_per_value(strategy)))

    def _slots(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> int:
        """Nothing is preempted, so every slot must hold a full context: the budget decides how many there are."""
        fitting = self._pool_tokens(strategy, shape, settings) // _round_up(settings.context_tokens)
        return max(1, min(settings.max_num_seqs, fitting))

    def _slot_tokens(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> int:
        share = self._pool_tokens(strategy, shape, settings) // self._slots(strategy, shape, settings)
        return share // CELLS_MULTIPLE * CELLS_MULTIPLE

    def capacity_tokens(self, strategy: Strategy, shape: ModelShape, settings: Settings) -> int | None:
        if settings.kv_budget_bytes is None:
            return None
        return self._slot_tokens(strategy, shape, settings) * self._slots(strategy, shape, settings)

    def program(self, python: str) -> tuple[str, ...]:
        return (python, str(Path(llama_cpp_launcher.__file__).resolve()))

    def command(
        self, python: str, model: Model, strategy: Strategy, settings: Settings, port: int, served_name: str
    ) -> Command:
        self.check(strategy, model.shape, settings)
        if model.gguf is None:
            raise Unsupported(f"llama.cpp needs a GGUF file, and model {model.name} has none")
        kv_type = _kv_type(strategy)[0]
        slots = self._slots(strategy, model.shape, settings)
        threads = settings.threads or _cores(settings)
        flags: dict[str, object] = {
            "-m": model.gguf,
            "--alias": served_name,
            "--host": "127.0.0.1",
            "--port": port,
            "-c": self._slot_tokens(strategy, model.shape, settings) * slots,
            "-np": slots,
            "-ctk": kv_type,
            "-ctv": kv_type,
            "-fa": "on",  # a quantised V needs it; on for f16 too, so that only the format differs
            "-t": threads,
            "-tb": threads,
            "-b": settings.max_num_batched_tokens,
            "-lv": 4,  # the KV pool's size is logged from here on
            "-cram": 0,  # no second tier in host memory: reuse must be what the budget pays for
            "-fit": "off",  # never trade context for memory behind our back
            "--slot-save-path": tempfile.gettempdir(),  # opens /slots/<id>?action=erase; nothing is ever saved
            "--sse-ping-interval": -1,
            "--no-ui": True,
            "--metrics": True,
            "--cache-prompt" if strategy.prefix_reuse else "--no-cache-prompt": True,
        }
        argv = [*self.program(python)]
        for flag, value in flags.items():
            if value is not None:
                argv += [flag] if value is True else [flag, str(value)]
        return Command(tuple(argv), WAIT_ASLEEP)

    def proof(self, model: Model, strategy: Strategy, settings: Settings, log_text: str, metrics_text: str) -> Effect:
        """Read the line in which the server says what it allotted, and the context's settings."""
        size = next(iter(SIZE.finditer(log_text)), None)
        evidence = tuple(
            line.strip()[:300] for line in log_text.splitlines() if SIZE.search(line) or SETTING.search(line)
        )
        if size is None:
            reason = "llama.cpp's log doesn't tell the size of its KV cache (needs -lv 4): nothing is proved"
            return Effect((reason,), evidence, "unknown", None, None, None)
        said = {match["key"]: match["value"] for match in SETTING.finditer(log_text)}
        slots, capacity = int(size["sequences"]), int(size["cells"]) * int(size["sequences"])
        if said.get("kv_unified") == "true":
            capacity = int(size["cells"])
        pool_bytes = round(float(size["mib"]) * 2**20)
        kv_type = _kv_type(strategy)[0]
        wanted_slots = self._slots(strategy, model.shape, settings)
        wanted_tokens = self._slot_tokens(strategy, model.shape, settings) * wanted_slots
        expected = {
            "type of K": (size["k"], kv_type),
            "type of V": (size["v"], kv_type),
            "slots": (slots, wanted_slots),
            "tokens in the pool": (capacity, wanted_tokens),
            "layers in the pool": (int(size["layers"]), model.shape.layers),
            "flash attention": (said.get("flash_attn", "not reported"), "enabled"),
        }
        mismatches = [
            f"{what} is {found}, asked for {asked}" for what, (found, asked) in expected.items() if found != asked
        ]
        budget = settings.kv_budget_bytes
        if budget is not None and pool_bytes > budget * 1.001:  # the log rounds to 0.01 MiB
            mismatches.append(f"the pool takes {pool_bytes} bytes, more than kv_budget_bytes {budget}")
        kv_dtype = size["k"] if size["k"] == size["v"] else f"{size['k']}/{size['v']}"
        return Effect(tuple(mismatches), evidence, kv_dtype, capacity, pool_bytes, pool_bytes / capacity, slots)

    def state(self, metrics_text: str) -> EngineState:
        """Its metrics tell nothing of the pool's use, and it never preempts."""
        said = totals(metrics_text)
        computed, cached = said.get("llamacpp:prompt_tokens_total"), said.get("llamacpp:prompt_tokens_cached_total")
        running, waiting = said.get("llamacpp:requests_processing"), said.get("llamacpp:requests_deferred")
        return EngineState(
            requests_running=None if running is None else int(running),
            requests_waiting=None if waiting is None else int(waiting),
            prefix_queries_total=None if computed is None or cached is None else computed + cached,
            prefix_hits_total=cached,
        )

    def reset(self, base_url: str, served_name: str) -> ResetOutcome:
        """Erase every slot; each answer says how many tokens went."""
        try:
            listing = request("GET", f"{base_url}/slots")
            slots = [int(slot["id"]) for slot in listing.json()]
            erased: list[int] = []
            for slot in slots:
                answer = request("POST", f"{base_url}/slots/{slot}?action=erase", {}, timeout_s=60.0)
                if answer.status != 200:
                    return ResetOutcome(False, f"erasing slot {slot} answered {answer.status} {answer.text[:200]}")
                erased.append(int(answer.json()["n_erased"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            return ResetOutcome(False, f"erasing the slots gave no answer that can be read: {error!r}")
        return ResetOutcome(bool(slots), f"erased {', '.join(map(str, erased))} tokens of slots {slots}")

    def request_extras(self, output_tokens: int) -> dict[str, Any]:
        return {"max_tokens": output_tokens, "ignore_eos": True}

    def next_token_extras(self, top_k: int) -> dict[str, Any]:
        return {"max_tokens": 1, "logprobs": top_k}

    def next_token(self, response: dict[str, Any]) -> NextToken:
        """Log-probabilities come in the chat API's shape, with token ids."""
        top = response["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        ranked = sorted(((int(one["id"]), float(one["logprob"])) for one in top), key=lambda one: (-one[1], one[0]))
        return NextToken(tuple(token for token, _ in ranked), tuple(value for _, value in ranked))

    def greedy_extras(self, output_tokens: int) -> dict[str, Any]:
        # `return_tokens` is for /completion alone; log-probabilities name the tokens here
        return {**super().greedy_extras(output_tokens), "logprobs": 1}

    def output_token_ids(self, response: dict[str, Any]) -> list[int] | None:
        return [int(token["id"]) for token in response["choices"][0]["logprobs"]["content"]]

    def confounders(self, strategy: Strategy, settings: Settings) -> dict[str, str]:
        return {
            "weights": "float16",
            "graphs": "none",
            "scheduling": "a fixed number of slots, each with room for a full context; the rest wait",
            "prefix cache": "the last prompt of each slot, to the token; not shared between slots",
            "attention": "flash attention for every KV format",
        }


def _kv_type(strategy: Strategy) -> tuple[str, float]:
    if strategy.kv_dtype not in KV_TYPES:
        raise unsupported("llama.cpp", "kv_dtype", strategy.kv_dtype, tuple(KV_TYPES))
    if strategy.kv_granularity not in (None, "group") or (strategy.kv_dtype == "16bit" and strategy.kv_granularity):
        allowed = ("null",) if strategy.kv_dtype == "16bit" else ("group",)
        raise unsupported(f"llama.cpp's {strategy.kv_dtype} cache", "kv_granularity", strategy.kv_granularity, allowed)
    return KV_TYPES[strategy.kv_dtype]


def _cores(settings: Settings) -> int:
    return len(settings.cores if settings.cores is not None else os.sched_getaffinity(0))


def _round_up(tokens: int) -> int:
    return math.ceil(tokens / CELLS_MULTIPLE) * CELLS_MULTIPLE
