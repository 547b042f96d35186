"""A schedule as a JMeter plan. JMeter itself is not run: what it is known to read is checked, element by element."""

import csv
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from harness.errors import StorageError
from harness.model import Model
from harness.traffic.jmeter import Exported, export_plan
from harness.traffic.load import Load, Tenant
from harness.traffic.playbook import Playbook
from harness.traffic.prompts import composer
from harness.traffic.schedule import build_schedule

SESSIONS = {"kind": "sharegpt", "input_tokens_mean": 200, "output_tokens_mean": 8, "turns_max": 3, "think_s": 1.5}
SINGLE = {"kind": "synthetic", "input_tokens_mean": 64, "output_tokens_mean": 8}
CLOSED = Load(workload=SESSIONS, arrival={"kind": "closed", "concurrency": 4}, requests=30, warmup_requests=4)
OPEN = Load(workload=SINGLE, arrival={"kind": "poisson", "rate_rps": 10.0}, requests=30, warmup_requests=0)
CHAT = Load(workload=SESSIONS, arrival={"kind": "closed", "concurrency": 2}, requests=9, warmup_requests=0, api="chat")
TENANTS = Load(
    tenants={
        "chat": Tenant(workload=SESSIONS, arrival={"kind": "constant", "rate_rps": 5.0}, share=2.0),
        "batch": Tenant(workload=SINGLE, arrival={"kind": "closed", "concurrency": 3}, share=1.0),
    },
    requests=30,
    warmup_requests=0,
)
EVERY = [CLOSED, OPEN, CHAT, TENANTS]

ELEMENTS = {
    "TestPlan", "ThreadGroup", "CSVDataSet", "HeaderManager", "LoopController", "CounterConfig", "HTTPSamplerProxy",
    "JSR223Timer", "ResponseAssertion",
}  # fmt: skip
"""Class names of Apache JMeter 5's `saveservice.properties`."""
PROPERTIES = {"stringProp", "boolProp", "intProp", "elementProp", "collectionProp"}


def exported(load: Load, model: Model, folder: Path) -> tuple[Exported, Path]:
    schedule = folder / "schedule.jsonl"
    facts = build_schedule(
        load, model=model, served_name="m", request_extras=lambda tokens: {"min_tokens": tokens}, context_tokens=1024,
        seed=1, path=schedule,
    )  # fmt: skip
    return export_plan(schedule, folder / "jmeter", "some-load", facts.sha256), schedule


def plan(written: Exported) -> ElementTree.Element:
    return ElementTree.parse(written.plan).getroot()


def rows(path: Path) -> list[list[str]]:
    csv.field_size_limit(10**8)
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def value(element: ElementTree.Element, name: str) -> str:
    found = element.find(f"*[@name='{name}']")
    assert found is not None, name
    return found.text or ""


@pytest.mark.parametrize("load", EVERY, ids=["closed", "open", "chat", "tenants"])
def test_the_plan_is_a_tree_of_elements_that_jmeter_has(load: Load, model: Model, tmp_path: Path) -> None:
    root = plan(exported(load, model, tmp_path)[0])
    assert root.tag == "jmeterTestPlan" and root.get("jmeter", "").startswith("5.")

    def walk(tree: ElementTree.Element) -> None:
        children = list(tree)
        assert len(children) % 2 == 0
        for element, below in zip(children[::2], children[1::2], strict=True):
            assert element.tag in ELEMENTS and below.tag == "hashTree"
            assert (
                element.get("testclass") == element.tag and element.get("guiclass") and element.get("enabled") == "true"
            )
            assert {inner.tag for inner in element.iter() if inner is not element} <= PROPERTIES
            walk(below)

    (top,) = root
    walk(top)


@pytest.mark.parametrize("load", EVERY, ids=["closed", "open", "chat", "tenants"])
def test_every_session_is_a_line_with_the_bodies_that_we_send(load: Load, model: Model, tmp_path: Path) -> None:
    written, schedule = exported(load, model, tmp_path)
    book = Playbook(schedule)
    bodies = composer(book)
    key = "messages" if load.api == "chat" else "prompt"
    assert written.requests == load.requests + load.warmup_requests
    requests = 0
    for path, group in zip(written.data, book.groups.values(), strict=True):
        assert len(group.offsets) == len(rows(path))
        for line, session in zip(rows(path), map(book.session, group.offsets), strict=True):
            assert line[:2] == [session.session_id, session.phase]
            assert line[2] == ("" if group.places else str(round((session.due_ns or 0) / 1e6)))
            assert int(line[3]) == len(session.turns) == (len(line) - 4) // 2
            first = b"".join(bodies.body(bodies.first(session.turns[0]), session.turns[0]))
            assert line[4].encode() == first
            for turn, body, think_ms in zip(session.turns, line[4::2], line[5::2], strict=True):
                asked: dict[str, Any] = json.loads(body)
                assert asked["max_tokens"] == asked["min_tokens"] == turn.output_tokens and asked["stream"] is True
                assert load.api == "chat" or len(asked[key]) == turn.prompt_tokens
                assert int(think_ms) == turn.think_ns / 1e6
                requests += 1
    assert requests == written.requests


def test_later_turns_go_on_with_a_stand_in_for_the_answer(model: Model, tmp_path: Path) -> None:
    written, _ = exported(CLOSED, model, tmp_path)
    line = next(line for line in rows(written.data[0]) if int(line[3]) > 1)
    first, second = (json.loads(body)["prompt"] for body in line[4:8:2])
    assert second[: len(first)] == first
    chat, _ = exported(CHAT, model, tmp_path)
    line = next(line for line in rows(chat.data[0]) if int(line[3]) > 1)
    roles = [message["role"] for message in json.loads(line[6])["messages"]]
    assert roles == ["user", "assistant", "user"] and json.loads(line[6])["messages"][1]["content"]


def test_threads_are_the_places_of_a_closed_loop(model: Model, tmp_path: Path) -> None:
    root = plan(exported(TENANTS, model, tmp_path)[0])
    threads = {group.get("testname"): value(group, "ThreadGroup.num_threads") for group in root.iter("ThreadGroup")}
    assert threads["batch"] == "3" and threads["chat"].startswith("${__P(threads,")
    sets = list(root.iter("CSVDataSet"))
    assert {value(each, "filename") for each in sets} == {"some-load-chat.csv", "some-load-batch.csv"}
    for each in sets:
        assert value(each, "stopThread") == "true" and value(each, "recycle") == "false"
        names = value(each, "variableNames").split(",")
        lines = rows(tmp_path / "jmeter" / value(each, "filename"))
        assert max(map(len, lines)) == len(names)


def test_the_plan_says_what_jmeter_can_not_measure(model: Model, tmp_path: Path) -> None:
    root = plan(exported(OPEN, model, tmp_path)[0])
    comment = value(next(root.iter("TestPlan")), "TestPlan.comments")
    for words in ("no time to first token", "no inter-token latency", "not reported as late", "stand-in"):
        assert words in comment
    assert "computeIfAbsent" in value(next(root.iter("JSR223Timer")), "script")


def test_a_folder_that_can_not_be_written_is_named(model: Model, tmp_path: Path) -> None:
    (tmp_path / "jmeter").write_text("a file")
    with pytest.raises(StorageError, match=r"can't write the JMeter plan to .*jmeter"):
        exported(OPEN, model, tmp_path)
