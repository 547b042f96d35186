"""Reading Prometheus' text format, as engines answer it on `/metrics`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Sample:
    """One line of a metrics text."""

    name: str
    labels: dict[str, str]
    value: float
    line: str


def samples(metrics_text: str) -> Iterator[Sample]:
    """The samples of a metrics text, in order; lines that are none are skipped."""
    for line in metrics_text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        labels = {key: _ESCAPE.sub(_unescape, text) for key, text in _LABEL.findall(match["labels"] or "")}
        yield Sample(match["name"], labels, value, line)


def totals(metrics_text: str) -> dict[str, float]:
    """Sum over all label sets, by metric name."""
    found: dict[str, float] = {}
    for sample in samples(metrics_text):
        found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
