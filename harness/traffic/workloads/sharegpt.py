"""Conversations in ShareGPT's shape, from derived statistics: `data/sharegpt_shape.json`, which names its source."""

import itertools
import json
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from harness.errors import ConfigError
from harness.traffic.lengths import quantile, stratified
from harness.traffic.parameters import need, unknown
from harness.traffic.segments import Fresh, Part, Session, Shared, Turn
from harness.traffic.text import HEAD_TOKENS
from harness.traffic.think import think_of
from harness.traffic.workloads import Drawn, Wanted, cut_to_total, workload

MODES = ("sessions", "first-turns", "single-turns")

MEAN_TOLERANCE = 0.02
"""The mean prompt of a window's requests is within this share (plus one token) of `input_tokens_mean`."""


@dataclass(frozen=True)
class ShareGpt:
    """Requests as long as ShareGPT's, scaled to the means asked.

    Attributes
    ----------
    mode : str
        ``sessions``: conversations, each turn's prompt continuing the one before; ``first-turns``: only how they begin;
        ``single-turns``: any turn as a request of its own, its whole context in the prompt and nothing shared.
    input_tokens_mean : int or None
        Mean prompt (for sessions: cumulative context) of a request; None: as long as in the source.
    output_tokens_mean : int or None
        Mean output; None: as long as in the source.
    input_tokens_max : int or None
        Longest prompt; None: the context less the output.
    output_tokens_fixed : bool
        Every request is exactly `output_tokens_mean` long; else the shape's distribution, scaled.
    turns_max : int
        Most turns of a session; a longer one gives its first turns.
    shared_prefix_tokens : int
        Tokens at the start that all sessions share (a system prompt).
    think_s : number, mapping or None
        Pause before each later turn (`think.py`); None: the load's `think_time_s`.
    """

    mode: str = "sessions"
    input_tokens_mean: int | None = 1024
    output_tokens_mean: int | None = 64
    input_tokens_max: int | None = None
    output_tokens_fixed: bool = True
    turns_max: int = 4
    shared_prefix_tokens: int = 0
    think_s: Any = None

    def __post_init__(self) -> None:
        need(self.mode in MODES, f"mode: {unknown(self.mode, MODES)}")
        for key in ("input_tokens_mean", "output_tokens_mean", "input_tokens_max", "turns_max"):
            value = getattr(self, key)
            need(value is None or value >= 1, f"{key}: {value} must be >= 1")
        need(self.shared_prefix_tokens >= 0, f"shared_prefix_tokens: {self.shared_prefix_tokens} must be >= 0")
        if self.think_s is not None:
            think_of(self.think_s, "think_s")

    def longest_prompt(self, context_tokens: int, output_tokens: int) -> int:
        """Longest prompt before an output of the given length."""
        longest = context_tokens - output_tokens
        return longest if self.input_tokens_max is None else min(longest, self.input_tokens_max)


Lengths = tuple[list[int], list[int]]
"""New tokens and output tokens of a session's turns."""


@workload("sharegpt", ShareGpt)
def sharegpt(what: ShareGpt, wanted: Wanted) -> Drawn:
    """Sessions in ShareGPT's shape, scaled.

    Turns a session, tokens of first turns, of later user turns and (unless fixed) of outputs follow ShareGPT's
    quantiles; single turns follow its joint distribution of inputs and outputs. One factor scales all user tokens such
    that the mean prompt is `input_tokens_mean`; a session that would outgrow the longest prompt is shrunk as a whole.
    Draws are stratified, so that a dozen sessions already show the whole distribution.
    """
    _need_room(what, wanted.context_tokens)
    users, outputs = (_single if what.mode == "single-turns" else _conversations)(what, wanted.requests, wanted.rng)
    return Drawn(_sessions(_scaled_to_mean(what, users, outputs, wanted.context_tokens), what, wanted.rng))


def _need_room(what: ShareGpt, context_tokens: int) -> None:
    if what.input_tokens_mean is None:
        return
    output = what.output_tokens_mean or 1
    longest, smallest = what.longest_prompt(context_tokens, output), what.shared_prefix_tokens + 1
    need(
        smallest <= what.input_tokens_mean <= longest,
        f"input_tokens_mean: {what.input_tokens_mean} must lie between {smallest} (shared_prefix_tokens"
        f" + 1) and {longest}, the smaller of input_tokens_max ({what.input_tokens_max}) and context_tokens"
        f" ({context_tokens}) - output_tokens_mean ({output})",
    )


def _conversations(what: ShareGpt, requests: int, rng: random.Random) -> tuple[list[list[float]], list[list[int]]]:
    """User tokens and outputs by session and turn, before scaling to the mean prompt."""
    shape = _shape()
    turns_max = 1 if what.mode == "first-turns" else what.turns_max
    turns = cut_to_total(
        stratified(rng, requests, lambda u: min(_turns_at(shape["turns_pmf"], u), turns_max)), requests
    )
    firsts = stratified(rng, len(turns), lambda u: _tokens_at(shape["first_turn_input_tokens"], u))
    later = iter(stratified(rng, requests, lambda u: _tokens_at(shape["new_user_tokens"], u)))
    users = [[first, *itertools.islice(later, count - 1)] for first, count in zip(firsts, turns, strict=True)]
    if what.output_tokens_fixed and what.output_tokens_mean is not None:
        return users, [[what.output_tokens_mean] * count for count in turns]
    tables = shape["output_tokens_by_turn"]
    raw = [[_tokens_at(tables.get(str(k + 1), tables["6+"]), rng.random()) for k in range(count)] for count in turns]
    return users, _outputs(what, raw)


def _single(what: ShareGpt, requests: int, rng: random.Random) -> tuple[list[list[float]], list[list[int]]]:
    """As `_conversations`, for single turns: long prompts go with the outputs that they go with in the source."""
    table = _shape()["single_request"]
    joint = table["joint_rank_counts"]
    pairs = []
    for level in stratified(rng, requests, lambda u: u):
        row = list(itertools.accumulate(joint[int(level * len(joint))]))
        column = min(bisect_right(row, rng.random() * row[-1]), len(row) - 1)
        pairs.append((level, (column + rng.random()) / len(row)))
    users = [[quantile(table["levels_pct"], table["input_tokens"], level)] for level, _ in pairs]
    if what.output_tokens_fixed and what.output_tokens_mean is not None:
        return users, [[what.output_tokens_mean]] * requests
    raw = [[quantile(table["levels_pct"], table["output_tokens"], level)] for _, level in pairs]
    return users, _outputs(what, raw)


def _outputs(what: ShareGpt, raw: Sequence[Sequence[float]]) -> list[list[int]]:
    factor = 1.0
    if what.output_tokens_mean is not None:
        factor = what.output_tokens_mean * sum(map(len, raw)) / sum(map(sum, raw))
    return [[max(1, round(value * factor)) for value in values] for values in raw]


def _scaled_to_mean(
    what: ShareGpt, users: Sequence[Sequence[float]], outputs: Sequence[list[int]], context_tokens: int
) -> list[Lengths]:
    def scaled(factor: float, to_first: float = 0.0) -> list[Lengths]:
        return [
            (_new_tokens(_moved_to_first(user, to_first), out, factor, what, context_tokens), out)
            for user, out in zip(users, outputs, strict=True)
        ]

    target, prefix = what.input_tokens_mean, what.shared_prefix_tokens
    if target is None:
        return scaled(1.0)
    highest = 1e6
    drawn = _with_mean(target, prefix, lambda x: scaled(highest**x))
    if _mean_prompt(drawn, prefix) < target - 1:
        # All sessions are as long as they may be and the mean is still too low: let them start longer, grow less.
        drawn = _with_mean(target, prefix, lambda x: scaled(highest, to_first=(x + 1) / 2))
    mean = _mean_prompt(drawn, prefix)
    if abs(mean - target) > MEAN_TOLERANCE * target + 1:
        raise ConfigError(
            f"input_tokens_mean: {target} can't be met with turns_max={what.turns_max}, outputs of "
            f"{what.output_tokens_mean} tokens, input_tokens_max={what.input_tokens_max} and a context of "
            f"{context_tokens}; the nearest mean is {mean:.0f}"
        )
    return drawn


def _with_mean(target: int, prefix: int, draw: "Any") -> list[Lengths]:
    """The draw, over x from -1 to 1, whose mean prompt is nearest to `target`; the mean must not fall as x grows."""
    low, high = -1.0, 1.0
    best, distance = None, float("inf")
    for _ in range(40):
        middle = (low + high) / 2
        drawn: list[Lengths] = draw(middle)
        mean = _mean_prompt(drawn, prefix)
        if abs(mean - target) < distance:
            best, distance = drawn, abs(mean - target)
        if distance < 0.01:
            break
        low, high = (middle, high) if mean < target else (low, middle)
    assert best is not None
    return best


def _mean_prompt(drawn: Sequence[Lengths], prefix: int) -> float:
    total = count = 0
    for news, outputs in drawn:
        context = prefix
        for new, out in zip(news, outputs, strict=True):
            context += new
            total += context
            context += out
        count += len(news)
    return total / count


def _moved_to_first(user: Sequence[float], share: float) -> Sequence[float]:
    """User tokens with a share of every later turn's moved to the first turn."""
    if share == 0 or len(user) == 1:
        return user
    return [user[0] + share * sum(user[1:]), *((1 - share) * tokens for tokens in user[1:])]


def _new_tokens(
    user: Sequence[float], outputs: Sequence[int], factor: float, what: ShareGpt, context_tokens: int
) -> list[int]:
    """A session's user tokens scaled, shrunk as a whole where its last prompt would be too long."""
    prefix = what.shared_prefix_tokens
    longest = what.longest_prompt(context_tokens, outputs[-1])
    room = longest - prefix - sum(outputs[:-1])
    first_least = HEAD_TOKENS if what.input_tokens_mean is None else min(HEAD_TOKENS, what.input_tokens_mean - prefix)
    least = [max(1, first_least), *[1] * (len(user) - 1)]
    if room < sum(least):
        raise ConfigError(
            f"output_tokens_mean: {len(user)} turns with outputs of {sum(outputs)} tokens don't fit prompts of at most "
            f"{longest}; lower turns_max or output_tokens_mean, or raise input_tokens_max"
        )
    factor = min(factor, room / sum(user))
    news = [max(low, round(tokens * factor)) for low, tokens in zip(least, user, strict=True)]
    while sum(news) > room:  # rounding and the least sizes may overshoot: take it from the largest
        largest = max(range(len(news)), key=lambda i: news[i] - least[i])
        news[largest] -= min(sum(news) - room, news[largest] - least[largest])
    return news


def _sessions(drawn: Sequence[Lengths], what: ShareGpt, rng: random.Random) -> list[Session]:
    later = sum(len(news) - 1 for news, _ in drawn)
    pauses = iter(stratified(rng, later, think_of(what.think_s, "think_s").at) if what.think_s is not None else ())
    sessions = []
    for news, outputs in drawn:
        turns: list[Turn] = []
        context = what.shared_prefix_tokens
        for new, out in zip(news, outputs, strict=True):
            parts: tuple[Part, ...] = (Fresh(new),)
            if not turns and what.shared_prefix_tokens:
                parts = (Shared("prefix", what.shared_prefix_tokens), Fresh(new))
            turns.append(Turn(context + new, out, parts, next(pauses, None) if turns else None))
            context += new + out
        sessions.append(Session(tuple(turns)))
    return sessions


@cache
def _shape() -> dict[str, Any]:
    shape: dict[str, Any] = json.loads((files("harness.traffic") / "data" / "sharegpt_shape.json").read_text())
    return shape


def _tokens_at(table: dict[str, list[float]], level: float) -> float:
    return quantile(table["levels_pct"], table["tokens"], level)


def _turns_at(pmf: dict[str, float], level: float) -> int:
    total = sum(pmf.values())
    below = 0.0
    for turns, share in pmf.items():
        below += share / total
        if level < below:
            return int(turns)
    return int(turns)
