"""The judge of all traffic, judged: what it lets pass, and what it must not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provision.testing.compute import Call, ComputeEmulator
from provision.testing.compute.discovery import discovery
from provision.testing.compute.routes import METHODS, ROUTES
from tests.emulator.discovery_check import Traffic
from tests.emulator.google_client import PROJECT, ZONE, Body, gpu_vm, send

INSTANCES = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances"
OPERATION: Body = {"kind": "compute#operation", "id": "1", "name": "operation-1", "status": "DONE"}


def call(body: Body | None = None, reply: Body | None = OPERATION, **changed: Any) -> Call:
    plain: dict[str, Any] = {
        "verb": "POST",
        "path": INSTANCES,
        "api": "instances.insert",
        "query": {},
        "status": 200,
    }
    return Call(**{**plain, "body": body or gpu_vm(), "reply": reply, **changed})


def listing(query: Mapping[str, str], body: Body | None = None, path: str = INSTANCES) -> Call:
    return Call(
        verb="GET",
        path=path,
        api="instances.list",
        query=query,
        body=body,
        status=200,
        reply={"items": []},
    )


def verb(word: str, query: Mapping[str, str]) -> Call:
    path = f"{INSTANCES}/dev/{word}"
    return Call(
        verb="POST",
        path=path,
        api=f"instances.{word}",
        query=query,
        body=None,
        status=200,
        reply=OPERATION,
    )


def disk(size_gb: object) -> Body:
    return gpu_vm(disks=[{"boot": True, "initializeParams": {"diskSizeGb": size_gb}}])


GOOD: dict[str, Call] = {
    "insert": call(query={"requestId": "x", "prettyPrint": "false"}),
    "list": listing({"maxResults": "5", "filter": "name=a"}),
    "no reply": call(reply=None, status=0),
    "refusal": call(
        reply={"error": {"code": 404, "message": "no", "errors": [{"reason": "notFound"}]}},
        status=404,
    ),
}
WRONG: dict[str, tuple[Call, str]] = {
    "unknown field": (call(gpu_vm(colour="red")), "'colour' was unexpected"),
    "enum": (call(gpu_vm(scheduling={"onHostMaintenance": "STOP"})), "'STOP' is not one of"),
    "a number where the API takes a string": (
        call(disk(50)),
        "disks/0/initializeParams/diskSizeGb: 50 is not of type 'string'",
    ),
    "no digits": (call(disk("50GB")), "does not match"),
    "too large": (
        call(gpu_vm(guestAccelerators=[{"acceleratorCount": 2**31}])),
        "greater than the maximum",
    ),
    "nothing in the body": (call({"machineType": "x"}), "lacks name"),
    "unknown parameter": (call(query={"requestID": "x"}), "unknown parameter requestID"),
    "parameter that is no number": (
        listing({"maxResults": "many"}),
        "parameter maxResults is not of type integer",
    ),
    "parameter that is no boolean": (
        verb("stop", {"discardLocalSsd": "yes"}),
        "parameter discardLocalSsd is not of type boolean",
    ),
    "missing parameter": (verb("detachDisk", {}), "parameter deviceName is missing"),
    "a name that cannot be": (
        listing({}, path="/compute/v1/projects/demo/zones/US_1/instances"),
        "zone does not match",
    ),
    "verb": (call(verb="PUT"), "not POST"),
    "path": (call(path=f"{INSTANCES}/dev"), "not POST"),
    "a body for a method without": (
        listing({}, body={"a": 1}),
        "a body that the method does not take",
    ),
    "no method": (call(api=""), "is not a method of the API"),
    "reply: number as id": (call(reply={**OPERATION, "id": 1}), "1 is not of type 'string'"),
    "reply: unknown field": (call(reply={**OPERATION, "state": "DONE"}), "'state' was unexpected"),
    "reply: error of another status": (
        call(reply={"error": {"code": 400, "message": "no"}}, status=404),
        "is not an error envelope of status 404",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_valid_call_passes(name: str) -> None:
    assert discovery().judge(GOOD[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_invalid_call_is_reported(name: str) -> None:
    wrong, words = WRONG[name]
    for _ in range(2):  # what was found wrong once is not remembered as fine
        assert [fault for fault in discovery().judge(wrong) if words in fault] != []


def test_emulated_methods_are_in_discovery_document() -> None:
    judge = discovery()
    assert len(METHODS) > 40
    for rule in ROUTES.iter_rules():
        method = next(iter((rule.methods or set()) - {"HEAD", "OPTIONS"}))
        path = rule.build({"project": PROJECT, "zone": ZONE, "name": "dev"})
        assert path is not None
        asked = Call(
            verb=method,
            path=path[1].partition("?")[0],
            api=str(rule.endpoint),
            query={},
            body=None,
            status=0,
            reply=None,
        )
        assert [fault for fault in judge.judge_request(asked) if "not " in fault] == []


def test_traffic_of_test_is_validated(emulator: ComputeEmulator, traffic: Traffic) -> None:
    send(emulator, "POST", INSTANCES.removeprefix("/compute/v1/"), gpu_vm(colour="red"))
    assert len(traffic.faults()) == 1
    assert "'colour' was unexpected" in traffic.faults()[0]
    traffic.sends_invalid_requests = True


OTHERS = """
import requests

def send(emulator, **words):
    url = f"{emulator.endpoint}/compute/v1/projects/demo/zones"
    requests.get(url, params=words, timeout=10).raise_for_status()

def test_right(compute_emulator):
    send(compute_emulator, maxResults="5")

def test_wrong(compute_emulator):
    send(compute_emulator, maxresults="5")

def test_forgiven(compute_emulator):
    send(compute_emulator, maxresults="5")
    compute_emulator.calls.clear()
"""


@pytest.mark.slow
def test_fixture_fails_test_with_invalid_request(tmp_path: Path) -> None:
    (tmp_path / "test_others.py").write_text(OTHERS)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "GET /compute/v1/projects/demo/zones: unknown parameter maxresults" in done.stdout, (
        done.stdout + done.stderr
    )
    assert "3 passed, 1 error" in done.stdout
