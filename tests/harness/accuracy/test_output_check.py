import itertools
import json
from typing import Any

import pytest
from mimic import MimicServer

from harness.accuracy.fidelity import compare
from harness.accuracy.fidelity_options import FidelityOptions
from harness.accuracy.forced_texts import LATE_UP_TO, SHORT_UP_TO, lengths
from harness.accuracy.output_check import size, take
from harness.backends import backend_class
from harness.backends.interface import EngineState
from harness.model import Model

OPTIONS = FidelityOptions(texts=2, positions=12)


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
        options=OPTIONS,
        **more,
    )
    json.dumps(record, allow_nan=False)  # whatever an engine answers, the record can be written
    return record


@pytest.mark.parametrize("engine", ["vllm", "llama-cpp"])
def test_sound_engine_is_read_in_its_own_shape(server: MimicServer, model: Model, engine: str) -> None:
    record = taken(server, model, engine=engine)
    assert record["error"] is None
    assert len(record["texts"]) == 2
    for text in record["texts"]:
        assert len(text["top_token_ids"]) == len(text["positions"]) == len(text["next_token_ids"]) == 12
        assert all(len(ids) == text["top_k"] for ids in text["top_token_ids"])
    assert record["prefix_hits"] == {"before": 100.0, "after": 900.0}


def test_prompts_are_growing_prefixes_of_each_text_sent_in_order(server: MimicServer, model: Model) -> None:
    record = taken(server, model, faults="sound+growing")
    asked = [one["body"] for one in server.seen("sound+growing")]
    steps = [body for body in asked if not body.get("echo")]
    positions = [text["positions"] for text in record["texts"]]
    assert [body["prompt"] for body in steps] == positions[1] + positions[0]  # the deep one last
    assert positions == [sorted(found) for found in positions]
    assert {(body["max_tokens"], body["temperature"]) for body in steps} == {(1, 0.0)}


def test_each_prefix_tells_how_much_of_it_was_cached(server: MimicServer, model: Model) -> None:
    for text in taken(server, model, faults="caches", engine="llama-cpp")["texts"]:
        assert text["cached_tokens"][1:] == text["positions"][:-1]
    unknown = [None] * 12
    assert [text["cached_tokens"] for text in taken(server, model)["texts"]] == [unknown, unknown]


def test_equal_seeds_give_equal_texts_and_other_seeds_others(server: MimicServer, model: Model) -> None:
    first, again, other = (taken(server, model, seed=seed) for seed in (3, 3, 4))
    assert first == again
    texts = [text["text_sha256"] for record in (first, other) for text in record["texts"]]
    assert len(set(texts)) == 4


def test_without_prefix_reuse_fewer_prefixes_of_the_same_texts_are_asked(server: MimicServer, model: Model) -> None:
    whole, fewer = taken(server, model), taken(server, model, prefix_reuse=False)
    found = compare(fewer, whole)
    assert found.nll_delta == 0.0
    assert 0 < found.positions == sum(len(text["positions"]) for text in fewer["texts"]) < 24


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
    assert {value for text in record["texts"] for row in text["top_logprobs"] for value in row} == {None}
    assert compare(record, taken(server, model, engine="llama-cpp")).unusable == 24


@pytest.mark.parametrize(
    ("faults", "says"), [("error", "HTTP 500"), ("garbled", "not JSON"), ("no-logprobs", "no log-prob")]
)
def test_bad_answers_end_in_error_with_all_positions_there(
    server: MimicServer, model: Model, faults: str, says: str
) -> None:
    record = taken(server, model, faults=faults, engine="llama-cpp")
    assert says in record["error"]
    assert [text["top_token_ids"] for text in record["texts"]] == [[[]] * 12] * 2


def test_a_server_that_dies_in_the_middle_leaves_what_it_answered(server: MimicServer, model: Model) -> None:
    record = taken(server, model, faults="dies", engine="llama-cpp")
    assert "connection broke" in record["error"]
    deep, short = record["texts"]
    assert [bool(ids) for ids in short["top_token_ids"]] == [True] * 10 + [False] * 2
    assert deep["top_token_ids"] == [[]] * 12
    assert record["prefix_hits"] is None


def test_dead_server_is_an_error(model: Model) -> None:
    assert "connection broke" in taken(MimicServer("http://127.0.0.1:9"), model)["error"]


def test_counters_that_cannot_be_read_are_no_hits_and_no_failure(server: MimicServer, model: Model) -> None:
    def unread() -> EngineState:
        raise OSError("no answer")

    where = (backend_class("vllm")(), server.url(), "m", model)
    record = take(*where, context_tokens=640, seed=3, state=unread, options=OPTIONS)
    assert record["prefix_hits"] is None
    assert record["error"] is None


def test_silent_server_is_given_up_after_three_waits(server: MimicServer, model: Model) -> None:
    record = taken(server, model, faults="silent", timeout_s=0.05)
    assert record["error"].count("no answer within") == 3


def test_broken_cache_shows_against_the_sound_record(server: MimicServer, model: Model) -> None:
    sound, broken = taken(server, model), taken(server, model, faults="broken")
    assert compare(sound, sound).top1_agreement == 1.0
    found = compare(broken, sound)
    assert found.top1_agreement is not None and found.top1_agreement < 0.2
    assert found.kl is not None and found.kl > 1.0


def test_a_cache_that_is_broken_late_shows_late_alone(server: MimicServer, model: Model) -> None:
    sound, broken = taken(server, model), taken(server, model, faults="late-broken")
    late = compare(broken, sound, from_position=300)
    assert late.top1_agreement is not None and late.top1_agreement < 0.2
    whole = compare(broken, sound)
    assert whole.top1_agreement is not None
    assert whole.top1_agreement * whole.positions == pytest.approx(whole.positions - late.positions, abs=1)


@pytest.mark.parametrize("context_tokens", [17, 64, 640, 2048, 6400, 131_072])
@pytest.mark.parametrize("positions", [8, 40])
def test_positions_stay_within_the_context(context_tokens: int, positions: int) -> None:
    deep, *short = lengths(FidelityOptions(texts=3, positions=positions), context_tokens)
    for found in (deep, *short):
        assert found == sorted(set(found))
        assert min(found) > 0 and max(found) < context_tokens
        assert len(found) == min(positions, context_tokens - 1)
    assert max(deep) <= max(LATE_UP_TO, context_tokens // 4)
    assert all(max(found) <= SHORT_UP_TO for found in short)


@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_most_prefixes_are_read_from_whole_blocks_that_are_cached(block: int) -> None:
    for found in lengths(FidelityOptions(), 6400):
        computed = [after - before // block * block for before, after in itertools.pairwise(found)]
        assert sum(tokens <= 6 for tokens in computed) >= 0.75 * len(found)


def test_size_counts_what_is_sent(server: MimicServer, model: Model) -> None:
    record = taken(server, model, faults="sound+sized")
    tokens, requests = size(OPTIONS, 640)
    assert requests == len(server.seen("sound+sized")) == 25
    ends = [text["positions"][-1] for text in record["texts"]]
    assert sum(ends) + 638 <= tokens <= sum(ends) + 638 + 2 * 12 * 8
    every = [position for text in taken(server, model, prefix_reuse=False)["texts"] for position in text["positions"]]
    assert size(OPTIONS, 640, prefix_reuse=False, echo=False) == (sum(every), len(every))
