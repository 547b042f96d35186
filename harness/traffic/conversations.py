"""Conversations of a file in ShareGPT's usual format: JSON, or one conversation a line; packed with gzip or not.

[{"id": "…", "conversations": [{"from": "human", "value": "…"}, {"from": "gpt", "value": "…"}, …]}, …]
"""

import gzip
import json
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import msgspec

from harness.errors import ConfigError
from harness.traffic.parameters import unknown

USERS = ("human", "user")
ANSWERERS = ("gpt", "chatgpt", "assistant", "bing", "bard", "model")
OTHERS = ("system", "tool", "function", "observation")
"""What they say comes before the user's next words in the prompt."""


class _Message(msgspec.Struct, rename={"sender": "from"}):
    sender: str
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Message]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is asked, and what the file has for an answer.

    Attributes
    ----------
    asked : str
        All that is said before the answer and after the one before.
    answered : str or None
        None where the conversation ends with the question.
    """

    asked: str
    answered: str | None


def read_conversations(path: str) -> tuple[tuple[Exchange, ...], ...]:
    """The conversations of a file, in its order; those without a question are left out.

    Raises
    ------
    ConfigError
        Naming file, entry (or line) and field.
    """
    file = Path(path).expanduser()
    try:
        stat = os.stat(file)
        return _read(file, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror or error}") from error


@lru_cache(maxsize=2)
def _read(file: Path, mtime_ns: int, size: int) -> tuple[tuple[Exchange, ...], ...]:
    data = file.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except EOFError as error:
            raise ConfigError(f"{file}: the packed file ends too early") from error
        except zlib.error as error:
            raise ConfigError(f"{file}: the packed file is damaged: {error}") from error
    data = data.removeprefix(b"\xef\xbb\xbf")
    if data.lstrip()[:1] == b"[":
        entries = _decoded(msgspec.json.Decoder(list[_Conversation]), data, file, "")
        where = [f"entry {index}" for index in range(len(entries))]
    else:
        decoder = msgspec.json.Decoder(_Conversation)
        lines = [(number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip()]
        entries = [_decoded(decoder, line, file, f"line {number}") for number, line in lines]
        where = [f"line {number}" for number, _ in lines]
    found = (_exchanges(entry.conversations, f"{file}, {at}") for entry, at in zip(entries, where, strict=True))
    conversations = tuple(each for each in found if each)
    if not conversations:
        raise ConfigError(f"{file}: has no conversation with a question")
    return conversations


def _decoded(decoder: "msgspec.json.Decoder[T]", data: bytes, file: Path, line: str) -> T:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        what, _, at = str(error).partition(" - at `$")
        found = re.match(r"(?:\[(\d+)\])?\.?(.*)`$", at)
        entry, field = (found[1], found[2]) if found else (None, "")
        missing = re.search(r"missing required field `([^`]+)`", what)
        name = ".".join(filter(None, (field, missing[1] if missing else ""))) or "the entry"
        raise ConfigError(f"{file}, {line or f'entry {entry}'}, {name}: {what}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if (whole := _with_whole_characters(data)) is not None:
            return _decoded(decoder, whole, file, line)
        byte = found[1] if (found := re.search(r"\(byte (\d+)\)", str(error))) else None
        if not line:
            line = f"line {data[: int(byte)].count(10) + 1}" if byte else f"line {data.count(10) + 1}"
        raise ConfigError(f"{file}, {line}: is not JSON: {error}") from error


def _with_whole_characters(data: bytes) -> bytes | None:
    """The same JSON with ? for each half of a surrogate pair, where there is one and that was all that is wrong.

    Texts that were cut at a length have them (an emoji's half as `\\ud83d`); Python's JSON takes that, msgspec doesn't.
    """
    if not re.search(rb"\\u[dD][89a-fA-F]", data):
        return None
    try:
        text = json.dumps(json.loads(data), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return text.encode(errors="replace") if any("\ud800" <= c <= "\udfff" for c in text) else None


def _exchanges(messages: Sequence[_Message], where: str) -> tuple[Exchange, ...]:
    out: list[Exchange] = []
    asked: list[str] = []
    for index, message in enumerate(messages):
        sender = message.sender.strip().lower()
        if sender in USERS or sender in OTHERS:
            asked.append(message.value)
        elif sender not in ANSWERERS:
            allowed = (*USERS, *ANSWERERS, *OTHERS)
            raise ConfigError(f"{where}, conversations[{index}].from: {unknown(message.sender, allowed)}")
        elif asked:
            out.append(Exchange("\n".join(asked), message.value))
            asked = []
        elif out and out[-1].answered is not None:  # an answer in two messages; one before any question is left out
            out[-1] = Exchange(out[-1].asked, f"{out[-1].answered}\n{message.value}")
    if asked:
        out.append(Exchange("\n".join(asked), None))
    return tuple(out)
