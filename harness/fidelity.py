"""Greedy continuations and repeated requests of one launch: `fidelity.json`, written as soon as either is there.

What goes wrong is returned as text for the launch's errors and never raised; a full disk is.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.accuracy import determinism, greedy
from harness.accuracy.fidelity_options import FidelityOptions
from harness.accuracy.patient_client import in_words
from harness.backends.interface import Effect
from harness.cell import Served
from harness.files import read_json, write_json
from harness.settings import Settings

SCHEMA_VERSION = 1
"""Of `fidelity.json`."""


def measure_greedy(served: Served, options: FidelityOptions, folder: Path) -> list[str]:
    """Continue prefixes of the output check's texts, which the cache still holds; returns what went wrong."""
    served.watch.step("greedy continuations")
    found = greedy.take(
        served.backend,
        served.server.base_url,
        served.server.served_name,
        served.model,
        context_tokens=served.context_tokens,
        seed=served.run_seed,
        options=options,
    )
    _add(folder, "greedy", found)
    return _errors("greedy", [one["error"] for one in found["prompts"]] if found else [])


def measure_determinism(
    served: Served, options: FidelityOptions, folder: Path, *, seed: int, settings: Settings, effect: Effect
) -> list[str]:
    """Empty the caches and repeat requests, alone and in a full batch; returns what went wrong."""
    if not options.repeats:
        return []
    served.watch.step("determinism")
    reset = served.reset()
    slots = min(settings.max_num_seqs, effect.slots or settings.max_num_seqs)
    found = determinism.take(
        served.backend,
        served.server.base_url,
        served.server.served_name,
        served.model,
        context_tokens=served.context_tokens,
        seed=seed,
        options=options,
        beside=slots - 1,
        state=served.state,
    )
    _add(folder, "determinism", found)
    if found is None:
        return []
    answers = [one["error"] for p in found["prompts"] for one in (*p["alone"], *p["beside_others"])] + [
        found["others_error"]
    ]
    unclean = [] if reset.done else [f"determinism: the cache was not empty at the start: {reset.evidence}"]
    return unclean + _errors("determinism", answers)


def _add(folder: Path, key: str, found: dict[str, Any] | None) -> None:
    path = folder / "fidelity.json"
    record = read_json(path) if path.is_file() else {"schema_version": SCHEMA_VERSION, "greedy": None}
    write_json(path, {"determinism": None, **record, key: found})


def _errors(what: str, errors: Iterable[str | None]) -> list[str]:
    words = in_words(errors)
    return [f"{what}: {words}"] if words else []
