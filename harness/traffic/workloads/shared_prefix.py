"""Requests that begin with one of N long prefixes: system prompts, few-shot examples, tool descriptions."""

from dataclasses import dataclass
from typing import Any

from harness.traffic.lengths import fitted, length_of, rank_at, stratified
from harness.traffic.parameters import need, unknown
from harness.traffic.segments import Fresh, Session, Shared, Turn
from harness.traffic.workloads import Drawn, Wanted, workload

POPULARITIES = ("uniform", "zipf")


@dataclass(frozen=True)
class SharedPrefix:
    """Prefixes, how popular they are, and what each request adds.

    Attributes
    ----------
    prefixes : int
        How many there are, >= 1. All together they are what a prefix cache would have to hold.
    prefix_tokens, suffix_tokens, output_tokens : number or mapping
        Lengths (`lengths.py`) of a prefix, of a request's own text after it, and of the output.
    popularity : str
        ``uniform``: every prefix is asked equally often; ``zipf``: the k-th in proportion to k to the power of
        -`zipf_exponent`.
    zipf_exponent : float
        > 0; 1 is Zipf's law.
    """

    prefixes: int = 8
    prefix_tokens: Any = 1024
    suffix_tokens: Any = 64
    output_tokens: Any = 64
    popularity: str = "uniform"
    zipf_exponent: float = 1.0

    def __post_init__(self) -> None:
        need(self.prefixes >= 1, f"prefixes: {self.prefixes} must be >= 1")
        need(self.popularity in POPULARITIES, f"popularity: {unknown(self.popularity, POPULARITIES)}")
        need(self.zipf_exponent > 0, f"zipf_exponent: {self.zipf_exponent} must be > 0")
        for key in ("prefix_tokens", "suffix_tokens", "output_tokens"):
            length_of(getattr(self, key), key)


@workload("shared-prefix", SharedPrefix)
def shared_prefix(what: SharedPrefix, wanted: Wanted) -> Drawn:
    """Single requests, in random order: a prefix and a text of their own."""
    rng, context = wanted.rng, wanted.context_tokens
    keys = ("prefix_tokens", "suffix_tokens", "output_tokens")
    lengths_of = {key: length_of(getattr(what, key), key) for key in keys}
    prefix, suffix, output = fitted(lengths_of, context, f"context_tokens ({context})")
    lengths = stratified(rng, what.prefixes, prefix.at)
    exponent = what.zipf_exponent if what.popularity == "zipf" else 0.0
    asked = stratified(rng, wanted.requests, lambda level: rank_at(level, exponent, what.prefixes))
    suffixes = stratified(rng, wanted.requests, suffix.at)
    outputs = stratified(rng, wanted.requests, output.at)
    return Drawn(
        Session((Turn(lengths[one] + own, out, (Shared(f"prefix-{one}", lengths[one]), Fresh(own))),))
        for one, own, out in zip(asked, suffixes, outputs, strict=True)
    )
