"""The record of a task: what was asked and how, what came of it, and what a reader of the score must know."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.accuracy.chat import ChatTemplate
from harness.accuracy.job import Job, Outcome
from harness.accuracy.kinds.interface import Kind, Row
from harness.accuracy.load_evidence import ENOUGH
from harness.accuracy.under_load import BackgroundLoad
from harness.files import sha256_of

ASKED = (
    "kind", "mode", "items_sha256", "task_yaml_sha256", "prompt", "chat_template_sha256", "chat_template_arguments",
    "prompts_as_token_ids", "server_context_tokens", "answer_tokens", "stop", "stop_token_ids", "num_concurrent",
    "under_load_sha256",
)  # fmt: skip
"""All that says what was asked and how: two answers may be compared where these are equal (`asked_sha256`)."""


def asked_sha256(results: Row) -> str:
    """Hash of a record's keys that say what was asked and how."""
    return sha256_of([results[key] for key in ASKED])


def asking(job: Job, chat: ChatTemplate | None, background: BackgroundLoad | None) -> Row:
    """How the questions are put, as far as that is known before."""
    return {
        "prompt": "chat" if chat else "completion",
        "chat_template_sha256": chat.sha256 if chat else None,
        "chat_template_arguments": job.chat,
        "task_yaml_sha256": hashlib.sha256(Path(job.task_yaml).read_bytes()).hexdigest(),
        "prompts_as_token_ids": job.token_ids,
        "server_context_tokens": job.context_tokens,
        "num_concurrent": job.num_concurrent,
        "under_load_sha256": background.sha256 if background else None,
        "under_load": None,
    }


def answered(outcome: Outcome) -> Row:
    """What came of the asking."""
    return {
        "state": outcome.state,
        "reason": outcome.reason,
        "stop": outcome.stop,
        "stop_token_ids": outcome.stop_token_ids,
        "answer_tokens": outcome.answer_tokens,
        "answers_at_limit": outcome.answers_at_limit,
        "prompt_tokens": outcome.prompt_tokens or None,
    }


def scored(kind: Kind, samples: list[Row], rows: list[Row]) -> Row:
    """The scores, and what chance would score."""
    scores = [sample["score"] for sample in samples if sample["score"] is not None]
    others: dict[str, list[float]] = {}
    for sample in samples:
        for name, score in sample["other_scores"].items():
            others.setdefault(name, []).append(score or 0.0)
    return {
        "n": len(scores),
        "score": sum(scores) / len(scores) if scores else None,
        "other_scores": {name: sum(found) / len(found) for name, found in others.items()},
        "chance": _chance(kind, rows, samples),
    }


def notes(results: Row, samples: list[Row]) -> Iterator[str]:
    """What a reader of the score must know."""
    errors = [sample["error"] for sample in samples if sample["error"] is not None and sample["score"] is not None]
    if errors:
        yield f"{len(errors)} of {len(samples)} questions have no usable answer and count as wrong: {errors[0]}"
    unscored = [sample["error"] for sample in samples if sample["error"] is not None and sample["score"] is None]
    if unscored:
        yield f"{len(unscored)} of {len(samples)} questions have no score: {unscored[0]}"
    load = results["under_load"]
    if load is None:
        return
    share = load["share_of_questions_under_load"]
    if share is not None and share < ENOUGH:
        yield f"only {share:.0%} of the questions met load {load['load']}"
    if load["error"] is not None:
        yield f"load {load['load']} ended before the questions did: {load['error']}"
    if failed := load["failed_requests"]:
        words = ", ".join(f"{count} {error}" for error, count in failed.items())
        yield f"of {load['requests']} requests of load {load['load']} failed: {words}"


def samples_of(found: list[Row], rows: list[Row]) -> list[Row]:
    """The worker's samples in the schema of `samples.jsonl`."""
    return [
        {
            "item_id": one["item_id"],
            "document_id": one["document_id"],
            "context_tokens": rows[one["index"]].get("context_tokens"),
            "depth": rows[one["index"]].get("depth"),
            "score": one["score"],
            "other_scores": one["other_scores"],
            "answer": one["answer"],
            "target": one["target"],
            "choice_logprobs": one["choice_logprobs"],
            "prompt_sha256": hashlib.sha256(one["prompt"].encode()).hexdigest(),
            "asked_ns": one["asked_ns"],
            "answered_ns": one["answered_ns"],
            "error": one["error"],
        }
        for one in found
    ]


def _chance(kind: Kind, rows: list[Row], samples: list[Row]) -> float:
    """What the best constant answer scores on these items (open questions: 0)."""
    if kind.chance is not None:
        return kind.chance(rows)
    if not kind.choices:
        return 0.0
    most_common = Counter(sample["target"] for sample in samples).most_common(1)[0][1]
    return max(1.0 / kind.choices, most_common / len(samples))
