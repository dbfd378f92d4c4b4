"""The arguments of `simulate` as a run and its start, or a typed error.

The run has a sampler, a backend and the key of its random numbers; the start is layer 0 or a state.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bnmc._kernels.scalar import codes
from bnmc._support.arguments import choice, draw_key, integer, precision
from bnmc._support.device_arrays import is_device_array
from bnmc.chain.chain import Chain
from bnmc.chain.start import Covariance, FirstLayer, Representation, prepare, shape_of
from bnmc.errors import ArgumentError, BackendError
from bnmc.simulation.engine.state import State
from bnmc.simulation.observables import as_observables
from bnmc.simulation.runs import NAMES, Recorded, Run, choose_sampler
from bnmc.simulation.state_check import require_sound
from bnmc.simulation.store.store import stored_key

#: Estimated seconds of a run on the CPU above which a GPU is worth compiling its kernels.
WORTH_A_GPU = 20.0


def run_of(
    chain: Chain,
    initial: Any,
    *,
    chains: int | None,
    inputs: int | None,
    rng: Any,
    sampler: str,
    dtype: Any,
    observables: Any = (),
    depth: int = 0,
    every: Any = 1,
    burn_in: Any = 0,
    stays: bool = False,
) -> Run:
    """Return the run that the arguments of `simulate` mean, or raise.

    The run has a key only if it continues a state.
    """
    choice("sampler", sampler, ("auto", "conditional", "weights"))
    dtype = precision(dtype)
    if isinstance(initial, State):
        require_sound(initial)
        run = Run.of_state(initial)
        if run.chain != chain:
            raise ArgumentError("initial", run.chain, f"a state of {chain}")
        for name, given, of_state in (
            ("chains", chains, run.chains),
            ("inputs", inputs, run.inputs),
            ("dtype", dtype if dtype != "float64" else None, run.dtype),
        ):
            if given is not None and given != of_state:
                raise ArgumentError(name, given, f"{of_state}, that of the state")
        if rng is not None:
            raise ArgumentError("rng", rng, "None: a state continues its own random numbers")
        if sampler not in ("auto", NAMES[run.path]):
            raise ArgumentError("sampler", sampler, NAMES[run.path])
        recorded = _recorded_of(run.start_layer, depth, every, burn_in)
        chosen = as_observables(observables, run.inputs is not None)
        return replace(run, chain=chain, observables=chosen, recorded=recorded, stays=stays)
    if inputs is not None:
        inputs = integer("inputs", inputs, low=1, high=codes.MOST_CHAINS)
    if chains is None:
        axes = 2 if inputs is None else 3
        shape = () if isinstance(initial, (str, FirstLayer)) else shape_of(initial)
        chains = shape[0] if len(shape) == axes + 1 else 1
    chains = integer("chains", chains, low=1, high=codes.MOST_CHAINS)
    chosen = as_observables(observables, inputs is not None)
    shows_state = any(each.uses_state for each in chosen)
    path = choose_sampler(chain, inputs, sampler, dtype, shows_state=shows_state)
    most = {"factor": chain.width, "weights": codes.MOST_ELEMENTS}.get(path, codes.MOST_ROWS)
    length = chain.fan_in if path == "weights" else chain.width
    if length > most:
        raise ArgumentError("width", chain.width, f"at most {most} for this chain")
    recorded = _recorded_of(0, depth, every, burn_in)
    return Run(
        chain, path, chains, inputs, dtype, observables=chosen, recorded=recorded, stays=stays
    )


def _recorded_of(start: int, depth: int, every: Any, burn_in: Any) -> Recorded:
    """Return the layers that the arguments of `simulate` ask to record, or raise."""
    step = min(integer("every", every, low=1), codes.MOST_LAYERS)
    first = start + integer("burn_in", burn_in, low=0, high=depth)
    if start + depth >= codes.MOST_LAYERS:
        most = codes.MOST_LAYERS - 1 - start
        allowed = f"an integer <= {most}: layers have numbers below 2**32, and the state has one"
        raise ArgumentError("depth", depth, f"{allowed} of {start}")
    return Recorded(first, step, start + depth)


def _require_states(run: Run, initial: object) -> None:
    """Raise if the Gram matrix of h is due in the first layer, and a state has no h."""
    rows = run.layers[-1].rows
    keeps_h = run.keeps_x and (rows.order != codes.NORM_FIRST or rows.norm.is_identity)
    is_due = run.shows_state and run.recorded.first == run.start_layer
    if isinstance(initial, State) and is_due and not keeps_h and run.path != "factor":
        hint = "the state keeps no rows h of its own layer, whose Gram matrix was recorded before"
        raise ArgumentError("burn_in", 0, 'at least 1 with "state_gram" and a state', hint)


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
        backend = _on_device(backend, run, threads, "an out array of a device")
    _require_states(run, initial)
    key = run.key
    if not isinstance(initial, State):
        run.chain.activation.check()
        if is_device_array(initial):
            backend = _on_device(backend, run, threads, "an initial array of a device")
            from bnmc.simulation.engine.gpu.arrays import DeviceRows

            initial = DeviceRows.of(initial, run.chain, run.chains, run.inputs)
        else:
            initial = prepare(run.chain, initial, run.chains, run.inputs, keeps_h=run.shows_state)
        stored = stored_key(store) if store is not None and rng is None else None
        key = draw_key(rng) if stored is None else stored
    backend, run = choose_backend(backend, run, threads), run.changed(key=key)
    if backend != run.backend:
        run = replace(run, backend=backend)
    run.check_observables()
    return run, initial


def is_on_host(start: object) -> bool:
    """Whether a start is in host memory."""
    return isinstance(start, (State, Covariance, Representation))


def _on_device(backend: str, run: Run, threads: int, what: str) -> str:
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
    if reason is not None:
        return "cpu"
    from bnmc.simulation.engine.gpu.samplers import fits

    return "cuda" if fits(run) else "cpu"


def _refusal(run: Run) -> str | None:
    """Return why no GPU takes these chains, or None."""
    laws = [layer.linear.law for layer in run.layers[1:]]
    is_orthogonal = any(law.is_orthogonal for law in laws)
    if any(law.code == codes.GIVEN and not law.is_orthogonal for law in laws):
        return (
            "a function that samples weights is Python, which runs on the CPU alone: backend='cpu'"
        )
    if is_orthogonal and run.path == "weights":
        return (
            "orthogonal matrices are drawn on the CPU alone: backend='cpu', or "
            "sampler='conditional' for a norm over the batch before the activation, or none, "
            "without bias"
        )
    if run.path == "factor":
        return (
            "linear chains without normalization multiply Wishart factors, which costs the same at "
            "any width and leaves nothing for a GPU to do: backend='cpu'"
        )
    return None
