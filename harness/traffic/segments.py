"""What a workload asks for, in parts; and the text of the parts, as segments of the corpus.

A workload draws sessions: lengths, and which texts are shared with whom. It knows no text. `Resolver` gives each part
its text: a slice of the corpus that nobody else has, the one slice of all who share a key, or token ids as they are.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.traffic.text import Reader, Segment


@dataclass(frozen=True, slots=True)
class Fresh:
    """Text that nobody else has.

    Attributes
    ----------
    count : int
        Tokens, >= 0.
    """

    count: int


@dataclass(frozen=True, slots=True)
class Shared:
    """The same text for every use of the key within a phase (and tenant); a shorter use gets its beginning.

    Attributes
    ----------
    key : str
        Who shares.
    count : int
        Tokens, >= 0.
    """

    key: str
    count: int


@dataclass(frozen=True, slots=True)
class Literal:
    """Given token ids."""

    ids: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.ids)


Part = Fresh | Shared | Literal


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    Attributes
    ----------
    prompt_tokens : int
        Length of the whole prompt: all earlier turns with their outputs, and `new`.
    output_tokens : int
        Length of the output, >= 1.
    new : tuple of Part
        What the user adds; in a first turn the whole prompt.
    think_s : float or None
        Pause before this turn after the end of the one before; None: the load's `think_time_s`.
    """

    prompt_tokens: int
    output_tokens: int
    new: tuple[Part, ...]
    think_s: float | None = None

    @property
    def new_tokens(self) -> int:
        """Tokens that the user adds."""
        return sum(part.count for part in self.new)


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation: turns one after the other, each prompt continuing the one before.

    Attributes
    ----------
    turns : tuple of Turn
        At least one.
    start_s : float or None
        When it starts in a trace, seconds after the trace's first; None where the workload knows no times.
    """

    turns: tuple[Turn, ...]
    start_s: float | None = None

    @property
    def final_tokens(self) -> int:
        """Tokens of context after the last output."""
        return self.turns[-1].prompt_tokens + self.turns[-1].output_tokens


class Resolver:
    """Gives the parts of one phase their text.

    Parameters
    ----------
    reader : Reader
        Where fresh text comes from.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._shared: dict[tuple[str, str], list[Segment]] = {}

    def session(self, session: Session, tenant: str = "") -> list[list[Segment]]:
        """The segments of each turn's new text.

        No two sessions agree in the first `text.HEAD_TOKENS` tokens of what is fresh, or of what isn't shared by the
        same key: two prompts have nothing in common that the workload didn't ask for.
        """
        context = 0
        out = []
        for index, turn in enumerate(session.turns):
            if turn.prompt_tokens != context + turn.new_tokens:
                raise ValueError(f"turn {index} has {turn.prompt_tokens} tokens, {context} + {turn.new_tokens} planned")
            context = turn.prompt_tokens + turn.output_tokens
            out.append(self._turn(turn.new, tenant, is_first=index == 0))
        return out

    def _turn(self, parts: Iterable[Part], tenant: str, is_first: bool) -> list[Segment]:
        out: list[Segment] = []
        starts = is_first
        for part in parts:
            if part.count == 0:
                continue
            if isinstance(part, Literal):
                out.append(",".join(map(str, part.ids)))
            elif isinstance(part, Shared):
                out += self._shared_text(part, tenant)
            else:
                out += self._reader.take_start(part.count) if starts else self._reader.take(part.count)
                starts = False
        return joined(out)

    def _shared_text(self, part: Shared, tenant: str) -> list[Segment]:
        key = (tenant, part.key)
        text = self._shared.get(key)
        if text is None:
            text = self._shared[key] = self._reader.take_start(part.count)
        missing = part.count - sum(map(segment_tokens, text))
        if missing > 0:
            text += self._reader.take(missing)
        return cut(text, part.count)


def segment_tokens(segment: Segment) -> int:
    """Tokens of a segment."""
    return segment.count(",") + 1 if isinstance(segment, str) else segment[1]


def cut(segments: Iterable[Segment], count: int) -> list[Segment]:
    """The first `count` tokens."""
    out: list[Segment] = []
    for segment in segments:
        tokens = segment_tokens(segment)
        if tokens > count:
            if count:
                first = ",".join(segment.split(",")[:count]) if isinstance(segment, str) else (segment[0], count)
                out.append(first)
            break
        out.append(segment)
        count -= tokens
    return out


def joined(segments: Iterable[Segment]) -> list[Segment]:
    """Neighbours in the corpus as one slice."""
    out: list[Segment] = []
    for segment in segments:
        last = out[-1] if out else None
        if isinstance(segment, tuple) and isinstance(last, tuple) and sum(last) == segment[0]:
            out[-1] = (last[0], last[1] + segment[1])
        else:
            out.append(segment)
    return out
