"""By what means a run is made: backend, threads, executor, store, timeout, progress."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnmc._support.arguments import choice, integer, real
from bnmc._support.machine import available_processors
from bnmc._support.progress import Progress, as_progress
from bnmc._support.workers import as_executor
from bnmc.errors import BackendError
from bnmc.simulation.ensemble import Ensemble
from bnmc.simulation.store.store import as_store_path

__all__ = ["Execution", "choose_backend", "execution_of"]

#: Estimated seconds of a run on the CPU above which a GPU is worth compiling its kernels.
WORTH_A_GPU = 20.0

#: Why no GPU takes linear chains without normalization.
OF_FACTORS = (
    "linear chains without normalization multiply Wishart factors, which costs the same at any "
    "width and leaves nothing for a GPU to do: backend='cpu'"
)

#: Why no GPU takes chains whose weights a function samples.
OF_PYTHON = "a function that samples weights is Python, which runs on the CPU alone: backend='cpu'"

#: Why no GPU draws orthogonal matrices.
OF_HAAR = (
    "orthogonal matrices are drawn on the CPU alone: backend='cpu', or sampler='conditional' for a "
    "norm over the batch before the activation, or none, without bias"
)


@dataclass(frozen=True)
class Execution:
    """By what means a run is made.

    Attributes
    ----------
    backend : {"auto", "cpu", "cuda"}
        What the user asks for.
    threads : int
    executor : Executor or None
    store : Path or None
    timeout : float or None
        Seconds.
    progress : bool or callable
    """

    backend: str
    threads: int
    executor: Executor | None
    store: Path | None
    timeout: float | None
    progress: bool | Progress


def execution_of(
    *,
    backend: str,
    threads: int | None,
    executor: Any,
    store: Any,
    timeout: float | None,
    progress: bool | Progress,
) -> Execution:
    """Return the means that the arguments of `simulate` name, or raise."""
    return Execution(
        choice("backend", backend, ("auto", "cpu", "cuda")),
        available_processors() if threads is None else integer("threads", threads, low=1),
        as_executor(executor),
        None if store is None else as_store_path(store),
        None if timeout is None else real("timeout", timeout, above=0.0),
        as_progress(progress),
    )


def choose_backend(wanted: str, ensemble: Ensemble, depth: int, threads: int) -> str:
    """Return "cpu" or "cuda": the wanted backend, or the one that is there and pays.

    Raises
    ------
    BackendError
        If "cuda" is wanted and cannot run here, or not these chains.
    """
    refusal = _refusal(ensemble)
    if wanted == "auto":
        seconds = ensemble.chains * depth * ensemble.seconds
        if refusal is not None or seconds / threads < WORTH_A_GPU:
            return "cpu"
    if wanted == "cpu":
        return "cpu"
    from bnmc._kernels.gpu.device import SIMULATED, why_not

    if wanted == "auto" and SIMULATED:
        return "cpu"
    reason = why_not() or refusal
    if wanted == "cuda":
        if reason is not None:
            raise BackendError("cuda", reason)
        return "cuda"
    return "cuda" if reason is None and _fits(ensemble) else "cpu"


def _fits(ensemble: Ensemble) -> bool:
    """Return whether a GPU has room for the Gram matrices of these chains."""
    from bnmc.simulation.engine.gpu.samplers import fits

    return fits(ensemble.chain, ensemble.columns, ensemble.path, ensemble.dtype)


def _refusal(ensemble: Ensemble) -> str | None:
    """Return why no GPU takes these chains, or None."""
    if callable(ensemble.chain.weights):
        return OF_PYTHON
    if ensemble.chain.is_orthogonal and ensemble.path == "weights":
        return OF_HAAR
    return OF_FACTORS if ensemble.path == "factor" else None
