"""TODO-DOC bnmc.cli.simulate.simulate."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bnmc.cli import inputs
from bnmc.cli.report import (
    INTERRUPTED,
    OK,
    chosen_seed,
    kept_for_later,
    print_json,
    print_table,
    progress_report,
    raise_first,
    require_destination,
    save,
)
from bnmc.experiments import digits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bnmc.chain.chain import Chain
    from bnmc.chain.start import FirstLayer
    from bnmc.simulation.trajectory import Trajectory

__all__ = ["simulate"]

with contextlib.suppress(ModuleNotFoundError):  # `main` names the extra that brings it
    import typer

    from bnmc.cli import options

#: What arrays of values may take; of more only means and variances are kept.
MOST_BYTES = 1 << 28

#: How many layers a table shows.
SHOWN_LAYERS = 12


def simulate(
    input_: Annotated[
        Path | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Inputs in a .npy, .npz or .csv file, features × samples; handwritten digits "
            "unless given.",
        ),
    ] = None,
    array: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which array of an .npz file.")
    ] = None,
    samples_first: Annotated[
        bool, typer.Option("--samples-first", help="The file is samples × features.")
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(help="Use the first samples only. Default: all of a file, 10 digits."),
    ] = None,
    first_layer: Annotated[
        bool,
        typer.Option(
            "--first-layer",
            help="Take the input through a Gaussian layer of shape width × features, variance "
            "1/features, even if it has as many features as the network is wide. Digits and "
            "inputs of other numbers of features always go through it.",
        ),
    ] = False,
    chains: Annotated[int, typer.Option(help="Independent networks.")] = 64,
    width: options.Width = 1000,
    depth: Annotated[int, typer.Option(help="Layers.")] = 50,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    skip: options.Skip = 0.0,
    gain: options.Gain = 1.0,
    weights: options.Weights = "gaussian",
    eps: options.Eps = 0.0,
    seed: options.Seed = None,
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="auto, conditional or weights.")
    ] = "auto",
    dtype: Annotated[str, typer.Option(metavar="TYPE", help="float64 or float32.")] = "float64",
    threads: options.Threads = None,
    every: Annotated[int, typer.Option(help="Record every so many layers.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write all recorded layers, with Gram matrices, to a .npz, .nc or .zarr file.",
        ),
    ] = None,
    store: options.Store = None,
    timeout: options.Timeout = None,
    plot: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Take a batch of inputs through many random networks.

    The table shows means over the networks and their standard errors: of the Frobenius distance of
    the Gram matrix G of a layer from G*, where infinitely wide networks settle; of the
    orthogonality gap, 0 for orthogonal samples; and of the extreme eigenvalues of G.

    Ctrl-C ends a run with the layers that are finished, which are shown and written all the same;
    the exit status is then 130.

    Example: bnmc simulate --activation tanh --depth 100 --plot tanh.png

    Example: bnmc simulate --input batch.npy --width 500 --chains 256 --seed 0 --output run.npz

    Example: bnmc simulate --input batch.csv --samples-first --norm none --activation linear --json
    """
    settings = dict(locals())
    from bnmc import Chain, FirstLayer
    from bnmc.errors import ArgumentError

    for name, path in (("output", output), ("plot", plot)):
        if path is not None:
            require_destination(name, path, force)
    if output is not None and store is not None and output.resolve() == store.resolve():
        raise ArgumentError("output", str(output), "another path than that of the store")
    x, source = _read(input_, array, samples_first, batch)
    chain = Chain(
        width, x.shape[1], activation, norm=norm, skip=skip, gain=gain, weights=weights, eps=eps
    )
    is_wrapped = input_ is None or first_layer or x.shape[0] != width
    start = FirstLayer(x) if is_wrapped else x
    star = _star(chain, x)
    if store is None or seed is not None:  # a store has its own random numbers
        seed = chosen_seed(seed)
    begun = time.perf_counter()
    run, interrupted = _simulate(chain, start, star, settings | {"seed": seed})
    seconds = time.perf_counter() - begun
    if is_wrapped and input_ is not None and not first_layer:
        print(
            f"bnmc: {source} has {x.shape[0]} features and layers are {width} wide: a random first "
            f"layer took it there (--width {x.shape[0]} does without)",
            file=sys.stderr,
        )
    notes = [star.note]
    if not run.complete:
        notes.append(f"ended before its time, after layer {run.layers[-1]} of {depth}")
    if (lost := _lost_scale(run)) is not None:
        notes.append(
            f"from layer {lost} on the Gram matrix is too small for float64 and shown as 0; "
            "bnmc.simulate keeps the scale apart, as scaled_gram and log_scale"
        )
    if run.moments and output is not None:
        notes.append(f"{output} has means and variances: the values would be very large")

    failures: list[Exception] = []
    if output is not None:
        from bnmc.simulation.export import write_run

        said = {"seed": seed, "input": source, "star_note": star.note}
        with kept_for_later(failures):
            write_run(run, output, attributes=said, star=star.gram, force=force)
    if plot is not None:
        from bnmc.plot.runs import overview

        with kept_for_later(failures):
            save(overview(run, star.gram), plot)
    table = _summary(run)
    repeat = {
        "seed": seed, "key": str(run.key), "sampler": run.sampler, "dtype": run.dtype,
        "threads": _threads(threads), "cpu": run.cpu, "seconds": round(seconds, 3),
    }  # fmt: skip
    if as_json:
        from bnmc._support.version import __version__

        of_network = ("width", "depth", "activation", "norm", "skip", "gain", "weights", "eps")
        document = {
            "bnmc": __version__,
            "settings": {name: settings[name] for name in ("chains", "every", *of_network)},
            "input": {
                "source": source,
                "features": x.shape[0],
                "samples": x.shape[1],
                "first_layer": is_wrapped,
            },
            **repeat,
            "star": star.facts | {"note": star.note},
            "files": {"output": _text(output), "plot": _text(plot), "store": _text(store)},
            "complete": run.complete,
            "notes": notes[1:],
            "table": table,
        }
        print_json(document)
        raise_first(failures)
        raise typer.Exit(INTERRUPTED if interrupted else OK)
    through = f"{x.shape[0]} features, through a first layer" if is_wrapped else "as layer 0"
    networks = "1 network" if chains == 1 else f"{chains} networks"
    print(f"{chain}: {networks}, {depth} layers\ninput: {source} ({through})\n")
    head = ["layer", "‖G − G*‖", "orthogonality gap", "smallest eigenvalue", "largest eigenvalue"]
    print_table(head, [_cells(row) for row in table])
    print()
    for note in notes:
        print(note)
    print(", ".join(f"{name} {value}" for name, value in repeat.items() if value is not None))
    raise_first(failures)
    raise typer.Exit(INTERRUPTED if interrupted else OK)


@dataclass(frozen=True)
class _Star:
    """What the Gram matrix is compared with, and why."""

    gram: NDArray[np.float64] | None
    note: str
    facts: dict[str, Any] = field(default_factory=dict)


def _star(chain: Chain, x: NDArray[np.float64]) -> _Star:
    """Return the Gram matrix at which the infinitely wide network settles, if that is known.

    Without normalization, linear layers with skip² + gain² = 1 leave every Gram matrix alone at
    infinite width.  So there G* is that of the input, I for orthogonal samples as in Fig. 1a of
    *On bridging …*.
    """
    import numpy as np

    from bnmc import MeanField
    from bnmc.errors import BnmcError

    is_linear = chain.activation.builtin and chain.activation.name == "linear"
    keeps_scale = bool(np.isclose(chain.skip**2 + chain.gain**2, 1.0, rtol=1e-12, atol=0.0))
    if chain.norm == "none" and is_linear and keeps_scale:
        note = "G*: the Gram matrix of the input, which infinitely wide linear networks keep"
        return _Star(x.T @ x / len(x), note, {"kind": "input"})
    try:
        fixed = MeanField(chain).fixed_point()
    except BnmcError as error:
        return _Star(None, f"G*: not known ({error})", {"kind": None})
    facts = {name: getattr(fixed, name) for name in ("b", "c", "rate", "stable")}
    warning = "" if fixed.stable else "; it is unstable, so the network need not settle there"
    note = (
        f"G*: fixed point of the mean field, diagonal {fixed.b:.6g}, correlation {fixed.c:.6g}, "
        f"deviations times {fixed.rate:.4g} a layer{warning}"
    )
    return _Star(fixed.gram, note, {"kind": "fixed point", **facts})


def _read(
    path: Path | None, array: str | None, samples_first: bool, batch: int | None
) -> tuple[NDArray[np.float64], str]:
    """Return (features, samples) inputs and where they come from."""
    from bnmc._support.arguments import integer
    from bnmc.errors import ArgumentError

    if path is None:
        if array is not None or samples_first:
            raise ArgumentError("input", None, "a file, with --array or --samples-first")
        return digits.digits(10 if batch is None else batch), "handwritten digits of scikit-learn"
    x = inputs.read_input(path, array=array, samples_first=samples_first)
    samples = x.shape[1] if batch is None else integer("batch", batch, low=1, high=x.shape[1])
    return x[:, :samples], str(path)


def _simulate(
    chain: Chain, start: NDArray[np.float64] | FirstLayer, star: _Star, settings: dict[str, Any]
) -> tuple[Trajectory, bool]:
    """Run with what table, picture and file need; say whether Ctrl-C ended it.

    That is values, or moments if those are big and there is no store for them.
    """
    import bnmc
    from bnmc.errors import Interrupted

    wanted: list[Any] = ["eigenvalues", "orthogonality_gap"]
    if star.gram is not None:
        wanted.append(bnmc.Distance(star.gram))
    numbers = chain.batch + 2
    if settings["output"] is not None or settings["store"] is not None:
        wanted.append("gram")
        numbers += chain.batch**2
    layers = settings["depth"] // max(settings["every"], 1) + 2
    is_big = 8 * numbers * layers * settings["chains"] > MOST_BYTES and settings["store"] is None
    try:
        run = bnmc.simulate(
            chain, settings["depth"], chains=settings["chains"], initial=start,
            rng=settings["seed"], sampler=settings["sampler"], dtype=settings["dtype"],
            observables=wanted, every=settings["every"], reduce="chain" if is_big else (),
            threads=settings["threads"], store=settings["store"], timeout=settings["timeout"],
            progress=progress_report(settings["progress"], "layer"),
        )  # fmt: skip
    except Interrupted as stop:
        if stop.partial is None:
            raise
        return stop.partial, True
    return run, False


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _threads(threads: int | None) -> int:
    from bnmc._support.machine import available_processors

    return available_processors() if threads is None else threads


def _summary(run: Trajectory) -> list[dict[str, Any]]:
    """Return a row for each layer of the table: means and standard errors by name."""
    columns: dict[str, Any] = {"distance": None}
    for name in {"orthogonality_gap", "distance"} & {*run.observables, *run.moments}:
        columns[name] = run.mean(name), run.stderr(name)
    mean, stderr = run.mean("eigenvalues"), run.stderr("eigenvalues")
    columns["smallest_eigenvalue"] = mean[:, 0], stderr[:, 0]
    columns["largest_eigenvalue"] = mean[:, -1], stderr[:, -1]
    order = ("distance", "orthogonality_gap", "smallest_eigenvalue", "largest_eigenvalue")
    return [
        {"layer": int(run.layers[row])} | {name: _measured(columns[name], row) for name in order}
        for row in _shown(run.layers)
    ]


def _measured(column: Any, row: int) -> dict[str, float | None] | None:
    if column is None:
        return None
    mean, stderr = (float(part[row]) for part in column)
    # Of one network alone no error is known.
    return {"mean": mean, "stderr": None if math.isnan(stderr) else stderr}


def _lost_scale(run: Trajectory) -> int | None:
    """Return the first recorded layer whose Gram matrix is below the normal range, if any is."""
    import numpy as np

    small = run.mean("eigenvalues")[:, -1] < np.finfo(np.float64).tiny
    return int(run.layers[small.argmax()]) if small.any() else None


def _shown(layers: NDArray[np.int64]) -> list[int]:
    """Return the indices of the layers that a table shows: first, last, and round ones between."""
    import numpy as np

    last = len(layers) - 1
    for steps in ((1, 2, 5), (1,)):
        round_layers = [step * 10**power for power in range(10) for step in steps]
        nearest = {int(np.abs(layers - layer).argmin()) for layer in round_layers}
        if len(nearest) <= SHOWN_LAYERS - 2:
            break
    return sorted(nearest | {0, last})


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        str(value) if name == "layer" else "-" if value is None else _number(**value)
        for name, value in row.items()
    ]


def _number(mean: float, stderr: float | None) -> str:
    """Write a mean to two figures of its standard error."""
    if not stderr or not math.isfinite(stderr):
        return f"{mean:.6g}"
    decimals = 1 - math.floor(math.log10(stderr))
    if not 0 <= decimals <= 7 or abs(mean) >= 1e7:
        return f"{mean:.3g} ± {stderr:.1g}"
    return f"{mean:.{decimals}f} ± {stderr:.{decimals}f}"
