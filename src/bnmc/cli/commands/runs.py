"""``bnmc simulate`` and ``bnmc backprop``: many random networks, forward and backward."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnmc.cli.command import Report, command, finished
from bnmc.cli.options import integers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bnmc.chain.chain import Chain, Network
    from bnmc.simulation.trajectory import Trajectory


# The largest size of values in memory, in bytes. Larger runs keep means and variances only.
_MOST_BYTES = 1 << 28


@command("activation", "norm", "skip", "gain", "weights", "eps", plot=True)
def simulate(
    input_: Path | None = None,
    array: str | None = None,
    samples_first: bool = False,
    features_first: bool = False,
    batch: int | None = None,
    first_layer: bool = False,
    width: str = "1000",
    chains: int = 64,
    depth: int | None = None,
    every: int = 1,
    output: Path | None = None,
    store: Path | None = None,
    *,
    chain: Any,
    seed: int | None,
    sampler: str,
    dtype: str,
    threads: int | None,
    timeout: float | None,
    plot: Path | None,
    force: bool,
    progress: bool,
) -> Report:
    """Simulate many random networks on a batch of inputs.

    The table shows means over the networks, with standard errors: the Frobenius distance between
    the Gram matrix G of a layer and its limit G* at infinite width; the orthogonality gap, which is
    0 for orthogonal samples; the smallest and the largest eigenvalue of G.

    Ctrl-C ends the run after its finished layers, which are printed and written. The exit status
    is then 130.

    Example: bnmc simulate --activation tanh --depth 100 --plot tanh.png

    Example: bnmc simulate --input batch.npy --width 500 --chains 256 --seed 0 --output run.npz

    Example: bnmc simulate --width 64,128,128,10 --norm none

    Example: bnmc simulate --input batch.csv --samples-first --norm none --activation linear --json

    Parameters
    ----------
    input_ : FILE, -i
        Inputs in a .npy, .npz or .csv file of features × samples. Default: handwritten
        digits.
    array : NAME
        Name of the array in an .npz file.
    samples_first
        Read the file as samples × features.
    features_first
        Read the file as features × samples, also if it has more columns than rows.
    batch
        Number of samples, the first ones. Default: all samples of a file, or 10 digits.
    first_layer
        Multiply the input by a Gaussian matrix (width × features, variance 1/features) even
        if its number of features equals the width. Digits, and inputs with another number
        of features, are always multiplied by it.
    width : N,N,…
        Number of neurons per layer; or the number of features and the widths of layers 1, 2, …,
        separated by commas.
    chains
        Number of independent networks.
    depth
        Number of layers of one width. Default: 50.
    every
        Number of layers between recorded layers.
    output : FILE, -o
        File (.npz, .nc or .zarr) for all recorded layers, with their Gram matrices.
    store : FOLDER
        Folder (.zarr) for finished parts. After an interruption, the same command resumes.
    """
    from bnmc._support.text import plain
    from bnmc._support.workers import thread_count
    from bnmc.chain.chain import shown_of
    from bnmc.chain.start import FirstLayer
    from bnmc.errors import ArgumentError
    from bnmc.plot.runs import overview
    from bnmc.simulation.export import write_run
    from bnmc.simulation.run import simulate as run_chains

    if output is not None and store is not None and output.resolve() == store.resolve():
        raise ArgumentError("output", str(output), "a path other than that of the store")
    x, source = _read_batch(input_, array, samples_first, features_first, batch)
    features, samples = x.shape
    network = _network(width, depth, samples, chain)
    is_given = not (network.is_repeated or first_layer)
    is_wrapped = not is_given and (input_ is None or first_layer or features != network.first.width)
    star, depth = _reference(network, x), network.depth
    run, status, seconds = _timed(
        lambda: run_chains(
            network, chains=chains, initial=FirstLayer(x) if is_wrapped else x, rng=seed,
            sampler=sampler, dtype=dtype, every=every, threads=threads, store=store,
            timeout=timeout, progress=progress,
            **_recorded(star, samples, chains * (depth // max(every, 1) + 2), output, store),
        )
    )  # fmt: skip
    repeat = {
        "key": str(run.key), "sampler": run.sampler, "dtype": run.dtype,
        "threads": thread_count(threads), "cpu": run.cpu, **seconds,
    }  # fmt: skip
    if is_wrapped and input_ is not None and not first_layer:
        print(
            f"bnmc: {source} has {features} features and the width is {network.first.width}, so a "
            f"random first layer multiplies the input (--width {features} avoids this layer)",
            file=sys.stderr,
        )
    notes = _notes(run, depth, output)
    networks = "1 network" if chains == 1 else f"{chains} networks"
    through = "through a random first layer" if is_wrapped else "as layer 0"
    size = f"{samples} samples × {features} features"
    text = [
        f"{shown_of(run.network)}: {networks}, {depth} layers",
        f"input: {source}, {size} ({through})\n",
        run.table(), "", star.note, *notes,
    ]  # fmt: skip
    result = run.to_dict()
    document = {
        "settings": {"chains": chains, "every": every, "depth": depth, **_of_network(network)},
        "input": {
            "source": source, "features": features, "samples": samples, "first_layer": is_wrapped
        },
        "star": star.facts | {"note": star.note},
        "files": _texts(output=output, plot=plot, store=store),
        "notes": notes, **result, "rows": [{"distance": None} | row for row in result["rows"]],
    }  # fmt: skip
    attributes = {"seed": plain(seed), "input": source, "star_note": star.note}
    write = partial(write_run, run, attributes=attributes, star=star.gram, force=force)
    files = {} if output is None else {output: write}
    return Report(document, text, lambda: overview(run, star.gram), status, files, repeat)


def _read_batch(
    path: Path | None,
    array: str | None,
    samples_first: bool,
    features_first: bool,
    batch: int | None,
) -> tuple[NDArray[np.float64], str]:
    """Return the input, of shape (features, samples), and where it comes from."""
    from bnmc._support.arguments import integer
    from bnmc.cli.inputs import read_input
    from bnmc.errors import ArgumentError
    from bnmc.experiments.training.images import digits

    if path is None:
        if array is not None or samples_first or features_first:
            allowed = "a file, with --array, --samples-first or --features-first"
            raise ArgumentError("input", None, allowed)
        return digits(10 if batch is None else batch), "handwritten digits"
    if samples_first and features_first:
        raise ArgumentError("features_first", True, "one of --samples-first and --features-first")
    x = read_input(path, array=array, samples_first=samples_first)
    is_unclear = not (samples_first or features_first) and x.shape[1] > x.shape[0]
    if is_unclear and _rows_are_samples(path, *x.shape):
        x = read_input(path, array=array, samples_first=True)
    most, hint = x.shape[1], f"the number of samples of {path}"
    samples = most if batch is None else integer("batch", batch, low=1, high=most, hint=hint)
    return x[:, :samples], str(path)


def _rows_are_samples(path: Path, rows: int, columns: int) -> bool:
    """Ask what the rows of a file are, or raise if there is no terminal to answer."""
    from bnmc.errors import ArgumentError

    shape = f"{rows} rows and {columns} columns"
    while sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{path} has {shape}. Are its rows samples (s) or features (f)? ", end="",
              file=sys.stderr, flush=True)  # fmt: skip
        answer = sys.stdin.readline()
        if answer.strip().lower() in ("s", "samples", "f", "features"):
            return answer.strip().lower().startswith("s")
        if not answer:  # the end of the input
            break
    hint = "rows are samples with --samples-first, columns are samples with --features-first"
    raise ArgumentError("input", shape, "at least as many rows (features) as columns", hint)


def _timed(simulate: Callable[[], Trajectory]) -> tuple[Trajectory, int, dict[str, float]]:
    """Return a run, the exit status, and the seconds that it took, apart from compilation."""
    from bnmc._kernels.compile_time import compile_seconds

    begun, compiled = time.perf_counter(), compile_seconds()
    run, status = finished(simulate)
    compiling = compile_seconds() - compiled
    seconds = time.perf_counter() - begun - compiling
    return run, status, {"seconds": round(seconds, 3), "compile_seconds": round(compiling, 3)}


def _recorded(
    star: _Reference, samples: int, states: int, output: Path | None, store: Path | None
) -> dict[str, Any]:
    """Return the observables of table, picture and file, and whether only moments are kept."""
    from bnmc.simulation.observables import Distance

    observables: list[Any] = [] if star.gram is None else [Distance(star.gram)]
    observables += ["orthogonality_gap", "eigenvalues"]
    numbers = samples + 2
    if output is not None or store is not None:
        observables.append("gram")
        numbers += samples**2
    is_big = 8 * numbers * states > _MOST_BYTES and store is None  # a store has room for all
    return {"observables": observables, "reduce": "chain" if is_big else ()}


def _network(width: str, depth: int | None, batch: int, chain: partial[Chain]) -> Network:
    """Return the network of widths, separated by commas, or of one chain."""
    from bnmc.chain.chain import Network

    widths = integers("width", width)
    if len(widths) > 1:
        return Network.of(width=widths, depth=depth, batch=batch, **chain.keywords)
    return chain(width=widths[0], batch=batch).repeat(50 if depth is None else depth)


def _of_network(network: Network) -> dict[str, Any]:
    """Return the settings of a chain, or the widths and the chains of layers that differ."""
    if network.is_repeated:
        return _of_chain(network.chain)
    return {"width": network.widths, "network": repr(network)}


def _of_chain(chain: Chain) -> dict[str, Any]:
    names = ("width", "norm", "skip", "gain", "weights", "eps")
    return {"activation": chain.activation.name} | {name: getattr(chain, name) for name in names}


def _texts(**paths: Path | None) -> dict[str, str | None]:
    return {name: None if path is None else str(path) for name, path in paths.items()}


@dataclass(frozen=True)
class _Reference:
    """The Gram matrix G* with which a run is compared.

    Attributes
    ----------
    gram : (batch, batch) ndarray of float64 or None
        G*; None if it is not known.
    note : str
        A sentence that says where it comes from, or why it is not known.
    facts : dict
        Numbers about it, for JSON.
    """

    gram: NDArray[np.float64] | None
    note: str
    facts: dict[str, Any]


def _reference(network: Network, x: NDArray[np.float64]) -> _Reference:
    """Return G* of a network with the input x of shape (features, batch).

    Usually G* is the fixed point of the mean field. Linear layers without normalization and with
    skip² + gain² = 1 keep every Gram matrix at infinite width. For these, G* is the Gram matrix of
    the input; orthogonal samples then give the identity, as in Fig. 1a of *On bridging …*.
    """
    from bnmc.errors import BnmcError
    from bnmc.mean_field.field import MeanField

    if not network.is_repeated:
        return _Reference(None, "G*: none, because layers differ", {"kind": None})
    chain = network.chain
    keeps_scale = abs(math.hypot(chain.skip, chain.gain) - 1.0) <= 1e-12
    without = chain.normalization.is_identity and not chain.shows_bias
    if without and chain.activation.is_linear and keeps_scale:
        note = "G*: the Gram matrix of the input, which linear networks preserve at infinite width"
        return _Reference(x.T @ x / len(x), note, {"kind": "input"})
    try:
        fixed = MeanField(chain).fixed_point()
    except BnmcError as error:
        return _Reference(None, f"G*: unknown ({error})", {"kind": None})
    facts = {name: getattr(fixed, name) for name in ("b", "c", "rate", "stable")}
    warning = "" if fixed.stable else "; it is unstable, so networks may not converge to it"
    note = (
        f"G*: fixed point of the mean field, diagonal {fixed.b:.6g}, correlation {fixed.c:.6g}, "
        f"perturbations ×{fixed.rate:.4g} per layer{warning}"
    )
    return _Reference(fixed.gram, note, {"kind": "fixed point", **facts})


def _notes(run: Trajectory, depth: int, output: Path | None) -> list[str]:
    """Return sentences about what the run lacks."""
    import numpy as np

    notes = []
    if not run.complete:
        notes.append(f"incomplete: the run ended after layer {run.layers[-1]} of {depth}")
    small = run.mean("eigenvalues")[:, -1] < np.finfo(np.float64).tiny
    if small.any():
        notes.append(
            f"from layer {run.layers[small.argmax()]} on, the Gram matrix is too small for float64 "
            "and the table shows 0; bnmc.simulate returns it as scaled_gram and log_scale"
        )
    if run.moments and output is not None:
        notes.append(f"{output} contains means and variances, because all values exceed 256 MiB")
    return notes


@command("width", "batch", "activation", "norm", "skip", "gain", "weights", "eps", plot=True)
def backprop(
    chain: Any,
    depth: int = 50,
    chains: int = 64,
    loss: str = "gaussian",
    classes: int | None = None,
    *,
    seed: int | None,
    sampler: str,
    dtype: str,
    threads: int | None,
    store: Path | None,
    timeout: float | None,
    progress: bool,
) -> Report:
    """Measure how gradients explode or vanish with depth.

    The table shows, for the weights W of some layers, the mean over networks of the logarithm of
    the Frobenius norm of the gradient ∂L/∂W, and its standard error. Below are the growth of the
    squared norm per layer towards the input, and its value at infinite width.

    The samples are independent and Gaussian; bnmc.backpropagate takes any others.

    Ctrl-C ends a run with the networks that are finished, which are shown and drawn all the same;
    the exit status is then 130.

    Example: bnmc backprop --activation tanh --depth 100 --plot gradients.png

    Example: bnmc backprop --loss cross-entropy --classes 2 --width 500 --seed 0 --json

    Parameters
    ----------
    depth
        Number of layers.
    chains
        Number of independent networks.
    loss : NAME
        gaussian (a gradient with independent normal entries at the last layer),
        cross-entropy or squared (of a Gaussian readout).
    classes
        Outputs of the readout; sample i has the class i modulo this number. Default: 10
        with cross-entropy and squared.
    """
    from bnmc._support.arguments import integer
    from bnmc.gradients import backpropagate

    readout: dict[str, Any] = {"classes": classes}
    if loss in ("cross-entropy", "squared"):
        count = integer("classes", 10 if classes is None else classes, low=2)
        readout = {"classes": count, "labels": [sample % count for sample in range(chain.batch)]}
    result, status = finished(
        lambda: backpropagate(
            chain, depth, chains=chains, loss=loss, rng=seed, sampler=sampler, observables=(),
            dtype=dtype, threads=threads, store=store, timeout=timeout, progress=progress,
            **readout,
        )
    )  # fmt: skip
    # Without a seed, the random numbers are those of the store.
    repeat = {"key": f"{result.key} of the store"} if seed is None else {}
    return Report(result.to_dict(), [result], result.plot, status, repeat=repeat)
