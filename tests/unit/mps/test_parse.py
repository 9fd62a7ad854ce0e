"""Parsers of control tool, nvidia-smi and logs: the cases of tests/data/mps/parse and any text."""

from __future__ import annotations

import contextlib
import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core.errors import ProbeUnreadable, ProvisionError
from provision.core.parsing import parse_decimal, parse_int, parse_version
from provision.mps.doctor import logs
from provision.mps.status import control_tool
from provision.resources import nvidia_smi

DATA = Path(__file__).parents[2] / "data" / "mps" / "parse"
PARSERS: Mapping[str, Callable[[str], Any]] = {
    function.__name__: function
    for function in (
        *(
            control_tool.read_percentage,
            control_tool.read_server_state,
            control_tool.read_memory_limit_mib,
        ),
        *(control_tool.read_v3_servers, control_tool.read_v3_clients),
        *(
            nvidia_smi.read_gpus,
            nvidia_smi.read_processes,
            nvidia_smi.read_process_gpus,
            nvidia_smi.read_process_types,
            nvidia_smi.read_cuda_version,
            parse_version,
            nvidia_smi.read_activity,
        ),
        *(parse_int, parse_decimal, nvidia_smi.read_table),
        *(logs.lines, logs.control_log, logs.server_log, logs.xids),
    )
}


def cases() -> list[Any]:
    return [
        pytest.param(case, id=f"{path.stem}-{number}-{case['parser']}")
        for path in sorted(DATA.glob("*.toml"))
        for number, case in enumerate(tomllib.loads(path.read_text(encoding="utf-8"))["case"])
    ]


def plain(value: Any) -> Any:
    """The value as TOML represents it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return "<none>" if value is None else value


@pytest.mark.parametrize("case", cases())
def test_parser_reads_recorded_output(case: Mapping[str, Any]) -> None:
    parser = PARSERS[case["parser"]]
    if case.get("unreadable"):
        with pytest.raises(ProbeUnreadable, match="cannot be read"):
            parser(case["text"])
        return
    assert plain(parser(case["text"])) == case.get("want", "<none>")


def test_every_parser_has_a_case() -> None:
    helpers = {"parse_int", "parse_decimal", "read_table", "lines", "parse_version"}
    assert set(PARSERS) - helpers == {case.values[0]["parser"] for case in cases()}


RECORDED = [case.values[0]["text"] for case in cases()]
PIECES = st.sampled_from(
    sorted({piece for text in RECORDED for piece in (*text.split(), *text.splitlines())})
)
AWKWARD = st.sampled_from([",", "\n", "\t", " ", '"', "\0", "\x85", "\u2028", "٣", "²", "9" * 5000])
GLUE = st.sampled_from([" ", ",", "\n", ""])
LIKELY = st.tuples(GLUE, st.lists(PIECES | AWKWARD | st.text(max_size=5), max_size=20)).map(
    lambda made: made[0].join(made[1])
)


def read_or_refused(name: str, text: str) -> bool:
    with contextlib.suppress(ProvisionError):
        PARSERS[name](text)
    return True


@pytest.mark.parametrize("name", PARSERS)
@given(text=LIKELY | st.text())
def test_parser_raises_only_provision_errors(name: str, text: str) -> None:
    assert read_or_refused(name, text)


@given(text=st.sampled_from(RECORDED), data=st.data(), name=st.sampled_from(sorted(PARSERS)))
def test_truncated_text_raises_only_provision_errors(
    text: str, data: st.DataObject, name: str
) -> None:
    assert read_or_refused(name, text[: data.draw(st.integers(0, len(text)))])


def test_respawns_needs_three_failed_servers_without_a_ready_one() -> None:
    loop = "".join(f"Server {pid} exited with status 1\n" for pid in (7, 8, 9))
    assert logs.control_log(loop).respawns
    assert not logs.control_log(
        loop + "NEW SERVER 10: Ready\nServer 10 exited with status 0\n"
    ).respawns
    assert not logs.control_log("Server 7 exited with status 1\n").respawns


def test_control_log_starts_at_last_daemon_start() -> None:
    old = (
        "[2026-01-01 00:00:00.000 Control 1] Starting control daemon using socket "
        "/a/control\nServer 2 exited with status 1\n"
    )
    new = "[2026-01-01 00:01:00.000 Control 9] Starting control daemon using socket /b/control\n"
    assert logs.control_log(old + new) == logs.ControlLog(socket="/b/control")
