import json
from typing import Any

import pytest
from mimic import MimicServer

from harness.accuracy.fidelity import compare
from harness.accuracy.output_check import positions, take
from harness.backends import backend_class
from harness.backends.interface import EngineState
from harness.model import Model


def taken(
    server: MimicServer, model: Model, faults: str = "sound", engine: str = "vllm", **more: Any
) -> dict[str, Any]:
    hits = iter((100.0, 900.0))
    record = take(
        backend_class(engine)(),
        server.url(faults),
        "m",
        model,
        context_tokens=640,
        seed=more.pop("seed", 3),
        state=lambda: EngineState(prefix_hits_total=next(hits)),
        **more,
    )
    json.dumps(record, allow_nan=False)  # whatever an engine answers, the record can be written
    return record


@pytest.mark.parametrize("engine", ["vllm", "llama-cpp"])
def test_sound_engine_is_read_in_its_own_shape(server: MimicServer, model: Model, engine: str) -> None:
    record = taken(server, model, engine=engine)
    assert record["error"] is None
    assert len(record["top_token_ids"]) == len(record["positions"]) == len(record["next_token_ids"])
    assert all(len(ids) == record["top_k"] for ids in record["top_token_ids"])
    assert record["prefix_hits"] == {"before": 100.0, "after": 900.0}
    assert record["positions"][-1] == 639


def test_prompts_are_growing_prefixes_of_one_text_sent_in_order(server: MimicServer, model: Model) -> None:
    record = taken(server, model, faults="sound+growing")
    asked = [one["body"] for one in server.seen("sound+growing")]
    steps = [body for body in asked if not body.get("echo")]
    assert [body["prompt"] for body in steps] == record["positions"] == sorted(record["positions"])
    assert {(body["max_tokens"], body["temperature"]) for body in steps} == {(1, 0.0)}


def test_equal_seeds_give_equal_texts_and_other_seeds_others(server: MimicServer, model: Model) -> None:
    first, again, other = (taken(server, model, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first["text_sha256"] != other["text_sha256"]


def test_echoed_text_is_scored_only_where_the_engine_serves_it(server: MimicServer, model: Model) -> None:
    assert taken(server, model, engine="llama-cpp")["echo"] is None
    echo = taken(server, model)["echo"]
    assert echo["tokens"] == 637  # one less than sent: the first token has no log-probability
    assert echo["nll"] > 0


def test_ignored_echo_is_an_error_not_an_nll(server: MimicServer, model: Model) -> None:
    record = taken(server, model, faults="ignores-echo")
    assert record["echo"] is None
    assert "echo" in record["error"]


def test_nan_is_stored_as_null_and_counts_as_unusable(server: MimicServer, model: Model) -> None:
    record = taken(server, model, faults="nan", engine="llama-cpp")
    assert {value for row in record["top_logprobs"] for value in row} == {None}
    assert compare(record, taken(server, model, engine="llama-cpp")).unusable == len(record["positions"])


@pytest.mark.parametrize(
    ("faults", "says"), [("error", "HTTP 500"), ("garbled", "not JSON"), ("no-logprobs", "no log-prob")]
)
def test_bad_answers_end_in_error_with_all_positions_there(
    server: MimicServer, model: Model, faults: str, says: str
) -> None:
    record = taken(server, model, faults=faults, engine="llama-cpp")
    assert says in record["error"]
    assert record["top_token_ids"] == [[]] * len(record["positions"])


def test_dead_server_is_an_error(model: Model) -> None:
    assert "connection broke" in taken(MimicServer("http://127.0.0.1:9"), model)["error"]


def test_silent_server_is_given_up_after_three_waits(server: MimicServer, model: Model) -> None:
    record = taken(server, model, faults="silent", timeout_s=0.05)
    assert record["error"].count("no answer within") == 3


def test_broken_cache_shows_against_the_sound_record(server: MimicServer, model: Model) -> None:
    sound, broken = taken(server, model), taken(server, model, faults="broken")
    assert compare(sound, sound).top1_agreement == 1.0
    found = compare(broken, sound)
    assert found.top1_agreement is not None and found.top1_agreement < 0.2
    assert found.kl is not None and found.kl > 1.0


@pytest.mark.parametrize("context_tokens", [64, 640, 2048, 6400, 131_072])
def test_positions_stay_within_the_context(context_tokens: int) -> None:
    found = positions(context_tokens)
    assert found == sorted(set(found))
    assert min(found) > 0 and max(found) < context_tokens
    assert len(found) == 24
    assert sum(position > 3072 for position in found) == (4 if context_tokens > 3073 else 0)
