"""Selecting hosts by pattern."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.core.errors import UsageError
from provision.core.model import Host
from provision.hosts.limit_patterns import has_filters, select_by_name, select_hosts

NAMES = ["gpu-1", "gpu-2", "gpu-10", "dev", "rack[1]", "$(reboot)", "büro"]
HOSTS = [Host(name=name, address="10.0.0.1") for name in NAMES]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("dev", ["dev"]),
        ("gpu-*", ["gpu-1", "gpu-2", "gpu-10"]),
        ("gpu-?", ["gpu-1", "gpu-2"]),
        ("gpu-[12]", ["gpu-1", "gpu-2"]),
        ("dev,gpu-1", ["gpu-1", "dev"]),
        (" dev , gpu-1 ,", ["gpu-1", "dev"]),
        ("gpu-*,!gpu-2", ["gpu-1", "gpu-10"]),
        ("!gpu-2,gpu-*", ["gpu-1", "gpu-10"]),
        ("!gpu-*", ["dev", "rack[1]", "$(reboot)", "büro"]),
        ("all,!dev", ["gpu-1", "gpu-2", "gpu-10", "rack[1]", "$(reboot)", "büro"]),
        ("all", NAMES),
        ("*", NAMES),
        ("rack[1]", ["rack[1]"]),
        ("$(reboot)", ["$(reboot)"]),
        ("b*o", ["büro"]),
        ("dev,dev", ["dev"]),
    ],
)
def test_name_pattern_selects_hosts(pattern: str, names: list[str]) -> None:
    assert [host.name for host in select_by_name(HOSTS, pattern)] == names


@pytest.mark.parametrize(
    "pattern", ["nobody", "dev,nobody", "DEV", "gpu", "!nobody", "dev,!gqu-*", "rack[2]", "de v"]
)
def test_unknown_name_error_lists_known_hosts(pattern: str) -> None:
    with pytest.raises(UsageError, match="no host matches") as caught:
        select_by_name(HOSTS, pattern)
    assert all(name in caught.value.why for name in NAMES)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("pattern", ["", " , ", "dev,!dev", "!*", "dev,!all"])
def test_pattern_without_match_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="selects no host"):
        select_by_name(HOSTS, pattern)


def test_error_reports_empty_inventory() -> None:
    with pytest.raises(UsageError) as caught:
        select_by_name([], "dev")
    assert caught.value.why == "the inventory is empty"


VMS = {
    "a": {
        "gpu": "nvidia-l4 l4",
        "state": "running",
        "zone": "us-central1-a",
        "label.team": "vision",
    },
    "b": {
        "gpu": "nvidia-l4 l4",
        "state": "terminated",
        "zone": "us-central1-b",
        "label.team": "speech",
    },
    "c": {
        "gpu": "nvidia-tesla-t4 t4",
        "state": "running",
        "zone": "europe-west4-a",
        "label.empty": "",
    },
    "desk": {"state": "static"},
}
TRAITS = {
    name: {key: frozenset(text.split() or [""]) for key, text in {"name": name, **traits}.items()}
    for name, traits in VMS.items()
}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("gpu=l4", "a b"),
        ("gpu=nvidia-l4", "a b"),
        ("gpu=L4", "a b"),
        ("gpu=l4,state=running", "a"),
        ("gpu=l4,gpu=t4", "a b c"),
        ("gpu=*4,zone=us-*", "a b"),
        ("state=static", "desk"),
        ("state=STATIC", "desk"),
        ("state=run*", "a c"),
        ("state=*ing", "a c"),
        ("state=provisioning", ""),
        ("label.team=vision", "a"),
        ("label.team=*", "a b"),
        ("label.empty=", "c"),
        ("name=desk", "desk"),
        ("a,c,state=running", "a c"),
        ("all,gpu=l4", "a b"),
        ("!gpu=l4", "c desk"),
        ("!state=static,!gpu=t4", "a b"),
        ("gpu=l4,!a", "b"),
        ("desk,gpu=l4", ""),
        ("gpu=h100", ""),
        (" gpu = l4 , state=running", "a"),
    ],
)
def test_filter_selects_hosts(pattern: str, names: str) -> None:
    hosts = [Host(name=name, address="x") for name in VMS]
    assert has_filters(pattern)
    assert " ".join(host.name for host in select_hosts(hosts, pattern, TRAITS)) == names


@pytest.mark.parametrize(
    "pattern", ["gpus=l4", "label=x", "label.=x", "=x", "!colour=red", "label.a.b=c"]
)
def test_unknown_filter_error_lists_known_filters(pattern: str) -> None:
    with pytest.raises(UsageError, match="there is no filter") as caught:
        select_hosts(HOSTS, pattern)
    assert caught.value.why == "filters are name, state, gpu, zone, machine_type, source, label.KEY"


@pytest.mark.parametrize(
    ("pattern", "fix"),
    [
        ("stat=running", "state=running"),
        ("!gpus=l4", "!gpu=l4"),
        ("machine-type=g2-*", "machine_type=g2-*"),
        ("colour=red", "name=red"),
    ],
)
def test_unknown_filter_error_suggests_nearest(pattern: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        select_hosts(HOSTS, pattern)
    assert caught.value.fix == f"--limit '{fix}'"


@pytest.mark.parametrize(
    ("pattern", "fix"),
    [
        ("state=runing", "state=running"),
        ("!state=stoped", "!state=stopped"),
        ("state=on", "state=running"),
    ],
)
def test_unknown_state_error_suggests_nearest(pattern: str, fix: str) -> None:
    """A misspelt `!state=runing` would exclude no host."""
    with pytest.raises(UsageError, match="there is no state") as caught:
        select_hosts(HOSTS, pattern)
    assert caught.value.fix == f"--limit '{fix}'"
    assert "running, " in caught.value.why


@pytest.mark.parametrize("pattern", ["!", "dev,! "])
def test_bare_exclamation_mark_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="a '!' alone excludes no host") as caught:
        select_by_name(HOSTS, pattern)
    assert caught.value.fix == "--limit '!NAME'"


def test_pattern_of_names_has_no_filters() -> None:
    assert not has_filters("gpu-*,!dev")


@given(
    names=st.lists(
        st.text(min_size=1, max_size=8).filter(
            lambda name: not set(name) & set(",!=") and name == name.strip() and name != "all"
        ),
        unique=True,
        min_size=1,
    )
)
def test_every_host_name_selects_its_host(names: list[str]) -> None:
    hosts = [Host(name=name, address="x") for name in names]
    for host in hosts:
        assert host in select_by_name(hosts, host.name)
