"""What a person sees while a run is measured: a live display on a terminal, one line a launch elsewhere."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.text import Text


@dataclass
class Progress:
    """Where a run is. On a terminal one block of lines is kept up to date; in a log each launch gets a line.

    Attributes
    ----------
    blocks : int
        Blocks of the run.
    expected_s : dict
        Estimated seconds of each launch by name, over all blocks that remain.
    """

    console: Console
    blocks: int
    expected_s: dict[tuple[int, str], float] = field(default_factory=dict)
    _live: Live | None = None
    _block: int = 0
    _launch: str = ""
    _step: str = ""
    _requests: str = ""
    _started_s: float = 0.0
    _launch_started_s: float = 0.0
    _step_started_s: float = 0.0
    _done_expected_s: float = 0.0
    _done_actual_s: float = 0.0

    def __enter__(self) -> "Progress":
        self._started_s = time.monotonic()
        if self.console.is_terminal:
            self._live = Live(get_renderable=self._display, console=self.console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)
            self._live = None

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def launch(self, block: int, name: str) -> None:
        """A launch begins."""
        self._block, self._launch, self._step, self._requests = block, name, "starting the engine", ""
        self._launch_started_s = time.monotonic()

    def step(self, text: str) -> None:
        """The launch goes on to another step."""
        self._step, self._requests = text, ""
        self._step_started_s = time.monotonic()

    def requests(self, done: int, total: int) -> None:
        """Requests of the current cell that have ended."""
        seconds = max(time.monotonic() - self._step_started_s, 1e-9)
        self._requests = f"{done}/{total} requests ({done / seconds:.2f}/s)" if total else ""

    def launch_done(self, block: int, name: str, result: str) -> None:
        """A launch ended; `result` is what came of it."""
        seconds = time.monotonic() - self._launch_started_s
        self._done_expected_s += self.expected_s.pop((block, name), 0.0)
        self._done_actual_s += seconds
        self.say(f"block {block + 1}/{self.blocks}  {name:<44} {seconds:6.1f} s  {result}  ({self._left()} left)")

    def _left(self) -> str:
        pace = self._done_actual_s / self._done_expected_s if self._done_expected_s else 1.0
        current_s = self.expected_s.get((self._block, self._launch), 0.0)
        gone_s = min(time.monotonic() - self._launch_started_s, pace * current_s)
        return minutes(pace * sum(self.expected_s.values()) - gone_s)

    def _display(self) -> Text:
        now = time.monotonic()
        return Text(
            f"block {self._block + 1}/{self.blocks}  {self._launch}  {now - self._launch_started_s:.0f} s  {self._step}"
            f"  {self._requests}\n{minutes(now - self._started_s)} so far, about {self._left()} left"
        )


def minutes(seconds: float) -> str:
    """A duration as a person says it: ``45 s``, ``12 min``, ``46 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 180 * 60 else f"{seconds / 3600:.0f} h"


Say = Callable[[str], None]
