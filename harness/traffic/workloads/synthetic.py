"""Single requests with lengths of given distributions."""

from dataclasses import dataclass
from typing import Any

from harness.traffic.lengths import Length, length_of, stratified, within
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

    def lengths(self) -> tuple[Length, Length]:
        """Of prompts and of outputs."""
        return (
            length_of(self.input_tokens_mean, "input_tokens_mean")
            if self.input_tokens is None
            else length_of(self.input_tokens, "input_tokens"),
            length_of(self.output_tokens_mean, "output_tokens_mean")
            if self.output_tokens is None
            else length_of(self.output_tokens, "output_tokens"),
        )


@workload("synthetic", Synthetic)
def synthetic(what: Synthetic, wanted: Wanted) -> Drawn:
    """Single requests; prompts and outputs are drawn apart from each other, both stratified."""
    prompt, output = what.lengths()
    prefix, context = what.shared_prefix_tokens, wanted.context_tokens
    in_key = "input_tokens_mean" if what.input_tokens is None else "input_tokens"
    out_key = "output_tokens_mean" if what.output_tokens is None else "output_tokens"
    output = within(output, context - prefix - 1, out_key, f"context_tokens ({context}) less a prompt")
    most, room = context - output.longest, f"context_tokens ({context}) - {out_key} ({output.longest})"
    if what.input_tokens_max is not None and what.input_tokens_max < most:
        most, room = what.input_tokens_max, "input_tokens_max"
    prompt = within(prompt, most, in_key, room)
    shortest = prompt.at(0.0)
    need(shortest > prefix, f"{in_key}: {shortest} must be > shared_prefix_tokens ({prefix})")
    prompts = stratified(wanted.rng, wanted.requests, prompt.at)
    outputs = stratified(wanted.rng, wanted.requests, output.at)
    shared: tuple[Part, ...] = (Shared("prefix", prefix),) if prefix else ()
    return Drawn(
        Session((Turn(tokens, out, (*shared, Fresh(tokens - prefix))),))
        for tokens, out in zip(prompts, outputs, strict=True)
    )
