"""From a run's folder to every metric, statistic and verdict. `analyse` needs no engine, and no network."""

from bench.analysis.assemble import analyse, save

__all__ = ["analyse", "save"]
