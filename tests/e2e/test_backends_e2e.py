"""The real engines, started, proved, emptied and ended. Needs their environments and the embedded model."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from harness.backends import backend_class
from harness.backends.command_line import final_command
from harness.backends.interface import Backend
from harness.environments import ensure
from harness.errors import LaunchError
from harness.guard import identify
from harness.local_http import request
from harness.model import Model, ModelShape
from harness.models import ModelSpec, prepare
from harness.server import Server, ServerSpec, free_port, listeners, serve
from harness.settings import Settings
from harness.strategy import Strategy
from harness.telemetry import Recorder, gpus

pytestmark = pytest.mark.e2e

SMOLLM2 = Path(__file__).parents[2] / "scenarios" / "model" / "smollm2-135m.yaml"
SETTINGS = Settings(context_tokens=2048, max_num_seqs=2, kv_budget_bytes=4096 * 23_040)
FP8, INT8, INT4 = Strategy(kv_dtype="fp8_e4m3"), Strategy(kv_dtype="int8"), Strategy(kv_dtype="int4")
Launch = Callable[[str, Strategy], Any]


@pytest.fixture(scope="session")
def model() -> Model:
    fields = yaml.safe_load(SMOLLM2.read_text())
    return prepare("smollm2-135m", ModelSpec(**{**fields, "shape": ModelShape(**fields["shape"])}), print)


@pytest.fixture
def launch(model: Model, tmp_path: Path) -> Launch:
    @contextmanager
    def launched(name: str, strategy: Strategy) -> Iterator[tuple[Backend, Server]]:
        backend = backend_class(name)()
        python = ensure(backend.environment, backend.options, print).python
        port = free_port()
        command = final_command(backend, python, model, strategy, SETTINGS, port, "served-once")
        spec = ServerSpec(command.argv, tmp_path / "engine.log", port, "served-once", command.env)
        with serve(spec, print) as server:
            yield backend, server
        assert [pid for pid in server.pids() if identify(pid)] == []
        assert listeners(port) == []

    return launched


def prompt(tokens: int, seed: int = 1) -> list[int]:
    return [(7919 * position * seed + 31 * seed) % 40_000 + 500 for position in range(tokens)]


def complete(server: Server, ids: list[int], **extras: Any) -> dict[str, Any]:
    body = {"model": server.served_name, "prompt": ids, "temperature": 0, **extras}
    answer = request("POST", f"{server.base_url}/v1/completions", body, timeout_s=300)
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def cached_tokens(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def events(server: Server, ids: list[int], **extras: Any) -> list[dict[str, Any]]:
    body = {"model": server.served_name, "prompt": ids, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **extras}  # fmt: skip
    text = request("POST", f"{server.base_url}/v1/completions", body, timeout_s=300).text
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return [json.loads(line) for line in data[:-1]]


def serves_as_asked(backend: Backend, server: Server, strategy: Strategy, model: Model, folder: Path) -> None:
    """What every deployment owes: proof, exact lengths, next tokens by id, reuse and reset that the counters show."""
    effect = backend.proof(model, strategy, SETTINGS, server.log_text(), server.metrics_text())
    assert effect.mismatches == ()
    assert effect.capacity_tokens == backend.capacity_tokens(strategy, model.shape, SETTINGS)
    assert effect.pool_bytes is not None and effect.pool_bytes <= 1.001 * (SETTINGS.kv_budget_bytes or 0)

    def hits() -> float:
        found = backend.state(server.metrics_text()).prefix_hits_total
        assert found is not None
        return found

    with Recorder(server.pids, lambda: backend.state(server.metrics_text()), folder / "telemetry.parquet", 0.2):
        for length in (1, 24):
            chunks = events(server, prompt(200, seed=length), **backend.request_extras(length))
            assert chunks[-1]["usage"]["completion_tokens"] == length
            assert chunks[-1]["usage"]["prompt_tokens"] == 200
        first = complete(server, prompt(400), **backend.next_token_extras(20))
        token = backend.next_token(first)
        assert len(token.token_ids) >= 20
        assert all(0 <= one < model.shape.vocab for one in token.token_ids)
        assert list(token.logprobs) == sorted(token.logprobs, reverse=True)
        assert token.logprobs[0] <= 0
        before = hits()
        again = complete(server, prompt(400), **backend.next_token_extras(20))
        assert hits() - before == cached_tokens(again)
        assert (cached_tokens(again) >= 384) == strategy.prefix_reuse
        outcome = backend.reset(server.base_url, server.served_name)
        assert outcome.done, outcome.evidence
        assert cached_tokens(complete(server, prompt(400), **backend.request_extras(1))) == 0
    series = pq.read_table(folder / "telemetry.parquet").to_pylist()
    assert max(row["pss_bytes"] for row in series) > 200_000_000
    assert series[-1]["cpu_seconds_total"] > 0


@pytest.mark.parametrize("strategy", [Strategy(), INT8, INT4, Strategy(prefix_reuse=False)], ids=str)
def test_llama_cpp_serves_as_asked(launch: Launch, strategy: Strategy, model: Model, tmp_path: Path) -> None:
    with launch("llama-cpp", strategy) as (backend, server):
        serves_as_asked(backend, server, strategy, model, tmp_path)


@pytest.mark.parametrize("strategy", [FP8], ids=str)
def test_vllm_serves_as_asked(launch: Launch, strategy: Strategy, model: Model, tmp_path: Path) -> None:
    with launch("vllm", strategy) as (backend, server):
        assert len(server.pids()) >= 3  # API process, engine core, worker
        serves_as_asked(backend, server, strategy, model, tmp_path)
        echoed = complete(server, prompt(64), max_tokens=0, echo=True, logprobs=1)
        assert len(echoed["choices"][0]["logprobs"]["token_logprobs"]) == 64
        pids = server.pids()

        os.kill(pids[0], signal.SIGKILL)  # kill -9 of the parent leaves no worker
        while server.alive():
            time.sleep(0.1)
        assert [pid for pid in pids if identify(pid)] == []


def test_llama_cpp_without_its_model_says_so(launch: Launch, model: Model, tmp_path: Path) -> None:
    backend = backend_class("llama-cpp")()
    python = ensure(backend.environment, backend.options, print).python
    broken = replace(model, gguf=tmp_path / "nowhere.gguf")
    port = free_port()
    command = final_command(backend, python, broken, Strategy(), SETTINGS, port, "x")
    spec = ServerSpec(command.argv, tmp_path / "engine.log", port, "x", command.env, start_timeout_s=60)
    with pytest.raises(LaunchError, match=r"nowhere\.gguf"), serve(spec):
        pass


@pytest.mark.skipif(not gpus(), reason="needs a GPU")
def test_gpus_are_described() -> None:
    assert all(gpu["memory_bytes"] > 0 and gpu["name"] for gpu in gpus())
