import json
from typing import Any

import pytest
from mimic import MimicServer

from harness.accuracy import determinism
from harness.accuracy.fidelity_options import FidelityOptions
from harness.backends import backend_class
from harness.backends.interface import EngineState
from harness.model import Model

OPTIONS = FidelityOptions(repeats=3, greedy_tokens=5)


def taken(server: MimicServer, model: Model, faults: str, beside: int = 2) -> dict[str, Any]:
    found = determinism.take(
        backend_class("vllm")(),
        server.url(faults),
        "m",
        model,
        context_tokens=640,
        seed=3,
        options=OPTIONS,
        beside=beside,
        state=lambda: EngineState(requests_running=2, requests_waiting=1),
    )
    assert found is not None
    json.dumps(found, allow_nan=False)
    return found


def identical(record: dict[str, Any], key: str) -> list[bool]:
    """Whether each answer after the first one alone is equal to it."""
    found = []
    for prompt in record["prompts"]:
        first = prompt["alone"][0]["token_ids"]
        found += [one["token_ids"] == first for one in (prompt[key][1:] if key == "alone" else prompt[key])]
    return found


def test_a_steady_server_repeats_itself(server: MimicServer, model: Model) -> None:
    found = taken(server, model, "sound")
    assert identical(found, "alone") == [True] * 4
    assert identical(found, "beside_others") == [True] * 6
    assert len({one["prompt_sha256"] for one in found["prompts"]}) == determinism.PROMPTS


def test_an_unsteady_server_never_does(server: MimicServer, model: Model) -> None:
    found = taken(server, model, "unsteady")
    assert identical(found, "alone") == [False] * 4
    assert identical(found, "beside_others") == [False] * 6


def test_a_server_that_is_unsteady_in_company_is_told_apart(server: MimicServer, model: Model) -> None:
    found = taken(server, model, "unsteady-beside", beside=3)
    assert identical(found, "alone") == [True] * 4
    assert not any(identical(found, "beside_others"))
    assert found["others_answered"] >= 3
    assert found["others_under_way"] == [3] * 6
    assert found["others_error"] is None


def test_requests_are_alone_until_the_others_come_and_these_are_distinct(server: MimicServer, model: Model) -> None:
    found = taken(server, model, "sound+order", beside=0)
    assert found["beside"] == 1  # at least one
    lengths = [one["body"]["prompt"] for one in server.seen("sound+order")]
    alone = determinism.PROMPTS * OPTIONS.repeats
    assert set(lengths[:alone]) == {determinism.PROMPT_TOKENS}
    assert lengths.count(determinism.FILLER_PROMPT_TOKENS) >= 1
    fillers = [
        one["text"] for one in server.seen("sound+order") if one["body"]["prompt"] == determinism.FILLER_PROMPT_TOKENS
    ]
    assert len(set(fillers)) == len(fillers)


@pytest.mark.parametrize(("faults", "says"), [("error", "HTTP 500"), ("garbled", "not JSON")])
def test_bad_answers_are_recorded(server: MimicServer, model: Model, faults: str, says: str) -> None:
    found = taken(server, model, faults)
    assert all(says in one["alone"][0]["error"] for one in found["prompts"])
    assert says in found["others_error"]


def test_a_dead_server_ends_it_at_once(model: Model) -> None:
    found = taken(MimicServer("http://127.0.0.1:9"), model, "sound")
    assert "connection broke" in found["prompts"][0]["alone"][0]["error"]
    assert found["others_answered"] == 0


def test_no_repeats_no_record(server: MimicServer, model: Model) -> None:
    none = FidelityOptions(repeats=0)
    where = (backend_class("vllm")(), server.url(), "m", model)
    assert determinism.take(*where, context_tokens=640, seed=3, options=none, beside=1, state=EngineState) is None
    assert determinism.size(none, 640) == (0, 0, 0)
    assert determinism.size(OPTIONS, 640) == (512, 60, 12)
