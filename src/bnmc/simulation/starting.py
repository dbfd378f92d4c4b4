"""The arguments of `simulate` as a run and its start, or a typed error.

The run has a sampler, a backend and the key of its random numbers; the start is layer 0 or a state.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar import codes
from bnmc._support.arguments import choice, draw_key, integer, precision
from bnmc._support.device_arrays import is_device_array
from bnmc.chain.chain import Network, layers_of, pattern_of
from bnmc.chain.layers import linears_of
from bnmc.chain.start import Covariance, FirstLayer, Representation, prepare, shape_of
from bnmc.errors import ArgumentError, BackendError
from bnmc.simulation.engine.state import State
from bnmc.simulation.observables import as_observables
from bnmc.simulation.runs import NAMES, Recorded, Run, choose_sampler, is_drawn
from bnmc.simulation.state_check import require_sound
from bnmc.simulation.store.store import stored_key

#: Estimated seconds of a run on the CPU above which a GPU is worth compiling its kernels.
WORTH_A_GPU = 20.0


def run_of(
    network: Network,
    initial: Any,
    *,
    chains: int | None,
    inputs: int | None,
    rng: Any,
    sampler: str,
    dtype: Any,
    observables: Any = (),
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
        recorded = _recorded_of(initial.layer, network.depth, every, burn_in)
        run = _continued(initial, network)
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
        chosen = as_observables(observables, run.inputs is not None)
        return replace(run, observables=chosen, recorded=recorded, stays=stays)
    if inputs is not None:
        inputs = integer("inputs", inputs, low=1, high=codes.MOST_CHAINS)
    if chains is None:
        axes = 2 if inputs is None else 3
        shape = () if isinstance(initial, (str, FirstLayer)) else shape_of(initial)
        chains = shape[0] if len(shape) == axes + 1 else 1
    chains = integer("chains", chains, low=1, high=codes.MOST_CHAINS)
    chosen = as_observables(observables, inputs is not None)
    shows_state = any(each.uses_state for each in chosen)
    path = choose_sampler(network, inputs, sampler, dtype, shows_state=shows_state)
    recorded = _recorded_of(0, network.depth, every, burn_in)
    run = Run(
        network, path, chains, inputs, dtype, observables=chosen, recorded=recorded, stays=stays
    )
    for linear in linears_of(run.layers) if path != "factor" else []:
        most = codes.MOST_ELEMENTS if run.draws_weights else codes.MOST_ROWS
        if max(linear.width, linear.fan_in * run.draws_weights) > most:
            raise ArgumentError("width", linear.width, f"at most {most} for this chain")
    return run


def _continued(state: State, network: Network) -> Run:
    """Return the run that takes a state through the layers after layer 0 of a network.

    Raises
    ------
    ArgumentError
        If the state lacks what these layers need.
    """
    run, before = Run.of_state(state), state.network.until(state.layer)
    refusal = ArgumentError("initial", before.last, f"a state of {network.first}")
    if network.depth == 0:
        if network.first != before.last:
            raise refusal
        return run
    try:
        whole = before + network
    except ArgumentError as error:
        raise refusal from error
    if pattern_of(whole) == pattern_of(run.network):
        return replace(run, network=whole)
    others = not all(map(is_drawn, layers_of(pattern_of(whole)).layers[1:]))
    path = "mixed" if others and run.path == "conditional" else run.path
    after = replace(run, network=whole, path=path)
    lacking = _lacking(state, run, after)
    if lacking:
        hint = (
            "a run keeps only what its own layers need: simulate both networks as one, first + next"
        )
        raise ArgumentError("initial", before.last, f"a state with {lacking}", hint)
    return after


def _lacking(state: State, run: Run, after: Run) -> str:
    """Return what a state lacks that the next layer of another run needs, or ""."""
    number = state.layer
    if run.path == "factor":
        return "a Gram matrix, not a factor of it"
    following = after.layer(number + 1)
    takes_a = [path.takes_activations for path in following.begins]
    if (after.stage(number + 1).by_weights or any(takes_a)) and "activations" not in run.layout:
        return "activations, of a run by weights"
    if not following.skips_from_before and all(takes_a):
        return ""
    there, here = after.spec(number), run.spec(number)
    same = there.order == here.order and here.hides_common <= there.hides_common
    return "" if run.keeps_x and same else "what its skip connection adds"


def _moved(state: State, after: Run) -> State:
    """Return a state with the arrays of a run that continues it."""
    run, arrays = Run.of_state(state), dict(state.arrays)
    if after.layout == run.layout:
        return state
    width, chains = run.layer(state.layer).linear.width, state.chains
    exponents = arrays.get("exponent")
    if exponents is not None and not after.splits_scale:
        by = exponents.astype(np.int32)
        arrays["gram"] = np.ldexp(arrays["gram"], by[:, :, None] + by[:, None, :])
        if "x" in arrays:
            arrays["x"] = np.ldexp(arrays["x"], by[:, :, None])
        if "activations" in arrays:
            arrays["activations"] = arrays["activations"].copy()
            a = arrays["activations"][:, state.layer % 2, : run.columns]
            a[...] = np.ldexp(a, by[:, :, None])
    moved: dict[str, NDArray[Any]] = {}
    for name, (shape, dtype) in after.layout.items():
        moved[name] = np.zeros((chains, *shape), dtype)
        if (name in arrays and len(shape) < 2) or name == "gram":
            moved[name][...] = arrays[name]
        elif name in arrays:
            moved[name][..., :width] = arrays[name][..., :width]
    return replace(state, network=after.network, path=after.path, arrays=moved)


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
    rows = run.layer(run.start_layer).rows
    keeps_h = run.keeps_x and (rows.order != codes.NORM_FIRST or rows.norm.is_identity)
    if isinstance(initial, State):
        keeps_h = keeps_h and "x" in initial.arrays
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
    if isinstance(initial, State):
        initial = _moved(initial, run)
    else:
        for chain in run.network.chains:
            chain.activation.check()
        if is_device_array(initial):
            backend = _on_device(backend, run, threads, "an initial array of a device")
            from bnmc.simulation.engine.gpu.arrays import DeviceRows

            initial = DeviceRows.of(initial, run.network.first, run.chains, run.inputs)
        else:
            initial = prepare(run.network, initial, run.chains, run.inputs, keeps_h=run.shows_state)
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
    if run.network.blocks:
        return "networks with residual blocks are made on the CPU: backend='cpu'"
    if run.path == "mixed":
        return "weights and rows without weights in one network are drawn on the CPU: backend='cpu'"
    if run.path == "factor":
        return (
            "linear chains without normalization multiply Wishart factors, which costs the same at "
            "any width and leaves nothing for a GPU to do: backend='cpu'"
        )
    return None
