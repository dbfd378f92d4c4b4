"""The work of ``bnmc simulate``: read the input, run the ensemble, write files and report."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.compile_time import compile_seconds
from bnmc._support.arguments import integer
from bnmc._support.version import __version__
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.cli.inputs import read_input
from bnmc.cli.outputs import kept_for_later, save
from bnmc.cli.reference import Reference, reference_of
from bnmc.cli.report import (
    chosen_seed,
    number_with_error,
    print_json,
    print_table,
    progress_report,
    shown_rows,
)
from bnmc.cli.threads import thread_count
from bnmc.errors import ArgumentError, Interrupted
from bnmc.experiments.digits import digits
from bnmc.simulation.export import write_run
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate
from bnmc.simulation.trajectory import Trajectory

__all__ = ["FinishedRun", "print_report", "run_ensemble", "write_files"]

#: The largest size of values in memory, in bytes. Larger runs keep means and variances only.
MOST_BYTES = 1 << 28

#: The settings of ``bnmc simulate`` that its JSON document repeats.
_SETTINGS = (
    "chains", "every", "width", "depth", "activation", "norm", "skip", "gain", "weights", "eps"
)  # fmt: skip

#: The columns of the table: their names in JSON, and their heads.
_COLUMNS = {
    "distance": "‖G − G*‖",
    "orthogonality_gap": "orthogonality gap",
    "smallest_eigenvalue": "smallest eigenvalue",
    "largest_eigenvalue": "largest eigenvalue",
}


@dataclass(frozen=True)
class FinishedRun:
    """A run of ``bnmc simulate``, and the facts that its report needs.

    Attributes
    ----------
    settings : dict
        Values of the options by name.
    source : str
        Where the input comes from, in words.
    features, samples : int
        Shape of the input.
    has_first_layer : bool
        Whether a random first layer takes the input to the width of the network.
    reference : Reference
        The Gram matrix with which the run is compared.
    seed : int or None
        The seed; None for a run in a store, which has its own random numbers.
    run : Trajectory
    interrupted : bool
        Whether Ctrl-C ended the run.
    seconds : float
        Duration of the run, without the compilation of kernels.
    compile_seconds : float
        Duration of that compilation; 0 if the kernels were loaded from the disk.
    """

    settings: dict[str, Any]
    source: str
    features: int
    samples: int
    has_first_layer: bool
    reference: Reference
    seed: int | None
    run: Trajectory
    interrupted: bool
    seconds: float
    compile_seconds: float

    @property
    def notes(self) -> list[str]:
        """Sentences about the run; the first is about the reference."""
        run, output = self.run, self.settings["output"]
        notes = [self.reference.note]
        if not run.complete:
            depth = self.settings["depth"]
            notes.append(f"incomplete: the run ended after layer {run.layers[-1]} of {depth}")
        if (lost := _first_layer_below_range(run)) is not None:
            notes.append(
                f"from layer {lost} on, the Gram matrix is too small for float64 and the table "
                "shows 0; bnmc.simulate returns it as scaled_gram and log_scale"
            )
        if run.moments and output is not None:
            notes.append(
                f"{output} contains means and variances, because all values exceed 256 MiB"
            )
        return notes

    @property
    def repetition(self) -> dict[str, Any]:
        """What repeats the run, and how long it took."""
        return {
            "seed": self.seed, "key": str(self.run.key), "sampler": self.run.sampler,
            "dtype": self.run.dtype, "threads": thread_count(self.settings["threads"]),
            "cpu": self.run.cpu, "seconds": round(self.seconds, 3),
            "compile_seconds": round(self.compile_seconds, 3),
        }  # fmt: skip


def run_ensemble(settings: dict[str, Any]) -> FinishedRun:
    """Run the networks that the options of ``bnmc simulate`` specify.

    Parameters
    ----------
    settings : dict
        Values of the options by name.

    Returns
    -------
    FinishedRun

    Raises
    ------
    BnmcError, OSError
        If an option or the input is not allowed, or the run fails.
    """
    width, path = settings["width"], settings["input_"]
    x, source = _read_batch(settings)
    parameters = ("activation", "norm", "skip", "gain", "weights", "eps")
    chain = Chain(width, x.shape[1], **{name: settings[name] for name in parameters})
    settings = settings | {"gain": chain.gain}
    has_first_layer = path is None or settings["first_layer"] or x.shape[0] != width
    start = FirstLayer(x) if has_first_layer else x
    reference = reference_of(chain, x)
    seed = settings["seed"]
    if settings["store"] is None or seed is not None:
        seed = chosen_seed(seed)
    begun, compiled = time.perf_counter(), compile_seconds()
    run, interrupted = _simulated(chain, start, reference, settings | {"seed": seed})
    compiling = compile_seconds() - compiled
    seconds = time.perf_counter() - begun - compiling
    if has_first_layer and path is not None and not settings["first_layer"]:
        print(
            f"bnmc: {source} has {x.shape[0]} features and the width is {width}, so a random first "
            f"layer multiplies the input (--width {x.shape[0]} avoids this layer)",
            file=sys.stderr,
        )
    return FinishedRun(
        settings=settings, source=source, features=x.shape[0], samples=x.shape[1],
        has_first_layer=has_first_layer, reference=reference, seed=seed, run=run,
        interrupted=interrupted, seconds=seconds, compile_seconds=compiling,
    )  # fmt: skip


def write_files(done: FinishedRun) -> list[Exception]:
    """Write the run and its picture, if the options say so; return the errors of writing."""
    output, plot = done.settings["output"], done.settings["plot"]
    gram = done.reference.gram
    failures: list[Exception] = []
    if output is not None:
        facts = {"seed": done.seed, "input": done.source, "star_note": done.reference.note}
        with kept_for_later(failures):
            write_run(done.run, output, attributes=facts, star=gram, force=done.settings["force"])
    if plot is not None:
        from bnmc.plot.runs import overview

        with kept_for_later(failures):
            save(overview(done.run, gram), plot)
    return failures


def print_report(done: FinishedRun) -> None:
    """Print the run as a table, or as a JSON document with ``--json``."""
    table = _table(done.run)
    if done.settings["as_json"]:
        print_json(_document(done, table))
        return
    chains, depth = done.settings["chains"], done.settings["depth"]
    networks = "1 network" if chains == 1 else f"{chains} networks"
    through = "through a random first layer" if done.has_first_layer else "as layer 0"
    print(f"{done.run.chain}: {networks}, {depth} layers")
    size = f"{done.samples} samples × {done.features} features"
    print(f"input: {done.source}, {size} ({through})\n")
    print_table(["layer", *_COLUMNS.values()], [_cells(row) for row in table])
    print()
    for note in done.notes:
        print(note)
    repetition = done.repetition.items()
    shown = (f"{name.replace('_', ' ')} {value}" for name, value in repetition if value is not None)
    print(", ".join(shown))


def _read_batch(settings: dict[str, Any]) -> tuple[NDArray[np.float64], str]:
    """Return the input, of shape (features, samples), and where it comes from."""
    path, batch = settings["input_"], settings["batch"]
    if path is None:
        if settings["array"] is not None or settings["samples_first"]:
            raise ArgumentError("input", None, "a file, with --array or --samples-first")
        return digits(10 if batch is None else batch), "handwritten digits"
    x = read_input(path, array=settings["array"], samples_first=settings["samples_first"])
    samples = x.shape[1] if batch is None else integer("batch", batch, low=1, high=x.shape[1])
    return x[:, :samples], str(path)


def _simulated(
    chain: Chain,
    start: NDArray[np.float64] | FirstLayer,
    reference: Reference,
    settings: dict[str, Any],
) -> tuple[Trajectory, bool]:
    """Run with the observables of table, picture and file; return whether Ctrl-C ended the run.

    The run keeps all values, unless they are large and there is no store: then means and variances.
    """
    wanted: list[Any] = ["eigenvalues", "orthogonality_gap"]
    if reference.gram is not None:
        wanted.append(Distance(reference.gram))
    numbers = chain.batch + 2
    if settings["output"] is not None or settings["store"] is not None:
        wanted.append("gram")
        numbers += chain.batch**2
    layers = settings["depth"] // max(settings["every"], 1) + 2
    is_big = 8 * numbers * layers * settings["chains"] > MOST_BYTES and settings["store"] is None
    try:
        run = simulate(
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


def _first_layer_below_range(run: Trajectory) -> int | None:
    """Return the first recorded layer whose Gram matrix is below the normal range of float64."""
    small = run.mean("eigenvalues")[:, -1] < np.finfo(np.float64).tiny
    return int(run.layers[small.argmax()]) if small.any() else None


def _table(run: Trajectory) -> list[dict[str, Any]]:
    """Return a row for each layer of the table: means and standard errors by name."""
    columns: dict[str, Any] = {"distance": None}
    for name in {"orthogonality_gap", "distance"} & {*run.observables, *run.moments}:
        columns[name] = run.mean(name), run.stderr(name)
    mean, stderr = run.mean("eigenvalues"), run.stderr("eigenvalues")
    columns["smallest_eigenvalue"] = mean[:, 0], stderr[:, 0]
    columns["largest_eigenvalue"] = mean[:, -1], stderr[:, -1]
    return [
        {"layer": int(run.layers[row])} | {name: _entry(columns[name], row) for name in _COLUMNS}
        for row in shown_rows(run.layers)
    ]


def _entry(column: Any, row: int) -> dict[str, float | None] | None:
    if column is None:
        return None
    mean, stderr = (float(part[row]) for part in column)
    # The standard error of a single network is not known.
    return {"mean": mean, "stderr": None if math.isnan(stderr) else stderr}


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        str(value) if name == "layer" else "-" if value is None else number_with_error(**value)
        for name, value in row.items()
    ]


def _document(done: FinishedRun, table: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "bnmc": __version__,
        "settings": {name: done.settings[name] for name in _SETTINGS},
        "input": {
            "source": done.source,
            "features": done.features,
            "samples": done.samples,
            "first_layer": done.has_first_layer,
        },
        **done.repetition,
        "star": done.reference.facts | {"note": done.reference.note},
        "files": {name: _text(done.settings[name]) for name in ("output", "plot", "store")},
        "complete": done.run.complete,
        "notes": done.notes[1:],
        "table": table,
    }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
