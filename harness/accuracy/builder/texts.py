"""The texts of a folder: `.txt` and `.md` files, as one stream of text with `\\n` line ends."""

import codecs
import re
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import ConfigError

SUFFIXES = (".txt", ".md")
MOST_BYTES = 8 * 2**20
"""Of all files together; enough for hundreds of documents, and tokenised within a minute."""

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass
class Texts:
    """What was read.

    Attributes
    ----------
    contents : dict
        The texts by their files' names, relative to the folder.
    skipped : dict
        Why a file wasn't read, or only in part, by its name.
    """

    contents: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def stream(self) -> str:
        """All texts, one after the other, a blank line between them."""
        return "\n\n".join(self.contents.values())


def read_texts(folder: str) -> Texts:
    """The folder's texts and those of its subfolders, in the order of their names; hidden ones are left out.

    Raises
    ------
    ConfigError
        There is no such folder, or nothing in it can be read.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise ConfigError(f"from: {root} is no folder; it must hold texts ({', '.join(SUFFIXES)})")
    found, left = Texts(), MOST_BYTES
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.suffix.lower() not in SUFFIXES or not path.is_file() or any(part[0] == "." for part in name.parts):
            continue
        try:
            with path.open("rb") as file:
                data = file.read(left + 1)
        except OSError as error:
            found.skipped[str(name)] = f"can't be read: {error.strerror}"
            continue
        if len(data) > left:
            found.skipped[str(name)] = f"read up to the limit of {MOST_BYTES >> 20} MiB for all files"
            data = data[:left].rpartition(b"\n")[0]
        left -= len(data)
        text = _decoded(data)
        if text is None:
            found.skipped[str(name)] = "no text in UTF-8 or UTF-16"
        elif not text.strip():
            found.skipped.setdefault(str(name), "empty")
        else:
            found.contents[str(name)] = text
    if not found.contents:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(found.skipped.items())[:5])
        raise ConfigError(
            f"from: {root} holds no text that can be read ({reasons or f'no {SUFFIXES[0]}, no .md file'})"
        )
    return found


def _decoded(data: bytes) -> str | None:
    """The text with plain line ends; None where it is none."""
    encoding = "utf-16" if data.startswith(_UTF16) else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    return re.sub(r"\r\n?|[\f\v\u2028\u2029\x85]", "\n", text).strip("\n")
