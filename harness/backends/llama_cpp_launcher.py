"""Run llama.cpp's own HTTP server out of the `xllamacpp` package, told by llama-server's own flags.

A script for the engine's environment: it imports nothing of this project, and `xllamacpp` only when it runs. Since the
flags are llama-server's, a user's own `llama-server` takes the same command line (`backend.command=`).
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

ON_OFF = ("on", "off", "auto")


def parser() -> argparse.ArgumentParser:
    """Those of llama-server's flags that reach the server through the package; others are refused by name."""
    flags = argparse.ArgumentParser(prog="llama_cpp_launcher", allow_abbrev=False)
    add = flags.add_argument
    add("-m", "--model", required=True)
    add("-a", "--alias", required=True)
    add("--host", default="127.0.0.1")
    add("--port", type=int, required=True)
    add("-c", "--ctx-size", type=int, default=0)
    add("-np", "--parallel", type=int, default=1)
    add("-ctk", "--cache-type-k", default="f16")
    add("-ctv", "--cache-type-v", default="f16")
    add("-fa", "--flash-attn", choices=ON_OFF, default="auto")
    add("-t", "--threads", type=int, default=-1)
    add("-tb", "--threads-batch", type=int, default=-1)
    add("--threads-http", type=int, default=-1)
    add("-b", "--batch-size", type=int, default=2048)
    add("-ub", "--ubatch-size", type=int, default=512)
    add("-ngl", "--gpu-layers", "--n-gpu-layers", type=int, default=-1)
    add("-lv", "--verbosity", "--log-verbosity", type=int, default=3)
    add("-cram", "--cache-ram", type=int, default=8192)
    add("--cache-reuse", type=int, default=0)
    add("-ctxcp", "--ctx-checkpoints", type=int, default=32)
    add("-sps", "--slot-prompt-similarity", type=float, default=0.1)
    add("--slot-save-path", default="")
    add("--sse-ping-interval", type=int, default=30)
    add("--poll", type=int, default=50)
    add("-fit", "--fit", choices=("on", "off"), default="on")
    for name, default in (
        ("metrics", False),
        ("props", False),
        ("slots", True),
        ("cache-prompt", True),
        ("warmup", True),
        ("ui", True),
        ("swa-full", False),
        ("kv-offload", True),
    ):
        add(f"--{name}", action=argparse.BooleanOptionalAction, default=default)
    add("-kvu", "--kv-unified", action=argparse.BooleanOptionalAction, default=False)
    return flags


def parameters(given: argparse.Namespace) -> Any:
    """The package's parameter object for parsed flags."""
    import xllamacpp  # only the engine's environment has it

    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.model_alias = {given.alias}
    params.hostnames = [given.host]
    params.port = given.port
    params.n_ctx = given.ctx_size
    params.n_parallel = given.parallel
    params.cache_type_k = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{given.cache_type_k.upper()}")
    params.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{given.cache_type_v.upper()}")
    attention = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[given.flash_attn]
    params.flash_attn_type = getattr(xllamacpp.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{attention}")
    params.cpuparams.n_threads = given.threads
    params.cpuparams_batch.n_threads = given.threads if given.threads_batch < 0 else given.threads_batch
    params.cpuparams.poll = given.poll
    params.cpuparams_batch.poll = given.poll
    params.n_threads_http = given.threads_http
    params.n_batch = given.batch_size
    params.n_ubatch = given.ubatch_size
    params.n_gpu_layers = given.gpu_layers
    params.verbosity = given.verbosity
    params.cache_ram_mib = given.cache_ram
    params.n_cache_reuse = given.cache_reuse
    params.n_ctx_checkpoints = given.ctx_checkpoints
    params.slot_prompt_similarity = given.slot_prompt_similarity
    params.slot_save_path = given.slot_save_path
    params.sse_ping_interval = given.sse_ping_interval
    params.fit_params = given.fit == "on"
    params.endpoint_metrics = given.metrics
    params.endpoint_props = given.props
    params.endpoint_slots = given.slots
    params.cache_prompt = given.cache_prompt
    params.warmup = given.warmup
    params.ui = given.ui
    params.swa_full = given.swa_full
    params.no_kv_offload = not given.kv_offload
    params.kv_unified = given.kv_unified
    return params


def main(arguments: Sequence[str]) -> None:
    """Serve until SIGTERM."""
    given = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    import xllamacpp

    server = xllamacpp.Server(parameters(given))
    print(f"listening on {server.listening_address}", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1:])
