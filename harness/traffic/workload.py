"""What is asked: the lengths of sessions and their turns, drawn from a seed. No text, no tokenizer, no engine.

ShareGPT's shape comes from `data/sharegpt_shape.json` (derived statistics; the file names their source).
"""

import heapq
import itertools
import json
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from harness.errors import ConfigError
from harness.traffic.load import Arrival, Load, Workload
from harness.traffic.text import HEAD_TOKENS

MEAN_TOLERANCE = 0.02
"""The mean prompt of a window's requests is within this share (plus one token) of `input_tokens_mean`."""


@dataclass(frozen=True)
class Turn:
    """One request.

    Attributes
    ----------
    new_tokens : int
        Tokens that the user adds (in a first turn: the whole prompt less the shared prefix).
    prompt_tokens : int
        Length of the whole prompt: shared prefix, all earlier turns with their outputs, and `new_tokens`.
    output_tokens : int
        Length of the output.
    """

    new_tokens: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Session:
    """A conversation: turns one after the other, each prompt continuing the one before."""

    turns: tuple[Turn, ...]

    @property
    def final_tokens(self) -> int:
        """Tokens of context after the last output."""
        return self.turns[-1].prompt_tokens + self.turns[-1].output_tokens


T = TypeVar("T")

Draw = Callable[[Workload, int, int, random.Random], list[Session]]

WORKLOADS: dict[str, Draw] = {}
"""Kinds of workload by name: (workload, requests, context tokens, source of randomness) → sessions."""


def workload(kind: str) -> Callable[[Draw], Draw]:
    """Decorator: make a kind of workload known under `kind`."""

    def register(draw: Draw) -> Draw:
        WORKLOADS[kind] = draw
        return draw

    return register


def sessions(what: Workload, *, requests: int, context_tokens: int, seed: int | str) -> list[Session]:
    """Draw sessions with exactly `requests` turns in total.

    Parameters
    ----------
    what : Workload
        The lengths asked for.
    requests : int
        Turns of all sessions together; the last session is cut to fit.
    context_tokens : int
        Longest sequence (prompt + output) that the server takes.
    seed : int or str
        Equal seeds draw equal sessions.

    Raises
    ------
    ConfigError
        When the lengths can't be met within the context.
    """
    if what.kind not in WORKLOADS:
        raise ConfigError(f"workload.kind: '{what.kind}' is unknown; allowed: {', '.join(sorted(WORKLOADS))}")
    if requests == 0:
        return []
    for key in ("input_tokens_mean", "output_tokens_mean", "turns_max"):
        if getattr(what, key) < 1:
            raise ConfigError(f"workload.{key}: {getattr(what, key)} must be >= 1")
    longest = _longest_prompt(what, context_tokens, what.output_tokens_mean)
    smallest = what.shared_prefix_tokens + 1
    if not smallest <= what.input_tokens_mean <= longest:
        raise ConfigError(
            f"workload.input_tokens_mean: {what.input_tokens_mean} must lie between {smallest} (shared_prefix_tokens"
            f" + 1) and {longest}, the smaller of input_tokens_max ({what.input_tokens_max}) and context_tokens"
            f" ({context_tokens}) - output_tokens_mean ({what.output_tokens_mean})"
        )
    return WORKLOADS[what.kind](what, requests, context_tokens, random.Random(f"{what.kind}-{seed}"))


@workload("synthetic")
def synthetic(what: Workload, requests: int, context_tokens: int, rng: random.Random) -> list[Session]:
    """Single requests, all of the mean lengths."""
    turn = Turn(what.input_tokens_mean - what.shared_prefix_tokens, what.input_tokens_mean, what.output_tokens_mean)
    return [Session((turn,))] * requests


@workload("sharegpt")
def sharegpt(what: Workload, requests: int, context_tokens: int, rng: random.Random) -> list[Session]:
    """Sessions in ShareGPT's shape, scaled.

    Turns a session, tokens of first turns, of later user turns and (unless fixed) of outputs follow ShareGPT's
    quantiles; a session longer than `turns_max` gives its first turns. One factor scales all user tokens such that the
    mean prompt is `input_tokens_mean`; a session that would outgrow the longest prompt is shrunk as a whole. Draws are
    stratified, so that a dozen sessions already show the whole distribution.
    """
    shape = _shape()
    drawn_turns = _stratified(rng, requests, lambda u: min(_turns_at(shape["turns_pmf"], u), what.turns_max))
    turns = _cut_to_total(drawn_turns, requests)
    firsts = _stratified(rng, len(turns), lambda u: _quantile(shape["first_turn_input_tokens"], u))
    later = iter(_stratified(rng, requests, lambda u: _quantile(shape["new_user_tokens"], u)))
    users = [[first, *itertools.islice(later, count - 1)] for first, count in zip(firsts, turns, strict=True)]
    outputs = _outputs(what, shape, turns, rng)

    def scaled(factor: float, to_first: float = 0.0) -> list[Session]:
        return [
            _session(_moved_to_first(user, to_first), out, factor, what, context_tokens)
            for user, out in zip(users, outputs, strict=True)
        ]

    highest = 1e6
    drawn = _with_mean(what.input_tokens_mean, lambda x: scaled(highest**x))
    if mean_prompt_tokens(drawn) < what.input_tokens_mean - 1:
        # All sessions are as long as they may be and the mean is still too low: let them start longer, grow less.
        drawn = _with_mean(what.input_tokens_mean, lambda x: scaled(highest, to_first=(x + 1) / 2))
    mean = mean_prompt_tokens(drawn)
    if abs(mean - what.input_tokens_mean) > MEAN_TOLERANCE * what.input_tokens_mean + 1:
        raise ConfigError(
            f"workload.input_tokens_mean: {what.input_tokens_mean} can't be met with turns_max={what.turns_max}, "
            f"outputs of {what.output_tokens_mean} tokens, input_tokens_max={what.input_tokens_max} and a context of "
            f"{context_tokens}; the nearest mean is {mean:.0f}"
        )
    return drawn


def mean_prompt_tokens(drawn: Sequence[Session]) -> float:
    """Mean prompt over all requests."""
    prompts = [turn.prompt_tokens for session in drawn for turn in session.turns]
    return sum(prompts) / len(prompts)


def working_set_tokens(
    drawn: Sequence[Session],
    arrival: Arrival,
    offsets_ns: Sequence[int | None],
    shared_prefix_tokens: int,
    request_s: float,
) -> int:
    """Distinct KV tokens that must be held at once at the peak.

    A session needs its final context from its start to its end; the shared prefix counts once.

    - Closed loop: `concurrency` sessions live at a time; all requests are taken to last equally long, a session starts
      when a place is free, and the peak is over that timetable.
    - Open loop: how long a session lives depends on the engine; each request is taken to last `request_s`.

    What really overlapped in a measurement is in its records (`records.peak_context_tokens`).
    """
    spans: list[tuple[float, float, int]] = []
    free = [0.0] * (arrival.concurrency or 1)
    for session, due in zip(drawn, offsets_ns, strict=True):
        if due is None:
            start, duration = heapq.heappop(free), float(len(session.turns))
            heapq.heappush(free, start + duration)
        else:
            start, duration = due / 1e9, request_s * len(session.turns)
        spans.append((start, start + duration, session.final_tokens - shared_prefix_tokens))
    return peak_of(spans) + (shared_prefix_tokens if spans else 0)


def peak_of(spans: Sequence[tuple[float, float, int]]) -> int:
    """Largest sum of sizes over (start, end, size) spans that overlap; one that ends as another starts does not."""
    changes = sorted([(start, 1, size) for start, _, size in spans] + [(end, 0, -size) for _, end, size in spans])
    level = peak = 0
    for _, _, change in changes:
        level += change
        peak = max(peak, level)
    return peak


def window_sessions(load: Load, context_tokens: int, seed: int) -> list[Session]:
    """The sessions that are measured."""
    return sessions(load.workload, requests=load.requests, context_tokens=context_tokens, seed=f"window-{seed}")


def warmup_sessions(load: Load, context_tokens: int, seed: int) -> list[Session]:
    """The sessions before the window."""
    return sessions(load.workload, requests=load.warmup_requests, context_tokens=context_tokens, seed=f"warmup-{seed}")


@cache
def _shape() -> dict[str, Any]:
    shape: dict[str, Any] = json.loads((files("harness.traffic") / "data" / "sharegpt_shape.json").read_text())
    return shape


def _stratified(rng: random.Random, count: int, draw: Callable[[float], T]) -> list[T]:
    """`count` draws, one from each of `count` equal slices of the distribution, in random order."""
    levels = [(i + rng.random()) / count for i in range(count)]
    rng.shuffle(levels)
    return [draw(level) for level in levels]


def _quantile(table: dict[str, list[float]], level: float) -> float:
    """Value at a level (0 to 1), linear between the table's levels."""
    levels, values = table["levels_pct"], table["tokens"]
    at = min(bisect_right(levels, level * 100), len(levels) - 1)
    left, right = levels[at - 1], levels[at]
    return values[at - 1] + (values[at] - values[at - 1]) * (level * 100 - left) / (right - left)


def _turns_at(pmf: dict[str, float], level: float) -> int:
    total = sum(pmf.values())
    below = 0.0
    for turns, share in pmf.items():
        below += share / total
        if level < below:
            return int(turns)
    return int(turns)


def _cut_to_total(counts: Sequence[int], total: int) -> list[int]:
    """The first counts that sum to `total`, the last of them cut to fit."""
    out: list[int] = []
    left = total
    for count in counts:
        out.append(min(count, left))
        left -= out[-1]
        if left == 0:
            break
    return out


def _outputs(what: Workload, shape: dict[str, Any], turns: Sequence[int], rng: random.Random) -> list[list[int]]:
    """Output lengths by session and turn."""
    if what.output_tokens_fixed:
        return [[what.output_tokens_mean] * count for count in turns]
    tables = shape["output_tokens_by_turn"]
    raw = [[_quantile(tables.get(str(k + 1), tables["6+"]), rng.random()) for k in range(count)] for count in turns]
    factor = what.output_tokens_mean * sum(turns) / sum(map(sum, raw))
    return [[max(1, round(value * factor)) for value in values] for values in raw]


def _with_mean(target: float, draw: Callable[[float], list[Session]]) -> list[Session]:
    """The draw, over x from -1 to 1, whose mean prompt is nearest to `target`; the mean must not fall as x grows."""
    low, high = -1.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_prompt_tokens(draw(middle)) < target else (low, middle)
    return min(draw(low), draw(high), key=lambda drawn: abs(mean_prompt_tokens(drawn) - target))


def _moved_to_first(user: Sequence[float], share: float) -> list[float]:
    """User tokens with a share of every later turn's moved to the first turn."""
    return [user[0] + share * sum(user[1:]), *((1 - share) * tokens for tokens in user[1:])]


def _longest_prompt(what: Workload, context_tokens: int, output_tokens: int) -> int:
    """Longest prompt before an output of the given length."""
    longest = context_tokens - output_tokens
    return longest if what.input_tokens_max is None else min(longest, what.input_tokens_max)


def _session(
    user: Sequence[float], outputs: Sequence[int], factor: float, what: Workload, context_tokens: int
) -> Session:
    """A session with its user tokens scaled, shrunk as a whole where its last prompt would be too long."""
    prefix = what.shared_prefix_tokens
    longest = _longest_prompt(what, context_tokens, outputs[-1])
    room = longest - prefix - sum(outputs[:-1])
    least = [max(1, min(HEAD_TOKENS, what.input_tokens_mean - prefix)), *[1] * (len(user) - 1)]
    if room < sum(least):
        raise ConfigError(
            f"workload: {len(user)} turns with outputs of {sum(outputs)} tokens don't fit prompts of at most {longest};"
            " lower turns_max or output_tokens_mean, or raise input_tokens_max"
        )
    factor = min(factor, room / sum(user))
    news = [max(low, round(tokens * factor)) for low, tokens in zip(least, user, strict=True)]
    while sum(news) > room:  # rounding and the least sizes may overshoot: take it from the largest
        largest = max(range(len(news)), key=lambda i: news[i] - least[i])
        news[largest] -= min(sum(news) - room, news[largest] - least[largest])
    turns: list[Turn] = []
    context = prefix
    for new, out in zip(news, outputs, strict=True):
        turns.append(Turn(new, context + new, out))
        context += new + out
    return Session(tuple(turns))
