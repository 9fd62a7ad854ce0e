"""Rules for every test: no configuration of the developer, no foreign network, no real waiting."""

from __future__ import annotations

import ipaddress
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import configuration, settings

TESTS = Path(__file__).parent
ROOT = TESTS.parent

FOREIGN = (
    "GOOGLE_",
    "CLOUDSDK_",
    "GCE_",
    "GCLOUD_",
    "INVOKE_",
    "FABRIC_",
    "PROVISION_",
    "XDG_",
    "SSH_",
    "DOCKER_",
    "CUDA_",
)
"""Prefixes of variables through which the developer's configuration could reach a test."""
FOREIGN_NAMES = frozenset(
    {
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "FORCE_COLOR",
        "CLICOLOR_FORCE",
        "TERM",
        "DISPLAY",
        "EDITOR",
        "PAGER",
        "LANG",
    }
)
SWITCHES = ("PROVISION_TEST_", "PROVISION_LAB_", "PROVISION_CLOUD_INIT")
"""Prefixes of variables with which `make` and CI configure the tests; they are kept."""
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")

configuration.set_hypothesis_home_dir(ROOT / ".cache" / "hypothesis")
settings.register_profile("ci", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if "CI" in os.environ else "local")

# In the background of a script, and under nohup, these are ignored, and every program that a test
# starts would inherit that.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


class NetworkRefused(RuntimeError):
    """A test tried to reach another machine."""


# --- the environment ------------------------------------------------------------------------------


def is_foreign(name: str) -> bool:
    """True for a variable of the developer that must not reach a test."""
    if name.startswith(SWITCHES):
        return False
    return (
        name.startswith(FOREIGN)
        or name in FOREIGN_NAMES
        or name.lower() in PROXIES
        or name.startswith("LC_")
    )


def scrub(patch: pytest.MonkeyPatch, home: Path) -> None:
    """Remove everything from the environment that leads to the developer's configuration."""
    for name in [name for name in os.environ if is_foreign(name)]:
        patch.delenv(name)
    patch.setenv("HOME", str(home))
    patch.setenv("LC_ALL", "C.UTF-8")
    patch.setenv("TERM", "dumb")
    patch.setenv("CLOUDSDK_CONFIG", str(home / ".config" / "gcloud"))
    patch.setenv("NO_GCE_CHECK", "true")  # google.auth asks no metadata server


@pytest.fixture(scope="session", autouse=True)
def clean_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Scrub the environment before any wider-scoped fixture can read it."""
    with pytest.MonkeyPatch.context() as patch:
        scrub(patch, tmp_path_factory.mktemp("session-home"))
        patch.setattr(socket.socket, "connect", _guarded(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", _guarded(socket.socket.connect_ex))
        patch.setattr(socket, "getaddrinfo", _guarded_lookup(socket.getaddrinfo))
        yield


@pytest.fixture(scope="session")
def new_home(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Make empty home folders. `mktemp` would list all folders of the session for each."""
    parent, numbers = tmp_path_factory.mktemp("homes"), itertools.count()

    def make() -> Path:
        home = parent / str(next(numbers))
        home.mkdir()
        return home

    return make


@pytest.fixture(autouse=True)
def clean_environment(
    clean_session: None, new_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Give each test an empty home folder and restore the environment after it."""
    home = new_home()
    scrub(monkeypatch, home)
    return home


# --- the network ----------------------------------------------------------------------------------


def is_on_this_machine(name: str) -> bool:
    """True for a host name or address of this machine."""
    if name in {"", "localhost"}:
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _guarded(connect: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(self: socket.socket, address: Any, /) -> Any:
        if self.family in {socket.AF_INET, socket.AF_INET6} and not is_on_this_machine(address[0]):
            raise NetworkRefused(f"a test may not connect to {address!r}")
        return connect(self, address)

    return guarded


def _guarded_lookup(getaddrinfo: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host or ""
        if name.endswith(".invalid"):  # RFC 6761: never resolves, anywhere
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if not is_on_this_machine(name) and not _is_numeric(name):
            raise NetworkRefused(
                f"a test may not look up {name!r} "
                "(use a name under .invalid for one that does not exist)"
            )
        return getaddrinfo(host, *args, **kwargs)

    return guarded


def _is_numeric(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


# --- time -----------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_sleep_in_unit_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `time.sleep` fail in tests/unit, where clocks are arguments."""
    if TESTS / "unit" not in request.path.parents:
        return
    real = time.sleep

    def refuse(seconds: float) -> None:
        if (
            sys._getframe(1).f_globals.get("__name__") == "subprocess"
        ):  # waits so for a child whose end has a time limit
            real(seconds)
            return
        pytest.fail(f"a unit test slept for {seconds} s: hand the code a clock")

    monkeypatch.setattr(time, "sleep", refuse)


# --- which tests run where ------------------------------------------------------------------------


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of tests/lab and tests/gpu."""
    for item in items:
        for folder in ("lab", "gpu"):
            if TESTS / folder in item.path.parents:
                item.add_marker(folder)


LAB_REQUIRED = os.environ.get("PROVISION_LAB_REQUIRED") == "1"
"""True in CI, where a skipped lab test is reported as failed so that it is noticed."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn skipped lab tests into failed ones where the lab is required."""
    report = yield
    if (
        LAB_REQUIRED
        and item.get_closest_marker("lab") is not None
        and report.skipped
        and not hasattr(report, "wasxfail")
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped although the lab is required: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn skipped modules of lab tests into failed ones where the lab is required."""
    report = yield
    if LAB_REQUIRED and TESTS / "lab" in collector.path.parents and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped although the lab is required: {report.longrepr}"
    return report
