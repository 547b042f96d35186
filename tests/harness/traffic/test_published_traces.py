"""Figures of whole published traces, where they lie on this machine: `KVMARK_TEST_DATA=<folder>` with `traces/` in it.

What the figures should be: the traces' own papers, and a count over the published files by other means.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from harness.traffic.statistics import Statistics, statistics
from harness.traffic.traces import read
from harness.traffic.workloads import Drawn, draw, workload_of

DATA = Path(os.environ.get("KVMARK_TEST_DATA", "/nonexistent")) / "traces"
MOONCAKE = DATA / "mooncake_fast25_conversation.csv.gz"
AZURE = DATA / "azure_llm_2023_conv.csv.gz"


def drawn(path: Path, requests: int, context_tokens: int, **keys: Any) -> Drawn:
    if not path.exists():
        pytest.skip(f"no {path}")
    workload = workload_of({"kind": "trace", "path": str(path), **keys})
    return draw(workload, requests=requests, context_tokens=context_tokens, seed=1, tokenizer=lambda: None)  # type: ignore[arg-type]


def lengths(found: Statistics) -> list[tuple[float, ...]]:
    return [
        (round(each.mean), each.p50, each.p90, each.p99, each.max)
        for each in (found.prompt_tokens, found.output_tokens)
    ]


def test_mooncake_s_conversations() -> None:
    sessions = drawn(MOONCAKE, 12_031, 130_000)
    found = statistics({"": sessions}, block_tokens=512)
    assert lengths(found) == [(12035, 6909, 27367, 85401, 126195), (343, 350, 597, 1120, 2000)]
    assert sessions.changes == {}
    # 36.6 % of all blocks were seen before, and all of these are beginnings; counted in tokens it is a little more, as
    # the last block of a prompt is partly filled and seldom seen again.
    blocks = [block for row in read(str(MOONCAKE)).blocks for block in row]
    assert 100 * (1 - len(set(blocks)) / len(blocks)) == pytest.approx(36.6, abs=0.05)
    assert found.reuse_possible_pct == pytest.approx(37.3, abs=0.1)
    assert sessions[-1].start_s == pytest.approx(12_031 / 3.40, rel=0.01)


def test_azure_s_conversations() -> None:
    sessions = drawn(AZURE, 19_366, 16_384)
    found = statistics({"": sessions})
    assert lengths(found) == [(1155, 1020, 2735, 4142, 14050), (211, 129, 424, 601, 1000)]
    assert found.reuse_possible_pct == 0
    assert sessions[-1].start_s == pytest.approx(19_366 / 5.53, rel=0.01)


@pytest.mark.parametrize("fit", ["cut", "scale", "drop"])
def test_a_trace_of_long_prompts_in_a_short_context(fit: str) -> None:
    sessions = drawn(MOONCAKE, 6000, 8192, fit=fit)
    found = statistics({"": sessions})
    assert found.prompt_tokens.max + 1 <= 8192
    assert found.reuse_possible_pct > 30
    assert sessions.changes
