"""The load profiles that come along."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from harness.model import Model
from harness.traffic.draw import draw_load
from harness.traffic.load import Load
from harness.traffic.text import load_tokenizer

FILES = sorted((Path(__file__).parents[3] / "scenarios" / "load").glob("*.yaml"))
LOADS = [path for path in FILES if "path: ???" not in path.read_text()]
"""Those that are complete without a file of the user's (`workloads/test_examples.py` has the others)."""
CONTEXT_TOKENS = 8192


@pytest.mark.parametrize("path", LOADS, ids=lambda path: path.stem)
def test_every_load_is_complete_defended_and_can_be_drawn(path: Path, model: Model) -> None:
    text = path.read_text()
    assert text.startswith(f"# @package load.{path.stem}\n# "), "its second line says why these values"
    load = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Load), OmegaConf.create(text)))
    assert isinstance(load, Load)
    assert load.title
    for seed in range(5):
        traffic = draw_load(
            load, context_tokens=CONTEXT_TOKENS, seed=seed, tokenizer=lambda: load_tokenizer(model.path)
        )
        for phase, requests in ((traffic.window, load.requests), (traffic.warmup, load.warmup_requests)):
            assert sum(len(planned.session.turns) for planned in phase) == requests
        for stream in load.streams:
            prompts = [
                turn.prompt_tokens
                for planned in traffic.window
                if planned.tenant == stream.tenant
                for turn in planned.session.turns
            ]
            stated: Any = getattr(stream.workload.parameters, "input_tokens_mean", None)
            if stated is not None and getattr(stream.workload.parameters, "input_tokens", None) is None:
                assert sum(prompts) / len(prompts) == pytest.approx(stated, rel=0.02)
