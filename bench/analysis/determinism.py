"""The same request again and again, alone and beside others: how often the whole output is the same."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from bench.analysis.load import LaunchRecord
from bench.analysis.result import DeterminismResult


def determinism(launches: Sequence[LaunchRecord]) -> DeterminismResult | None:
    """Over all launches that repeated requests; None where none did. Answers that failed count nowhere."""
    records = [found for launch in launches if (found := (launch.fidelity or {}).get("determinism"))]
    prompts = [prompt for record in records for prompt in record["prompts"]]
    alone = [same for prompt in prompts for same in _same(prompt, prompt["alone"][1:])]
    beside = [same for prompt in prompts for same in _same(prompt, prompt["beside_others"])]
    if not records:
        return None
    return DeterminismResult(
        launches=len(records),
        prompts=max(len(record["prompts"]) for record in records),
        repeats=max(int(record["repeats"]) for record in records),
        output_tokens=max(int(record["tokens"]) for record in records),
        identical_alone=fmean(alone) if alone else None,
        identical_under_load=fmean(beside) if beside else None,
        beside=max(int(record["beside"]) for record in records),
    )


def _same(prompt: Mapping[str, Any], answers: Iterable[Mapping[str, Any]]) -> Iterable[bool]:
    """Whether each answer equals the first one; none where that failed."""
    first = prompt["alone"][0]
    if first["error"]:
        return
    for one in answers:
        if not one["error"]:
            yield (one["token_ids"], one["text"]) == (first["token_ids"], first["text"])
