"""Differences tested across launches (rule 13): one statistic a launch, log(statistic) ~ deployment + block.

The residual is what is left of a deployment in a block. A and A′ are averaged first: they carry the same traffic, so
that they differ less from each other than a deployment's lead differs from block to block, and counted as two they
would make the residual too small (in the example run 1.4 % against 11 %). They remain the noise floor.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy import stats

from bench.analysis.power import ALPHA, detectable, dunnett

HIGHER_IS_BETTER = frozenset(
    {"output_tokens_per_s", "request_rate_attained_rps", "saturation_rate_rps", "saturation_concurrency"}
)
"""Metrics of which more is better; of all others (latencies) less is."""


@dataclass(frozen=True)
class Estimate:
    """A deployment's log ratio to its baseline, with what is needed to judge it.

    Attributes
    ----------
    log_ratio, standard_error : float
        On the natural-log scale.
    degrees_of_freedom : int
        Of the residual.
    critical : float
        Half-width of the interval in standard errors, adjusted over the compared deployments.
    residual_sd : float
        SD of one deployment in one block on the log scale (across engines: of one block's log ratio).
    launches, baseline_launches : int
        That took part.
    alpha : float
        Error rate of the interval, of all those that it is adjusted over together.
    """

    log_ratio: float
    standard_error: float
    degrees_of_freedom: int
    critical: float
    residual_sd: float
    launches: int
    baseline_launches: int
    alpha: float = ALPHA

    @property
    def low(self) -> float:
        return self.log_ratio - self.critical * self.standard_error

    @property
    def high(self) -> float:
        return self.log_ratio + self.critical * self.standard_error

    def smallest_effect(self) -> float:
        """The relative difference that had `POWER` to be found, from the residual seen."""
        return detectable(self.standard_error, self.degrees_of_freedom, self.critical)

    def equivalence_p(self, margin: float) -> float:
        """The larger p-value of two one-sided tests against ± log(1 + margin) (Schuirmann, 1987), not adjusted."""
        if self.standard_error == 0:
            return 0.0 if abs(self.log_ratio) < math.log1p(margin) else 1.0
        bound = math.log1p(margin)
        below = stats.t.sf((self.log_ratio + bound) / self.standard_error, self.degrees_of_freedom)
        above = stats.t.cdf((self.log_ratio - bound) / self.standard_error, self.degrees_of_freedom)
        return float(max(below, above))


def within_engine(
    values: pd.DataFrame,
    baseline: str,
    *,
    families: int = 1,
    adjust: bool = True,
    alpha: float = ALPHA,
    step: float = 0.0,
) -> dict[str, Estimate]:
    """Every deployment of one engine against that engine's baseline.

    Parameters
    ----------
    values : DataFrame
        One row a launch: `deployment`, `block`, `value` (> 0, finite); A and A′ have the same deployment.
    baseline : str
        The deployment to compare with.
    families : int
        Number of equal primary families (loads) that the error rate is shared over.
    adjust : bool
        Widen the intervals so that all of them together hold (Dunnett); else each alone.
    alpha : float
        Error rate of all intervals together.
    step : float
        Resolution of the values on the log scale: they vary by a step's uniform spread at least, though all be equal.

    Returns
    -------
    dict
        By deployment; empty where the launches leave no degree of freedom (one block, or no baseline).
    """
    names = [baseline, *sorted(set(values["deployment"]) - {baseline})]
    logs, launches = _logs(values, names)
    if logs.shape[1] < 2 or len(names) < 2 or not launches[0]:
        return {}
    deployment, block = np.nonzero(~np.isnan(logs))
    columns = [np.ones(len(block))]
    columns += [(deployment == i).astype(float) for i in range(1, len(names))]
    columns += [(block == i).astype(float) for i in range(1, logs.shape[1])]
    design = np.column_stack(columns)
    fit = sm.OLS(logs[deployment, block], design).fit()
    freedom = int(fit.df_resid)
    if freedom < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return {}
    contrasts = slice(1, len(names))
    shape = np.asarray(fit.normalized_cov_params)[contrasts, contrasts]
    critical = dunnett(shape, freedom, alpha / families) if adjust else float(stats.t.ppf(1 - alpha / 2, freedom))
    sd = max(math.sqrt(max(0.0, float(fit.scale))), step / math.sqrt(12))
    return {
        name: Estimate(
            log_ratio=float(fit.params[i]),
            standard_error=sd * math.sqrt(shape[i - 1, i - 1]),
            degrees_of_freedom=freedom,
            critical=critical,
            residual_sd=sd,
            launches=launches[i],
            baseline_launches=launches[0],
            alpha=alpha,
        )
        for i, name in enumerate(names)
        if i
    }


def across_engines(
    values: pd.DataFrame,
    candidate: str,
    baseline: str,
    *,
    comparisons: int = 1,
    alpha: float = ALPHA,
    step: float = 0.0,
) -> Estimate | None:
    """A deployment of another engine against the common baseline, by each block's log ratio.

    Engines differ in their spread, so that nothing is pooled: a paired t interval over blocks, Bonferroni-adjusted over
    `comparisons`. None with fewer than two blocks that have both.
    """
    logs, launches = _logs(values, [baseline, candidate])
    ratios = logs[1] - logs[0]
    ratios = ratios[~np.isnan(ratios)]
    if len(ratios) < 2:
        return None
    freedom, sd = len(ratios) - 1, max(float(ratios.std(ddof=1)), step / math.sqrt(6))
    return Estimate(
        log_ratio=float(ratios.mean()),
        standard_error=sd / math.sqrt(len(ratios)),
        degrees_of_freedom=freedom,
        critical=float(stats.t.ppf(1 - alpha / comparisons / 2, freedom)),
        residual_sd=sd,
        launches=launches[1],
        baseline_launches=launches[0],
        alpha=alpha,
    )


def _logs(values: pd.DataFrame, names: Sequence[str]) -> tuple[NDArray[np.float64], list[int]]:
    """Mean log of each deployment (row) in each block (column; NaN: not measured), and each deployment's launches."""
    values = values[values["deployment"].isin(names)]
    rows = np.array([names.index(name) for name in values["deployment"]], dtype=int)
    blocks, columns = np.unique(values["block"].to_numpy(), return_inverse=True)
    sums, counts = np.zeros((len(names), len(blocks))), np.zeros((len(names), len(blocks)))
    np.add.at(sums, (rows, columns), np.log(values["value"].to_numpy(float)))
    np.add.at(counts, (rows, columns), 1)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return means, [int(count) for count in counts.sum(axis=1)]


def judge(estimate: Estimate, metric: str, margin: float) -> tuple[str, str]:
    """Verdict and reason: equivalent inside the margin; better or worse beyond zero; else inconclusive.

    `equivalent` asks the printed interval to lie within the margin: two one-sided tests at half of the interval's error
    rate each, adjusted as it is, which is stricter than the usual 5 % each (the 90 % interval), and never at odds with
    what the reader sees.
    """
    bound, percent = math.log1p(margin), f"{100 * margin:g} %"
    interval, differs = f"{100 * (1 - estimate.alpha):g} % interval", estimate.low > 0 or estimate.high < 0
    if -bound < estimate.low and estimate.high < bound:
        seen = "; a difference is seen, and smaller than that" if differs else ""
        return "equivalent", f"the whole {interval} lies within ± {percent}{seen}"
    if differs:
        gain = (estimate.log_ratio > 0) == (metric in HIGHER_IS_BETTER)
        return ("better" if gain else "worse"), f"the {interval} excludes no difference"
    visible = estimate.smallest_effect()
    return (
        "inconclusive",
        f"the {interval} holds no difference and reaches beyond ± {percent}; visible was {_capped(visible)}",
    )


def spread_between_replicas(values: pd.DataFrame) -> tuple[float, int] | None:
    """SD of one launch from A against A′: root mean square of the blocks' log differences ÷ √2; and the pairs.

    `values` holds one deployment's launches: `block`, `replica`, `value`.
    """
    logs = values.assign(value=np.log(values["value"])).pivot_table(index="block", columns="replica", values="value")
    if logs.shape[1] < 2:
        return None
    differences = (logs.iloc[:, 1] - logs.iloc[:, 0]).dropna()
    if differences.empty:
        return None
    return float(math.sqrt((differences**2).mean() / 2)), len(differences)


def percent(log_ratio: float) -> float:
    """A log ratio as a change in per cent."""
    return 100 * math.expm1(log_ratio)


def margins(plan: Mapping[str, float]) -> dict[str, float]:
    """Equivalence margins as shares, from the plan's `margin`."""
    return {
        "throughput": float(plan.get("throughput_pct", 5.0)) / 100,
        "latency": float(plan.get("latency_pct", 10.0)) / 100,
    }


def _capped(effect: float) -> str:
    """Beyond a fourfold change a smallest effect says only that there were too few blocks."""
    return f"{effect:.0%}" if effect <= 3 else "> 300%"
