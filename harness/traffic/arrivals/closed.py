"""A closed loop: an answer makes room for the next session."""

from dataclasses import dataclass

from harness.traffic.arrivals import Arrival, arrival
from harness.traffic.parameters import need


@arrival("closed")
@dataclass(frozen=True)
class Closed(Arrival):
    """So many sessions at a time; the next starts when one ends.

    Attributes
    ----------
    concurrency : int
        Sessions at a time, >= 1.
    """

    concurrency: int

    def __post_init__(self) -> None:
        need(self.concurrency >= 1, f"concurrency: {self.concurrency} must be >= 1")

    @property
    def places(self) -> int | None:
        return self.concurrency

    def seconds(self, sessions: int) -> float:
        return 0.0

    def in_flight(self, sessions: int, session_s: float) -> float:
        return min(self.concurrency, sessions)

    def summary(self) -> str:
        return f"{self.concurrency} at a time"
