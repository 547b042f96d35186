import json
from typing import Any

import pytest
from mimic import MimicServer

from harness.accuracy import greedy, output_check
from harness.accuracy.fidelity_options import FidelityOptions
from harness.backends import backend_class
from harness.backends.interface import Backend, EngineState
from harness.model import Model

OPTIONS = FidelityOptions(texts=2, positions=12, greedy_prompts=3, greedy_tokens=7)


class TextOnly(Backend):
    """An engine that answers with text alone."""

    def request_extras(self, output_tokens: int) -> dict[str, Any]:
        return {"max_tokens": output_tokens, "ignore_eos": True}


def taken(server: MimicServer, model: Model, faults: str = "sound", backend: Backend | None = None) -> dict[str, Any]:
    found = greedy.take(
        backend or backend_class("vllm")(), server.url(faults), "m", model, context_tokens=640, seed=3, options=OPTIONS
    )
    assert found is not None
    json.dumps(found, allow_nan=False)
    return found


@pytest.mark.parametrize("engine", ["vllm", "llama-cpp"])
def test_token_ids_are_kept_where_the_engine_names_them(server: MimicServer, model: Model, engine: str) -> None:
    found = taken(server, model, backend=backend_class(engine)())
    assert [len(one["token_ids"]) for one in found["prompts"]] == [7, 7, 7]
    assert {one["text"] for one in found["prompts"]} == {None}


def test_text_is_kept_where_it_does_not(server: MimicServer, model: Model) -> None:
    for one in taken(server, model, backend=TextOnly())["prompts"]:
        assert one["token_ids"] is None
        assert isinstance(one["text"], str) and one["error"] is None


def test_prompts_are_prefixes_of_the_forced_texts_late_ones_first(server: MimicServer, model: Model) -> None:
    def state() -> EngineState:
        return EngineState()

    where = (backend_class("vllm")(), server.url("sound+places"), "m", model)
    check = output_check.take(*where, context_tokens=640, seed=3, state=state, options=OPTIONS)
    texts = {one["text"] for one in server.seen("sound+places") if not one["body"].get("echo")}
    prompts = taken(server, model, faults="sound+places")["prompts"]
    assert {one["text"] for one in server.seen("sound+places")[-3:]} <= texts
    assert [one["text_index"] for one in prompts] == [0, 0, 1]
    assert prompts[0]["position"] == check["texts"][0]["positions"][-1]
    assert prompts[1]["position"] < prompts[0]["position"]


def test_a_broken_cache_leads_elsewhere_and_a_sound_one_does_not(server: MimicServer, model: Model) -> None:
    sound, again, broken = (taken(server, model, faults) for faults in ("sound", "sound", "broken"))
    assert sound == again
    for one, other in zip(sound["prompts"], broken["prompts"], strict=True):
        assert one["prompt_sha256"] == other["prompt_sha256"]
        assert one["token_ids"] != other["token_ids"]


@pytest.mark.parametrize(("faults", "says"), [("error", "HTTP 500"), ("garbled", "not JSON")])
def test_bad_answers_are_recorded(server: MimicServer, model: Model, faults: str, says: str) -> None:
    prompts = taken(server, model, faults)["prompts"]
    assert all(says in one["error"] and one["token_ids"] is None for one in prompts)


def test_a_dead_server_is_asked_once(model: Model) -> None:
    prompts = taken(MimicServer("http://127.0.0.1:9"), model)["prompts"]
    assert all("connection broke" in one["error"] for one in prompts)


def test_a_server_that_hangs_is_given_up_after_three_waits(server: MimicServer, model: Model) -> None:
    options = FidelityOptions(texts=2, positions=12, greedy_prompts=5, greedy_tokens=7)
    where = (backend_class("vllm")(), server.url("silent"), "m", model)
    found = greedy.take(*where, context_tokens=640, seed=3, options=options, timeout_s=0.05)
    assert found is not None
    errors = [one["error"] for one in found["prompts"]]
    assert ["given up" in error for error in errors] == [False] * 3 + [True] * 2


def test_an_answer_without_tokens_is_an_error(server: MimicServer, model: Model) -> None:
    prompts = taken(server, model, "no-tokens")["prompts"]
    assert all("lacks" in one["error"] for one in prompts)


def test_no_prompts_no_record_and_prompts_leave_room_for_the_answer(server: MimicServer, model: Model) -> None:
    none = FidelityOptions(greedy_prompts=0)
    where = (backend_class("vllm")(), server.url(), "m", model)
    assert greedy.take(*where, context_tokens=640, seed=3, options=none) is None
    assert greedy.size(none, 640) == (0, 0, 0)
    tight = FidelityOptions(greedy_tokens=100)
    found = greedy.take(*where, context_tokens=640, seed=3, options=tight)
    assert found is not None
    assert found["prompts"]
    assert all(one["position"] + 100 <= 640 for one in found["prompts"])
    assert greedy.size(OPTIONS, 640) == (515, 21, 3)
    assert greedy.size(OPTIONS, 640, prefix_reuse=False) == (515 + 386 + 515, 21, 3)
