"""Causes and remedies for the texts with which enabling or disabling MPS fails. Pure."""

from __future__ import annotations

import re

from provision.core.resource import Diagnosis

_DOCKER = (
    (
        r"No such container|is not running",
        Diagnosis("the worker container is not running", "invoke dev.up"),
    ),
    (r"No such image", Diagnosis("the worker image is not on the host", "invoke dev.up")),
)
"""What Docker prints."""
_PROGRAMS = (
    (
        r"(?s)\A(?=.*not found).*nvidia-cuda-mps-control",
        Diagnosis(
            "the container has no MPS binaries on its PATH",
            "invoke dev.up   (mounts the driver folder)",
        ),
    ),
    (
        r"nvidia-cuda-mps-[a-z]+['\"]?: [Pp]ermission denied",
        Diagnosis(
            "the MPS binaries are not executable: the driver folder is mounted noexec",
            "invoke vm.provision, then invoke dev.up",
        ),
    ),
)
"""What a shell prints of programs that it cannot run."""
_STEPS = (
    (
        "another mps.enable or mps.disable is under way",
        Diagnosis(
            "another run starts or ends MPS on this host right now",
            "wait until it ends, then run the same command again",
        ),
    ),
    (
        "processes are still attached",
        Diagnosis(
            "programs are still attached to MPS", "let them end, or invoke mps.disable --force"
        ),
    ),
    (
        "the control daemon speaks MPS v3",
        Diagnosis(
            "a daemon of MPS v3 runs, which this toolkit did not start",
            "end it with nvidia-cuda-mps-control -q in the container",
        ),
    ),
    (
        "there is no such GPU",
        Diagnosis("the GPU of mps.gpu does not exist", "invoke dev.exec -- nvidia-smi -L"),
    ),
    (
        "there are no such CPUs",
        Diagnosis(
            "the CPUs of mps.cpus do not exist",
            "invoke dev.exec -- grep Cpus_allowed_list /proc/self/status",
        ),
    ),
    (
        "the image has no taskset",
        Diagnosis(
            "mps.cpus needs taskset, which the image lacks",
            "add util-linux to worker.apt, or remove mps.cpus",
        ),
    ),
    (
        "the MPS server is not ACTIVE",
        Diagnosis(
            "the MPS server did not become ACTIVE",
            "invoke dev.exec -- sh -c 'cat $CUDA_MPS_LOG_DIRECTORY/control.log'",
        ),
    ),
    (
        r"cuCtxCreate_v2 gives 2\b",
        Diagnosis(
            "no CUDA context fits into mps.memory_limit, or into what the GPU has left",
            "raise mps.memory_limit; where there is none, invoke dev.exec -- nvidia-smi",
        ),
    ),
    (
        r": (failed|outside): .*\n|probe client is not attached",
        Diagnosis("a CUDA program of the container does not attach to MPS", "invoke mps.doctor"),
    ),
    (
        (
            r"(mkdir|chmod|mv|rm|ln): .*(ermission denied|Read-only file system)"
            r"|of the container may not write to"
        ),
        Diagnosis(
            "the container's user may not write where MPS keeps its files",
            "set mps.pipe_dir and mps.log_dir to other folders",
        ),
    ),
    (
        r"mkdir: .*(File exists|Not a directory)",
        Diagnosis(
            "a file is where a folder of MPS should be",
            "set mps.pipe_dir and mps.log_dir to other folders",
        ),
    ),
)
"""What the scripts beside this module print when they give up."""


def diagnose_failure(output: str) -> Diagnosis | None:
    """The cause of a failed step and its remedy; None for a text that is not known."""
    known = (*_DOCKER, *_PROGRAMS, *_STEPS)
    return next((cause for pattern, cause in known if re.search(pattern, output)), None)
