"""Checks traffic against Compute Engine's discovery document, which google-api-python-client has.

Needs the extra `provision-gpu[testing]`. The document's schemas become JSON Schema (draft 7):
closed objects, 64-bit integers as strings of digits, enums unchanged. So a test finds an unknown
field, a misspelt enum, or a number where the API takes a string.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.testing.compute.errors import Json

if TYPE_CHECKING:
    from jsonschema import Draft7Validator

    from provision.testing.compute.application import Call

_VARYING = re.compile(
    rb"http://127\.0\.0\.1:\d+"
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.]*(?:Z|[+-]\d\d:\d\d)"
    rb"|[\da-f]{8}-(?:[\da-f]{4}-){3}[\da-f]{12}"
    rb'|(?<=")\d{10,}(?=")'
)
"""Endpoints, times, UUIDs and 64-bit ids: no schema tells one value of them from another."""
USERINFO = "userinfo"
"""A method of OpenID Connect, which no discovery document describes."""
_INT_RANGES = {"int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1)}


def _documents() -> Path | None:
    package = importlib.util.find_spec("googleapiclient")
    if package is None or package.origin is None or importlib.util.find_spec("jsonschema") is None:
        return None
    return Path(package.origin).parent / "discovery_cache" / "documents"


def available() -> bool:
    """True where the extra `testing` is installed."""
    return _documents() is not None


@cache
def discovery() -> Discovery:
    """The checker, read once. Raises `ModuleNotFoundError` without the extra `testing`."""
    folder = _documents()
    if folder is None:
        raise ModuleNotFoundError(
            "google-api-python-client and jsonschema are needed: "
            "pip install 'provision-gpu[testing]'"
        )
    compute, login = (
        json.loads((folder / f"{name}.v1.json").read_text(encoding="utf-8"))
        for name in ("compute", "oslogin")
    )
    return Discovery(compute, oslogin=login)


def as_json_schema(schema: Mapping[str, Any]) -> Json:
    """A schema of a discovery document as JSON Schema."""
    if "$ref" in schema:
        return {"$ref": f"#/definitions/{schema['$ref']}"}
    kind = schema.get("type")
    if kind == "object":
        extra = schema.get("additionalProperties")
        properties = {
            name: as_json_schema(value) for name, value in schema.get("properties", {}).items()
        }
        return {
            "type": "object",
            "properties": properties,
            "additionalProperties": as_json_schema(extra) if extra else False,
        }
    if kind == "array":
        return {"type": "array", "items": as_json_schema(schema["items"])}
    if kind == "any" or kind is None:
        return {}
    simple: Json = {"type": kind}
    if schema.get("format") in {"int64", "uint64"}:
        simple["pattern"] = r"^\d+$" if schema["format"] == "uint64" else r"^-?\d+$"
    if schema.get("format") in _INT_RANGES:
        simple["minimum"], simple["maximum"] = _INT_RANGES[schema["format"]]
    if "enum" in schema:
        simple["enum"] = schema["enum"]
    return simple


def _methods(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Every method below a resource, by its id."""
    found = {f"{name}.{verb}": method for verb, method in entry.get("methods", {}).items()}
    for resource, nested in entry.get("resources", {}).items():
        found |= _methods(f"{name}.{resource}", nested)
    return found


class Discovery:
    """The methods and schemas of a discovery document.

    `others` are further documents; their methods have the prefix of their API, as in
    `oslogin.users.getLoginProfile`. A schema's validator is built when it is first used.
    """

    def __init__(self, document: Mapping[str, Any], **others: Mapping[str, Any]) -> None:
        self.revision = str(document["revision"])
        self._definitions = {
            name: as_json_schema(schema) for name, schema in document["schemas"].items()
        }
        self._required: dict[str, dict[str, list[str]]] = {}
        for name, schema in document["schemas"].items():
            for field, value in schema.get("properties", {}).items():
                for method in value.get("annotations", {}).get("required", ()):
                    self._required.setdefault(method.removeprefix("compute."), {}).setdefault(
                        name, []
                    ).append(field)
        self._methods = {
            f"{resource}.{name}": method
            for resource, entry in document["resources"].items()
            for name, method in entry["methods"].items()
        }
        for api, other in others.items():
            self._definitions |= {
                name: as_json_schema(schema)
                for name, schema in other["schemas"].items()
                if name not in self._definitions
            }
            self._methods |= _methods(api, other)
        self._common = {
            *document["parameters"],
            "$alt",
        }  # a system parameter may be written with a dollar sign
        self._validators: dict[str, Draft7Validator] = {}
        self._fine: set[bytes] = set()

    def faults(self, schema: str, value: object) -> list[str]:
        """The errors of a value of a named schema, such as `Instance`."""
        text = _VARYING.sub(b"0", json.dumps([schema, value], sort_keys=True).encode())
        seen = sha256(text).digest()
        if seen in self._fine:
            return []
        errors = list(self._validator(schema).iter_errors(value))
        if not errors:
            self._fine.add(seen)
        return [
            f"{'/'.join(map(str, error.absolute_path)) or schema}: {error.message}"
            for error in errors
        ]

    def _validator(self, schema: str) -> Draft7Validator:
        from jsonschema import Draft7Validator

        if schema not in self._validators:
            self._validators[schema] = Draft7Validator(
                {"$ref": f"#/definitions/{schema}", "definitions": self._definitions}
            )
        return self._validators[schema]

    def judge(self, call: Call) -> list[str]:
        """The errors of a request and its reply."""
        return [*self.judge_request(call), *self.judge_reply(call)]

    def judge_all(self, calls: Iterable[Call]) -> list[str]:
        """The errors of all requests and replies."""
        return [fault for call in calls for fault in self.judge(call)]

    def judge_request(self, call: Call) -> list[str]:
        """The errors of the path, the parameters and the body that a client sent."""
        if call.api == USERINFO:
            return []
        if call.api not in self._methods:
            return [f"{call} is not a method of the API"]
        method = self._methods[call.api]
        wrong = [
            f"{call}: {fault}"
            for fault in (*self._path_faults(call, method), *self._query_faults(call, method))
        ]
        if "request" not in method:
            return [*wrong, f"{call}: a body that the method does not take"] if call.body else wrong
        schema, body = method["request"]["$ref"], call.body or {}
        missing = [
            field for field in self._required.get(call.api, {}).get(schema, ()) if field not in body
        ]
        wrong += [f"{call} request lacks {field}" for field in missing]
        return wrong + [f"{call} request {fault}" for fault in self.faults(schema, body)]

    def judge_reply(self, call: Call) -> list[str]:
        """The errors of a reply: of the method's schema, or of the error envelope."""
        if call.reply is None or call.future or call.api == USERINFO:
            return []
        if call.status < 400 and call.api not in self._methods:
            return [f"{call} was answered and is not a method of the API"]
        if call.status >= 400:
            error = call.reply.get("error", {})
            if error.get("code") == call.status and error.get("message") and error.get("errors"):
                return []
            return [f"{call} reply is not an error envelope of status {call.status}"]
        return [
            f"{call} reply {fault}"
            for fault in self.faults(self._methods[call.api]["response"]["$ref"], call.reply)
        ]

    @staticmethod
    def _path_faults(call: Call, method: Mapping[str, Any]) -> list[str]:
        names = re.findall(r"{(\w+)}", method["flatPath"])
        pattern = re.sub(r"{\w+}", "([^/]+)", method["flatPath"])
        match = re.search(f"/{pattern}$", call.path)
        if match is None or call.verb != method["httpMethod"]:
            return [f"not {method['httpMethod']} {method['flatPath']}"]
        bad = [
            name
            for name, word in zip(names, match.groups(), strict=True)
            if not re.fullmatch(method["parameters"].get(name, {}).get("pattern", ".*"), word)
        ]
        return [f"{name} does not match {method['parameters'][name]['pattern']}" for name in bad]

    def _query_faults(self, call: Call, method: Mapping[str, Any]) -> list[str]:
        known = {
            name: parameter
            for name, parameter in method["parameters"].items()
            if parameter["location"] == "query"
        }
        wrong = [
            f"unknown parameter {name}"
            for name in call.query
            if name not in {*known, *self._common}
        ]
        for name, parameter in known.items():
            if parameter.get("required") and name not in call.query:
                wrong.append(f"parameter {name} is missing")
            if name in call.query and parameter["type"] in {"integer", "boolean"}:
                allowed = r"\d+" if parameter["type"] == "integer" else "true|false"
                wrong += (
                    []
                    if re.fullmatch(allowed, call.query[name])
                    else [f"parameter {name} is not of type {parameter['type']}"]
                )
        return wrong
