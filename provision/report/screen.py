"""A full-screen text that is replaced repeatedly, and the keys pressed meanwhile: for `mps.top`."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from provision.report.text import clean


class Screen:
    """The terminal's alternate screen, for the time of a `with` block.

    Keys are read without echo. Ctrl-C raises `KeyboardInterrupt` as usual.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._keys = sys.stdin.fileno()

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._keys)
        tty.setcbreak(self._keys)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def show(self, text: str) -> None:
        """Replace the text. The last line counts the lines that do not fit."""
        lines = [clean(line) for line in text.splitlines()]
        height = self._console.height
        if len(lines) > height:
            hidden = len(lines) - height + 1
            lines[height - 1 :] = [f"… {hidden} more lines: they need a higher terminal"]
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

    def read_keys(self, timeout_s: float) -> str:
        """Wait for a key and return those that were pressed; empty when the time is over."""
        if not select.select([self._keys], [], [], timeout_s)[0]:
            return ""
        return os.read(self._keys, 64).decode("utf-8", "replace")
