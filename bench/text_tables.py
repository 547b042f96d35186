"""Sections of rows, printed for the terminal and written as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = dict[str, str]
WIDE = 150
"""From this width on the first column isn't broken."""


@dataclass(frozen=True)
class Section:
    """A table under a title; without rows it is left out."""

    title: str
    rows: Sequence[Row]


def print_sections(console: Console, heading: str, sections: Sequence[Section], closing: Sequence[str]) -> None:
    """Heading, tables, closing sentences; without a terminal there are no control characters."""
    console.print(Text(heading, style="bold"), soft_wrap=True)
    for section in sections:
        if not section.rows:
            continue
        console.print()
        console.print(Text(section.title, style="bold"))
        table = Table(box=None, pad_edge=False, header_style="bold")
        for place, name in enumerate(section.rows[0]):
            table.add_column(name, overflow="fold", no_wrap=place == 0 and console.width >= WIDE)
        for row in section.rows:
            table.add_row(*map(Text, row.values()))
        console.print(table)
    if closing:
        console.print()
    for sentence in closing:
        console.print(Text(sentence))


def markdown(heading: str, sections: Sequence[Section], closing: Sequence[str]) -> str:
    """The same for a file."""
    parts = [f"# {_escaped(heading)}"]
    for section in sections:
        if section.rows:
            frame = pd.DataFrame(section.rows).map(_escaped)
            parts += [f"## {section.title}", str(frame.to_markdown(index=False, disable_numparse=True))]
    return "\n\n".join([*parts, *map(_escaped, closing)]) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
