"""What worker image and worker container agree on: the threads and variables of a process. Pure."""

from __future__ import annotations

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""The variables from which OpenMP, MKL and OpenBLAS read their number of threads."""


def threads_per_worker(cores: int, workers: int) -> int:
    """OpenMP, MKL and OpenBLAS threads of each of `workers` processes on `cores` cores.

    It is max(1, cores / workers). Several processes with a thread per core each were measured up to
    64 times slower (docs/facts.md).
    """
    return max(1, cores // max(1, workers))


def worker_environment(threads: int) -> dict[str, str]:
    """The variables of every process of a worker that runs `threads` threads.

    TensorFlow would otherwise reserve the whole GPU for its first process.
    """
    return {
        **dict.fromkeys(THREAD_VARIABLES, str(threads)),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
