"""`fidelity.json` as a launch leaves it: both parts, whatever went wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from mimic import MimicServer

from harness.accuracy.fidelity_options import FidelityOptions
from harness.backends import backend_class
from harness.backends.interface import Effect, EngineState
from harness.cell import Served
from harness.fidelity import measure_determinism, measure_greedy
from harness.model import Model
from harness.server import Server, ServerSpec
from harness.settings import Settings
from harness.traffic.client_options import ClientOptions
from harness.watch import Watch

OPTIONS = FidelityOptions(texts=1, positions=8, greedy_prompts=2, greedy_tokens=4, repeats=2)
SETTINGS = Settings(context_tokens=640, max_num_seqs=3)


class Quiet(Watch):
    """Nobody looks on."""


def served(url: str, model: Model, folder: Path) -> Served:
    server = Server(ServerSpec((), folder / "engine.log", 9, "m"), guard=None)  # type: ignore[arg-type]
    server.base_url = url
    return Served(
        server=server,
        backend=backend_class("vllm")(),
        model=model,
        context_tokens=SETTINGS.context_tokens,
        capacity_tokens=None,
        run_seed=5,
        record_dir=folder,
        state=EngineState,
        client=ClientOptions(),
        watch=Quiet(),
    )


def measured(
    url: str, model: Model, folder: Path, options: FidelityOptions = OPTIONS, slots: int | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Errors, and the file."""
    what = served(url, model, folder)
    effect = Effect((), (), "auto", None, None, None, slots)
    errors = measure_greedy(what, options, folder)
    assert json.loads((folder / "fidelity.json").read_text())["determinism"] is None  # on disk as soon as it is there
    errors += measure_determinism(what, options, folder, seed=7, settings=SETTINGS, effect=effect)
    return errors, json.loads((folder / "fidelity.json").read_text())


def test_a_sound_server_leaves_both_parts(server: MimicServer, model: Model, tmp_path: Path) -> None:
    errors, found = measured(server.url("caches"), model, tmp_path)
    assert errors == []
    assert found["schema_version"] == 1
    assert [len(one["token_ids"]) for one in found["greedy"]["prompts"]] == [4, 4]
    assert [len(one["beside_others"]) for one in found["determinism"]["prompts"]] == [2, 2]
    assert found["determinism"]["beside"] == 2  # the batch holds three


def test_slots_that_are_fewer_than_the_batch_limit_the_company(
    server: MimicServer, model: Model, tmp_path: Path
) -> None:
    assert measured(server.url(), model, tmp_path, slots=2)[1]["determinism"]["beside"] == 1


@pytest.mark.parametrize(("faults", "says"), [("error", "HTTP 500"), ("garbled", "not JSON")])
def test_bad_answers_are_told_once_each_and_never_raised(
    server: MimicServer, model: Model, tmp_path: Path, faults: str, says: str
) -> None:
    errors, found = measured(server.url(faults), model, tmp_path)
    assert any(error.startswith("greedy: ") and says in error for error in errors)
    assert any(error.startswith("determinism: ") and says in error for error in errors)
    assert [error.partition(":")[0] for error in errors] == ["greedy", "determinism", "determinism"]
    assert "could not be verified" in errors[1]
    assert len(found["greedy"]["prompts"]) == len(found["determinism"]["prompts"]) == 2


def test_a_dead_server_is_told_and_never_raised(model: Model, tmp_path: Path) -> None:
    errors, found = measured("http://127.0.0.1:9", model, tmp_path)
    assert any("connection broke" in error for error in errors)
    assert found["determinism"]["others_answered"] == 0


def test_a_cache_that_cannot_be_emptied_is_told(server: MimicServer, model: Model, tmp_path: Path) -> None:
    errors, _ = measured(server.url("no-reset"), model, tmp_path)
    assert ["the cache was not empty" in error for error in errors] == [True]


def test_what_is_not_asked_for_is_null(server: MimicServer, model: Model, tmp_path: Path) -> None:
    none = FidelityOptions(greedy_prompts=0, repeats=0)
    assert measured(server.url(), model, tmp_path, none) == (
        [],
        {"schema_version": 1, "greedy": None, "determinism": None},
    )
