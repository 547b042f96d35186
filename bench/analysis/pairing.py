"""Which answers of two deployments belong together: the same question, of the same block, asked in the same way."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.analysis.load import LaunchRecord, TaskRecord
from bench.analysis.result import DeploymentResult

Key = tuple[int, str]
"""Block and item."""

Scores = dict[Key, tuple[float, str]]
"""(block, item) → (score, document)."""

ASKED = {
    "kind": "kind",
    "prompt": "prompt form",
    "chat_template_sha256": "chat template",
    "chat_template_arguments": "chat template arguments",
    "task_yaml_sha256": "form of prompts and answers",
    "stop": "stop list",
    "stop_token_ids": "stop tokens",
    "answer_tokens": "length of the answer",
    "context_tokens": "prompt length",
    "server_context_tokens": "context of the server",
    "num_concurrent": "concurrency",
    "prompts_as_token_ids": "prompts as token ids",
    "under_load_sha256": "load beside the questions",
    "items_sha256": "questions",
}
"""Keys of `results.json` that `asked_sha256` covers, in words."""


@dataclass(frozen=True)
class Answer:
    """One scored answer; `text` is None where the model only chose, or left none."""

    score: float
    document: str
    text: str | None
    target: str


def scored(launches: Sequence[LaunchRecord], task: str) -> dict[int, TaskRecord]:
    """Block → what a deployment answered there; of two launches in a block, the first replica that has scores.

    A and A′ of a baseline are never averaged: right or wrong would become a half.
    """
    found: dict[int, TaskRecord] = {}
    for launch in sorted(launches, key=lambda one: (one.block, one.replica)):
        record = launch.tasks.get(task)
        if record is not None and launch.block not in found and answers(record):
            found[launch.block] = record
    return found


def answers(record: TaskRecord) -> dict[str, Answer]:
    """Item → scored answer of one launch; empty where the task wasn't measured."""
    if record.facts.get("state") != "measured":
        return {}
    return {
        str(sample["item_id"]): Answer(
            float(sample["score"]),
            str(sample.get("document_id") or sample["item_id"]),
            sample.get("answer"),
            str(sample.get("target") or ""),
        )
        for sample in record.samples
        if sample.get("score") is not None
    }


def scores(records: Mapping[int, TaskRecord]) -> Scores:
    """Scored items of a deployment, of `scored`."""
    return {
        (block, item): (one.score, one.document)
        for block, record in records.items()
        for item, one in answers(record).items()
    }


def not_measured(one: DeploymentResult, reference: DeploymentResult, task: str) -> str | None:
    """Why a deployment, or its reference, has no scores that could be compared."""
    if one.model != reference.model:
        return "another model"
    for who, d in (("", one), ("the baseline: ", reference)):
        if d.state == "not in effect":
            return f"{who}{d.state}"
        if (score := d.accuracy[task]).score is None:
            return f"{who}{score.state}: {score.reason}"
    return None


def asked_differently(mine: Mapping[int, TaskRecord], theirs: Mapping[int, TaskRecord]) -> str | None:
    """Why answers can't be paired though their names agree; None where they can."""
    for who, records in (("", mine), ("the baseline: ", theirs)):
        for block in sorted(records):
            if twice := _repeated(records[block]):
                return f"{who}item ids are not unique in block {block} ({twice})"
    differing: dict[int, str] = {}
    for block in sorted(mine.keys() & theirs.keys()):
        if what := _difference(mine[block].facts, theirs[block].facts):
            differing[block] = what
    if not differing:
        return None
    first = next(iter(differing.values()))
    return f"the questions differ from the baseline's in block {', '.join(map(str, differing))} ({first})"


def _difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str | None:
    """What differs between two launches of a block, as far as it decides whether answers may be paired."""
    if mine.get("mode") != theirs.get("mode"):
        return f"asked by {mine.get('mode')}, the baseline by {theirs.get('mode')}"
    both_say = mine.get("asked_sha256") and theirs.get("asked_sha256")
    if mine.get("items_sha256") == theirs.get("items_sha256") and (
        not both_say or mine["asked_sha256"] == theirs["asked_sha256"]
    ):
        return None
    if not both_say:
        return "items_sha256"
    named = [
        f"{words}{_values(mine[key], theirs[key])}"
        for key, words in ASKED.items()
        if key in mine and key in theirs and mine[key] != theirs[key]
    ]
    return ", ".join(named) or "asked_sha256"


def _values(mine: Any, theirs: Any) -> str:
    texts = [json.dumps(value, ensure_ascii=False) for value in (mine, theirs)]
    return f" {texts[0]}, the baseline's {texts[1]}" if max(map(len, texts)) <= 40 else ""


def _repeated(record: TaskRecord) -> str | None:
    counts = Counter(str(sample["item_id"]) for sample in record.samples)
    return next((item for item, count in counts.items() if count > 1), None)
