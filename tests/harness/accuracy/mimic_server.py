"""A completions server that answers by rule: it finds what a prompt hides. The path before `/v1` names its faults.

`http://127.0.0.1:<port>/truncates+flips/v1/completions` cuts prompts and answers a known share of questions wrongly.
`GET /<faults>/seen` tells what was asked under that path.
"""

import contextlib
import hashlib
import json
import re
import sys
import threading
import time
from collections import defaultdict
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

TOKENIZER = Tokenizer.from_file(sys.argv[1])
VOCAB = TOKENIZER.get_vocab_size()
CUT_TO = 24
LATE_FROM = 300
DIES_AFTER = 10
HELD_S = 0.02
"""How long an answer that depends on its company looks for any."""
SEEN: dict[str, list[dict[str, Any]]] = defaultdict(list)
LOCK = threading.Lock()
UNDER_WAY: dict[str, int] = defaultdict(int)
LAST_PROMPT: dict[str, list[int]] = defaultdict(list)


def number(text: object) -> int:
    return int(hashlib.sha256(str(text).encode()).hexdigest()[:8], 16)


ASKED = {
    r"special magic number: (\w+)$|special magic numbers? of (\w+)": r"number: {key} (\d+)",
    r"\{\"([^\"]+)\":$|of the key \"([^\"]+)\"": r"\"{key}\": \"([^\"]+)\"",
    r"In which town was (.+?) born|In which town did (.+?) go to|To which town did (.+?) move": r"{key} {verb} (\w+)",
}
VERBS = {"born": "was born in", "to": "went to school in", "move": "moved to"}


def hidden(text: str) -> str:
    """The right answer: what the document says about what is asked at its end, or the last `[key: …]`."""
    document, _, question = text.rpartition("\n\n")
    if asked := re.search(r"VAR (\w+) = VAR$|Trace variable (\w+)", question):
        return " " + ", ".join(traced(document, asked[1] or asked[2]))
    for form, place in ASKED.items():
        if asked := re.search(form, question, re.IGNORECASE):
            key = next(filter(None, asked.groups()))
            found = re.findall(place.format(key=re.escape(key), verb=VERBS.get(asked[0].split()[-1])), document)
            return " " + ", ".join(dict.fromkeys(found)) if found else " 1"
    keys = re.findall(r"\[key: (.+?)\]", text)
    return f" {keys[-1]}" if keys else " nothing"


def traced(document: str, variable: str) -> list[str]:
    """Where a variable's value comes from, link by link."""
    found: list[str] = []
    while link := re.search(rf"VAR {variable} = (?:VAR )?(\w+)\.", document):
        found.append(variable := link[1])
    return found


def wrong(text: str) -> bool:
    """Whether the faulty server answers this question wrongly: about one in three."""
    return number(text[-300:]) % 3 == 0


@cache
def followers() -> dict[tuple[int, ...], int]:
    """What follows four tokens in the text that prompts are cut from: a server that reads knows it by heart."""
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from harness.traffic.text import corpus

    tokens = list(corpus(sys.argv[1]).tokens)
    return {tuple(tokens[i - 4 : i]): tokens[i] for i in range(4, len(tokens))}


def next_tokens(ids: list[int], top_k: int, faults: set[str]) -> list[tuple[int, float]]:
    """A distribution that depends on the whole prefix; a broken cache changes it, or only what lies late in it."""
    broken = "broken" in faults or ("late-broken" in faults and len(ids) >= LATE_FROM)
    start = number((ids[:-1], "broken") if broken else ids) % VOCAB
    if "reads" in faults and not broken:
        start = followers().get(tuple(ids[-4:]), start)
    return [((start + i) % VOCAB, -0.7 * (i + 1)) for i in range(top_k)]


def generated(ids: list[int], count: int, faults: set[str]) -> list[int]:
    """The greedy continuation; an unsteady server ends it differently each time, or only in company."""
    found: list[int] = []
    for _ in range(count):
        found.append(next_tokens([*ids[-8:], *found], 1, faults)[0][0])
    path = "+".join(sorted(faults))
    if "unsteady" in faults or ("unsteady-beside" in faults and in_company(path)):
        found[-1] = len(SEEN[path])
    return found


def in_company(path: str) -> bool:
    """Whether another request was under way at any time while this one was held."""
    ends = time.monotonic() + HELD_S
    while time.monotonic() < ends:
        if UNDER_WAY[path] > 1:
            return True
        time.sleep(HELD_S / 20)
    return False


def cached(ids: list[int], path: str) -> int:
    """Tokens that this prompt shares with the one before it; the last is always computed."""
    before, LAST_PROMPT[path] = LAST_PROMPT[path], ids
    same = next((i for i, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), min(len(before), len(ids)))
    return min(same, len(ids) - 1)


def logprob_of(index: int, last: int, right: bool) -> float:
    return (-0.01 if right else -20.0) if index >= last - 1 else -1.0


def respond(faults: set[str], body: dict[str, Any]) -> tuple[int, Any]:
    prompt = body["prompt"]
    if isinstance(prompt, list) and isinstance(prompt[0], list):
        prompt = prompt[0]
    ids = TOKENIZER.encode(prompt, add_special_tokens=False).ids if isinstance(prompt, str) else prompt
    text = TOKENIZER.decode(ids, skip_special_tokens=False)
    if "truncates" in faults:
        ids = ids[-CUT_TO:]
    probe = body["max_tokens"] == 1
    if "truncates-some" in faults and not probe and number(text[-300:]) % 3 == 0:
        ids = ids[-CUT_TO:]
    key = "+".join(sorted(faults))
    if "breaks-late" in faults and len(SEEN[key]) > 8:
        return 500, {"error": {"message": "worn out"}}
    if "error-often" in faults and not probe and number(text[-300:]) % 5 < 2:
        return 500, {"error": {"message": "out of luck"}}
    if "error" in faults or ("error-on-some" in faults and not probe and number(text[-300:]) % 6 == 0):
        return 500, {"error": {"message": "out of luck"}}
    if "refuses-long" in faults and len(ids) > CUT_TO:
        return 400, {"error": {"message": f"maximum context length is {CUT_TO}"}}
    answer = hidden(text)
    if "flips" in faults and wrong(text):
        answer = " 1"
    with LOCK:
        seen = {"text": text[-200:], "wrong": wrong(text), "body": {**body, "prompt": len(ids)}}
        SEEN["+".join(sorted(faults))].append(seen)
    choice: dict[str, Any] = {"index": 0, "text": answer, "logprobs": None, "finish_reason": "stop"}
    if "no-text" in faults:
        choice["text"] = None
    if body.get("echo"):
        right = text.endswith(hidden(text)) != ("flips" in faults and wrong(text.rpartition(" ")[0]))
        values: list[Any] = [None] + [logprob_of(i, len(ids), right) for i in range(1, len(ids))]
        values += [-0.5] * body["max_tokens"]
        if "ignores-echo" in faults:
            values = [-0.5] * body["max_tokens"]
        if "nan" in faults:
            values = [float("nan")] * len(values)
        if "null" in faults:
            values = [None] * len(values)
        choice["logprobs"] = {"token_logprobs": values, "top_logprobs": [{} for _ in values]}
    elif body.get("ignore_eos"):
        found = generated(ids, body["max_tokens"], faults)
        choice |= {"text": TOKENIZER.decode(found), **({} if "no-tokens" in faults else {"token_ids": found})}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": [{"id": token, "logprob": -0.5} for token in found]}
    elif body.get("logprobs") and "no-logprobs" not in faults:
        top = next_tokens(ids, body["logprobs"], faults)
        if "nan" in faults:
            top = [(token, float("nan")) for token, _ in top]
        if body.get("return_tokens_as_token_ids"):
            choice["logprobs"] = {"top_logprobs": [{f"token_id:{token}": value for token, value in top}]}
        else:
            choice["logprobs"] = {"content": [{"top_logprobs": [{"id": t, "logprob": v} for t, v in top]}]}
    usage: dict[str, Any] = {"prompt_tokens": len(ids), "completion_tokens": 1}
    if "talks-on" in faults:
        usage["completion_tokens"] += body["max_tokens"]
    if "caches" in faults:
        usage["prompt_tokens_details"] = {"cached_tokens": cached(ids, "+".join(sorted(faults)))}
    return 200, {"choices": [choice], **({} if "no-usage" in faults else {"usage": usage})}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def faults(self) -> set[str]:
        return set(self.path.strip("/").split("/")[0].split("+")) - {"v1"}

    def reply(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        if "garbled" in self.faults():
            data = data[: len(data) // 2]
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # who asked may have gone
            self.wfile.write(data)

    def do_GET(self) -> None:
        with LOCK:
            self.reply(200, SEEN["+".join(sorted(self.faults()))])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        faults, path = self.faults(), "+".join(sorted(self.faults()))
        if "reset_prefix_cache" in self.path:
            LAST_PROMPT[path] = []
            self.reply(200, {"success": "no-reset" not in faults})
            return
        if "silent" in faults:
            threading.Event().wait(3)
        if "dies" in faults and len(SEEN[path]) >= DIES_AFTER:
            self.close_connection = True
            return
        with LOCK:
            UNDER_WAY[path] += 1
        try:
            self.reply(*respond(faults, body))
        finally:
            with LOCK:
                UNDER_WAY[path] -= 1

    def log_message(self, format: str, *args: object) -> None:
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(server.server_address[1], flush=True)
server.serve_forever()
