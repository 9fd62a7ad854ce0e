"""An emulator for each test, whose whole traffic is validated against the Compute v1 discovery document when the test ends."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from provision.cloud.gce import GceCloud
from provision.model import VmSpec
from provision.testing.compute import Call, ComputeEmulator, NullBackend, SimulatedClock
from tests.emulator.speaking import Google


def _discovery() -> dict[str, Any]:
    package = importlib.util.find_spec("googleapiclient")
    assert package is not None
    assert package.origin is not None
    path = Path(package.origin).parent / "discovery_cache" / "documents" / "compute.v1.json"
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def as_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A discovery schema as JSON Schema: closed objects, 64-bit integers as strings of digits, enums."""
    if "$ref" in schema:
        return {"$ref": f"#/definitions/{schema['$ref']}"}
    kind = schema.get("type")
    if kind == "object":
        extra = schema.get("additionalProperties")
        properties = {name: as_json_schema(value) for name, value in schema.get("properties", {}).items()}
        return {"type": "object", "properties": properties, "additionalProperties": as_json_schema(extra) if extra else False}
    if kind == "array":
        return {"type": "array", "items": as_json_schema(schema["items"])}
    if kind == "any" or kind is None:
        return {}
    simple: dict[str, Any] = {"type": kind}
    if schema.get("format") in {"int64", "uint64"}:
        simple["pattern"] = r"^\d+$" if schema["format"] == "uint64" else r"^-?\d+$"
    if schema.get("format") in {"int32", "uint32"}:
        simple.update(minimum=-(2**31) if schema["format"] == "int32" else 0, maximum=2**32 - 1)
    if "enum" in schema:
        simple["enum"] = schema["enum"]
    return simple


class Discovery:
    """Judges requests and replies by the discovery document."""

    def __init__(self) -> None:
        document = _discovery()
        self._definitions = {name: as_json_schema(schema) for name, schema in document["schemas"].items()}
        self._methods = {
            f"{resource}.{name}": method for resource, entry in document["resources"].items() for name, method in entry["methods"].items()
        }
        self._common = set(document["parameters"])
        self._validators: dict[str, Draft7Validator] = {}

    def faults(self, schema: str, value: object) -> list[str]:
        """What is wrong with a value of a named schema."""
        if schema not in self._validators:
            self._validators[schema] = Draft7Validator({"$ref": f"#/definitions/{schema}", "definitions": self._definitions})
        return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in self._validators[schema].iter_errors(value)]

    def judge(self, call: Call) -> list[str]:
        """What is wrong with a request and its reply."""
        if not call.api:
            return [f"{call} is no method of the API"]
        method = self._methods[call.api]
        known = {name for name, parameter in method["parameters"].items() if parameter["location"] == "query"}
        wrong = [f"{call}: unknown parameter {name}" for name in call.query if name not in known | self._common]
        if "request" in method:
            wrong += [f"{call} request {fault}" for fault in self.faults(method["request"]["$ref"], call.body)]
        elif call.body:
            wrong.append(f"{call}: a body that the method does not take")
        if call.reply is not None and call.status < 400:
            wrong += [f"{call} reply {fault}" for fault in self.faults(method["response"]["$ref"], call.reply)]
        return wrong


@pytest.fixture(scope="session")
def discovery() -> Discovery:
    return Discovery()


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def hosts() -> NullBackend:
    return NullBackend(port=2222)


@pytest.fixture
def free_emulator(hosts: NullBackend, clock: SimulatedClock) -> Iterator[ComputeEmulator]:
    """An emulator whose traffic is not judged, for requests that are wrong on purpose."""
    with ComputeEmulator(hosts, clock=clock) as running:
        yield running


@pytest.fixture
def emulator(free_emulator: ComputeEmulator, discovery: Discovery) -> Iterator[ComputeEmulator]:
    yield free_emulator
    assert [fault for call in free_emulator.calls for fault in discovery.judge(call)] == []


@pytest.fixture
def cloud(emulator: ComputeEmulator, clock: SimulatedClock) -> Iterator[GceCloud]:
    client = GceCloud("demo", emulator.endpoint, now=clock.now, sleep=clock.sleep)
    yield client
    client.close()


@pytest.fixture
def google(emulator: ComputeEmulator) -> Iterator[Google]:
    """Google's client library, speaking to the emulator."""
    clients = Google(emulator)
    yield clients
    clients.close()


@pytest.fixture
def make_spec() -> Callable[..., VmSpec]:
    def make(**changed: Any) -> VmSpec:
        plain: dict[str, Any] = {
            "name": "dev",
            "machine_type": "n1-standard-8",
            "gpu": "nvidia-tesla-t4",
            "gpu_count": 1,
            "disk_gb": 200,
            "image": "cos-125-lts",
            "image_project": "cos-cloud",
            "ttl_s": 8 * 3600,
            "labels": {"provision-owner": "me"},
            "metadata": {"enable-guest-attributes": "TRUE"},
        }
        return VmSpec(**{**plain, **changed})

    return make
