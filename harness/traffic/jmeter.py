"""A schedule as a plan for Apache JMeter 5, for sites that must use it: a `.jmx`, and bodies and times as CSV.

Elements of JMeter itself only, no plug-in. A thread plays sessions: it takes the next line of the CSV, which is one
session with all its turns, and a loop controller sends them one after the other. In a closed loop there are as many
threads as places; in an open one each waits until its session is due. What JMeter can't do is said in the plan's own
comment.
"""

import csv
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from harness.errors import StorageError
from harness.files import write_bytes
from harness.traffic.playbook import Group, Playbook, Session
from harness.traffic.prompts import Composer, composer
from harness.traffic.text import load_tokenizer

THREADS_MAX = 1000
"""Threads of an open loop, where it has more sessions than that; `-Jthreads=` says another number."""

COMMENT = """Written by KVMark from schedule {sha256}.

Run it with Apache JMeter 5.x:
  jmeter -n -t {plan} -l results.jtl -Jhost=127.0.0.1 -Jport=8000 [-Jprotocol=https] [-Jthreads=2000]

What JMeter can't measure of a streamed answer:
- It knows no tokens: there is no time to first token, no inter-token latency and no time per output token. Its
  "latency" ends at the first byte of the response, the status line, which servers send before the first token.
- It counts no output tokens: tokens a second can't be had from its results.
- An answer that breaks off is seen only by the assertion that [DONE] was sent; an error event inside a stream may pass.
- In an open loop a request that is sent late (all threads busy, a slow client) is not reported as late: its times count
  from when it was sent. In this plan a session that finds no free thread waits for one.
What it sends differently from KVMark:
- A later turn's prompt holds a stand-in for what the model said before, as long as planned: a cache of generated tokens
  is not reused. First turns and single requests are equal token by token.
- Threads are no exact clock: times are kept to about a millisecond, on the wall clock.
"""

_TIMER = """int turn = (vars.get('turn') ?: '1').toInteger()
if (turn > 1) return vars.get('think_ms_' + turn).toLong()
String due = vars.get('due_ms')
if (!due) return 0L
long start = props.computeIfAbsent('kvmark.start_ms', { key -> System.currentTimeMillis() })
return Math.max(0L, start + due.toLong() - System.currentTimeMillis())
"""


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes
    ----------
    plan : Path
    data : tuple of Path
        A CSV for each tenant.
    sessions, requests : int
    """

    plan: Path
    data: tuple[Path, ...]
    sessions: int
    requests: int


@dataclass(frozen=True)
class _Answer:
    """Stands in for what the model will say."""

    text: str
    token_ids: list[int] | None


def export_plan(schedule: Path, folder: Path, name: str, sha256: str) -> Exported:
    """Write `<name>.jmx` and its data beside it.

    Parameters
    ----------
    schedule : Path
        What `build_schedule` wrote.
    folder : Path
        Where to; made if it isn't there.
    name : str
        Of the plan.
    sha256 : str
        Of the schedule (`ScheduleFacts.sha256`).

    Raises
    ------
    StorageError
        When something can't be written.
    """
    book = Playbook(schedule)
    bodies = composer(book)
    if book.has_later_turns:
        bodies.prepare_later_turns()
    stand_in = _StandIn(book)
    plan, children = _test_plan(name, COMMENT.format(sha256=sha256, plan=f"{name}.jmx"))
    data = []
    sessions = 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for tenant, group in book.groups.items():
            if not group.offsets:
                continue
            path = folder / (f"{name}-{tenant}.csv" if tenant else f"{name}.csv")
            turns_max = 0
            with open(path, "w", encoding="utf-8", newline="") as file:
                rows = csv.writer(file, lineterminator="\n")
                for session in map(book.session, group.offsets):
                    turns_max = max(turns_max, len(session.turns))
                    rows.writerow(_row(session, bodies, stand_in, is_open=not group.places))
            sessions += len(group.offsets)
            data.append(path)
            _add_group(children, tenant or name, path.name, group, turns_max, bodies.path, book.timeout_s)
    except OSError as error:
        raise StorageError(f"can't write the JMeter plan to {folder}: {error}") from error
    tree = ElementTree.ElementTree(plan)
    ElementTree.indent(tree)
    text = ElementTree.tostring(plan, encoding="unicode")
    write_bytes(folder / f"{name}.jmx", f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode())
    return Exported(folder / f"{name}.jmx", tuple(data), sessions, book.requests)


def _row(session: Session, bodies: Composer, stand_in: "_StandIn", is_open: bool) -> Iterator[str]:
    """A session's line: who, when, how many turns; and of each turn its body and the pause before it."""
    yield from (session.session_id, session.phase)
    yield str(round((session.due_ns or 0) / 1e6)) if is_open else ""
    yield str(len(session.turns))
    prompt = bodies.first(session.turns[0])
    for index, turn in enumerate(session.turns):
        if index:
            before = session.turns[index - 1]
            answer = stand_in.answer(session.first_request + index, before.output_tokens)
            prompt = bodies.following(prompt, before, turn, answer)
        yield b"".join(bodies.body(prompt, turn)).decode()
        yield str(round(turn.think_ns / 1e6))


class _StandIn:
    """Answers cut from the schedule's text, a different piece for every request."""

    def __init__(self, book: Playbook) -> None:
        self._ids = array("I", map(int, book.corpus.split(b","))) if book.has_later_turns else array("I")
        self._tokenizer = load_tokenizer(book.engine.tokenizer) if book.has_later_turns and book.api == "chat" else None

    def answer(self, ordinal: int, tokens: int) -> _Answer:
        start = ordinal * 7919 % len(self._ids)
        ids = [self._ids[(start + i) % len(self._ids)] for i in range(tokens)]
        return _Answer("" if self._tokenizer is None else self._tokenizer.decode(ids), ids)


def _test_plan(name: str, comment: str) -> tuple[Element, Element]:
    """The plan, and the tree that its elements go into."""
    root = Element("jmeterTestPlan", version="1.2", properties="5.0", jmeter="5.6.3")
    top = SubElement(root, "hashTree")
    plan, children = _element(top, "TestPlan", "TestPlanGui", name)
    _text(plan, "TestPlan.comments", comment)
    for key, value in (("functional_mode", False), ("tearDown_on_shutdown", True), ("serialize_threadgroups", False)):
        _bool(plan, f"TestPlan.{key}", value)
    variables = _part(plan, "TestPlan.user_defined_variables", "Arguments", guiclass="ArgumentsPanel", name="Variables")
    SubElement(variables, "collectionProp", name="Arguments.arguments")
    _text(plan, "TestPlan.user_define_classpath", "")
    return root, children


def _add_group(
    parent: Element, name: str, data: str, group: Group, turns_max: int, path: str, timeout_s: float
) -> None:
    """Threads that play the sessions of one tenant."""
    threads, children = _element(parent, "ThreadGroup", "ThreadGroupGui", name)
    count = group.places or min(len(group.offsets), THREADS_MAX)
    _text(threads, "ThreadGroup.on_sample_error", "continue")
    loop = _part(threads, "ThreadGroup.main_controller", "LoopController", guiclass="LoopControlPanel", name="Sessions")
    _bool(loop, "LoopController.continue_forever", False)
    _text(loop, "LoopController.loops", "-1")
    _text(threads, "ThreadGroup.num_threads", str(count) if group.places else f"${{__P(threads,{count})}}")
    _text(threads, "ThreadGroup.ramp_time", "0")
    _bool(threads, "ThreadGroup.scheduler", False)
    _bool(threads, "ThreadGroup.same_user_on_next_iteration", True)

    rows, _ = _element(children, "CSVDataSet", "TestBeanGUI", "Next session")
    columns = [f"{key}_{turn}" for turn in range(1, turns_max + 1) for key in ("body", "think_ms")]
    _text(rows, "filename", data)
    _text(rows, "fileEncoding", "UTF-8")
    _text(rows, "variableNames", ",".join(["session_id", "phase", "due_ms", "turns", *columns]))
    _text(rows, "delimiter", ",")
    _text(rows, "shareMode", "shareMode.all")
    for key, value in (("ignoreFirstLine", False), ("quotedData", True), ("recycle", False), ("stopThread", True)):
        _bool(rows, key, value)

    headers, _ = _element(children, "HeaderManager", "HeaderPanel", "Headers")
    given = SubElement(headers, "collectionProp", name="HeaderManager.headers")
    for key, text in (("Content-Type", "application/json"), ("Accept", "text/event-stream")):
        header = SubElement(given, "elementProp", name=key, elementType="Header")
        _text(header, "Header.name", key)
        _text(header, "Header.value", text)

    turns, in_turn = _element(children, "LoopController", "LoopControlPanel", "Turns")
    _text(turns, "LoopController.loops", "${turns}")
    counter, _ = _element(in_turn, "CounterConfig", "CounterConfigGui", "Number of the turn")
    for key, text in (("start", "1"), ("end", ""), ("incr", "1"), ("name", "turn"), ("format", "")):
        _text(counter, f"CounterConfig.{key}", text)
    _bool(counter, "CounterConfig.per_user", True)
    _bool(counter, "CounterConfig.reset_on_tg_iteration", True)
    _add_request(in_turn, path, timeout_s)


def _add_request(parent: Element, path: str, timeout_s: float) -> None:
    request, children = _element(parent, "HTTPSamplerProxy", "HttpTestSampleGui", "${phase}")
    _bool(request, "HTTPSampler.postBodyRaw", True)
    body = _part(request, "HTTPsampler.Arguments", "Arguments")
    arguments = SubElement(body, "collectionProp", name="Arguments.arguments")
    argument = SubElement(arguments, "elementProp", name="", elementType="HTTPArgument")
    _bool(argument, "HTTPArgument.always_encode", False)
    _text(argument, "Argument.value", "${__V(body_${turn})}")
    _text(argument, "Argument.metadata", "=")
    for key, text in (
        ("domain", "${__P(host,127.0.0.1)}"),
        ("port", "${__P(port,8000)}"),
        ("protocol", "${__P(protocol,http)}"),
        ("contentEncoding", "UTF-8"),
        ("path", path),
        ("method", "POST"),
        ("response_timeout", str(round(timeout_s * 1000))),
    ):
        _text(request, f"HTTPSampler.{key}", text)
    for key, value in (("follow_redirects", False), ("auto_redirects", False), ("use_keepalive", True)):
        _bool(request, f"HTTPSampler.{key}", value)

    timer, _ = _element(children, "JSR223Timer", "TestBeanGUI", "Until due, or the user's thought")
    _text(timer, "scriptLanguage", "groovy")
    _text(timer, "parameters", "")
    _text(timer, "filename", "")
    _text(timer, "cacheKey", "true")
    _text(timer, "script", _TIMER)

    ended, _ = _element(children, "ResponseAssertion", "AssertionGui", "The stream has ended")
    strings = SubElement(ended, "collectionProp", name="Asserion.test_strings")  # so spelt in JMeter
    _text(strings, "0", "data: [DONE]")
    _text(ended, "Assertion.test_field", "Assertion.response_data")
    _bool(ended, "Assertion.assume_success", False)
    number = SubElement(ended, "intProp", name="Assertion.test_type")
    number.text = "16"  # contains it, not as a regular expression


def _element(parent: Element, cls: str, gui: str, name: str) -> tuple[Element, Element]:
    """A test element and the tree of what stands under it."""
    element = SubElement(parent, cls, guiclass=gui, testclass=cls, testname=name, enabled="true")
    return element, SubElement(parent, "hashTree")


def _part(
    parent: Element, key: str, cls: str, guiclass: str = "HTTPArgumentsPanel", name: str = "Arguments"
) -> Element:
    """A test element that is another's property."""
    return SubElement(
        parent,
        "elementProp",
        name=key,
        elementType=cls,
        guiclass=guiclass,
        testclass=cls,
        testname=name,
        enabled="true",
    )


def _text(parent: Element, key: str, value: str) -> None:
    SubElement(parent, "stringProp", name=key).text = value


def _bool(parent: Element, key: str, value: bool) -> None:
    SubElement(parent, "boolProp", name=key).text = json.dumps(value)
