"""Two run folders of the same measurement, the second of which a test may alter before it is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.analysis.result import DeploymentResult
from bench.comparability import Pair
from bench.sides import Named, Side
from tests.bench.run_folder import LaunchSpec, build
from tests.bench.runs import five

Launches = dict[tuple[int, str, int], LaunchSpec]


def run(
    root: Path, *, blocks: int = 3, launches: Callable[[Launches], None] = lambda found: None, **plan: Any
) -> Named:
    """The run of `five`, its launches and plan altered."""
    the_plan, found = five(blocks)
    launches(found)
    return Named(build(root, {**the_plan, **plan}, found))


def alter(run: Named, file: str, *path: str, value: Any) -> Named:
    """One value of a JSON file of a run, replaced."""
    whole = json.loads((run.path / file).read_text())
    inner = whole
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    (run.path / file).write_text(json.dumps(whole))
    return run


def pair(a: Named, b: Named, one: str, other: str | None = None) -> Pair:
    """A deployment of each."""
    sides = Side.of(a), Side.of(b)
    return Pair(sides[0], of(sides[0], one), sides[1], of(sides[1], other or one))


def of(side: Side, deployment_id: str) -> DeploymentResult:
    found = side.deployment(deployment_id)
    assert found is not None
    return found
