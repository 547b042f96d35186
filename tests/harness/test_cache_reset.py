"""A reset is believed only when a prompt served before is computed anew afterwards."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from harness.backends.interface import Backend, EngineState, ResetOutcome
from harness.cache_reset import reset_and_verify

PROBE = list(range(384))


class Engine:
    """A server with a prefix cache: a prompt asked twice is a hit, until the cache is emptied."""

    def __init__(self, *, really_resets: bool = True, reports: str = "counters", status: int = 200) -> None:
        self.really_resets, self.reports, self.status = really_resets, reports, status
        self.cached: set[tuple[int, ...]] = set()
        self.hits = 0

    def complete(self, prompt: list[int]) -> dict[str, Any]:
        hit = len(prompt) if tuple(prompt) in self.cached else 0
        self.hits += hit
        self.cached.add(tuple(prompt))
        answer: dict[str, Any] = {"choices": [{"text": "x", "finish_reason": "length"}]}
        if self.reports == "usage":
            answer["usage"] = {"prompt_tokens_details": {"cached_tokens": hit}}
        if self.reports == "timings":
            answer["timings"] = {"cache_n": hit}
        return answer

    def state(self) -> EngineState:
        return EngineState(prefix_hits_total=float(self.hits) if self.reports == "counters" else None)


class Engineer(Backend):
    """How that engine is reset."""

    def __init__(self, engine: Engine, says_done: bool = True) -> None:
        super().__init__()
        self.engine, self.says_done = engine, says_done

    def reset(self, base_url: str, served_name: str) -> ResetOutcome:
        if self.engine.really_resets:
            self.engine.cached.clear()
        return ResetOutcome(self.says_done, "the engine answered 200")


@contextmanager
def served(engine: Engine) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(engine.complete(body["prompt"])).encode()
            self.send_response(engine.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def outcome_of(engine: Engine, says_done: bool = True) -> ResetOutcome:
    with served(engine) as url:
        return reset_and_verify(Engineer(engine, says_done), url, "m", engine.state, PROBE)


@pytest.mark.parametrize("reports", ["counters", "usage", "timings"])
def test_a_reset_that_empties_the_cache_is_verified(reports: str) -> None:
    outcome = outcome_of(Engine(reports=reports))
    assert outcome.done
    assert "verified: 0 of 384" in outcome.evidence


@pytest.mark.parametrize("reports", ["counters", "usage", "timings"])
def test_a_reset_that_only_says_so_is_found_out(reports: str) -> None:
    outcome = outcome_of(Engine(really_resets=False, reports=reports))
    assert not outcome.done
    assert "384 of 384 probe tokens came from the cache" in outcome.evidence


def test_an_engine_that_reports_no_hits_is_believed_and_that_is_said() -> None:
    outcome = outcome_of(Engine(reports="nothing"))
    assert outcome.done
    assert "not verified" in outcome.evidence


def test_an_engine_that_says_no_is_not_asked_twice() -> None:
    assert not outcome_of(Engine(), says_done=False).done


def test_an_engine_that_does_not_answer_is_not_verified() -> None:
    outcome = outcome_of(Engine(status=500))
    assert not outcome.done
    assert "could not be verified" in outcome.evidence
    with served(Engine()) as url:
        gone = url
    assert not reset_and_verify(Engineer(Engine()), gone, "m", Engine().state, PROBE).done
