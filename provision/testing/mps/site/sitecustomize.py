"""Makes `ctypes.CDLL("libcuda.so.1")` load the stand-in for libcuda in a container's programs.

It replaces `ctypes.CDLL` when a program imports ctypes. A real libcuda is loaded as usual.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Loader:
    """Loads ctypes and replaces its CDLL."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> None:
        """Create the module as usual."""

    def exec_module(self, module: Any) -> None:
        """Execute the module, then replace its class CDLL."""
        self._real.exec_module(module)
        original: Any = module.CDLL

        class CDLL(original):  # type: ignore[misc]
            """A library; libcuda is the stand-in where the linker would find it."""

            def __new__(cls, name: Any = None, *rest: Any, **options: Any) -> Any:
                del rest, options
                found = _cuda(name)
                return super().__new__(cls) if found is None else found

        module.CDLL = CDLL


def _cuda(name: Any) -> Any:
    if name not in ("libcuda.so.1", "libcuda.so"):
        return None
    packages = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120 - starts faster
    sys.path.append(packages)
    try:
        from mps_standin.libcuda import load  # type: ignore[import-not-found]
    finally:
        sys.path.remove(packages)
    return load(name)


class _Finder:
    """Finds ctypes once, then removes itself from `sys.meta_path`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec with this loader."""
        if name != "ctypes":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


sys.meta_path.insert(0, _Finder())
