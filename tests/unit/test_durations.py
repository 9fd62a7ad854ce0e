"""Time spans, parsed and formatted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core import durations


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("90m", 5400), ("1d12h", 129_600), ("1h30m05s", 5405)]
)
def test_span_is_parsed_in_seconds(text: str, seconds: int) -> None:
    assert durations.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "8", "-1h", "1h 30m", "30m1h", "1w", "٣h", "9" * 5000 + "h"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a time such as"):
        durations.parse_duration(text)


@given(seconds=st.integers(0, 400 * durations.DAY_S))
def test_exact_span_is_parsed_back(seconds: int) -> None:
    assert durations.parse_duration(durations.exact(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0s"), (0.4, "0s"), (45, "45s"), (307, "5m07s"), (3900, "1h05m"), (273_600, "3d04h")],
)
def test_rounded_span_has_two_units(seconds: float, text: str) -> None:
    assert durations.rounded(seconds) == text
