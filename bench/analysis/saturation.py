"""What a launch's saturation search came to, as its `cell.json` says (`harness.saturation`)."""

from collections.abc import Iterable, Mapping
from typing import Any

from harness.traffic.search import CLIENT_BOUND, FOUND, NONE_MET, UNBOUNDED

_STATES = {
    UNBOUNDED: "no value above it was allowed",
    "unfinished": "the probes ran out before the precision was reached",
    CLIENT_BOUND: "the client can't ask for more",
}


def statistics(facts: Mapping[str, Any]) -> dict[str, float]:
    """The highest value met, under the name of what was varied; nothing where none was met."""
    search = facts.get("search")
    if not search or search.get("highest") is None:
        return {}
    return {f"saturation_{search['over']}": float(search["highest"])}


def notes(facts: Mapping[str, Any]) -> Iterable[str]:
    """The search in one line: between what it lies, and why no closer."""
    search = facts.get("search")
    if not search:
        return
    what, sla, tried = search["over"], search["sla"], len(search["probes"])
    if search["state"] == NONE_MET:
        yield f"no {what} that was tried meets {sla} ({tried} probes)"
        return
    low, high = (None if end is None else f"{end:g}" for end in search["interval"])
    between = f"every probe up to {low or 'none'} met it, every one from {high} on missed it" if high else ""
    why = _STATES.get(search["state"], "")
    told = "; ".join(filter(None, (between, why if search["state"] != FOUND else "")))
    yield f"highest {what} that meets {sla}: {search['highest']:g} ({tried} probes; {told})"
