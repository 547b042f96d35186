"""Scores of a second run against the first: the same questions, of which some are answered otherwise by chance."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.analysis.accuracy_verdict import Margin
from bench.analysis.flips import repeated
from bench.analysis.load import TaskRecord
from bench.analysis.pairing import Answer, Key, answers
from bench.comparability import Pair
from bench.difference import ACCURACY, Difference, reason, voiding
from bench.predict import flips_balanced, flips_within
from bench.reproduction import INCONCLUSIVE, NOT_COMPARABLE, NOT_REPRODUCED, REPRODUCED, Number


def accuracy_numbers(pair: Pair, found: Sequence[Difference]) -> Iterator[Number]:
    """Every task's score."""
    for task in sorted(pair.one.accuracy.keys() | pair.other.accuracy.keys()):
        metric = pair.one.accuracy[task].metric if task in pair.one.accuracy else task
        row = Number(pair.one.id, "accuracy", task, metric, "accuracy", None, None, NOT_COMPARABLE, "")
        if obstacles := voiding(found, ACCURACY, task):
            yield replace(row, reason=reason(obstacles))
        else:
            yield _number(row, pair, task)


def _number(row: Number, pair: Pair, task: str) -> Number:
    mine, theirs = pair.answers(task)
    blocks = pair.shared_questions(task)
    old, new = ({b: side[b] for b in blocks} for side in (mine, theirs))
    before, after = _answers(old), _answers(new)
    keys = sorted(before.keys() & after.keys())
    if len(blocks) < 2 or not keys:
        why = "one block gives no verdict" if keys else "no question was answered in both"
        return replace(row, verdict=INCONCLUSIVE, reason=why)
    n = len(keys)
    scores = [sum(side[key].score for key in keys) / n for side in (before, after)]
    changed = sum(before[key].score != after[key].score for key in keys)
    texts = [(before[key].text, after[key].text) for key in keys if before[key].text is not None]
    identical = f"{sum(x == y for x, y in texts) / len(texts):.0%} of the answers are the same text; " if texts else ""
    base = pair.a.engine_baseline(pair.one)
    again = repeated(pair.a.launches(base.id), task) if base else {}
    if again:
        by_chance = sum(x.score != y.score for x, y in again.values())
        most = flips_within(n, by_chance, len(again))
        method = f"changes as often as A against A′ ({by_chance} of {len(again)}, its upper 95 % bound)"
    else:
        most = flips_balanced(changed)
        method = "as many changes as seen, each as likely for the better; the engine has no A′"
    margin = Margin.of((pair.a.plan.get("accuracy") or {}).get(task) or {}).in_pp(scores[0])
    width, difference = 100 * most / n, 100 * (scores[1] - scores[0])
    verdict, why = _verdict(changed, n, difference, width, margin)
    return replace(
        row,
        old=scores[0],
        new=scores[1],
        verdict=verdict,
        reason=identical + why,
        low=max(0.0, scores[0] - most / n),
        high=min(1.0, scores[0] + most / n),
        width=width,
        old_blocks=len(blocks),
        new_blocks=len(blocks),
        method=f"95 % prediction interval; {method}",
    )


def _verdict(changed: int, n: int, difference: float, width: float, margin: float) -> tuple[str, str]:
    if not changed:
        return REPRODUCED, f"all {n} are scored as before"
    told = f"{changed} of {n} are scored otherwise, {difference:+.1f} pp".replace("-", "−")
    inside = abs(difference) <= width + 1e-9
    place = "inside" if inside else "outside"
    if width > margin:
        return INCONCLUSIVE, f"{told}, {place} an interval that is wider than the margin ({margin:g} pp)"
    return (REPRODUCED if inside else NOT_REPRODUCED), f"{told}, {place} the interval"


def _answers(records: Mapping[int, TaskRecord]) -> dict[Key, Answer]:
    return {(block, item): one for block, record in records.items() for item, one in answers(record).items()}
