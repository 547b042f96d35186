"""The load profiles that come along and need a file of the user's, or have a twin."""

import random
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue

from harness.errors import ConfigError
from harness.model import Model
from harness.traffic import parameters, segments, workloads
from harness.traffic.draw import draw_load
from harness.traffic.load import Load
from harness.traffic.text import load_tokenizer

LOADS = Path(__file__).parents[4] / "scenarios" / "load"
NEED_A_FILE = sorted(path.stem for path in LOADS.glob("*.yaml") if "path: ???" in path.read_text())


def load_of(name: str, **workload: Any) -> Load:
    merged = OmegaConf.merge(OmegaConf.structured(Load), OmegaConf.load(LOADS / f"{name}.yaml"))
    for key, value in workload.items():
        merged.workload[key] = value
    load = OmegaConf.to_object(merged)
    assert isinstance(load, Load)
    return load


@pytest.mark.parametrize("name", NEED_A_FILE)
def test_a_load_that_needs_a_file_is_complete_with_one(name: str, files: Path, tmp_path: Path, model: Model) -> None:
    assert (LOADS / f"{name}.yaml").read_text().startswith(f"# @package load.{name}\n# ")
    azure = tmp_path / "azure.csv"
    rows = "".join(f"2023-11-16 18:{i // 60:02d}:{i % 60:02d}.1234567,{50 + i},{9 + i}\n" for i in range(200))
    azure.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    of_kind = {"azure": azure, "mooncake": files / "trace.jsonl", None: files / "sharegpt.json"}
    path = of_kind[OmegaConf.load(LOADS / f"{name}.yaml").workload.get("format")]  # type: ignore[union-attr]
    load = load_of(name, path=str(path))
    traffic = draw_load(load, context_tokens=8192, seed=1, tokenizer=lambda: load_tokenizer(model.path))
    assert sum(len(planned.session.turns) for planned in traffic.window) == load.requests
    assert all(planned.due_ns is not None for planned in traffic.window) == (load.arrival["kind"] == "trace")


@pytest.mark.parametrize("name", NEED_A_FILE)
def test_without_its_file_it_is_refused(name: str) -> None:
    with pytest.raises(MissingMandatoryValue, match="path"):
        load_of(name)


def test_the_twins_differ_in_nothing_but_their_reach() -> None:
    start, far = (load_of(f"document-qa-{reach}") for reach in ("start", "far"))
    assert {**start.workload, "reach": "far"} == far.workload
    assert (start.arrival, start.requests, start.warmup_requests) == (far.arrival, far.requests, far.warmup_requests)


def test_the_documented_kind_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "_REGISTRY", {})
    text = (LOADS.parents[1] / "docs" / "loads.md").read_text()
    code = text[text.index("```python\n") + 10 :]
    names = {**vars(workloads), **vars(segments), **vars(parameters)}
    exec(code[: code.index("```")], names)
    kind = workloads._REGISTRY["one-text"]
    drawn = kind.draw(kind.parameters(), workloads.Wanted(3, 4096, "window", random.Random(1), lambda: None))  # type: ignore[arg-type, return-value]
    assert [session.turns[0].prompt_tokens for session in drawn] == [1088] * 3
    with pytest.raises(ConfigError, match=r"^text_tokens: "):
        kind.draw(kind.parameters(), workloads.Wanted(3, 100, "window", random.Random(1), lambda: None))  # type: ignore[arg-type, return-value]
