"""Who of several client processes plays what: every session once, every place of a closed loop once."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One worker's part of a group.

    Attributes
    ----------
    places : int
        Its places of a closed loop; 0: an open loop.
    dealt, own
        Sessions are dealt to so many hands in turn, of which these are its own.
    """

    places: int
    dealt: int
    own: frozenset[int]

    def has(self, index: int) -> bool:
        """Whether the group's session of this index is its own."""
        return index % self.dealt in self.own


def split(groups: Mapping[str, int | None], sessions: Mapping[str, int], workers: int) -> list[dict[str, Part]]:
    """Divide the groups (tenants) of a load among workers.

    Each place of a closed loop belongs to one worker, round robin over all groups' places, and its sessions go with it:
    a group's sessions are dealt to its places in turn. Those of an open loop are dealt to the workers in turn. Workers
    for which nothing is left get nothing.

    Parameters
    ----------
    groups : mapping
        Each group's concurrency; None: an open loop.
    sessions : mapping
        Sessions of each group.
    workers : int
        Client processes, >= 1.

    Returns
    -------
    list of dict
        Of each worker: its part of each group; groups of which it has nothing are left out.
    """
    parts: list[dict[str, Part]] = [{} for _ in range(workers)]
    first = 0
    for name, concurrency in groups.items():
        dealt = workers if concurrency is None else min(concurrency, sessions[name])
        hands: list[set[int]] = [set() for _ in range(workers)]
        for hand in range(dealt):
            hands[(first + hand) % workers].add(hand)
        for worker, own in enumerate(hands):
            if own and min(own) < sessions[name]:
                parts[worker][name] = Part(0 if concurrency is None else len(own), dealt, frozenset(own))
        first += dealt
    return parts
