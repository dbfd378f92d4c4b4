"""Where the chains of a run start: the backend, layer 0 and the key of the random numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bnmc._support.arguments import draw_key
from bnmc._support.device_arrays import is_device_array
from bnmc.chain.start import Covariance, Representation, prepare
from bnmc.errors import ArgumentError, BackendError
from bnmc.simulation.engine.state import State
from bnmc.simulation.runs import Run, require_states
from bnmc.simulation.store.store import stored_key

#: Estimated seconds of a run on the CPU above which a GPU is worth compiling its kernels.
WORTH_A_GPU = 20.0

#: Why no GPU takes linear chains without normalization.
_OF_FACTORS = (
    "linear chains without normalization multiply Wishart factors, which costs the same at any "
    "width and leaves nothing for a GPU to do: backend='cpu'"
)

#: Why no GPU takes chains whose weights a function samples.
_OF_PYTHON = "a function that samples weights is Python, which runs on the CPU alone: backend='cpu'"

#: Why no GPU records "state_gram".
_OF_STATES = "kernels of the CPU alone record 'state_gram': backend='cpu'"

#: Why no GPU draws orthogonal matrices.
_OF_HAAR = (
    "orthogonal matrices are drawn on the CPU alone: backend='cpu', or sampler='conditional' for a "
    "norm over the batch before the activation, or none, without bias"
)


def started(
    run: Run,
    initial: Any,
    rng: Any,
    backend: str,
    threads: int,
    store: Path | None,
    reduced: frozenset[str],
) -> tuple[Run, Any]:
    """Return a run with its key and backend, and its start.

    Parameters
    ----------
    run : Run
    initial, rng : object
        As `simulate` takes them.
    backend : {"auto", "cpu", "cuda"}
        What the user asks for.
    threads : int
    store : Path or None
        If there is a run in it and no `rng`, its key is taken.
    reduced : frozenset of {"chain", "layer"}

    Returns
    -------
    run : Run
    start : Covariance, Representation, State or DeviceRows
        Layer 0, on the GPU if `initial` is there, or the state to continue.
    """
    if run.stays:
        if [each.name for each in run.observables] != ["gram"] or reduced or run.inputs:
            allowed = "arrays of the host unless 'gram' alone is recorded, of one input, unreduced"
            raise ArgumentError("out", "an array of a device", allowed)
        backend = _on_device(backend, run, threads, "out", "an out array of a device")
    require_states(run, initial)
    key = run.key
    if not isinstance(initial, State):
        run.chain.activation.check()
        if is_device_array(initial):
            what = "an initial array of a device"
            backend = _on_device(backend, run, threads, "initial", what)
            from bnmc.simulation.engine.gpu.arrays import DeviceRows

            initial = DeviceRows.of(initial, run.chain, run.chains, run.inputs)
        else:
            initial = prepare(run.chain, initial, run.chains, run.inputs, keeps_h=run.shows_state)
        stored = stored_key(store) if store is not None and rng is None else None
        key = draw_key(rng) if stored is None else stored
    return run.changed(key=key, backend=choose_backend(backend, run, threads)), initial


def is_on_host(start: object) -> bool:
    """Whether a start is in host memory."""
    return isinstance(start, (State, Covariance, Representation))


def _on_device(backend: str, run: Run, threads: int, name: str, what: str) -> str:
    """Return "cuda", which an array of a device needs, or raise."""
    if backend == "cpu":
        raise ArgumentError("backend", "cpu", f"'cuda' for {what}")
    return choose_backend("cuda", run, threads)


def choose_backend(wanted: str, run: Run, threads: int) -> str:
    """Return "cpu" or "cuda": the wanted backend, or the one that is there and pays.

    Raises
    ------
    BackendError
        If "cuda" is wanted and cannot run here, or not these chains.
    """
    refusal = _refusal(run)
    if wanted == "auto":
        seconds = run.chains * run.depth * run.seconds
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
    return "cuda" if reason is None and _fits(run) else "cpu"


def _fits(run: Run) -> bool:
    """Return whether a GPU has room for the Gram matrices of these chains."""
    from bnmc.simulation.engine.gpu.samplers import fits

    return fits(run)


def _refusal(run: Run) -> str | None:
    """Return why no GPU takes these chains, or None."""
    if run.shows_state:
        return _OF_STATES
    if callable(run.chain.weights):
        return _OF_PYTHON
    if run.chain.is_orthogonal and run.path == "weights":
        return _OF_HAAR
    return _OF_FACTORS if run.path == "factor" else None
