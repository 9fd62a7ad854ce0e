"""A text that is shown anew again and again, and the keys that are pressed meanwhile: for `mps.top`."""

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
    """The terminal's second screen while it is entered; what stood on it comes back. Keys are read unseen, Ctrl-C stays Ctrl-C."""

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
        """Replace what is shown; of lines that do not fit, the last line counts how many there are."""
        lines = [clean(line) for line in text.splitlines()]
        room = self._console.height
        if len(lines) > room:
            lines[room - 1 :] = [
                f"… {len(lines) - room + 1} more lines: they need a higher terminal"
            ]
        self._live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

    def pressed(self, timeout_s: float) -> str:
        """The keys that were pressed within the time; empty for none."""
        if not select.select([self._keys], [], [], timeout_s)[0]:
            return ""
        return os.read(self._keys, 64).decode("utf-8", "replace")
