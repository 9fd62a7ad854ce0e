"""The facts of a host: the script under each shell, and the parser on any text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core.exchange import exchange
from provision.core.facts import FACTS, read_facts
from provision.core.job import Section
from provision.core.model import Facts
from provision.hosts.local import LocalTransport
from tests.shells.shells import Scratch


def device(root: Path, address: str, vendor: str, kind: str) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor + "\n")
    (folder / "class").write_text(kind + "\n")


def gather(scratch: Scratch, patch: pytest.MonkeyPatch) -> Facts:
    scratch.enter(patch)
    answer = exchange(
        LocalTransport(scratch.shell.host()), [Section("f", FACTS, 20.0)], clock=time.monotonic
    ).results["f"]
    assert answer.status == 0
    return read_facts(answer.output)


def test_facts_of_a_gpu_host_are_read(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    root = scratch.root
    (root / "etc/os-release").write_text(
        'NAME="Container-Optimized OS"\nID=cos\nVERSION_ID="125"\n# ID=no\n\nBUILD_ID=19216.655.28'
    )
    (root / "proc/meminfo").write_text("MemTotal:       16384000 kB\nMemFree: 1 kB\n")
    (root / "proc/cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\nmodel name\t: x\n"
    )
    device(root, "0000:00:03.0", "0x1af4", "0x020000")
    device(root, "0000:00:04.0", "0x10de", "0x030200")
    device(root, "0000:00:05.0", "0x10de", "0x030000")
    device(root, "0000:00:05.1", "0x10de", "0x040300")
    (root / "sys/module/nvidia").mkdir(parents=True)
    (root / "sys/module/nvidia/version").write_text("580.105.08\n")
    (root / "proc/sys/kernel/random").mkdir(parents=True)
    (root / "proc/sys/kernel/random/boot_id").write_text("0f1e\n")
    facts = gather(scratch, monkeypatch)
    assert (facts.os_id, facts.os_version, facts.build_id) == ("cos", "125", "19216.655.28")
    assert facts.is_cos
    assert facts.gpus == ("0000:00:04.0", "0000:00:05.0")
    assert facts.driver_loaded == "580.105.08"
    assert facts.memory_mib == 16000
    assert facts.boot_id == "0f1e"
    assert facts.cpus == 2
    assert facts.uid >= 0
    assert facts.arch
    assert facts.kernel


def test_missing_facts_keep_their_defaults(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scratch.root / "proc/meminfo").write_text("")
    facts = gather(scratch, monkeypatch)
    assert (facts.os_id, facts.gpus, facts.driver_loaded, facts.memory_mib, facts.boot_id) == (
        "",
        (),
        "",
        0,
        "",
    )
    assert not facts.is_cos


def test_os_release_is_not_executed(scratch: Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    pwned = scratch.root / "pwned"
    (scratch.root / "proc/meminfo").write_text("")
    (scratch.root / "etc/os-release").write_text(
        f"ID=$(touch '{pwned}')\nBUILD_ID=`touch '{pwned}'`\ntouch '{pwned}'\n"
    )
    facts = gather(scratch, monkeypatch)
    assert facts.os_id == f"$(touch '{pwned}')"
    assert not pwned.exists()


@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(["cpus=", "uid=-1", "gpus= ", "=", "x", "\n", "²", "1e3"])).map(
        "".join
    )
)
def test_any_output_gives_valid_facts(text: str) -> None:
    facts = read_facts(text)
    assert facts.cpus >= 0
    assert facts.memory_mib >= 0
    assert facts.uid >= -1


@pytest.mark.parametrize("value", ["", " ", "four", "-4", "4.0", "٤", "²", "0x4"])
def test_fact_that_is_not_a_number_keeps_its_default(value: str) -> None:
    assert read_facts(f"cpus={value}\nuid={value}\n") == Facts()
