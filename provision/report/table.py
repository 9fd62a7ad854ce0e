"""Tables for people: aligned columns, and the cells of times, amounts and missing values."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence

from provision.core import durations


def format_table(
    rows: Sequence[Sequence[str]], *, right: Collection[int] = (), width: int | None = None
) -> str:
    """Return rows as columns two spaces apart; the columns numbered in `right` are right-aligned.

    `width` is that of the terminal unless it is given; 0 sets no limit. Where it is too small, a
    long word in the first column gets a line of its own with the rest below it, as df prints long
    device names.
    """
    width = shutil.get_terminal_size((0, 0)).columns if width is None else width
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    if width and sum(widths) + 2 * (len(widths) - 1) > width:
        available = width - sum(widths[1:]) - 2 * (len(widths) - 1)
        widths[0] = max((len(row[0]) for row in rows if len(row[0]) <= available), default=0)
    lines = []
    for row in rows:
        if len(row[0]) > widths[0]:
            lines.append(row[0])
        first = "" if len(row[0]) > widths[0] else row[0]
        cells = zip((first, *row[1:]), widths, strict=True)
        words = (
            text.rjust(size) if index in right else text.ljust(size)
            for index, (text, size) in enumerate(cells)
        )
        lines.append("  ".join(words).rstrip())
    return "\n".join(lines)


def or_dash(value: object) -> str:
    """Return the value as text, `-` for None."""
    return "-" if value is None else str(value)


def span_or_dash(seconds: int | None) -> str:
    """Return a time span in its two largest units, `-` for None."""
    return "-" if seconds is None else durations.rounded(seconds)


def usd_or_unknown(amount: float | None) -> str:
    """Return an amount in dollars and cents, `unknown` for None."""
    return "unknown" if amount is None else f"${amount:,.2f}"
