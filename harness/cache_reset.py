"""A reset is believed when the hit counters show it: a prompt served before must be computed anew afterwards."""

from collections.abc import Callable

from harness.accuracy.completions import BadAnswer, complete
from harness.backends.interface import Backend, EngineState, ResetOutcome

PROBE_TOKENS = 384
"""Longer than any engine's KV block, so that a cache that wasn't emptied must show hits."""


def reset_and_verify(
    backend: Backend, base_url: str, served_name: str, state: Callable[[], EngineState], probe: list[int]
) -> ResetOutcome:
    """Empty an engine's caches and verify it with a prompt that it has served.

    Parameters
    ----------
    probe : list of int
        Token ids; the same list must have been served before, and never overlap a measured prompt.

    Returns
    -------
    ResetOutcome
        `done` only when the engine said so and none of the probe's tokens came from a cache. Where the engine reports
        no hits at all, its own word is all there is, and `evidence` says so.
    """
    body = {"model": served_name, "prompt": probe, "max_tokens": 1, "temperature": 0.0}
    try:
        complete(base_url, body)
        outcome = backend.reset(base_url, served_name)
        before = state().prefix_hits_total
        answer = complete(base_url, body)
        after = state().prefix_hits_total
    except (BadAnswer, OSError) as error:
        return ResetOutcome(False, f"the reset could not be verified: {error}")
    if not outcome.done:
        return outcome
    hits = after - before if after is not None and before is not None else backend.cached_tokens(answer)
    if hits is None:
        return ResetOutcome(True, f"{outcome.evidence}; not verified: the engine reports no cache hits")
    if hits > 0:
        return ResetOutcome(
            False, f"{outcome.evidence}; yet {hits:.0f} of {len(probe)} probe tokens came from the cache"
        )
    return ResetOutcome(True, f"{outcome.evidence}; verified: 0 of {len(probe)} probe tokens came from the cache")
