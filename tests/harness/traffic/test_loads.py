"""The load profiles that come along."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from harness.traffic.load import Load
from harness.traffic.workload import mean_prompt_tokens, warmup_sessions, window_sessions

LOADS = sorted((Path(__file__).parents[3] / "scenarios" / "load").glob("*.yaml"))


@pytest.mark.parametrize("path", LOADS, ids=lambda path: path.stem)
def test_every_load_is_complete_defended_and_can_be_drawn(path: Path) -> None:
    text = path.read_text()
    assert text.startswith(f"# @package load.{path.stem}\n# "), "its second line says why these values"
    load = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Load), OmegaConf.create(text)))
    assert isinstance(load, Load)
    what = load.workload
    context_tokens = (what.input_tokens_max or what.input_tokens_mean) + what.output_tokens_mean
    for seed in range(5):
        window = window_sessions(load, context_tokens, seed)
        assert mean_prompt_tokens(window) == pytest.approx(what.input_tokens_mean, rel=0.02)
        warmup = warmup_sessions(load, context_tokens, seed)
        assert sum(len(session.turns) for session in window) == load.requests
        assert sum(len(session.turns) for session in warmup) == load.warmup_requests
