"""The probe client, run on a fake CUDA driver."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from provision.mps.daemon.probe_client import ProbeResult, probe_client_program, read_probe

BUSY = 46


def driver(*, context: int = 0, share: int = 132) -> SimpleNamespace:
    """A fake driver with 132 multiprocessors, and `share` of them once it has a context."""
    sms = [132]

    def tell(value: Any, attribute: int, device: Any) -> int:
        assert (attribute, device.value) == (16, 0)
        value._obj.value = sms[-1]
        return 0

    def make(made: Any, flags: int, device: Any) -> int:
        del made, flags, device
        sms.append(share)
        return context

    def version(value: Any) -> int:
        value._obj.value = 13000
        return 0

    calls = {
        "cuInit": lambda flags: flags,
        "cuDeviceGet": lambda device, ordinal: ordinal,
        "cuDriverGetVersion": version,
    }
    return SimpleNamespace(**calls, cuDeviceGetAttribute=tell, cuCtxCreate_v2=make)


def run_probe(
    patch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cuda: SimpleNamespace,
    *words: str,
) -> str:
    patch.setattr(ctypes, "CDLL", lambda name: cuda)
    patch.setattr("sys.argv", ["-c", *words])
    with contextlib.suppress(SystemExit):
        exec(probe_client_program(), {"__name__": "__main__"})
    return capsys.readouterr().out


def test_probe_reports_multiprocessors_when_context_creation_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """EXCLUSIVE_PROCESS admits the server alone."""
    out = run_probe(monkeypatch, capsys, driver(context=BUSY))
    assert read_probe(out) == ProbeResult(132, (13, 0))
    assert out.splitlines()[-1] == "failed: cuCtxCreate_v2 gives 46"


def test_attached_probe_reports_multiprocessors_of_its_context(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    me = str(os.getpid()).encode()
    answers = {b"get_server_list": b"597\n", b"get_client_list 597": me + b"\n"}
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda words, **given: subprocess.CompletedProcess(words, 0, answers[given["input"]]),
    )
    out = run_probe(monkeypatch, capsys, driver(share=32), "prove")
    assert out.splitlines()[-1] == f"attached: process {os.getpid()} sees 32 multiprocessors"
