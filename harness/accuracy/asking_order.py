"""In which order questions are asked: so many at a time, and of several on one document one ahead of the others."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TypeVar

A = TypeVar("A")


class _Queue:
    """The questions that may be asked now. The first on a document leaves it in the prefix cache for the others."""

    def __init__(self, documents: Sequence[str | None]) -> None:
        self._changed = threading.Condition()
        self._stopped = False
        self._ready: deque[int] = deque()
        self._following: dict[int, list[int]] = {}
        self._groups: deque[list[int]] = deque()
        for document, group in groupby(range(len(documents)), key=lambda index: documents[index]):
            indices = list(group)
            self._groups.extend([[index] for index in indices] if document is None else [indices])

    def take(self) -> int | None:
        """The next question, once there is one; None: there are no more."""
        with self._changed:
            while not self._stopped:
                if self._ready:
                    return self._ready.popleft()
                if self._groups:
                    first, *others = self._groups.popleft()
                    if others:
                        self._following[first] = others
                    return first
                if not self._following:
                    return None
                self._changed.wait()
            return None

    def answered(self, index: int) -> None:
        """A question that was taken is answered."""
        with self._changed:
            self._ready.extend(self._following.pop(index, ()))
            self._changed.notify_all()

    def stop(self) -> None:
        """Nothing more is to be asked."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


def ask_all(answer: Callable[[int], A], documents: Sequence[str | None], num_concurrent: int) -> list[A]:
    """Call `answer` with every index; what it returned, in the order of the indices.

    Parameters
    ----------
    answer : callable
        Called from several threads. What it raises ends the asking, and is raised here.
    documents : sequence of str or None
        The document that each question is about; neighbours with an equal one share it. None: one of its own.
    num_concurrent : int
        Calls at a time: fewer only while the questions that are left wait for the first on their document.
    """
    queue = _Queue(documents)
    found: dict[int, A] = {}

    def ask() -> None:
        while (index := queue.take()) is not None:
            try:
                found[index] = answer(index)
            except BaseException:
                queue.stop()
                raise
            queue.answered(index)

    with ThreadPoolExecutor(num_concurrent) as pool:
        for one in [pool.submit(ask) for _ in range(num_concurrent)]:
            one.result()
    return [found[index] for index in range(len(documents))]
