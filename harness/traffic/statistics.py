"""What a load's sessions are like: lengths, turns, what a prefix cache could serve, how much KV they need in all."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.traffic.segments import Fresh, Literal, Part, Session

BLOCK_TOKENS = 16
"""Tokens that a prefix cache keeps and finds as one: vLLM's default block."""

CHANGES = {
    "dropped_empty": "rows of the trace left out because they have no prompt or no output (a request that failed)",
    "dropped_long": "rows of the trace left out because they don't fit the context",
    "dropped_filtered": "conversations of the file left out because their first turn doesn't fit the settings",
    "cut_short": "conversations of the file that end early because a later turn doesn't fit the settings",
    "cut": "requests of the trace that were cut to fit the context",
    "scaled": "requests of the trace whose lengths were scaled",
    "reordered": "rows of the trace that stood behind a later one",
}
"""What may have been done to fit, and what its number counts."""


@dataclass(frozen=True)
class Spread:
    """A distribution of lengths, in tokens; percentiles are the smallest value that so many per cent don't exceed.

    Attributes
    ----------
    mean : float
    p50, p90, p99, max : int
    """

    mean: float
    p50: int
    p90: int
    p99: int
    max: int


@dataclass(frozen=True)
class Statistics:
    """What a load's window asks for.

    Attributes
    ----------
    sessions, requests : int
    turns_mean : float
        Requests a session.
    turns_max : int
    prompt_tokens, output_tokens : Spread
        Over requests.
    prompt_tokens_total, output_tokens_total : int
    block_tokens : int
        The block of the next two figures.
    reuse_possible_pct : float
        Part of all prompt tokens that a prefix cache that never forgets would serve: whole blocks at the start of a
        prompt that an earlier request has computed, as its prompt or as its output. At least one token of each prompt
        is computed anew, as engines do.
    distinct_kv_tokens : int
        Tokens whose keys and values such a cache would hold at the end: all contexts, shared blocks counted once. A
        text that two prompts have after different beginnings counts twice, as its keys and values differ.
    distinct_kv_bytes : int or None
        The same in bytes of the model's 16-bit cache, where the bytes of a token are known.
    changes : dict
        Requests dropped, cut and so on, by `CHANGES`.
    tenants : dict
        The same of each tenant, where there are several.
    """

    sessions: int
    requests: int
    turns_mean: float
    turns_max: int
    prompt_tokens: Spread
    output_tokens: Spread
    prompt_tokens_total: int
    output_tokens_total: int
    block_tokens: int
    reuse_possible_pct: float
    distinct_kv_tokens: int
    distinct_kv_bytes: int | None
    changes: dict[str, int]
    tenants: "dict[str, Statistics]" = field(default_factory=dict)


def statistics(
    tenants: Mapping[str, Sequence[Session]],
    *,
    changes: Mapping[str, int] | None = None,
    kv_bytes_per_token: float | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> Statistics:
    """Statistics of all sessions, and of each tenant's where there are several.

    Parameters
    ----------
    tenants : mapping
        Sessions by tenant, in the order in which they start; a load without tenants has one, of any name. Tenants have
        no text in common.
    changes : mapping or None
        What had to be done to the sessions (`workloads.Drawn.changes`).
    kv_bytes_per_token : float or None
        Of the model in 16 bit.
    block_tokens : int
        Granularity of the prefix cache.
    """
    parts = {name: _Part(sessions, block_tokens) for name, sessions in tenants.items() if sessions}
    whole = _statistics(list(parts.values()), dict(changes or {}), kv_bytes_per_token, block_tokens)
    if len(parts) < 2:
        return whole
    each = {name: _statistics([part], {}, kv_bytes_per_token, block_tokens) for name, part in parts.items()}
    return Statistics(**{**vars(whole), "tenants": each})


class _Part:
    """Figures of one tenant that can be added to another's."""

    def __init__(self, sessions: Sequence[Session], block_tokens: int) -> None:
        turns = [turn for session in sessions for turn in session.turns]
        self.turns = [len(session.turns) for session in sessions]
        self.prompts = [turn.prompt_tokens for turn in turns]
        self.outputs = [turn.output_tokens for turn in turns]
        self.served = 0
        self.distinct = 0
        cache = PrefixCache(block_tokens)
        for session in sessions:
            first = session.turns[0]
            known = cache.add(first.new)
            self.served += cache.whole_blocks(min(known, first.prompt_tokens - 1))
            self.distinct += session.final_tokens - known
            for before, turn in zip(session.turns, session.turns[1:], strict=False):
                # The last token put out is not computed on any more, so its keys and values are not there.
                held = before.prompt_tokens + before.output_tokens - 1
                self.served += cache.whole_blocks(min(held, turn.prompt_tokens - 1))


class PrefixCache:
    """Which beginnings of prompts were seen before: a trie over parts of prompts, with no text.

    Fresh text is nobody else's, so a prompt has in common with others only what stands before its first fresh part.
    Text under one key is the same as far as both have it, so two uses of different lengths have the shorter in common.

    Parameters
    ----------
    block_tokens : int
        What is found again is found in whole blocks from the start of the prompt.
    """

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._nodes: dict[tuple[int, object, int], int] = {}
        self._longest: dict[tuple[int, object], int] = {}

    def whole_blocks(self, tokens: int) -> int:
        """So many tokens rounded down to blocks."""
        return tokens // self.block_tokens * self.block_tokens

    def add(self, parts: Iterable[Part]) -> int:
        """Tokens, in whole blocks, at the start of a prompt that an earlier one had; the prompt is now known too."""
        node, depth, known = 0, 0, -1
        for key, count in self._steps(parts):
            step = (node, key, count)
            following = self._nodes.get(step)
            if following is None:
                if known < 0:
                    known = depth + min(count, self._longest.get((node, key), 0))
                following = self._nodes[step] = len(self._nodes) + 1
                if count > self._longest.get((node, key), 0):
                    self._longest[node, key] = count
            node = following
            depth += count
        return self.whole_blocks(depth if known < 0 else known)

    def _steps(self, parts: Iterable[Part]) -> Iterable[tuple[object, int]]:
        depth = 0
        ids: tuple[int, ...] = ()
        for part in parts:
            if isinstance(part, Literal):
                # In pieces that end where blocks end: two texts are compared block by block, however they are divided.
                ids, start = ids + part.ids, 0
                while len(ids) - start >= (piece := self.block_tokens - depth % self.block_tokens):
                    yield ids[start : start + piece], piece
                    start += piece
                    depth += piece
                ids = ids[start:]
            elif part.count:
                if ids:
                    yield ids, len(ids)
                    depth += len(ids)
                    ids = ()
                if isinstance(part, Fresh):
                    return
                yield part.key, part.count
                depth += part.count
        if ids:
            yield ids, len(ids)


def _statistics(
    parts: Sequence[_Part], changes: dict[str, int], kv_bytes_per_token: float | None, block_tokens: int
) -> Statistics:
    turns = [count for part in parts for count in part.turns]
    prompts = [tokens for part in parts for tokens in part.prompts]
    outputs = [tokens for part in parts for tokens in part.outputs]
    distinct = sum(part.distinct for part in parts)
    return Statistics(
        sessions=len(turns),
        requests=len(prompts),
        turns_mean=len(prompts) / len(turns),
        turns_max=max(turns),
        prompt_tokens=spread(prompts),
        output_tokens=spread(outputs),
        prompt_tokens_total=sum(prompts),
        output_tokens_total=sum(outputs),
        block_tokens=block_tokens,
        reuse_possible_pct=100 * sum(part.served for part in parts) / sum(prompts),
        distinct_kv_tokens=distinct,
        distinct_kv_bytes=None if kv_bytes_per_token is None else round(distinct * kv_bytes_per_token),
        changes=changes,
    )


def spread(values: Sequence[int]) -> Spread:
    """Mean and percentiles of lengths; at least one."""
    ordered = sorted(values)

    def percentile(pct: int) -> int:
        return ordered[max(0, -(-pct * len(ordered) // 100) - 1)]

    return Spread(sum(ordered) / len(ordered), percentile(50), percentile(90), percentile(99), ordered[-1])
