"""Single requests with lengths of given distributions."""

from dataclasses import dataclass
from typing import Any

from harness.traffic.lengths import Length, closed_at, fitted, length_of, stratified
from harness.traffic.parameters import need
from harness.traffic.segments import Fresh, Part, Session, Shared, Turn
from harness.traffic.workloads import Drawn, Wanted, workload


@dataclass(frozen=True)
class Synthetic:
    """Lengths of single requests.

    Attributes
    ----------
    input_tokens, output_tokens : number, mapping or None
        Length of the prompt (the shared prefix included) and of the output: a distribution of `lengths.py`. None:
        always `input_tokens_mean`, always `output_tokens_mean`.
    input_tokens_mean, output_tokens_mean : int
        What every request has where no distribution is given.
    input_tokens_max : int or None
        Longest prompt; None: the context less the longest output.
    shared_prefix_tokens : int
        Tokens at the start that all requests share (a system prompt).
    """

    input_tokens: Any = None
    output_tokens: Any = None
    input_tokens_mean: int = 1024
    output_tokens_mean: int = 64
    input_tokens_max: int | None = None
    shared_prefix_tokens: int = 0

    def __post_init__(self) -> None:
        self.lengths()
        need(self.shared_prefix_tokens >= 0, f"shared_prefix_tokens: {self.shared_prefix_tokens} must be >= 0")

    def lengths(self) -> dict[str, Length]:
        """Of prompts and of outputs, by the keys that say them."""
        given = {}
        for key in ("input_tokens", "output_tokens"):
            name = key if getattr(self, key) is not None else f"{key}_mean"
            given[name] = length_of(getattr(self, name), name)
        return given


@workload("synthetic", Synthetic)
def synthetic(what: Synthetic, wanted: Wanted) -> Drawn:
    """Single requests; prompts and outputs are drawn apart from each other, both stratified."""
    lengths = what.lengths()
    key = next(iter(lengths))
    if what.input_tokens_max is not None:
        lengths[key] = closed_at(
            lengths[key], what.input_tokens_max, key, f"input_tokens_max ({what.input_tokens_max})"
        )
    prompt, output = fitted(lengths, wanted.context_tokens, f"context_tokens ({wanted.context_tokens})")
    shortest, prefix = prompt.at(0.0), what.shared_prefix_tokens
    need(shortest > prefix, f"{key}: {shortest} must be > shared_prefix_tokens ({prefix})")
    prompts = stratified(wanted.rng, wanted.requests, prompt.at)
    outputs = stratified(wanted.rng, wanted.requests, output.at)
    shared: tuple[Part, ...] = (Shared("prefix", prefix),) if prefix else ()
    return Drawn(
        Session((Turn(tokens, out, (*shared, Fresh(tokens - prefix))),))
        for tokens, out in zip(prompts, outputs, strict=True)
    )
