"""Loads Google's client library, as little of it as needed, and converts its messages to JSON.

Importing `google.cloud.compute_v1` imports the clients of all hundred services: 4.5 s of processor
time, where those in use take 1.7 s (measured with google-cloud-compute 1.56.0 on two cores). That
is why the package's `__init__` is bypassed, here and nowhere else.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

_PACKAGE = "google.cloud.compute_v1"


def compute() -> Any:
    """Return `google.cloud.compute_v1`; each service is imported when it is first used."""
    if _PACKAGE not in sys.modules:
        _put_lazy_package_into_place()
    return sys.modules[_PACKAGE]


def preload() -> None:
    """Import what every request needs: a second of processor time, to spend while waiting."""
    _ = compute().InstancesClient


def os_login_client() -> Any:
    """Return the class `OsLoginServiceClient`."""
    from google.cloud.oslogin_v1 import OsLoginServiceClient

    return OsLoginServiceClient


def _put_lazy_package_into_place() -> None:
    """Put the package into `sys.modules` without running its `__init__`.

    A name that is neither a client nor a type of the API runs the `__init__` after all, so a later
    `import google.cloud.compute_v1` elsewhere finds the whole package.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {_PACKAGE!r}", name=_PACKAGE)
    module, loader = importlib.util.module_from_spec(spec), spec.loader

    def load_attribute(name: str) -> Any:
        with suppress(ImportError, AttributeError):
            return _load_one(name)
        module.__dict__.pop("__getattr__", None)
        loader.exec_module(module)
        return getattr(module, name)

    module.__dict__["__getattr__"] = load_attribute
    sys.modules[_PACKAGE] = module
    parent, _, name = _PACKAGE.rpartition(".")
    setattr(sys.modules[parent], name, module)


def _load_one(name: str) -> Any:
    """Import the client of one service, a type, or a module of the package."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name.islower():
        return importlib.import_module(f"{_PACKAGE}.{name}")
    if name.endswith("Client"):
        service = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removesuffix("Client")).lower()
        return getattr(importlib.import_module(f"{_PACKAGE}.services.{service}"), name)
    return getattr(importlib.import_module(f"{_PACKAGE}.types"), name)


def json_format() -> Any:
    """Return the module `google.protobuf.json_format`."""
    from google.protobuf import json_format  # type: ignore[import-untyped]

    return json_format


def message(name: str, resource: Mapping[str, Any]) -> Any:
    """Return the library's message of type `name` ("Instance") for the API's JSON."""
    return getattr(compute(), name).from_json(json.dumps(resource))


def as_json(message: Any) -> dict[str, Any]:
    """Return a message as the API's JSON: camelCase, 64-bit integers as strings, no defaults."""
    resource: dict[str, Any] = json_format().MessageToDict(type(message).pb(message))
    return resource


def checked_json(message: Any, *required: str) -> dict[str, Any]:
    """Return a reply as JSON. Raises `ParseError` when a required field is missing.

    The library takes any JSON object for a reply, one without fields included.
    """
    resource = as_json(message)
    for key in required:
        if key not in resource:
            raise missing_field(key)
    return resource


def missing_field(key: str) -> Exception:
    """Return the exception that the library raises for a reply that is not JSON."""
    return json_format().ParseError(f"it has no {key}")  # type: ignore[no-any-return]
