"""Requests to a server that may fail: each failure is told, and a server that goes on failing is given up."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from harness.accuracy.completions import BadAnswer, ServerGone, complete
from harness.backends.interface import Backend

ERRORS_IN_A_ROW = 3
"""So many failures one after another end it: a server that hangs would else cost a timeout for each request."""

T = TypeVar("T")


class GivenUp(BadAnswer):
    """Not asked any more, after failures that were told before."""


@dataclass
class PatientClient:
    """Greedy completions of one server.

    Attributes
    ----------
    base_url : str
        Root URL, without `/v1`.
    timeout_s : float
        Longest wait for one answer.
    failures : int
        In a row, up to now.
    """

    backend: Backend
    base_url: str
    served_name: str
    timeout_s: float
    failures: int = 0
    last_error: str = ""

    @property
    def gave_up(self) -> bool:
        return self.failures >= ERRORS_IN_A_ROW

    def ask(self, body: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        """What `read` finds in the answer.

        Raises
        ------
        BadAnswer
            There is no answer, or it lacks what is read.
        GivenUp
            The server was given up before.
        """
        if self.gave_up:
            raise GivenUp(f"not asked: the server was given up after: {self.last_error}")
        try:
            answer = complete(self.base_url, {"model": self.served_name, "temperature": 0.0, **body}, self.timeout_s)
            try:
                found = read(answer)
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                raise BadAnswer(f"the answer lacks what was asked for ({error!r})") from error
        except BadAnswer as error:
            self.failures = ERRORS_IN_A_ROW if isinstance(error, ServerGone) else self.failures + 1
            self.last_error = str(error)
            raise
        self.failures = 0
        return found


def in_words(errors: Iterable[str | None]) -> str | None:
    """The first three different errors, and how many more there are; None where there is none."""
    found = list(dict.fromkeys(error for error in errors if error))
    return "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "") or None
