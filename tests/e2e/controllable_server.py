"""A server whose truth is known, started as llama.cpp's (`backend.llama-cpp.command`): its flags, log and endpoints.

It has no weights: a retrieval question is answered by finding the needle, everything else by rule, and tokens leave at
a fixed pace. Which launch is which it reads off its KV flags (`F16`, `Q8_0`, `Q4_0`, or `UNCACHED` without reuse of
prefixes), and what is true of it off the environment, `TRUTH_<that>`: nothing, or some of

    slower=<factor>      every token takes that much longer
    flips=<per cent>     of the questions are answered wrongly
    truncates=<tokens>   of a longer prompt only the end is read
    garbage              next-token probabilities are those of other tokens

The launches of one kind differ in pace by `NOISE`, in turn, which they count in the folder `TRUTH_LAUNCHES`. Its mean
over three launches is none, and it is larger than what the machine adds: intervals are as wide on every machine.
"""

import hashlib
import json
import math
import os
import re
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

TOKEN_S = 0.010
FIRST_TOKEN_S = 0.100
NOISE = {
    "F16": (0.04, 0.0, -0.04, 0.04, 0.0, -0.04),
    "Q8_0": (0.0, 0.04, -0.04),
    "Q4_0": (-0.04, 0.0, 0.04),
    "UNCACHED": (0.04, -0.04, 0.0),
}
LAYERS, KV_WIDTH = 30, 3 * 64
"""Of SmolLM2-135M, whose GGUF file is passed."""
BITS = {"f16": 16.0, "q8_0": 8.5, "q4_0": 4.5}
CONTEXT = 64
"""So many of the last tokens decide what comes next, so that cut prompts leave the probabilities as they are."""
LOCK = threading.Lock()


class Engine:
    """What was asked for on the command line, and what is true."""

    def __init__(self, flags: dict[str, str]) -> None:
        self.name, self.port = flags["--alias"], int(flags["--port"])
        self.slots, self.tokens = int(flags["-np"]), int(flags["-c"])
        self.kv_type = flags["-ctk"]
        self.cached = "--no-cache-prompt" not in flags
        self.tokenizer = Tokenizer.from_file(str(Path(flags["-m"]).parent / "hf" / "tokenizer.json"))
        self.vocab = self.tokenizer.get_vocab_size()
        key = self.kv_type.upper() if self.cached else "UNCACHED"
        words = os.environ.get(f"TRUTH_{key}", "").split()
        self.truth = {name: float(value or 1) for name, _, value in (word.partition("=") for word in words)}
        noise = NOISE[key]
        self.pace = self.truth.get("slower", 1.0) * (1.0 + noise[_launches_before(key) % len(noise)])
        self.kept: list[list[int]] = []
        self.computed = self.hits = self.running = 0

    def log(self) -> str:
        """The lines that prove what the cache is."""
        cells = self.tokens // self.slots
        half = cells * self.slots * KV_WIDTH * LAYERS * BITS[self.kv_type] / 8 / 2**20
        parts = f"K ({self.kv_type}): {half:8.2f} MiB, V ({self.kv_type}): {half:8.2f} MiB"
        size = f"{2 * half:8.2f} MiB ({cells:7d} cells, {LAYERS:3d} layers, {self.slots:2d}/{self.slots} seqs)"
        settings = {"n_seq_max": self.slots, "n_ctx": self.tokens, "n_ctx_seq": cells, "flash_attn": "enabled"}
        lines = [f"llama_context: {key:<13} = {value}" for key, value in settings.items()]
        return "\n".join([*lines, "llama_context: kv_unified    = false", f"llama_kv_cache: size = {size}, {parts}"])

    def metrics(self) -> str:
        found = {
            "prompt_tokens_total": self.computed,
            "prompt_tokens_cached_total": self.hits,
            "requests_processing": self.running,
            "requests_deferred": 0,
        }
        return "".join(f"llamacpp:{name} {value}\n" for name, value in found.items())

    def read(self, ids: list[int]) -> tuple[list[int], int]:
        """The tokens of a prompt that are read, and how many of them were cached."""
        if "truncates" in self.truth:
            ids = ids[-int(self.truth["truncates"]) :]
        with LOCK:
            common = [_common(ids, other) for other in self.kept]
            hits = min(max(common, default=0), len(ids) - 1)
            if self.cached:
                self.kept = [*self.kept, ids][-self.slots :]
            self.hits += hits
            self.computed += len(ids) - hits
        return ids, hits

    def erase(self) -> int:
        with LOCK:
            erased, self.kept = sum(map(len, self.kept)), []
        return erased

    def next_tokens(self, ids: list[int], count: int) -> list[dict[str, Any]]:
        """A model that repeats what it read last: tokens by their frequency among the last `CONTEXT`."""
        seen = Counter(ids[-CONTEXT:])
        ranked = sorted(seen, key=lambda token: (-seen[token], token))[:count]
        total = sum(range(1, len(ranked) + 1)) / 0.9
        shift = 1000 if "garbage" in self.truth else 0
        found = []
        for place, token in enumerate(ranked):
            probability = (len(ranked) - place) / total
            found.append({"id": (token + shift) % self.vocab, "logprob": math.log(probability)})
        return found

    def answer(self, ids: list[int], text: str, body: dict[str, Any]) -> tuple[list[int], str]:
        """Tokens of the answer, and how it ends."""
        asked = re.search(r"Special magic number: ([A-Z]\w+)$", text)
        if asked and not body.get("ignore_eos"):
            needle = re.search(rf"number: {asked[1]} (\d+)", text)
            said = f" {needle[1]}," if needle else " 0,"
            if _number(text[-2000:]) % 1000 < 10 * self.truth.get("flips", 0.0):
                said = " 1,"
            return self.tokenizer.encode(said, add_special_tokens=False).ids[: body["max_tokens"]], "stop"
        start = _number(ids[-CONTEXT:])
        return [(start + 7919 * i) % 40000 + 1000 for i in range(body["max_tokens"])], "length"


def _launches_before(key: str) -> int:
    """How often this kind was launched before, and one more from now on."""
    count = 0
    while True:
        try:
            (Path(os.environ["TRUTH_LAUNCHES"]) / f"{key}-{count}").touch(exist_ok=False)
            return count
        except FileExistsError:
            count += 1


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _number(value: object) -> int:
    return int(hashlib.sha256(repr(value).encode()).hexdigest()[:8], 16)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, format: str, *args: object) -> None:
        pass

    def reply(self, content: Any) -> None:
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        engine = self.engine
        self.reply(
            {
                "/health": {"status": "ok"},
                "/v1/models": {"data": [{"id": engine.name}]},
                "/slots": [{"id": i} for i in range(engine.slots)],
                "/metrics": engine.metrics(),
            }[self.path]
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.startswith("/slots/"):
            self.reply({"n_erased": self.engine.erase()})
            return
        with LOCK:
            self.engine.running += 1
        try:
            self.complete(body)
        finally:
            with LOCK:
                self.engine.running -= 1

    def complete(self, body: dict[str, Any]) -> None:
        engine, began = self.engine, time.monotonic()
        prompt = body["prompt"]
        if isinstance(prompt, str):
            prompt = engine.tokenizer.encode(prompt, add_special_tokens=False).ids
        ids, hits = engine.read(prompt)
        tokens, reason = engine.answer(ids, engine.tokenizer.decode(ids, skip_special_tokens=False), body)
        usage = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(tokens),
            "total_tokens": len(ids) + len(tokens),
            "prompt_tokens_details": {"cached_tokens": hits},
        }
        if body.get("stream"):
            self.stream(tokens, reason, usage, began)
            return
        logprobs = None
        if count := body.get("logprobs"):
            content = []
            for place, token in enumerate(tokens):
                top = engine.next_tokens([*ids, *tokens[:place]], count) if count > 1 else []
                content.append({"id": token, "logprob": -0.1, "top_logprobs": top})
            logprobs = {"content": content}
        text = engine.tokenizer.decode(tokens, skip_special_tokens=False)
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}
        self.reply({"choices": [choice], "usage": usage, "timings": {"cache_n": hits}})

    def stream(self, tokens: list[int], reason: str, usage: dict[str, Any], began: float) -> None:
        """One token an event, each at its time, however long it took to send the ones before."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for place, token in enumerate(tokens):
            due = began + self.engine.pace * (FIRST_TOKEN_S + place * TOKEN_S)
            time.sleep(max(0.0, due - time.monotonic()))
            last = place == len(tokens) - 1
            text = self.engine.tokenizer.decode([token], skip_special_tokens=False) or " "
            self.event({"choices": [{"index": 0, "text": text, "finish_reason": reason if last else None}]})
        self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, content: dict[str, Any]) -> None:
        self.chunk(f"data: {json.dumps(content)}\n\n".encode())

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def main(words: list[str]) -> None:
    if "--version" in words:
        print("controllable server, version 1")
        return
    flags: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("-"):
            flags[word] = after
    engine = Engine(flags)
    Handler.engine = engine
    server = ThreadingHTTPServer(("127.0.0.1", engine.port), Handler)
    server.daemon_threads = True
    print(engine.log(), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
