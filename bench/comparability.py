"""Whether two deployments of any two runs can be compared, and everything that differs between them.

Speed needs the same machine, traffic, model, KV budget and engine settings; accuracy the same questions, asked in the
same way of the same model. What a user may want to compare (strategy, engine, its version and options, KVMark's own
code) is named and allowed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.analysis.load import TaskRecord
from bench.analysis.pairing import ASKED, asked_differently, scored
from bench.analysis.result import CellResult, DeploymentResult
from bench.difference import ACCURACY, ALL, MEMORY, SPEED, Difference, Values, differing, each
from bench.sides import Named, Side
from bench.store import HARDWARE_KEYS

_CLIENT = ("transport", "processes", "workers", "cores", "keep_alive")
_OPTIONS = ("command", "extra_args", "env")
_CEILING = ("streams", "tokens_per_s", "requests_per_s", "transport")
_ALSO_ASKED = {"mode": "way of asking", "kind": "kind", "metric": "score"}


@dataclass(frozen=True)
class Pair:
    """A deployment of A, and the one of B that is held against it."""

    a: Side
    one: DeploymentResult
    b: Side
    other: DeploymentResult

    def both(self, read: Callable[[Side, DeploymentResult], Any]) -> Values:
        return read(self.a, self.one), read(self.b, self.other)

    def manifest(self, *path: str) -> Values:
        """Two values of the manifests."""
        return _at(self.a.manifest, path), _at(self.b.manifest, path)

    def cells(self, load: str) -> tuple[CellResult | None, CellResult | None]:
        return self.one.cells.get(load), self.other.cells.get(load)

    def answers(self, task: str) -> tuple[dict[int, TaskRecord], dict[int, TaskRecord]]:
        """Each side's answers by block."""
        return scored(self.a.launches(self.one.id), task), scored(self.b.launches(self.other.id), task)

    def shared_blocks(self, load: str) -> list[int]:
        """Blocks in which both had the same traffic."""
        mine, theirs = (_schedules(cell) for cell in self.cells(load))
        return [
            block
            for block in sorted(mine.keys() & theirs.keys())
            if mine[block] == theirs[block] and len(mine[block]) == 1 and None not in mine[block]
        ]

    def shared_questions(self, task: str) -> list[int]:
        """Blocks in which both were asked the same questions in the same way."""
        mine, theirs = self.answers(task)
        return [block for block in sorted(mine.keys() & theirs.keys()) if not _asked(mine[block], theirs[block])]


def unreadable(a: Named, b: Named) -> list[Difference]:
    """A run of a schema version that this KVMark doesn't know: nothing can be compared."""
    if a.is_known and b.is_known:
        return []
    return [Difference("record", "schema_version", a.schema_version, b.schema_version, ALL)]


def differences(pair: Pair) -> list[Difference]:
    """Everything that differs between the two, what stands in the way of comparing them first."""
    found = [
        *_blocks(pair),
        *_states(pair),
        *_machine(pair),
        *_model(pair),
        *_settings(pair),
        *_engine(pair),
        *_code_and_client(pair),
        *_data(pair),
        *_loads(pair),
        *_tasks(pair),
    ]
    return sorted(found, key=lambda d: not d.voids)


def engine_changed(found: Iterable[Difference]) -> bool:
    """Whether what ran is another program or model: what moved a baseline is then not the machine alone."""
    return any(d.topic in ("engine", "model") for d in found)


def _at(values: Any, path: Iterable[str]) -> Any:
    for key in path:
        values = (values or {}).get(key)
    return values


def _blocks(pair: Pair) -> Iterator[Difference]:
    sides = (pair.a, pair.b)
    done = tuple(f"{len(s.record.blocks)} of {s.analysis.blocks_planned}, {s.analysis.status}" for s in sides)
    empty = not all(s.record.blocks for s in sides)
    unfinished = any(s.analysis.status not in ("complete", "failed") for s in sides)
    if empty or unfinished or done[0] != done[1]:
        yield Difference("blocks", "complete blocks", done[0], done[1], ALL if empty else ())
    yield from differing("traffic", "seed", pair.manifest("seed"))


def _states(pair: Pair) -> Iterator[Difference]:
    states = {pair.one.state, pair.other.state}
    if states != {"measured"}:
        unfit = {"not in effect", "unsupported"} & states
        yield Difference("state", "state", _word(pair.one), _word(pair.other), ALL if unfit else (SPEED,))
    checks = pair.one.output_check, pair.other.output_check
    if any(check is not None and check.narrow for check in checks):
        said = [None if check is None else f"{check.state} ({check.reason})" for check in checks]
        yield Difference("state", "output check", said[0], said[1])


def _word(one: DeploymentResult | CellResult | None) -> str | None:
    if one is None:
        return None
    return one.state if one.state == "measured" else f"{one.state} ({one.reason})"


def _machine(pair: Pair) -> Iterator[Difference]:
    for key in HARDWARE_KEYS:
        yield from differing("hardware", f"hardware: {key}", pair.manifest("hardware", key), (SPEED,))


def _model(pair: Pair) -> Iterator[Difference]:
    hashes = pair.both(lambda side, d: _at(side.manifest, ("models", d.model, "content_sha256")))
    if None in hashes or hashes[0] != hashes[1]:
        yield Difference("model", f"model {pair.one.model}: revision (content_sha256)", *hashes, voids=ALL)
    yield from differing("model", "model: name", (pair.one.model, pair.other.model))


def _settings(pair: Pair) -> Iterator[Difference]:
    names = {"context_tokens": ("context length", ALL), "kv_budget_bytes": ("KV budget", (SPEED, MEMORY))}
    mine, theirs = pair.both(_asked_settings)
    for key in sorted(mine.keys() | theirs.keys()):
        name, voids = names.get(key, ("engine setting", (SPEED,)))
        yield from differing("settings", f"{name} ({key})", (mine.get(key), theirs.get(key)), voids)


def _asked_settings(side: Side, one: DeploymentResult) -> dict[str, Any]:
    """What every deployment of the model was asked to run with: of the plan, else of a launch's own record."""
    launches = side.launches(one.id)
    own = launches[0].facts.get("settings") if launches else None
    settings = dict(_at(side.plan, ("settings", one.model)) or own or {})
    budget = _at(side.plan, ("kv_budget_bytes", one.model))
    return {**settings, "kv_budget_bytes": budget} if budget is not None else settings


def _engine(pair: Pair) -> Iterator[Difference]:
    """What a user may well compare; named, so that nobody takes it for the strategy's work."""
    one, other = pair.one, pair.other
    yield from differing("engine", "engine", (one.backend, other.backend))
    yield from differing("engine", "strategy", (one.strategy, other.strategy))
    configured = pair.both(lambda side, d: _at(side.config, ("strategy", d.strategy)) or {})
    if one.strategy == other.strategy:
        yield from each("engine", "strategy", configured)
    for key in ("version", "packages_sha256"):
        values = pair.both(lambda side, d, key=key: _at(side.manifest, ("engines", d.backend, key)))  # type: ignore[misc]
        yield from differing("engine", f"engine: {key}", values)
    for key in _OPTIONS:
        values = pair.both(lambda side, d, key=key: _at(side.config, ("backend", d.backend, key)))  # type: ignore[misc]
        yield from differing("engine", f"engine option: {key}", values)
    yield from each("engine", "confounder", pair.both(_confounders))


def _confounders(side: Side, one: DeploymentResult) -> dict[str, str]:
    return next((x.confounders for x in side.analysis.launches if x.deployment == one.id), {})


def _code_and_client(pair: Pair) -> Iterator[Difference]:
    code = pair.manifest("identity", "code_sha256")
    yield from differing("code", "KVMark's measuring code (code_sha256)", code)
    mine, theirs = (_at(side.config, ("scenario", "client")) for side in (pair.a, pair.b))
    for key in _CLIENT if mine and theirs else ():
        values = (mine.get(key), theirs.get(key))
        yield from differing("client", f"load client: {key}", values, (SPEED,) if key == "keep_alive" else ())


def _data(pair: Pair) -> Iterator[Difference]:
    """Hashes that both runs have; what only one has shows in the traffic or the questions."""
    mine, theirs = pair.manifest("data")
    for key in sorted((mine or {}).keys() & (theirs or {}).keys()):
        if key.startswith("corpus of ") and key != f"corpus of {pair.other.model}":
            continue
        voids = (SPEED,) if key.startswith(("corpus of ", "file ")) else (ACCURACY,)
        scope = key if key in pair.other.accuracy else None
        yield from differing("data", f"data: {key}", (mine[key], theirs[key]), voids, scope)


def _loads(pair: Pair) -> Iterator[Difference]:
    for load in sorted(pair.one.cells.keys() | pair.other.cells.keys()):
        mine, theirs = pair.cells(load)
        if mine is None or theirs is None:
            yield Difference("traffic", f"load {load}", _word(mine), _word(theirs), (SPEED,), load)
            continue
        configured = (_at(pair.a.plan, ("loads", load)) or {}, _at(pair.b.plan, ("loads", load)) or {})
        yield from each("traffic", f"load {load}", configured, (SPEED,), load)
        if {mine.state, theirs.state} != {"measured"}:
            yield Difference("state", f"load {load}: state", _word(mine), _word(theirs), (SPEED,), load)
        caches = (mine.cache_state, theirs.cache_state)
        yield from differing("traffic", f"load {load}: prefix cache at the start", caches, (SPEED,), load)
        yield from _traffic(pair, load)
        yield from each("client", f"load {load}: client's ceiling", (_ceiling(mine), _ceiling(theirs)), scope=load)


def _ceiling(cell: CellResult) -> dict[str, Any]:
    known = next((x.client.ceiling for x in cell.launches if x.client and x.client.ceiling), None)
    return {key: known.get(key) for key in _CEILING} if known else {}


def _traffic(pair: Pair, load: str) -> Iterator[Difference]:
    """Blocks that differ are left out; with none left there is nothing to compare."""
    mine, theirs = (_schedules(cell) for cell in pair.cells(load))
    usable = pair.shared_blocks(load)
    for block in sorted((mine.keys() | theirs.keys()) - set(usable)):
        values = tuple("+".join(sorted(map(str, sent[block]))) if block in sent else None for sent in (mine, theirs))
        what = f"load {load}: traffic of block {block} (schedule_sha256)"
        yield Difference("traffic", what, values[0], values[1], () if usable else (SPEED,), load)


def _schedules(cell: CellResult | None) -> dict[int, set[str | None]]:
    sent: dict[int, set[str | None]] = {}
    for launch in cell.launches if cell else ():
        sent.setdefault(launch.block, set()).add(launch.schedule_sha256)
    return sent


def _tasks(pair: Pair) -> Iterator[Difference]:
    for task in sorted(pair.one.accuracy.keys() | pair.other.accuracy.keys()):
        found = [d.accuracy.get(task) for d in (pair.one, pair.other)]
        if any(x is None or x.score is None for x in found):
            words = [x and (x.state if x.score is not None else f"{x.state} ({x.reason})") for x in found]
            yield Difference("state", f"task {task}: state", words[0], words[1], (ACCURACY,), task)
            continue
        for key in ("margin_pp", "margin_relative_pct"):
            margins = tuple(_at(side.plan, ("accuracy", task, key)) for side in (pair.a, pair.b))
            yield from differing("questions", f"task {task}: {key} (A's is used)", (margins[0], margins[1]), scope=task)
        mine, theirs = pair.answers(task)
        if any(record.facts.get("under_load_sha256") for record in (*mine.values(), *theirs.values())):
            budgets = pair.both(lambda side, d: _asked_settings(side, d).get("kv_budget_bytes"))
            yield from differing("settings", f"task {task}, under load: KV budget", budgets, (ACCURACY,), task)
        voids = () if pair.shared_questions(task) else (ACCURACY,)
        if not mine.keys() & theirs.keys():
            yield Difference("questions", f"task {task}: blocks", sorted(mine), sorted(theirs), voids, task)
        for block in sorted(mine.keys() & theirs.keys()):
            for what, values in _asked(mine[block], theirs[block]):
                yield Difference("questions", f"task {task}: {what} of block {block}", *values, voids=voids, scope=task)


def _asked(mine: TaskRecord, theirs: TaskRecord) -> list[tuple[str, Values]]:
    """How a block's questions were asked otherwise, as far as both records say; empty where answers can be paired."""
    found: list[tuple[str, Values]] = []
    for key, words in {**ASKED, **_ALSO_ASKED}.items():
        if key in mine.facts and key in theirs.facts and mine.facts[key] != theirs.facts[key]:
            found.append((f"{words} ({key})", (mine.facts[key], theirs.facts[key])))
    if not found and asked_differently({0: mine}, {0: theirs}):
        key = "asked_sha256"
        found.append((f"questions and how they were asked ({key})", (mine.facts.get(key), theirs.facts.get(key))))
    return found
