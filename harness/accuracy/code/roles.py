"""The two sides of a test, each run in a sandbox of its own: `judge` has the test, `candidate` the model's program.

All that passes between them is JSON lines of plain values, one call of the function a line and one result: whatever
the program prints, overrides or ends, it can only return values, and whether they are right is found where it isn't.
Functions may be passed either way; lists, dictionaries and sets that a call changes are changed on the other side.
A script on the standard library alone.
"""

import builtins
import contextlib
import itertools
import json
import os
import random
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

MESSAGE_BYTES = 16 * 2**20
"""Longest value that crosses, as JSON."""
ITERATOR_ITEMS = 100_000
"""So many are taken of an iterator."""
LOAD = 0
"""The candidate's first function: takes a program and a name, gives the function of that name."""

_SEQUENCES: Mapping[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_BYTES: Mapping[str, Any] = {"bytes": bytes, "bytearray": bytearray}


class Gone(BaseException):
    """The other side ended, or says what can't be read. No `except Exception` of a test may take it for a result."""


class NotPlain(BaseException):
    """The judge's own side has a value that can't cross: the test can't be judged this way."""


class Remote:
    """A function on the other side."""

    def __init__(self, peer: "Peer", index: int) -> None:
        self.peer, self.index = peer, index

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.peer.call(self.index, arguments, named)


class Peer:
    """The other side of a pair of pipes."""

    def __init__(self, incoming: int, outgoing: int, functions: Sequence[Callable[..., Any]] = ()) -> None:
        self.incoming = os.fdopen(incoming, "rb")
        self.outgoing = os.fdopen(outgoing, "wb")
        self.functions = list(functions)
        self.why_gone: str | None = None
        self.not_plain: str | None = None

    def send(self, *message: Any) -> None:
        try:
            self.outgoing.write(json.dumps(message).encode() + b"\n")
            self.outgoing.flush()
        except OSError as error:
            raise self._gone("the program ended") from error

    def receive(self) -> list[Any]:
        line = self.incoming.readline(MESSAGE_BYTES)
        if not line.endswith(b"\n"):
            raise self._gone("it returned too much" if len(line) == MESSAGE_BYTES else "the program ended")
        try:
            message = json.loads(line)
            assert isinstance(message, list) and message and isinstance(message[0], str)
        except (ValueError, AssertionError, RecursionError) as error:
            raise self._gone("it says what can't be read") from error
        return message

    def _gone(self, why: str) -> Gone:
        self.why_gone = self.why_gone or why
        return Gone(why)

    def call(self, index: int, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a function of the other side; its exceptions are raised here."""
        packed = [self._own(one) for one in arguments]
        self.send("call", index, packed, {key: self._own(value) for key, value in named.items()})
        while (message := self.receive())[0] == "call":
            self.serve(message)
        try:
            kind, first, second = message
            if kind == "return":
                for original, after in zip(arguments, second, strict=True):
                    _restore(original, self.unpack(after))
                return self.unpack(first)
            found = getattr(builtins, first, None)
            error = found(second) if isinstance(found, type) and issubclass(found, Exception) else RuntimeError(second)
        except Exception as failure:
            raise self._gone(f"it says what can't be read: {failure!r}") from failure
        raise error

    def serve(self, message: list[Any]) -> None:
        """Carry out a call of the other side."""
        try:
            _, index, packed, named = message
            arguments = [self.unpack(one) for one in packed]
            value = self.functions[index](*arguments, **{key: self.unpack(one) for key, one in named.items()})
            changed = [self.pack(one) if isinstance(one, list | dict | set | bytearray) else None for one in arguments]
            reply = ["return", self.pack(value), changed]
        except (Gone, NotPlain):
            raise
        except BaseException as error:
            reply = ["raise", type(error).__name__, _text(error)]
        self.send(*reply)

    def _own(self, value: Any) -> Any:
        """A value of the caller, packed."""
        try:
            return self.pack(value)
        except TypeError as error:
            self.not_plain = str(error)
            raise NotPlain(str(error)) from error

    def pack(self, value: Any) -> Any:
        """A value as JSON has it; raises TypeError for what isn't plain."""
        if value is None or isinstance(value, bool | float | str):
            return value
        if isinstance(value, int):
            return int(value) if -(2**63) < value < 2**63 else {"int": hex(value)}
        for name, kind in _SEQUENCES.items():
            if isinstance(value, kind):
                return {name: [self.pack(one) for one in value]}
        for name, kind in _BYTES.items():
            if isinstance(value, kind):
                return {name: value.hex()}
        if isinstance(value, dict):
            return {"dict": [[self.pack(key), self.pack(one)] for key, one in value.items()]}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, range):
            return {"range": [value.start, value.stop, value.step]}
        if isinstance(value, Remote):
            return {"yours": value.index}
        if hasattr(value, "__next__"):
            return {"iterator": [self.pack(one) for one in itertools.islice(value, ITERATOR_ITEMS)]}
        if callable(value):
            self.functions.append(value)
            return {"function": len(self.functions) - 1}
        raise TypeError(f"a value of type {type(value).__name__} is not plain")

    def unpack(self, packed: Any) -> Any:
        """The value again."""
        if not isinstance(packed, dict):
            return packed
        ((name, content),) = packed.items()
        if name in _SEQUENCES:
            return _SEQUENCES[name](self.unpack(one) for one in content)
        if name in _BYTES:
            return _BYTES[name].fromhex(content)
        made: dict[str, Callable[[Any], Any]] = {
            "dict": lambda pairs: {self.unpack(key): self.unpack(one) for key, one in pairs},
            "int": lambda text: int(text, 16),
            "complex": lambda parts: complex(*parts),
            "range": lambda parts: range(*parts),
            "iterator": lambda items: iter([self.unpack(one) for one in items]),
            "yours": lambda index: self.functions[index],
            "function": lambda index: Remote(self, index),
        }
        return made[name](content)


def _restore(original: Any, after: Any) -> None:
    """Change an argument as the call changed its copy."""
    if after is None or after == original:
        return
    if isinstance(original, list | bytearray):
        original[:] = after
    elif isinstance(original, dict | set):
        original.clear()
        original.update(after)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except Exception:
        return ""


def load(program: str, name: str) -> Any:
    """The function of that name, as the program defines it."""
    module = types.ModuleType("candidate")
    sys.modules["candidate"] = module  # dataclasses look their module up
    exec(compile(program, "candidate", "exec"), module.__dict__)
    return module.__dict__[name]


def candidate() -> None:
    """Serve calls until the judge is gone."""
    peer = Peer(os.dup(0), os.dup(1), [load])
    _silence()
    peer.send("ready")
    with contextlib.suppress(Gone):
        while True:
            peer.serve(peer.receive())


def judge(incoming: int, outgoing: int) -> None:
    """Read a job on stdin; write `ready`, then the verdict, on stdout."""
    job = json.load(sys.stdin)
    said = os.fdopen(os.dup(1), "w")
    _silence()
    said.write("ready\n")
    said.flush()
    said.write(json.dumps(verdict(job, Peer(incoming, outgoing))))
    said.flush()


def verdict(job: Mapping[str, str], peer: Peer) -> dict[str, str | None]:
    """`state` (passed, failed, not judged, no candidate) and why."""
    try:
        peer.receive()
    except Gone:
        return {"state": "no candidate", "why": "the program's side did not start"}
    test: dict[str, Any] = {"__name__": "test"}
    with contextlib.suppress(Exception):  # the test may use what its prompt imports and defines
        exec(job["prompt_alone"], test)
    try:
        code = compile(job["test"], "test", "exec")
    except (SyntaxError, ValueError) as error:
        return {"state": "not judged", "why": f"the test is no Python: {error}"}
    why: str | None = None
    try:
        function = peer.call(LOAD, (job["program"], job["entry_point"]), {})
        if not isinstance(function, Remote):
            raise TypeError(f"{job['entry_point']} is no function")
        test[job["entry_point"]] = function
        exec(code, test)
        if not callable(test.get("check")):
            return {"state": "not judged", "why": "the test defines no check"}
        test[job["entry_point"]] = function
        test["check"](function)
    except BaseException as error:
        why = f"{type(error).__name__}: {_text(error)}"
    if peer.not_plain is not None:
        return {"state": "not judged", "why": f"the test passes what can't be passed: {peer.not_plain}"}
    why = peer.why_gone or why
    return {"state": "failed" if why else "passed", "why": why}


def _silence() -> None:
    """What is printed from here on goes where stderr goes: nowhere."""
    os.dup2(2, 0)
    os.dup2(2, 1)
    random.seed(0)  # tests draw their inputs from it


if __name__ == "__main__":
    if sys.argv[1] == "judge":
        judge(int(sys.argv[2]), int(sys.argv[3]))
    else:
        candidate()
