"""Who looks on while a launch is measured."""

from typing import Protocol


class Watch(Protocol):
    """What is told while a launch is measured."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def step(self, text: str) -> None:
        """The launch goes on to another step."""

    def requests(self, done: int, total: int) -> None:
        """Requests of the current cell that have ended."""
