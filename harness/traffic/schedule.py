"""The schedule of a cell: all that will be sent, written before anything is; the client only composes and posts.

A JSON-lines file. Line 1 says how to ask this engine (`kind: engine`), line 2 holds the facts of the load
(`kind: load`), every further line is a session (`kind: session`). All but line 1 is the same for every engine:
`ScheduleFacts.sha256` is the hash of those lines, so equal hashes mean equal traffic.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.files import write_bytes
from harness.model import Model
from harness.traffic.arrivals import offsets_ns
from harness.traffic.load import Load
from harness.traffic.text import Corpus, Reader, corpus
from harness.traffic.workload import (
    Session,
    mean_prompt_tokens,
    warmup_sessions,
    window_sessions,
    working_set_tokens,
)

OPEN_LOOP_REQUEST_S = 10.0
"""How long a request is taken to last when the working set of an open loop is estimated."""


@dataclass(frozen=True)
class ScheduleFacts:
    """What a schedule holds.

    Attributes
    ----------
    sha256 : str
        Hash of all that is equal between engines (lengths, token ids, due times).
    requests, warmup_requests : int
        Requests in the window and before it.
    sessions : int
        Sessions in the window.
    prompt_tokens_mean : float
        Mean prompt of the window's requests.
    prompt_tokens_max, output_tokens_max : int
        Longest prompt and output in the window.
    working_set_tokens : int
        Distinct KV tokens that must be held at once at the window's peak (`workload.working_set_tokens`).
    corpus_sha256 : str
        Hash of the tokenised text that prompts are cut from.
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
    warmup = warmup_sessions(load, context_tokens, seed)
    window = window_sessions(load, context_tokens, seed)
    due_ns = offsets_ns(load.arrival, len(warmup) + len(window), seed)
    text = corpus(model.path)
    warmup_reader, window_reader = text.readers(seed)
    prefix = load.workload.shared_prefix_tokens
    prefixes: dict[str, list[int]] = {}
    if prefix:
        prefixes = {
            "warmup": list(text.ids(warmup_reader.take_start(prefix))),
            "window": list(text.ids(window_reader.take_start(prefix))),
        }
    outputs = sorted({turn.output_tokens for session in [*warmup, *window] for turn in session.turns})
    engine = {
        "kind": "engine",
        "schema_version": 1,
        "model": served_name,
        "tokenizer": model.path,
        "extras": {str(tokens): request_extras(tokens) for tokens in outputs},
    }
    facts = {
        "kind": "load",
        "load": asdict(load),
        "context_tokens": context_tokens,
        "seed": seed,
        "corpus_sha256": text.sha256,
        "requests": load.requests,
        "warmup_requests": load.warmup_requests,
        "prefixes": prefixes,
    }
    lines = [facts]
    for phase, reader, drawn, due in (
        ("warmup", warmup_reader, warmup, due_ns[: len(warmup)]),
        ("window", window_reader, window, due_ns[len(warmup) :]),
    ):
        for index, (session, at) in enumerate(zip(drawn, due, strict=True)):
            lines.append(_session_line(f"{phase}-{index:05d}", phase, session, at, reader, text))
    neutral = "".join(json.dumps(line) + "\n" for line in lines).encode()
    write_bytes(path, json.dumps(engine).encode() + b"\n" + neutral)
    turns = [turn for session in window for turn in session.turns]
    return ScheduleFacts(
        sha256=hashlib.sha256(neutral).hexdigest(),
        requests=load.requests,
        warmup_requests=load.warmup_requests,
        sessions=len(window),
        prompt_tokens_mean=mean_prompt_tokens(window),
        prompt_tokens_max=max(turn.prompt_tokens for turn in turns),
        output_tokens_max=max(turn.output_tokens for turn in turns),
        working_set_tokens=working_set_tokens(window, load.arrival, due_ns[len(warmup) :], prefix, open_loop_request_s),
        corpus_sha256=text.sha256,
    )


def _session_line(
    name: str, phase: str, session: Session, due_ns: int | None, reader: Reader, text: Corpus
) -> dict[str, Any]:
    turns = []
    for index, turn in enumerate(session.turns):
        take = reader.take if index else reader.take_start
        turns.append(
            {
                "new_token_ids": list(text.ids(take(turn.new_tokens))),
                "prompt_tokens": turn.prompt_tokens,
                "output_tokens": turn.output_tokens,
            }
        )
    return {"kind": "session", "session_id": name, "phase": phase, "due_ns": due_ns, "turns": turns}
