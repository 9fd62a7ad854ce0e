"""A Compute Engine API emulator for tests and for the embedded mock, with scripted faults."""

from provision.testing.compute.application import Call
from provision.testing.compute.backend import HostBackend, NullBackend
from provision.testing.compute.catalogue import Catalogue
from provision.testing.compute.clock import Clock, SimulatedClock, SystemClock
from provision.testing.compute.faults import (
    Fault,
    FaultBook,
    FaultKind,
    html_502,
    http_error,
    quota,
    silent,
    stock_out,
)
from provision.testing.compute.quotas import Quotas
from provision.testing.compute.routes import METHODS
from provision.testing.compute.server import ComputeEmulator

__all__ = [
    "METHODS",
    "Call",
    "Catalogue",
    "Clock",
    "ComputeEmulator",
    "Fault",
    "FaultBook",
    "FaultKind",
    "HostBackend",
    "NullBackend",
    "Quotas",
    "SimulatedClock",
    "SystemClock",
    "html_502",
    "http_error",
    "quota",
    "silent",
    "stock_out",
]
