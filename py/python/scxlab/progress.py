# SPDX-License-Identifier: GPL-2.0-only
"""Progress of long work, in a notebook or on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: A function of the finished part and the whole (0 if unknown), True for a bar, or None.
Progress = Callable[[int, int], object] | bool | None


@contextmanager
def shown(progress: Progress) -> Iterator[Callable[[int, int], object] | None]:
    """Yields the function to call, and removes the bar at the end."""
    if progress is not True:
        yield progress if callable(progress) else None
        return
    bar = _NotebookBar() if _in_notebook() else _Line()
    try:
        yield bar.show
    finally:
        bar.close()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


class _Bar:
    def __init__(self) -> None:
        self._start = time.monotonic()
        self._first: int | None = None

    def text(self, done: int, whole: int) -> str:
        """Returns the state and, once some work is done, the time left."""
        if not whole:
            return f"{done} done"
        if self._first is None:
            self._first = done
        here = done - self._first
        if not here:
            return f"{done} of {whole}"
        left = (time.monotonic() - self._start) / here * (whole - done)
        return f"{done} of {whole}, {left:.0f} s left"

    def show(self, done: int, whole: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class _Line(_Bar):
    """A line on standard error that is overwritten."""

    def show(self, done: int, whole: int) -> None:
        print(f"\r\x1b[K{self.text(done, whole)}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class _NotebookBar(_Bar):
    """A bar in the cell's output."""

    def __init__(self) -> None:
        super().__init__()
        from IPython.display import HTML, display

        self._html: Any = HTML
        self._handle: Any = display(HTML(""), display_id=True)

    def show(self, done: int, whole: int) -> None:
        bar = f"<progress value='{done}' max='{max(whole, 1)}'></progress>" if whole else ""
        self._handle.update(self._html(f"{bar} {self.text(done, whole)}"))

    def close(self) -> None:
        self._handle.update(self._html(""))
