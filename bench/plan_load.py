"""What a load will ask of a server, for the plan: drawn exactly as it will be, but before any tokenizer is there."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from harness.errors import ConfigError
from harness.saturation import at_value
from harness.traffic.arrivals import Arrival
from harness.traffic.draw import Traffic, draw_load
from harness.traffic.load import Load
from harness.traffic.schedule import OPEN_LOOP_REQUEST_S, window_statistics
from harness.traffic.segments import Literal

SEED = 0
REQUESTS_MAX = 50_000
"""Of a load that asks for more, so many are drawn here: enough for its means, and soon done."""
CHARACTERS_PER_TOKEN = 4
"""Of English, for text of a file that isn't tokenised yet."""
CORPUS_BYTES, REQUEST_BYTES, LITERAL_BYTES, EVENT_BYTES = 1_000_000, 1_000, 6, 800
"""On disk: a schedule's text, a request's other records, a token id that isn't cut from the text, a streamed event."""


@dataclass(frozen=True)
class StreamSize:
    """What one tenant asks, on average a request.

    Attributes
    ----------
    prompt_tokens, output_tokens, literal_tokens : float
        Means of a request.
    think_s : float
        Mean pause that a request comes after.
    arrival : Arrival
        A trace's with its times.
    """

    prompt_tokens: float
    output_tokens: float
    literal_tokens: float
    think_s: float
    arrival: Arrival


@dataclass(frozen=True)
class LoadSize:
    """What a load asks, whatever number of requests it is trimmed to.

    Attributes
    ----------
    streams : dict
        By tenant.
    statistics : dict
        Of the window as asked (of a long one, of its first `REQUESTS_MAX` requests).
    """

    streams: dict[str, StreamSize]
    statistics: dict[str, Any]

    def working_set_tokens(self, load: Load) -> int:
        """Tokens whose KV is wanted at once: requests in flight × mean length (open loop: at 10 s a request)."""
        total = 0
        for stream in load.streams:
            size = self.streams[stream.tenant]
            in_flight = math.ceil(size.arrival.in_flight(stream.requests, OPEN_LOOP_REQUEST_S))
            total += in_flight * round(size.prompt_tokens + size.output_tokens)
        return total

    def seconds(self, load: Load, prefill_tokens_per_s: float, decode_tokens_per_s: float, request_s: float) -> float:
        """How long it takes: what the engine needs for all requests, or the arrivals and the pauses, if longer."""
        busy = asked = 0.0
        for stream in _first_cell(load).streams:
            size, count = self.streams[stream.tenant], stream.requests + stream.warmup_requests
            arrival = size.arrival if load.search is None else stream.arrival
            each = size.prompt_tokens / prefill_tokens_per_s + size.output_tokens / decode_tokens_per_s + request_s
            busy += count * each
            thinking = count * size.think_s / (arrival.places or count)
            steady = arrival.steady()
            if steady is arrival:
                arriving = steady.seconds(count)
            else:
                arriving = steady.seconds(stream.warmup_requests) + arrival.seconds(stream.requests)
            asked = max(asked, arriving + thinking)
        return max(busy, asked) * _cells(load)

    def disk_bytes(self, load: Load) -> float:
        """Bytes of its schedule and raw record."""
        total = float(CORPUS_BYTES)
        for stream in _first_cell(load).streams:
            size = self.streams[stream.tenant]
            each = REQUEST_BYTES + size.literal_tokens * LITERAL_BYTES + size.output_tokens * EVENT_BYTES
            total += (stream.requests + stream.warmup_requests) * each
        return total * _cells(load)


def _first_cell(load: Load) -> Load:
    """The load as its first cell asks it: a search's first probe lasts as long as its `probe_s` says."""
    return load if load.search is None else at_value(load, load.search.low)


def _cells(load: Load) -> int:
    """Cells that a load is measured in: a search's probes are one each."""
    return 1 if load.search is None else load.search.probes_expected


def load_size(name: str, load: Load, context_tokens: int) -> LoadSize:
    """What a load asks, drawn once.

    Raises
    ------
    ConfigError
        Naming the load's file, when it can't be drawn in this context, or says that it may be longer.
    """
    try:
        for stream in load.streams:
            _need_context(stream.workload.parameters, context_tokens, stream.where)
        key = json.dumps(asdict(load), sort_keys=True), context_tokens
        if key not in _DRAWN:
            _DRAWN[key] = _drawn(load, context_tokens)
        return _DRAWN[key]
    except ConfigError as error:
        raise ConfigError(f"scenarios/load/{name}.yaml: {error}") from error


def _need_context(parameters: Any, context_tokens: int, where: str) -> None:
    """A kind that states lengths may state none that the context has no room for."""

    def stated(*keys: str) -> list[tuple[int, str]]:
        values = [(getattr(parameters, key, None), key) for key in keys]
        return [(value, key) for value, key in values if isinstance(value, int)]

    parts = [max(stated("input_tokens_max", "input_tokens_mean"), default=None), *stated("output_tokens_mean")]
    lengths = {key: value for value, key in filter(None, parts)}
    if sum(lengths.values()) > context_tokens:
        named = " + ".join(f"{key}={value}" for key, value in lengths.items())
        raise ConfigError(f"{where}: {named} tokens don't fit scenario.settings.context_tokens={context_tokens}")


def _traffic(load: Load, context_tokens: int) -> tuple[Load, Traffic]:
    """What is sent. A file's text is only counted roughly here, so that it may seem to hold too little; how much it
    really holds is known with the model's tokenizer, before anything is sent.
    """
    stand_in = _StandIn()

    def tokenizer() -> Any:
        stand_in.used = True
        return stand_in

    try:
        return load, draw_load(load, context_tokens=context_tokens, seed=SEED, tokenizer=tokenizer)
    except ConfigError:
        fewer = load.with_requests(load.requests // 2) if load.requests > 1 else load
        if not stand_in.used or fewer.requests >= load.requests:
            raise
        return _traffic(fewer, context_tokens)


_DRAWN: dict[tuple[str, int], LoadSize] = {}


def _drawn(load: Load, context_tokens: int) -> LoadSize:
    load, traffic = _traffic(load.with_requests(min(load.requests, REQUESTS_MAX)), context_tokens)
    streams = {}
    for stream in load.streams:
        own = [planned for planned in traffic.window if planned.tenant == stream.tenant]
        turns = [turn for planned in own for turn in planned.session.turns]
        literal = sum(part.count for turn in turns for part in turn.new if isinstance(part, Literal))
        streams[stream.tenant] = StreamSize(
            prompt_tokens=sum(turn.prompt_tokens for turn in turns) / len(turns),
            output_tokens=sum(turn.output_tokens for turn in turns) / len(turns),
            literal_tokens=literal / len(turns),
            think_s=sum(sum(planned.think_ns) for planned in own) / 1e9 / len(turns),
            arrival=stream.arrival.with_times([planned.session.start_s for planned in own]),
        )
    return LoadSize(streams, window_statistics(load, traffic))


class _Ids:
    def __init__(self, count: int) -> None:
        self.ids = list(range(count))


class _StandIn:
    """In the place of a tokenizer that isn't there yet: as many ids as the text is likely to have."""

    used = False

    def encode(self, text: str, **_: Any) -> _Ids:
        """So many ids; which ones, nobody looks at."""
        return _Ids(math.ceil(len(text) / CHARACTERS_PER_TOKEN))

    def encode_batch(self, texts: list[str], **_: Any) -> list[_Ids]:
        """As `encode`, for several."""
        return [self.encode(text) for text in texts]
