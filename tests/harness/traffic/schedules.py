"""Schedules written by hand."""

import json
from pathlib import Path
from typing import Any

CORPUS = list(range(1000, 1200))


def write_schedule(
    path: Path,
    sessions: list[dict[str, Any]],
    *,
    groups: dict[str, dict[str, Any]] | None = None,
    api: str = "completions",
    tokenizer: str = "none",
    timeout_s: float = 20,
    extras: dict[str, Any] | None = None,
) -> Path:
    """A schedule of sessions given by `new`/`output_tokens`/… of their turns; the rest is filled in."""
    groups = groups or {"": {"kind": "closed", "concurrency": 2}}
    outputs = {turn["output_tokens"] for session in sessions for turn in session["turns"]}
    engine = {"kind": "engine", "schema_version": 2, "model": "m", "tokenizer": tokenizer}
    engine["extras"] = {str(count): extras or {} for count in sorted(outputs)}
    lines, ordinal = [], 0
    for index, session in enumerate(sessions):
        line = {"kind": "session", "session_id": f"window-{index:05d}", "phase": "window", "tenant": "", "due_ns": None}
        lines.append({**line, "first_request": ordinal, **session})
        ordinal += len(session["turns"])
    warmup = sum(len(line["turns"]) for line in lines if line["phase"] == "warmup")
    facts = {
        "kind": "load", "load": {"timeout_s": timeout_s}, "context_tokens": 4096, "seed": 1, "api": api,
        "requests": ordinal - warmup, "warmup_requests": warmup, "corpus": ",".join(map(str, CORPUS)),
        "corpus_sha256": "", "groups": groups,
    }  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in (engine, facts, *lines)))
    return path


def turn(start: int, count: int, output_tokens: int, prompt_tokens: int | None = None, **more: Any) -> dict[str, Any]:
    """A turn whose new text is one slice of the corpus."""
    prompt_tokens = count if prompt_tokens is None else prompt_tokens
    return {
        "new": [[start, count]],
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "think_ns": 0,
    } | more
