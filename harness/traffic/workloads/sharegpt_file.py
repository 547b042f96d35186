"""Real conversations of a file in ShareGPT's format, tokenised by the model under test."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import ConfigError
from harness.traffic.conversations import Exchange, read_conversations
from harness.traffic.lengths import length_of
from harness.traffic.parameters import need, unknown
from harness.traffic.segments import Literal, Session, Turn
from harness.traffic.text import WARMUP_SHARE, encode
from harness.traffic.workloads import Drawn, Wanted, workload

MODES = ("sessions", "first-turns", "single-turns")


@dataclass(frozen=True)
class ShareGptFile:
    """A file, and which of its conversations are used.

    What a user says is sent as it stands in the file; what the model said there gives only the length of the output,
    and a session goes on with what the model under test says instead. One conversation in eight is kept for warm-up.

    Attributes
    ----------
    path : str
        The file: `[{"conversations": [{"from": "human", "value": …}, …]}, …]`, or an object a line; `.gz` or not.
    mode : str
        ``sessions``: conversations, each turn's prompt continuing the one before; ``first-turns``: only how they begin;
        ``single-turns``: any turn as a request of its own, with all that was said before, the file's answers included.
    turns_max : int
        Most turns of a session; a longer conversation gives its first turns.
    input_tokens_min, output_tokens_min : int
        A request with less of its own text, or a shorter answer in the file (where that is used), is left out: the
        usual samples leave out what has under 4 of either.
    input_tokens_max, tokens_max : int or None
        So is one with a longer prompt, or with more of prompt and output together; None: the context.
        What is left out takes the later turns of its conversation with it.
    output_tokens : number, mapping or None
        Length of the outputs (`lengths.py`); None: as long as the file's answers.
    """

    path: str
    mode: str = "sessions"
    turns_max: int = 4
    input_tokens_min: int = 4
    output_tokens_min: int = 4
    input_tokens_max: int | None = None
    tokens_max: int | None = None
    output_tokens: Any = None

    def __post_init__(self) -> None:
        need(self.mode in MODES, f"mode: {unknown(self.mode, MODES)}")
        for key in ("turns_max", "input_tokens_min", "output_tokens_min", "input_tokens_max", "tokens_max"):
            value = getattr(self, key)
            need(value is None or value >= 1, f"{key}: {value} must be >= 1")
        if self.output_tokens is not None:
            length_of(self.output_tokens, "output_tokens")
        self.read()

    def read(self) -> tuple[tuple[Exchange, ...], ...]:
        """The conversations; raises `ConfigError` naming file, entry and field."""
        try:
            return read_conversations(self.path)
        except ConfigError as error:
            raise ConfigError(f"path: {error}") from error


@workload("sharegpt-file", ShareGptFile)
def sharegpt_file(what: ShareGptFile, wanted: Wanted) -> Drawn:
    """Conversations in random order, as many as the requests take; the last is cut to fit."""
    conversations = what.read()
    for_warmup = wanted.phase == "warmup"
    mine = [each for i, each in enumerate(conversations) if (i % WARMUP_SHARE == WARMUP_SHARE - 1) == for_warmup]
    wanted.rng.shuffle(mine)
    changes: Counter[str] = Counter()
    sessions: list[Session] = []
    left = wanted.requests
    for conversation in mine:
        for turns in _requests(conversation, what, wanted, changes):
            sessions.append(Session(tuple(turns[:left])))
            left -= len(sessions[-1].turns)
            if left == 0:
                return Drawn(sessions, changes)
    raise ConfigError(
        f"path: {what.path} holds {wanted.requests - left} requests for the {wanted.phase} that fit the settings; "
        f"{wanted.requests} are asked for (one conversation in {WARMUP_SHARE} is kept for warm-up)"
    )


def _requests(
    conversation: Sequence[Exchange], what: ShareGptFile, wanted: Wanted, changes: Counter[str]
) -> Iterator[list[Turn]]:
    """The sessions that a conversation gives: one, or in mode ``single-turns`` one a turn; perhaps none."""
    tokenizer = wanted.tokenizer()
    output_length = None if what.output_tokens is None else length_of(what.output_tokens, "output_tokens")
    most = min(wanted.context_tokens, what.tokens_max or wanted.context_tokens)
    single = what.mode == "single-turns"
    turns: list[Turn] = []
    context = 0
    before: tuple[int, ...] = ()
    for exchange in conversation[: 1 if what.mode == "first-turns" else what.turns_max]:
        if exchange.answered is None and output_length is None:
            break
        asked = tuple(encode(tokenizer, exchange.asked))
        answer = () if exchange.answered is None else tuple(encode(tokenizer, exchange.answered))
        output = len(answer) if output_length is None else output_length.at(wanted.rng.random())
        prompt = (len(before) if single else context) + len(asked)
        fits = (
            len(asked) >= what.input_tokens_min
            and (output_length is not None or output >= what.output_tokens_min)
            and prompt <= (what.input_tokens_max or most)
            and prompt + output <= most
        )
        if not fits:
            changes["cut_short" if turns else "dropped_filtered"] += 1
            break
        new = Literal(before + asked if single else asked)
        turns.append(Turn(prompt, output, (new,)))
        context = prompt + output
        before = before + asked + answer
    if single:
        yield from ([turn] for turn in turns)
    elif turns:
        yield turns
