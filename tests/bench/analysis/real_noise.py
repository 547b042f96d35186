"""Launches whose truth is known, with the noise of the committed example run, or normal noise of the same spread."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

EXAMPLE = Path(__file__).resolve().parents[3] / "results" / "example" / "analysis.json"
METRICS = ("output_tokens_per_s", "ttft_p90_ms")
BASELINE, CANDIDATE = "vllm+smollm2-135m+baseline", "vllm+smollm2-135m+kv-fp8"
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Log residuals of a real run, each pool scaled up for the degrees of freedom that its fit took.

    Attributes
    ----------
    blocks : array
        What a block's traffic adds for all deployments.
    leads : array
        What a block adds for one deployment: `log(statistic) ~ deployment + block`, A and A′ averaged.
    launches : array
        What one launch of a deployment has over another of the same block: A against A′.
    """

    blocks: Array
    leads: Array
    launches: Array

    @property
    def sd(self) -> float:
        """Of one deployment in one block: the residual of a comparison."""
        return math.hypot(float(np.std(self.leads)), float(np.std(self.launches)))


@cache
def real_noise() -> Noise:
    """The primary metrics' residuals of the example: 3 blocks of vLLM's 16-bit baseline, twice, and its fp8 cache."""
    deployments = {d["id"]: d for d in json.loads(EXAMPLE.read_text())["deployments"]}
    blocks, leads, launches = [], [], []
    for metric in METRICS:
        logs = {
            (name, one["block"], one["replica"]): math.log(one["values"][metric])
            for name in (BASELINE, CANDIDATE)
            for one in deployments[name]["cells"]["sharegpt-long"]["launches"]
        }
        pairs = np.array([[logs[BASELINE, block, replica] for replica in (1, 2)] for block in range(3)])
        table = np.array([pairs.mean(axis=1), [logs[CANDIDATE, block, 1] for block in range(3)]])
        by_block = table.mean(axis=0) - table.mean()
        rest = table - table.mean(axis=1, keepdims=True) - by_block
        blocks += list(by_block * math.sqrt(3 / 2))
        leads += list(rest.ravel() * math.sqrt(6 / 2))
        differences = (pairs[:, 0] - pairs[:, 1]) / math.sqrt(2)
        launches += [*differences, *-differences]
    return Noise(np.array(blocks), np.array(leads), np.array(launches))


class Launches:
    """Draws a run's launches again and again: a baseline twice a block, and the others once."""

    def __init__(self, rng: np.random.Generator, blocks: int, truths: Mapping[str, float], *, normal: bool) -> None:
        self.rng, self.normal, self.noise, self.shape = rng, normal, real_noise(), (1 + len(truths), blocks)
        names = ["base", *truths]
        rows = [(name, b, r) for name in names for b in range(blocks) for r in ((1, 2) if name == "base" else (1,))]
        self.frame = pd.DataFrame(rows, columns=["deployment", "block", "replica"])
        self.cells = self.frame["deployment"].map(names.index).to_numpy(), self.frame["block"].to_numpy()
        self.truth = np.array([{"base": 0.0, **truths}[name] for name in self.frame["deployment"]])

    def draw(self) -> pd.DataFrame:
        """One run: `deployment`, `block`, `replica`, `value`."""
        leads = self._take(self.noise.leads, self.shape)[self.cells]
        blocks = self._take(self.noise.blocks, self.shape[1:])[self.cells[1]]
        logs = self.truth + leads + blocks + self._take(self.noise.launches, self.truth.shape)
        return self.frame.assign(value=100 * np.exp(logs))

    def _take(self, pool: Array, shape: tuple[int, ...]) -> Array:
        return self.rng.normal(0, np.std(pool), shape) if self.normal else self.rng.choice(pool, shape)
