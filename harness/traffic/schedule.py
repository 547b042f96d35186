"""The schedule of a cell: all that will be sent, written before anything is; the client only composes and posts.

A JSON-lines file. Line 1 says how to ask this engine (`kind: engine`), line 2 holds the facts of the load and the text
(`kind: load`), every further line is a session (`kind: session`). All but line 1 is the same for every engine:
`ScheduleFacts.sha256` is the hash of those lines, so equal hashes mean equal traffic. It is written as it is made: a
million requests never lie in memory as text.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from harness.files import write_lines
from harness.model import Model
from harness.traffic.draw import WARMUP, WINDOW, Planned, Traffic, draw_load, sessions_of
from harness.traffic.load import Load
from harness.traffic.segments import Resolver
from harness.traffic.statistics import statistics
from harness.traffic.text import Corpus, Segment, corpus, load_tokenizer
from harness.traffic.working_set import working_set_tokens

SCHEMA_VERSION = 2

OPEN_LOOP_REQUEST_S = 10.0
"""How long a request is taken to last when the working set of an open loop is estimated."""


@dataclass(frozen=True)
class ScheduleFacts:
    """What a schedule holds.

    Attributes
    ----------
    sha256 : str
        Hash of all that is equal between engines (lengths, text, due times).
    requests, warmup_requests : int
        Requests in the window and before it.
    sessions : int
        Sessions in the window.
    prompt_tokens_mean : float
        Mean prompt of the window's requests.
    prompt_tokens_max, output_tokens_max : int
        Longest prompt and output in the window.
    working_set_tokens : int
        Distinct KV tokens that must be held at once at the window's peak (`working_set.py`).
    corpus_sha256 : str
        Hash of the tokenised text that prompts are cut from.
    statistics : dict
        Of the window (`statistics.py`); with tenants, of each as well.
    """

    sha256: str
    requests: int
    warmup_requests: int
    sessions: int
    prompt_tokens_mean: float
    prompt_tokens_max: int
    output_tokens_max: int
    working_set_tokens: int
    corpus_sha256: str
    statistics: dict[str, Any] = field(default_factory=dict)


def build_schedule(
    load: Load,
    *,
    model: Model,
    served_name: str,
    request_extras: Callable[[int], dict[str, Any]],
    context_tokens: int,
    seed: int,
    path: Path,
    open_loop_request_s: float = OPEN_LOOP_REQUEST_S,
) -> ScheduleFacts:
    """Draw a load's sessions, cut their text, and write the schedule.

    Parameters
    ----------
    load : Load
        The load profile.
    model : Model
        Its tokenizer cuts the text.
    served_name : str
        The name that the server answers to.
    request_extras : callable
        `Backend.request_extras`: output length → body fields that enforce it.
    context_tokens : int
        Longest sequence that the server takes.
    seed : int
        Equal seeds give equal traffic.
    path : Path
        File to write (whole or not at all).
    open_loop_request_s : float
        How long a request is taken to last, for the working set of an open loop only.

    Raises
    ------
    ConfigError
        When the lengths can't be met.
    SetupError
        When the model has no tokenizer.
    StorageError
        When the file can't be written.
    """
    tokenizer = cache(lambda: load_tokenizer(model.path))
    traffic = draw_load(load, context_tokens=context_tokens, seed=seed, tokenizer=tokenizer)
    text = corpus(model.path)
    decode = (lambda ids: str(tokenizer().decode(ids))) if load.api == "chat" else None
    turns = [turn for planned in traffic.window for turn in planned.session.turns]
    every = [turn for planned in traffic.warmup for turn in planned.session.turns]
    outputs = sorted({turn.output_tokens for turn in (*turns, *every)})
    engine = {
        "kind": "engine",
        "schema_version": SCHEMA_VERSION,
        "model": served_name,
        "tokenizer": model.path,
        "extras": {str(tokens): request_extras(tokens) for tokens in outputs},
    }
    facts = {
        "kind": "load",
        "load": asdict(load),
        "context_tokens": context_tokens,
        "seed": seed,
        "api": load.api,
        "requests": len(turns),
        "warmup_requests": len(every),
        "corpus": ",".join(map(str, text.tokens)),
        "corpus_sha256": text.sha256,
        "groups": groups(load),
    }
    digest = hashlib.sha256()

    def lines() -> Iterator[bytes]:
        yield json.dumps(engine).encode() + b"\n"
        yield hashed(facts)
        for line in _session_lines(traffic, text, seed, decode):
            yield hashed(line)

    def hashed(line: dict[str, Any]) -> bytes:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        digest.update(data)
        return data

    write_lines(path, lines())
    places = {stream.tenant: stream.arrival.places for stream in load.streams}
    return ScheduleFacts(
        sha256=digest.hexdigest(),
        requests=len(turns),
        warmup_requests=len(every),
        sessions=len(traffic.window),
        prompt_tokens_mean=sum(turn.prompt_tokens for turn in turns) / len(turns),
        prompt_tokens_max=max(turn.prompt_tokens for turn in turns),
        output_tokens_max=max(turn.output_tokens for turn in turns),
        working_set_tokens=working_set_tokens(traffic.window, places, open_loop_request_s),
        corpus_sha256=text.sha256,
        statistics=window_statistics(load, traffic, model.shape.kv_bytes_per_token(16) or None),
    )


def groups(load: Load) -> dict[str, dict[str, Any]]:
    """How the sessions of each tenant are to be started."""
    return {
        stream.tenant: {"kind": "open"}
        if stream.arrival.places is None
        else {"kind": "closed", "concurrency": stream.arrival.places}
        for stream in load.streams
    }


def window_statistics(load: Load, traffic: Traffic, kv_bytes_per_token: float | None = None) -> dict[str, Any]:
    """Statistics of the window's sessions (`statistics.Statistics`), as a record."""
    by_tenant = {stream.tenant: sessions_of(traffic.window, stream.tenant) for stream in load.streams}
    return asdict(statistics(by_tenant, changes=traffic.changes, kv_bytes_per_token=kv_bytes_per_token))


def _session_lines(
    traffic: Traffic, text: Corpus, seed: int, decode: Callable[[list[int]], str] | None
) -> Iterator[dict[str, Any]]:
    first_request = 0
    phases = ((WARMUP, traffic.warmup), (WINDOW, traffic.window))
    for (phase, sessions), reader in zip(phases, text.readers(seed), strict=True):
        resolver = Resolver(reader)
        for index, planned in enumerate(sessions):
            news = resolver.session(planned.session, planned.tenant)
            yield {
                "kind": "session",
                "session_id": f"{phase}-{index:05d}",
                "phase": phase,
                "tenant": planned.tenant,
                "due_ns": planned.due_ns,
                "first_request": first_request,
                "turns": list(_turns(planned, news, text, decode)),
            }
            first_request += len(news)


def _turns(
    planned: Planned, news: list[list[Segment]], text: Corpus, decode: Callable[[list[int]], str] | None
) -> Iterator[dict[str, Any]]:
    for turn, new, think_ns in zip(planned.session.turns, news, planned.think_ns, strict=True):
        line = {
            "new": new,
            "prompt_tokens": turn.prompt_tokens,
            "output_tokens": turn.output_tokens,
            "think_ns": think_ns,
        }
        yield line if decode is None else {**line, "text": decode(list(text.ids(new)))}
