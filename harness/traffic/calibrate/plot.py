"""A calibration as a picture: the errors of TTFT, ITL and E2E over rising load. Plain SVG, readable on its own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

WIDTH, PANEL = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 40, 52
COLOURS = {"ttft": "#1f6fb4", "itl": "#c2571a", "e2e": "#3d8b40"}
LEAST_PCT, MOST_PCT = 0.01, 1000.0
"""Errors are drawn on a logarithmic axis, and those outside at its ends."""


@dataclass(frozen=True)
class _Panel:
    title: str
    unit: str
    steps: Sequence[dict[str, Any]]
    metrics: Sequence[str]
    ceiling: float


def plot(entry: dict[str, Any]) -> str:
    """The picture of one stored calibration."""
    ceiling = entry["ceiling"]
    steps = [step for step in entry["steps"] if not step["server_bound"]]  # those say nothing about what was asked
    panels = [
        _Panel(
            "Streams at once, in lock-step (TTFT 50 ms, ITL 20 ms)",
            "streams",
            [step for step in steps if step["kind"] == "streams"],
            ("ttft", "itl", "e2e"),
            ceiling["streams"],
        ),
        _Panel(
            "One-token requests a second, Poisson",
            "requests/s",
            [step for step in steps if step["kind"] == "rate"],
            ("ttft",),
            ceiling["requests_per_s"],
        ),
    ]
    panels = [panel for panel in panels if panel.steps]
    height = PANEL * len(panels) + 30
    title = f"Error of the load client ({entry['transport']}, processes: {entry['processes']}), {entry['created']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<title>{escape(title)}</title><rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    for index, panel in enumerate(panels):
        parts.append(f'<g transform="translate(0 {30 + PANEL * index})">{_panel(panel, ceiling["error_pct"])}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: _Panel, error_pct: float) -> str:
    loads = sorted({float(step["asked"]) for step in panel.steps})
    low, high = math.log2(loads[0]), math.log2(loads[-1])

    def at_x(load: float) -> float:
        share = (math.log2(load) - low) / (high - low) if high > low else 0.5
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def at_y(pct: float) -> float:
        span = math.log10(MOST_PCT / LEAST_PCT)
        share = math.log10(min(max(pct, LEAST_PCT), MOST_PCT) / LEAST_PCT) / span
        return PANEL - BOTTOM - share * (PANEL - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="{TOP - 12}" font-weight="bold">{escape(panel.title)}</text>']
    for power in range(-2, 4):
        y = at_y(10.0**power)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} %</text>')
    taken = -math.inf
    for load in loads:
        parts.append(
            f'<line x1="{at_x(load):.1f}" x2="{at_x(load):.1f}" y1="{TOP}" y2="{PANEL - BOTTOM}" stroke="#eee"/>'
        )
        if at_x(load) - taken > 44:
            taken = at_x(load)
            parts.append(f'<text x="{taken:.1f}" y="{PANEL - BOTTOM + 16}" text-anchor="middle">{load:g}</text>')
    y = at_y(error_pct)
    parts.append(
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#a00" stroke-dasharray="5 4"/>'
    )
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{y - 5:.1f}" text-anchor="end" fill="#a00">{error_pct:g} %</text>')
    for number, metric in enumerate(panel.metrics):
        parts.append(_line(panel, metric, at_x, at_y))
        x = LEFT + 90 * number
        parts.append(f'<circle cx="{x}" cy="{PANEL - 14}" r="4" fill="{COLOURS[metric]}"/>')
        parts.append(f'<text x="{x + 9}" y="{PANEL - 10}">{metric.upper()} mean</text>')
    words = f"ceiling {panel.ceiling:,.0f} {panel.unit}"
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{PANEL - 10}" text-anchor="end">{escape(words)}</text>')
    return "".join(parts)


def _line(panel: _Panel, metric: str, at_x: Any, at_y: Any) -> str:
    points = []
    for step in sorted(panel.steps, key=lambda step: float(step["asked"])):
        error = step["errors_pct"][metric]["mean"]
        if error is not None:
            points.append((at_x(step["asked"]), at_y(abs(error)), step, error))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
    marks = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[metric] if step["within_pct"] else "#fff"}" '
        f'stroke="{COLOURS[metric]}"><title>{metric.upper()} at {step["asked"]:g}: {error:+.2f} %</title></circle>'
        for x, y, step, error in points
    )
    return f'<polyline points="{path}" fill="none" stroke="{COLOURS[metric]}" stroke-width="2"/>{marks}'
