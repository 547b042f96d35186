"""A load's sessions, drawn from a seed: who asks what, and when. No text of the corpus, no engine."""

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer

from harness.traffic.arrivals import NS_PER_S, due_ns
from harness.traffic.load import Load, Stream
from harness.traffic.segments import Session
from harness.traffic.workloads import draw

WARMUP, WINDOW = "warmup", "window"


@dataclass(frozen=True, slots=True)
class Planned:
    """A session and its times.

    Attributes
    ----------
    tenant : str
        Who asks.
    session : Session
    due_ns : int or None
        When it starts, after the start of the cell; None: when a place of its closed loop is free.
    think_ns : tuple of int
        Pause before each turn; 0 before the first.
    """

    tenant: str
    session: Session
    due_ns: int | None
    think_ns: tuple[int, ...]


@dataclass(frozen=True)
class Traffic:
    """All sessions of a load, in the order in which they are sent as far as that is known: by due time.

    Attributes
    ----------
    warmup, window : list of Planned
    changes : dict
        How many requests of the window were dropped, cut and so on, to fit.
    """

    warmup: list[Planned]
    window: list[Planned]
    changes: dict[str, int]


def draw_load(load: Load, *, context_tokens: int, seed: int | str, tokenizer: Callable[[], Tokenizer]) -> Traffic:
    """Draw what a load sends.

    Parameters
    ----------
    context_tokens : int
        Longest sequence that the server takes.
    seed : int or str
        Equal seeds give equal traffic.
    tokenizer : callable
        The model's tokenizer; asked for by workloads that bring their own text.

    Raises
    ------
    ConfigError
        When the lengths can't be met, or a file holds too little.
    """
    warmup: list[Planned] = []
    window: list[Planned] = []
    changes: Counter[str] = Counter()
    for stream in load.streams:
        own = f"{seed}-{stream.tenant}" if stream.tenant else seed

        def drawn(requests: int, phase: str, stream: Stream = stream, own: int | str = own) -> list[Session]:
            sessions = draw(
                stream.workload,
                requests=requests,
                context_tokens=context_tokens,
                seed=own,
                phase=phase,
                tokenizer=tokenizer,
                where=stream.where,
            )
            if phase == WINDOW:
                changes.update(sessions.changes)
            return list(sessions)

        first, then = drawn(stream.warmup_requests, WARMUP), drawn(stream.requests, WINDOW)
        if stream.arrival.kind == "trace":
            then.sort(key=lambda session: session.start_s or 0.0)
        times = due_ns(stream.arrival, len(first), [session.start_s for session in then], own)
        rng = random.Random(f"think-{own}")
        for sessions, due, into in ((first, times[0], warmup), (then, times[1], window)):
            for session, at in zip(sessions, due, strict=True):
                into.append(Planned(stream.tenant, session, at, _think_ns(session, stream, rng)))
    if len(load.streams) > 1:
        warmup.sort(key=_order)
        window.sort(key=_order)
    return Traffic(warmup, window, dict(changes))


def sessions_of(planned: Iterable[Planned], tenant: str) -> list[Session]:
    """A tenant's sessions."""
    return [each.session for each in planned if each.tenant == tenant]


_NONE = (0,)


def _think_ns(session: Session, stream: Stream, rng: random.Random) -> tuple[int, ...]:
    if len(session.turns) == 1:
        return _NONE
    own = [turn.think_s for turn in session.turns[1:]]
    return (0, *(round(NS_PER_S * (stream.think.at(rng.random()) if think is None else think)) for think in own))


def _order(planned: Planned) -> int:
    """By due time, those of closed loops first; sorting keeps the order of equals."""
    return -1 if planned.due_ns is None else planned.due_ns
