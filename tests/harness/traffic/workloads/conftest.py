import json
import random
from pathlib import Path
from typing import Any

import pytest

from harness.traffic.workloads import workloads


def mooncake_lines(rows: int, seed: int = 1) -> str:
    """A trace in Mooncake's format: a system block that all share, conversations that grow, one with a partial end."""
    rng = random.Random(seed)
    heads: list[list[int]] = []
    fresh = iter(range(1, 10**6))
    lines = []
    for index in range(rows):
        head = rng.choice(heads) if heads and rng.random() < 0.5 else [0]
        blocks = [*head, *(next(fresh) for _ in range(rng.randint(1, 3)))]
        heads.append(blocks[:-1])
        tokens = 512 * (len(blocks) - 1) + rng.randint(1, 512)
        lines.append(
            json.dumps(
                {"timestamp": 250 * index, "input_length": tokens, "output_length": 1 + index % 90, "hash_ids": blocks}
            )
        )
    return "\n".join(lines) + "\n"


def conversations(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Conversations in ShareGPT's format."""
    rng = random.Random(seed)
    words = [
        "class",
        "def",
        "return",
        "while",
        "object",
        "value",
        "name",
        "scope",
        "yield",
        "import",
        "raise",
        "module",
    ]

    def said(most: int) -> str:
        return " ".join(rng.choices(words, k=rng.randint(6, most)))

    return [
        {
            "id": f"c{index}",
            "conversations": [
                {"from": sender, "value": said(40)} for _ in range(rng.randint(1, 5)) for sender in ("human", "gpt")
            ],
        }
        for index in range(count)
    ]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "trace.jsonl").write_text(mooncake_lines(2000))
    (folder / "sharegpt.json").write_text(json.dumps(conversations(800)))
    return folder


@pytest.fixture
def example(files: Path, kind: str) -> dict[str, Any]:
    """What makes a kind of workload complete: its required keys."""
    needed: dict[str, dict[str, Any]] = {
        "trace": {"path": str(files / "trace.jsonl")},
        "sharegpt-file": {"path": str(files / "sharegpt.json")},
    }
    return {"kind": kind, **needed.get(kind, {})}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", list(workloads()), scope="session")
