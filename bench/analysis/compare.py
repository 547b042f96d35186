"""Differences tested across launches (rule 13): one statistic a launch, log(statistic) ~ deployment + block.

The residual is what is left of a deployment in a block. A and A′ are averaged first: they carry the same traffic, so
that they differ less from each other than a deployment's lead differs from block to block, and counted as two they
would make the residual too small (in the example run 1.4 % against 11 %). They remain the noise floor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
import statsmodels.api as sm
from numpy.typing import NDArray
from scipy import optimize, stats

ALPHA = 0.05
ALPHA_UNTIL = ALPHA / 2
"""Error rate where blocks are added until the intervals are narrow. A run that stops when its residual happens to be
small has too narrow intervals: at `ALPHA`, 3 to 12 blocks and the least favourable width, 9.2 % of the intervals miss;
at this rate 5.1 % (one compared deployment; less with several). Repeated by the test of simulated truth.
"""
POWER = 0.8
"""A smallest visible effect is one that is found with this probability."""

_STRATA = 400
_LARGEST_LOG = 50.0

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
        return _detectable(self.standard_error, self.degrees_of_freedom, self.critical)

    def equivalence_p(self, margin: float) -> float:
        """The larger p-value of two one-sided tests against ± log(1 + margin) (Schuirmann, 1987), not adjusted."""
        if self.standard_error == 0:
            return 0.0 if abs(self.log_ratio) < math.log1p(margin) else 1.0
        bound = math.log1p(margin)
        below = stats.t.sf((self.log_ratio + bound) / self.standard_error, self.degrees_of_freedom)
        above = stats.t.cdf((self.log_ratio - bound) / self.standard_error, self.degrees_of_freedom)
        return float(max(below, above))


def within_engine(
    values: pd.DataFrame, baseline: str, *, families: int = 1, adjust: bool = True, alpha: float = ALPHA
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

    Returns
    -------
    dict
        By deployment; empty where the launches leave no degree of freedom (one block, or no baseline).
    """
    seen = values.assign(log=np.log(values["value"])).groupby(["deployment", "block"], as_index=False)["log"].mean()
    names = [baseline, *sorted(set(seen["deployment"]) - {baseline})]
    blocks = sorted(set(seen["block"]))
    if len(blocks) < 2 or len(names) < 2 or baseline not in set(seen["deployment"]):
        return {}
    columns = [np.ones(len(seen))]
    columns += [(seen["deployment"] == name).to_numpy(float) for name in names[1:]]
    columns += [(seen["block"] == block).to_numpy(float) for block in blocks[1:]]
    design = np.column_stack(columns)
    fit = sm.OLS(seen["log"].to_numpy(float), design).fit()
    freedom = int(fit.df_resid)
    if freedom < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
        return {}
    contrasts = slice(1, len(names))
    shape = np.asarray(fit.normalized_cov_params)[contrasts, contrasts]
    critical = dunnett(shape, freedom, alpha / families) if adjust else float(stats.t.ppf(1 - alpha / 2, freedom))
    launches = values["deployment"].value_counts()
    sd = math.sqrt(max(0.0, float(fit.scale)))
    return {
        name: Estimate(
            log_ratio=float(fit.params[i]),
            standard_error=sd * math.sqrt(shape[i - 1, i - 1]),
            degrees_of_freedom=freedom,
            critical=critical,
            residual_sd=sd,
            launches=int(launches[name]),
            baseline_launches=int(launches[baseline]),
            alpha=alpha,
        )
        for i, name in enumerate(names)
        if i
    }


def across_engines(
    values: pd.DataFrame, candidate: str, baseline: str, *, comparisons: int = 1, alpha: float = ALPHA
) -> Estimate | None:
    """A deployment of another engine against the common baseline, by each block's log ratio.

    Engines differ in their spread, so that nothing is pooled: a paired t interval over blocks, Bonferroni-adjusted over
    `comparisons`. None with fewer than two blocks that have both.
    """
    logs = values.assign(value=np.log(values["value"])).groupby(["block", "deployment"])["value"].mean().unstack()
    if candidate not in logs or baseline not in logs:
        return None
    ratios = (logs[candidate] - logs[baseline]).dropna()
    if len(ratios) < 2:
        return None
    freedom, sd = len(ratios) - 1, float(ratios.std(ddof=1))
    launches = values["deployment"].value_counts()
    return Estimate(
        log_ratio=float(ratios.mean()),
        standard_error=sd / math.sqrt(len(ratios)),
        degrees_of_freedom=freedom,
        critical=float(stats.t.ppf(1 - alpha / comparisons / 2, freedom)),
        residual_sd=sd,
        launches=int(launches[candidate]),
        baseline_launches=int(launches[baseline]),
        alpha=alpha,
    )


def dunnett(covariance: NDArray[np.float64], freedom: int, alpha: float) -> float:
    """Two-sided critical value for contrasts of this covariance shape: all hold together with 1 − `alpha`."""
    scale = np.sqrt(np.diag(covariance))
    correlation = np.round(covariance / np.outer(scale, scale), 6)
    return _dunnett(tuple(map(tuple, correlation.tolist())), freedom, alpha)


@lru_cache(maxsize=256)
def _dunnett(correlation: tuple[tuple[float, ...], ...], freedom: int, alpha: float) -> float:
    count = len(correlation)
    alone, bonferroni = (float(stats.t.ppf(1 - a / 2, freedom)) for a in (alpha, alpha / count))
    if count == 1:
        return alone
    together = stats.multivariate_t(loc=np.zeros(count), shape=np.array(correlation), df=freedom, allow_singular=True)

    def excess(critical: float) -> float:
        box = np.full(count, critical)
        inside = together.cdf(box, lower_limit=-box, random_state=np.random.default_rng(0))
        return float(inside) - (1 - alpha)

    if excess(alone) >= 0 or excess(bonferroni) <= 0:  # numerical noise at the ends; Bonferroni is never too narrow
        return bonferroni
    return float(optimize.brentq(excess, alone, bonferroni, xtol=1e-3))


def smallest_effect(blocks: int, deployments: int, sd: float, *, families: int = 1, alpha: float = ALPHA) -> float:
    """The relative difference that a plan finds with 80 % probability; infinite where it gives no verdict.

    Parameters
    ----------
    blocks : int
        Blocks planned.
    deployments : int
        Of one engine, its baseline included.
    sd : float
        Relative SD of one deployment's statistic in one block (`Estimate.residual_sd`), e.g. 0.04; from an earlier run.
    families, alpha
        As in `within_engine`.
    """
    others = deployments - 1
    freedom = others * (blocks - 1)
    if others < 1 or freedom < 1:
        return math.inf
    shape = (np.ones((others, others)) + np.eye(others)) / blocks
    return _detectable(sd * math.sqrt(2 / blocks), freedom, dunnett(shape, freedom, alpha / families))


def _detectable(standard_error: float, freedom: int, critical: float) -> float:
    if standard_error == 0:
        return 0.0

    # Noncentral t as a mean over the residual's chi: scipy's own `nct` gives NaN at few degrees of freedom.
    bar = critical * np.sqrt(stats.chi2.ppf((np.arange(_STRATA) + 0.5) / _STRATA, freedom) / freedom)

    def shortfall(shift: float) -> float:
        return float(np.mean(stats.norm.sf(bar - shift) + stats.norm.cdf(-bar - shift))) - POWER

    shift = float(optimize.brentq(shortfall, 0.0, float(bar[-1]) + 10))
    return math.expm1(min(shift * standard_error, _LARGEST_LOG))


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
        f"the {interval} holds no difference and reaches beyond ± {percent}; visible was {visible:.0%}",
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
