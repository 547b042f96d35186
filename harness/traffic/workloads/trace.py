"""Requests of a recorded trace: their lengths, their times, and block by block what their prompts have in common."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import ConfigError
from harness.traffic import traces
from harness.traffic.parameters import need, unknown
from harness.traffic.segments import Fresh, Part, Session, Shared, Turn
from harness.traffic.workloads import Drawn, Wanted, workload

FITS = ("cut", "scale", "drop")

LENGTH_SCALE_MAX = 1e6


@dataclass(frozen=True)
class TraceFile:
    """A file, what of it is used, and how what doesn't fit the model's context is made to.

    Requests are taken in the order of time from `from_s` on, as many as the load asks for. Each is a session of its
    own: a later turn of a conversation is sent when the trace says, with the prompt that the trace had, not when this
    server has answered. Blocks with the same id get the same text, so prefixes are shared as they were.

    Attributes
    ----------
    path : str
        The file, `.gz` or not.
    format : str
        ``azure``, ``burstgpt``, ``mooncake``, ``qwen-bailian``, or ``auto``: by its columns.
    skip_rows, rows_max : int
        Rows passed over unread at the start, and rows read after them. Every row that is read is checked.
    from_s, to_s : float
        Only requests of this time, from `from_s` on and before `to_s` (None: to the end), in seconds after the first
        row that is read.
    fit : str
        What is done to a request longer than the context. ``cut``: its prompt loses its end, its output too where it
        takes more than half the context; ``scale``: all lengths, blocks included, are multiplied by the one factor
        that makes the longest fit; ``drop``: it is left out and the next one taken. All are counted in the statistics.
    length_scale : float
        A factor on all lengths before that, > 0, at most a million. Blocks shrink or grow with it, to whole tokens.
    block_tokens : int or None
        Tokens of a block; None: what the format says.
    """

    path: str
    format: str = "auto"
    skip_rows: int = 0
    rows_max: int = 1_000_000
    from_s: float = 0.0
    to_s: float | None = None
    fit: str = "cut"
    length_scale: float = 1.0
    block_tokens: int | None = None

    def __post_init__(self) -> None:
        names = ["auto", *traces.format_names()]
        need(self.format in names, f"format: {unknown(self.format, names)}")
        need(self.fit in FITS, f"fit: {unknown(self.fit, FITS)}")
        need(self.skip_rows >= 0, f"skip_rows: {self.skip_rows} must be >= 0")
        need(self.rows_max >= 1, f"rows_max: {self.rows_max} must be >= 1")
        need(self.from_s >= 0, f"from_s: {self.from_s} must be >= 0")
        need(self.to_s is None or self.to_s > self.from_s, f"to_s: {self.to_s} must be > from_s ({self.from_s})")
        need(
            0 < self.length_scale <= LENGTH_SCALE_MAX,
            f"length_scale: {self.length_scale} must be > 0 and <= {LENGTH_SCALE_MAX:g}",
        )
        need(self.block_tokens is None or self.block_tokens >= 1, f"block_tokens: {self.block_tokens} must be >= 1")
        self.read()

    def read(self) -> traces.Trace:
        """The rows; raises `ConfigError` naming file, line and field."""
        try:
            return traces.read(
                self.path,
                self.format,
                skip_rows=self.skip_rows,
                rows_max=self.rows_max,
                block_tokens=self.block_tokens,
            )
        except ConfigError as error:
            raise ConfigError(f"path: {error}") from error


@dataclass(frozen=True, slots=True)
class _Sizes:
    """A request's lengths, and the size of a block, as they are sent."""

    prompt_tokens: int
    output_tokens: int
    block_tokens: int

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def scaled(self, factor: float) -> "_Sizes":
        if factor == 1:
            return self
        block = max(1, int(self.block_tokens * factor))
        whole, rest = divmod(self.prompt_tokens, self.block_tokens) if self.block_tokens else (0, self.prompt_tokens)
        shorter = max(1, int(rest * factor)) if rest else 0
        shorter = min(shorter, block) if self.block_tokens else shorter
        return _Sizes(
            max(1, whole * block + shorter), max(1, int(self.output_tokens * factor)), block if self.block_tokens else 0
        )

    def cut(self, context_tokens: int) -> "_Sizes":
        prompt = min(self.prompt_tokens, max(context_tokens - self.output_tokens, context_tokens // 2))
        return _Sizes(prompt, min(self.output_tokens, context_tokens - prompt), self.block_tokens)


@workload("trace", TraceFile)
def trace(what: TraceFile, wanted: Wanted) -> Drawn:
    """The first requests of the trace's window, with its times; chance has no part in it."""
    recorded = what.read()
    changes: Counter[str] = Counter()
    taken: list[tuple[int, _Sizes]] = []
    for index, at_s in enumerate(recorded.at_s):
        if at_s < what.from_s or (what.to_s is not None and at_s >= what.to_s):
            continue
        sizes = _Sizes(recorded.prompt_tokens[index], recorded.output_tokens[index], recorded.block_tokens or 0)
        if not (sizes.prompt_tokens and sizes.output_tokens):
            changes["dropped_empty"] += 1
            continue
        sizes = sizes.scaled(what.length_scale)
        if what.fit == "drop" and sizes.total > wanted.context_tokens:
            changes["dropped_long"] += 1
            continue
        taken.append((index, sizes))
        if len(taken) == wanted.requests:
            break
    if len(taken) < wanted.requests:
        raise ConfigError(
            f"path: {what.path} holds {len(taken)} requests that fit the settings (fit={what.fit}, "
            f"from_s={what.from_s}, to_s={what.to_s}, skip_rows={what.skip_rows}, rows_max={what.rows_max}); "
            f"{wanted.requests} are asked for (the {wanted.phase})"
        )
    longest = max(sizes.total for _, sizes in taken)
    factor = min(1.0, wanted.context_tokens / longest) if what.fit == "scale" else 1.0
    if factor < 1 or what.length_scale != 1:
        changes["scaled"] = len(taken)
    changes["reordered"] = recorded.reordered
    first_s = recorded.at_s[taken[0][0]]
    shared: dict[tuple[int, int], Shared] = {}
    sessions = []
    for index, whole in taken:
        scaled = whole.scaled(factor)
        sizes = scaled.cut(wanted.context_tokens) if scaled.total > wanted.context_tokens else scaled
        changes["cut"] += sizes != scaled
        parts = _parts(sizes, scaled, recorded.blocks[index] if recorded.blocks else (), shared)
        turn = Turn(sizes.prompt_tokens, sizes.output_tokens, parts)
        sessions.append(Session((turn,), recorded.at_s[index] - first_s))
    return Drawn(sessions, changes)


def _parts(
    sizes: _Sizes, uncut: _Sizes, blocks: Sequence[int], shared: dict[tuple[int, int], Shared]
) -> tuple[Part, ...]:
    """A prompt as its blocks, the last of them as long as the prompt has it, and what no block stands for."""
    parts: list[Part] = []
    left = sizes.prompt_tokens
    for position, block in enumerate(blocks):
        count = min(left, sizes.block_tokens, uncut.prompt_tokens - position * sizes.block_tokens)
        if count <= 0:
            break
        part = shared.get((block, count))
        if part is None:
            part = shared[block, count] = Shared(f"block-{block}", count)
        parts.append(part)
        left -= count
    if left:
        parts.append(Fresh(left))
    return tuple(parts)
