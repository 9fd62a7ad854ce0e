"""mps.explain: what users paste finds its rows, and every row is found by a case."""

from __future__ import annotations

import codecs
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.commands.mps.explain import mps_explain
from provision.mps import explain as module
from provision.mps.explain import LONGEST_PIECE, Match, Row, explain, rows
from provision.project.project import Project
from provision.settings import Settings

CASES = tomllib.loads(
    (Path(__file__).parents[2] / "data" / "mps" / "explain.toml").read_text(encoding="utf-8")
)["case"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["text"].strip()[:40])
def test_pasted_error_text_finds_expected_rows(case: Mapping[str, Any]) -> None:
    assert [match.row.id for match in explain(case["text"])] == case["ids"]


def test_every_row_is_covered_by_a_case() -> None:
    ids = [row.id for row in rows()]
    assert len(set(ids)) == len(ids) > 30
    assert set(ids) == {name for case in CASES for name in case["ids"]}


@pytest.mark.parametrize("code", [2, 46, 100, 101, 700, 719, *range(803, 812)])
def test_failure_line_of_probe_client_is_explained(code: int) -> None:
    """`mps.doctor` sends its reader here with these very words."""
    (match,) = explain(f"failed: cuCtxCreate_v2 gives {code}")
    assert not match.row.harmless


def test_match_reports_first_line_and_number_of_lines() -> None:
    (match,) = explain("fine\nError 805\nfine\n  Error 805  \n")
    assert (
        match.as_dict().items()
        >= {"text": "Error 805", "line": 2, "times": 2, "harmless": False, "id": "805"}.items()
    )
    assert "pipe directory" in match.as_dict()["cause"]


def test_output_fits_width_of_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = mps_explain(
        Project(Settings(), tmp_path, tmp_path), f"Error 805 {100 * 'x'}", None
    ).text.splitlines()
    assert (len(lines[0]), lines[0][-1]) == (80, "…")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    "escape", ["\x1b", "\\u001b", "\\x1B"], ids=["as it is", "in JSON", "as Python writes it"]
)
def test_colour_sequences_do_not_prevent_a_match(escape: str) -> None:
    (match,) = explain(f"fine\n{escape}[1;31mError 805: MPS client failed{escape}[0m")
    assert (match.row.id, match.line, match.text) == ("805", 2, "Error 805: MPS client failed")


def test_log_of_healthy_daemon_matches_only_harmless_rows() -> None:
    text = (Path(__file__).parents[2] / "data" / "mps" / "parse" / "v2_580.toml").read_text(
        encoding="utf-8"
    )
    log = text[text.index("NEW SERVER 597: Ready") : text.index("Server 597 has 4")]
    assert [match.row.id for match in explain(log) if not match.row.harmless] == []


@given(st.text() | st.lists(st.sampled_from([case["text"] for case in CASES])).map("\n".join))
def test_explain_never_raises(text: str) -> None:
    assert len(explain(text)) <= len(rows())


def plainly(text: str) -> tuple[Match, ...]:
    """The same without a look for words: every pattern on every line."""

    def fits(row: Row, piece: str) -> bool:
        return any(each.search(piece) for each in row.match) and not any(
            each.search(piece) for each in row.unless
        )

    found = []
    for row in rows():
        every = [
            (number, next((piece for piece in module._pieces(raw) if fits(row, piece)), None))
            for number, raw in enumerate(text.splitlines(), 1)
        ]
        if fitting := [(number, piece) for number, piece in every if piece is not None]:
            found.append(Match(row, fitting[0][1], fitting[0][0], len(fitting)))
    return tuple(sorted(found, key=lambda match: (match.row.harmless, match.line)))


PASTED = st.sampled_from([case["text"] for case in CASES])
CHANGED = st.sampled_from(
    [
        str.upper,
        str.lower,
        str.swapcase,
        lambda text: text.replace(" ", "\\n"),
        lambda text: text + " \u212a \u0130 \u2028 mps",
    ]
)
LONG = st.builds(
    lambda text, before: f"{'- ' * before}{text}{' -' * before}",
    PASTED,
    st.sampled_from([0, 500, 900, 2000]),
)


@given(
    st.lists(
        PASTED
        | LONG
        | st.builds(lambda change, text: change(text), CHANGED, PASTED)
        | st.text(max_size=20),
        max_size=12,
    ).map("\n".join)
)
def test_search_by_words_finds_what_patterns_alone_find(text: str) -> None:
    assert explain(text) == plainly(text)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
@settings(max_examples=10)
@given(data=st.data())
def test_text_matching_a_pattern_contains_a_word_of_its_row(row: Row, data: st.DataObject) -> None:
    for pattern in row.match:
        assert row.has_word(data.draw(st.from_regex(pattern)).lower()), pattern.pattern


def test_line_without_words_is_not_searched_with_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted:
        def __init__(self, pattern: re.Pattern[str]) -> None:
            self._pattern = pattern

        def search(self, text: str) -> object:
            searched.append(text)
            return self._pattern.search(text)

    searched: list[str] = []
    spied = [replace(row, match=cast("Any", tuple(map(Counted, row.match)))) for row in rows()]
    monkeypatch.setattr(module, "rows", lambda: spied)
    quiet = ["step 12 loss 0.3 on cuda:0, accuracy 0.9, 977 images a second"] * 1000
    assert [match.line for match in explain("\n".join([*quiet, "Error 805", *quiet]))] == [1001]
    assert set(searched) == {"Error 805"}


@pytest.mark.parametrize("before", [0, 90, LONGEST_PIECE - 8, LONGEST_PIECE, 10 * LONGEST_PIECE])
def test_error_anywhere_in_a_long_line_matches_once(before: int) -> None:
    (match,) = explain(f"{'x' * before} CUDA failed: Error 805 {'x' * before}")
    assert (match.row.id, match.line, match.times) == ("805", 1, 1)
    assert len(match.text) <= LONGEST_PIECE


def test_traceback_in_json_log_is_matched_line_by_line() -> None:
    calls = "".join(
        f'  File "sdk_worker.py", line {number}, in _execute\n    response = task()\n'
        for number in range(60)
    )
    error = "RuntimeError: CUDA error: Error 805: MPS client failed to connect"
    message = f"Traceback (most recent call last):\n{calls}{error}\n"
    (match,) = explain(json.dumps({"severity": "ERROR", "message": message}))
    assert (match.row.id, match.text.startswith("RuntimeError")) == ("805", True)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be-with-mark"])
def test_file_is_decoded_by_its_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    text = "RuntimeError: out of memory (cuInit)\n"
    data = (
        codecs.BOM_UTF16_BE + text.encode("utf-16-be")
        if encoding.endswith("mark")
        else text.encode(encoding)
    )
    (tmp_path / "worker.log").write_bytes(data)
    done = mps_explain(
        Project(Settings(), tmp_path, tmp_path), text=None, file=str(tmp_path / "worker.log")
    )
    assert [match["id"] for match in done.document["matches"]] == ["cap-below-context"]
    assert done.document["matches"][0]["text"] == text.strip()


@pytest.mark.parametrize("program", ["provision", "invoke"])
def test_remedies_name_the_program_that_was_called(tmp_path: Path, program: str) -> None:
    done = mps_explain(
        Project(Settings(), tmp_path, tmp_path, program_argv0=program), text="Error 808", file=None
    )
    remedy = f"run fewer workers, one context each: {program} mps.plan"
    assert (done.document["matches"][0]["remedy"], remedy in done.text) == (remedy, True)


def test_documentation_lists_every_row() -> None:
    page = (Path(__file__).parents[3] / "docs" / "mps.md").read_text(encoding="utf-8")
    missing = [
        row.id for row in rows() if f"| {row.says} | {row.cause} | {row.remedy} |" not in page
    ]
    assert missing == []
