"""Charts as small inline SVG: no script, no font, colours from the page's own variables."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 640, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 16, 48
SHAPES = ("circle", "square", "diamond", "triangle")


@dataclass(frozen=True)
class Point:
    """One deployment in a chart; `group` (the engine) sets colour and shape, `detail` is shown on hover."""

    x: float
    y: float
    label: str
    group: str
    detail: str
    baseline: bool = False


@dataclass(frozen=True)
class Axis:
    """An axis: its title, whether larger is better (an arrow says so), and the largest value there can be."""

    title: str
    more_is_better: bool
    most: float | None = None


def scatter(points: Sequence[Point], x: Axis, y: Axis, name: str, limit_x: float | None = None) -> Markup | None:
    """A scatter chart; None with fewer than two points to compare. `limit_x` shades what lies within an SLA."""
    drawn = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y)]
    if len(drawn) < 2:
        return None
    x_ticks, y_ticks = _ticks([p.x for p in drawn], x.most), _ticks([p.y for p in drawn], y.most)
    groups = list(dict.fromkeys(p.group for p in drawn))

    def at_x(value: float) -> float:
        return LEFT + (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (WIDTH - LEFT - RIGHT)

    def at_y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (HEIGHT - TOP - BOTTOM)

    parts = []
    if limit_x is not None and limit_x > x_ticks[0]:
        right = at_x(min(limit_x, x_ticks[-1]))
        parts.append(
            f'<rect class="sla" x="{LEFT}" y="{TOP}" width="{right - LEFT:.1f}" height="{HEIGHT - TOP - BOTTOM}"/>'
        )
        parts.append(f'<text class="tick" x="{LEFT + 6}" y="{TOP + 14}">within the SLA</text>')
    for tick in x_ticks:
        parts.append(
            f'<line class="grid" x1="{at_x(tick):.1f}" x2="{at_x(tick):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        )
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{at_x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}">{tick:,g}</text>'
        )
    for tick in y_ticks:
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at_y(tick):.1f}" y2="{at_y(tick):.1f}"/>'
        )
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 8}" y="{at_y(tick) + 4:.1f}">{tick:,g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text class="axis" text-anchor="middle" x="{middle:.0f}" y="{HEIGHT - 8}">{_titled(x, "→", "←")}</text>'
    )
    centre = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text class="axis" text-anchor="middle" transform="translate(14 {centre:.0f}) rotate(-90)">'
        f"{_titled(y, '→', '←')}</text>"
    )
    taken: list[tuple[float, float, float]] = []
    for p in sorted(drawn, key=lambda point: (at_y(point.y), point.x)):
        parts.append(_mark(at_x(p.x), at_y(p.y), groups.index(p.group), p))
        parts.append(_label(at_x(p.x), at_y(p.y), p, groups.index(p.group), taken))
    summary = "; ".join(f"{p.group} {p.label}: {p.detail}" for p in drawn)
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)}">'
        f"<title>{escape(name)}</title><desc>{escape(summary)}</desc>{''.join(parts)}</svg>"
        f'<p class="legend">{"".join(_legend(i, group) for i, group in enumerate(groups))}</p>'
    )


def _titled(axis: Axis, more: str, less: str) -> str:
    return f"{escape(axis.title)} ({more if axis.more_is_better else less} better)"


def _ticks(values: Sequence[float], most: float | None = None) -> list[float]:
    """Round numbers around the values, at least two; none above `most`."""
    low, high = min(values), max(values)
    room = (high - low) * 0.12 or abs(high) * 0.2 or 1.0
    low, high = (max(0.0, low - room) if low >= 0 else low - room), high + room
    raw = (high - low) / 5
    power = 10 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= raw)
    first = math.floor(low / step)
    count = math.ceil(high / step) - first
    ticks = [round((first + i) * step, 10) for i in range(count + 1)]
    return ticks if most is None else [tick for tick in ticks if tick <= most]


def _mark(x: float, y: float, group: int, point: Point) -> str:
    shape, size = SHAPES[group % len(SHAPES)], 6
    title = f"<title>{escape(point.group)} {escape(point.label)}: {escape(point.detail)}</title>"
    css = f'class="mark g{group % 4}{" base" if point.baseline else ""}"'
    if shape == "circle":
        return f'<circle {css} cx="{x:.1f}" cy="{y:.1f}" r="{size}">{title}</circle>'
    corners = {
        "square": [(-5, -5), (5, -5), (5, 5), (-5, 5)],
        "diamond": [(0, -7), (7, 0), (0, 7), (-7, 0)],
        "triangle": [(0, -7), (7, 6), (-7, 6)],
    }[shape]
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon {css} points="{path}">{title}</polygon>'


def _label(x: float, y: float, point: Point, group: int, taken: list[tuple[float, float, float]]) -> str:
    """The point's name beside it, moved down until it covers no other."""
    text = point.label if len(point.label) <= 28 else point.label[:27] + "…"
    width = 6.6 * len(text)
    right = x + 12 + width <= WIDTH - 4
    left_edge = x + 12 if right else x - 12 - width
    baseline = y + 4
    while any(
        abs(baseline - other_y) < 14 and left_edge < end and begin < left_edge + width for begin, end, other_y in taken
    ):
        baseline += 14
    taken.append((left_edge, left_edge + width, baseline))
    anchor = "start" if right else "end"
    at = x + 12 if right else x - 12
    return (
        f'<text class="label g{group % 4}" text-anchor="{anchor}" x="{at:.1f}" y="{baseline:.1f}">{escape(text)}</text>'
    )


def _legend(group: int, name: str) -> str:
    mark = _mark(8, 8, group, Point(0, 0, "", name, ""))
    return f'<span><svg width="16" height="16" aria-hidden="true">{mark}</svg> {escape(name)}</span>'
