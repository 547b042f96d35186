"""How many questions a statement about accuracy needs, and the smallest loss that a number of questions can show.

Power of the score test of `bench.analysis.paired` by the normal approximation (Nam, 1997, Biometrics 53:1422), with the
design effect that its estimate will come to on average. All arguments are shares, not percentage points.
"""

import math

from scipy import optimize, stats

from bench.analysis.paired import ASSUMED_ICC, ASSUMED_PAIRS, Paired, quantile

DISCORDANCE = 0.1
"""Share of answers assumed to change, for a plan. The example's fp8 cache changed 6 % (3 of 48)."""
POWER = 0.8
ONE_SIDED = 0.025


def questions_needed(
    margin: float,
    discordance: float = DISCORDANCE,
    power: float = POWER,
    alpha: float = ONE_SIDED,
    questions_per_document: int = 1,
    icc: float = ASSUMED_ICC,
) -> int:
    """Questions over all blocks with which an equal candidate is non-inferior with probability `power`.

    Parameters
    ----------
    margin : float
        Loss that must be excluded; of a relative margin that share × the score expected.
    discordance : float
        Share of pairs that differ though neither side is better.
    power, alpha : float
        Alpha is one-sided.
    questions_per_document : int
        Questions that share a document; whole documents are counted.
    icc : float
        Intraclass correlation of the differences within a document.
    """
    if not 0 < margin < 1 or not 0 <= discordance <= 1:
        raise ValueError(f"margin {margin} must be between 0 and 1, discordance {discordance} from 0 to 1")
    per_document = max(1, questions_per_document)
    enough = 2
    while _power(margin, discordance, enough, per_document, icc, alpha) < power:
        enough *= 2
    low = enough // 2
    while enough - low > 1:
        middle = (low + enough) // 2
        if _power(margin, discordance, middle, per_document, icc, alpha) < power:
            low = middle
        else:
            enough = middle
    return enough * per_document


def smallest_loss(
    questions: int,
    discordance: float = DISCORDANCE,
    power: float = POWER,
    alpha: float = ONE_SIDED,
    questions_per_document: int = 1,
    icc: float = ASSUMED_ICC,
) -> float:
    """The true loss that `questions` show as one (`worse`) with probability `power`; infinite where none would be."""
    per_document = max(1, questions_per_document)
    documents = max(1, questions // per_document)
    effect = _design_effect(discordance * questions, documents, per_document, icc)
    limit = quantile(None if per_document == 1 else documents, 2 * alpha)
    return loss_shown(questions / effect, discordance, limit, power)


def loss_shown(effective_n: float, discordance: float, limit: float, power: float = POWER) -> float:
    """The loss whose score statistic passes `limit` with probability `power`, at that many independent pairs.

    A loss changes at least as many answers as it loses: the share that differs is the larger of `discordance` and it.
    """
    beyond = float(stats.norm.ppf(power))

    def excess(loss: float) -> float:
        differing = max(loss, discordance)
        needed = limit * math.sqrt(differing) + beyond * math.sqrt(differing - loss**2)
        return loss * math.sqrt(effective_n) - needed

    if math.isinf(limit) or effective_n <= 0 or excess(1.0) < 0:
        return math.inf
    return float(optimize.brentq(excess, 1e-9, 1.0)) if excess(1e-9) < 0 else 0.0


def _power(margin: float, discordance: float, documents: int, per_document: int, icc: float, alpha: float) -> float:
    questions = documents * per_document
    effective = questions / _design_effect(discordance * questions, documents, per_document, icc)
    limit = quantile(None if per_document == 1 else documents, 2 * alpha)
    half = discordance * questions / 2
    expected = Paired(questions, 0.0, half, half, questions).difference_statistic(-margin) * math.sqrt(
        effective / questions
    )
    if discordance == 0:
        return float(expected > limit)
    # Of the statistic at equal scores: its spread is √(variance there ÷ variance under a loss of the margin).
    spread = expected * math.sqrt(discordance / effective) / margin
    return float(stats.norm.cdf((expected - limit) / spread))


def _design_effect(differing: float, documents: int, per_document: int, icc: float) -> float:
    """What `paired` will estimate on average, of so many answers that differ."""
    if per_document == 1:
        return 1.0
    # Standard error of the ANOVA estimate (Donner, 1986); a negative one counts as 0, which shifts the mean upwards.
    error = (1 - icc) * (1 + (per_document - 1) * icc)
    error *= math.sqrt(2 / (per_document * (per_document - 1) * max(1, documents - 1)))
    seen = icc * stats.norm.cdf(icc / error) + error * stats.norm.pdf(icc / error) if error else icc
    mean = (differing * min(1.0, seen) + ASSUMED_PAIRS * ASSUMED_ICC) / (differing + ASSUMED_PAIRS)
    return float(1 + (per_document - 1) * mean)
