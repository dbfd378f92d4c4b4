"""Commands about one chain or the library itself; `cli` has those that run ensembles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from bnmc import _options as options
from bnmc._report import (
    FAILED,
    NO_ESTIMATE,
    chosen_seed,
    plain_number,
    print_json,
    print_table,
    progress_report,
    require_destination,
    save,
)

__all__ = ["COMMANDS"]


def fixed_point(
    batch: options.Batch = 10,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    gain: options.Gain = 1.0,
    as_json: options.Json = False,
) -> None:
    """Where infinitely wide networks settle, and how fast.

    And whether they stay there.

    Example: bnmc fixed-point --activation tanh --batch 64
    """
    from bnmc import Chain, MeanField

    chain = Chain(max(batch, 2) * 1000, batch, activation, norm=norm, gain=gain)
    found = MeanField(chain).fixed_point()
    facts: dict[str, Any] = {
        "diagonal": found.b,
        "correlation": found.c,
        "rate": found.rate,
        "timescale": -1.0 / math.log(found.rate) if 0.0 < found.rate < 1.0 else None,
        "stable": found.stable,
        "eigenvalues": [_of_eigenvalue(value) for value in found.eigenvalues],
        "backward_rate": found.backward_rate,
        "cross_batch": found.cross_batch,
        "cross_batch_rate": found.cross_batch_rate,
        "error": found.error,
    }
    if as_json:
        print_json({"activation": activation, "batch": batch, "norm": norm, "gain": gain, **facts})
        return
    print(f'{activation}, batch {batch}, norm "{norm}": fixed point of the mean field\n')
    print_table(
        ["what", "value"], [[name.replace("_", " "), _shown(v)] for name, v in facts.items()]
    )


def stability(
    activation: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An activation; may be given several times."),
    ] = None,
    batches: Annotated[
        str, typer.Option(metavar="N,N,…", help="Batch sizes, separated by commas.")
    ] = "3,4,5,8,12,16,24,32,48,64",
    norm: options.Norm = "batch",
    plot: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """For which batch sizes the fixed point is stable.

    Example: bnmc stability --activation silu --activation relu --batches 8,16,32,64
    """
    from bnmc import mean_field
    from bnmc.errors import ArgumentError

    if plot is not None:
        require_destination("plot", plot, force)
    try:
        sizes = [int(size) for size in batches.split(",")]
    except ValueError:
        raise ArgumentError("batches", batches, "integers, separated by commas") from None
    entries = mean_field.atlas(activation or ["relu", "tanh", "silu"], sizes, norm=norm)
    if plot is not None:
        save(mean_field.plot_stability(entries).figure, plot)
    if as_json:
        print_json(
            {
                "norm": norm,
                "activations": [
                    {
                        "activation": entry.activation,
                        "batches": entry.batches.tolist(),
                        "rates": entry.rates.tolist(),
                        "stable": entry.stable.tolist(),
                        "eigenvalues": entry.eigenvalues.tolist(),
                        "crossings": [[one.batch, one.stable] for one in entry.crossings],
                    }
                    for entry in entries
                ],
            }
        )
        return
    print("\n\n".join(map(str, entries)))


def certify(
    width: options.Width = 1000,
    batch: options.Batch = 10,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    gain: options.Gain = 1.0,
    eps: options.Eps = 0.0,
    depth: Annotated[int, typer.Option(help="The last layer of the bound.")] = 60,
    replicates: Annotated[int, typer.Option(help="Pairs of chains.")] = 1000,
    lag: Annotated[
        int | None,
        typer.Option(help="Layers by which one of a pair is ahead; chosen unless given."),
    ] = None,
    seed: options.Seed = None,
    threads: options.Threads = None,
    plot: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Bound how far each layer is from the invariant law.

    The bound is of the distance in total variation, by coupled chains.

    Layer 0 has independent Gaussian samples; bnmc.mixing.tv_bound takes any other start.

    Ends with status 3 and what was measured where the chain does not mix.

    Example: bnmc certify --width 1000 --batch 10 --depth 60 --plot certificate.png
    """
    from bnmc import Chain, mixing

    if plot is not None:
        require_destination("plot", plot, force)
    chain = Chain(width, batch, activation, norm=norm, gain=gain, eps=eps)
    seed = chosen_seed(seed)
    with _pool(threads) as pool:
        found = mixing.tv_bound(
            chain, depth, lag=lag, replicates=replicates, rng=seed, executor=pool,
            progress=progress_report(progress),
        )  # fmt: skip
    if as_json:
        print_json({"chain": repr(chain), "seed": seed, **found.to_dict()})
    else:
        print(f"{chain}, from independent Gaussian samples\n{found}\nseed {seed}", flush=True)
    if plot is not None:
        ax = found.plot()
        ax.figure.suptitle(f"{chain}, from independent samples", fontsize="medium")
        save(ax.figure, plot)


def rates(
    width: options.Width = 1000,
    batch: options.Batch = 10,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    skip: options.Skip = 0.0,
    gain: options.Gain = 1.0,
    weights: options.Weights = "gaussian",
    eps: options.Eps = 0.0,
    seed: options.Seed = None,
    threads: options.Threads = None,
    plot: options.Plot = None,
    force: options.Force = False,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Estimate how fast a chain forgets, in every way there is.

    The rate of the mean field is beside them.

    Ends with status 3 if no estimator finds a rate; the table says why of each.

    Example: bnmc rates --activation tanh --batch 5 --plot rates.png
    """
    from bnmc import Chain, mixing

    if plot is not None:
        require_destination("plot", plot, force)
    chain = Chain(
        width, batch, activation, norm=norm, skip=skip, gain=gain, weights=weights, eps=eps
    )
    seed = chosen_seed(seed)
    with _pool(threads) as pool:
        found = mixing.compare(chain, rng=seed, executor=pool, progress=progress_report(progress))
    if as_json:
        print_json({"seed": seed, **found.to_dict()})
    else:
        print(f"{found}\nseed {seed}", flush=True)
    if plot is not None:
        save(found.plot().figure, plot)
    if all(row.estimate is None for row in found.rows[1:]):  # the first is the mean field's
        raise typer.Exit(NO_ESTIMATE)


def check(
    width: options.Width = 100,
    batch: options.Batch = 5,
    activation: options.Activation = "relu",
    norm: options.Norm = "batch",
    skip: options.Skip = 0.0,
    gain: options.Gain = 1.0,
    weights: options.Weights = "gaussian",
    eps: options.Eps = 0.0,
    samples: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="States of another program before normalization, in a .npy file of shape "
            "(samples, width, batch); draws of the library unless given.",
        ),
    ] = None,
    size: Annotated[int, typer.Option(help="Number of draws.")] = 1000,
    alpha: Annotated[
        float, typer.Option(help="Probability that any claim fails although all are true.")
    ] = 1e-3,
    seed: options.Seed = None,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Test what is claimed of the invariant law, claim by claim.

    Ends with status 4 if a claim fails.

    Example: bnmc check --width 200 --batch 4 --activation tanh --samples states.npy
    """
    from bnmc import Chain, invariant
    from bnmc.files import read_states

    chain = Chain(
        width, batch, activation, norm=norm, skip=skip, gain=gain, weights=weights, eps=eps
    )
    given = None if samples is None else read_states(samples)
    seed = chosen_seed(seed)
    report = invariant.check(
        chain, samples=given, size=size, alpha=alpha, rng=seed, progress=progress_report(progress)
    )
    if as_json:
        print_json({"seed": seed, **report.to_dict()})
    else:
        print(f"{report}\nseed {seed}")
    if not report.ok:
        raise typer.Exit(FAILED)


def regularity(
    width: options.Width = 32,
    batch: Annotated[
        int | None, typer.Option(help="Samples of a batch; as many as neurons unless given.")
    ] = None,
    activation: options.Activation = "linear",
    gamma: Annotated[
        float, typer.Option(help="Factor of the residual branch; inf for none beside it.")
    ] = math.inf,
    rtol: Annotated[float, typer.Option(help="Largest standard error, as a part of it.")] = 0.01,
    seed: options.Seed = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """The regularity constant of the rank-collapse paper.

    Example: bnmc regularity --width 64 --gamma 0.1
    """
    from bnmc import Chain, regularity

    chain = Chain.bn_residual(width, width if batch is None else batch, activation, gamma=gamma)
    seed = chosen_seed(seed)
    found = regularity.constant(
        chain, rtol=rtol, rng=seed, threads=threads, progress=progress_report(progress)
    )
    if as_json:
        low, high = found.ci
        facts = {"value": found.value, "stderr": found.stderr, "ci": [low, high], "n": found.n}
        print_json({"chain": repr(chain), "seed": seed, **facts})
        return
    print(f"{chain}\nregularity constant {found}\nseed {seed}")


def info(as_json: options.Json = False) -> None:
    """Versions, threads, GPU and cache.

    Example: bnmc info --json
    """
    import os
    import platform
    from importlib import metadata

    from numba import config

    import bnmc
    from bnmc._kernels.gpu.device import why_not
    from bnmc._kernels.jit import host_cpu
    from bnmc._machine import available_processors

    versions = {"bnmc": bnmc.__version__, "python": platform.python_version()}
    for name in ("numba", "llvmlite", "numpy", "scipy", "numba-cuda"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    facts = {
        **versions,
        "processor": host_cpu(),
        "processors": available_processors(),
        "threading layer": str(getattr(config, "THREADING_LAYER", "default")),
        "gpu": why_not() or "available",
        "kernel cache": os.environ.get("NUMBA_CACHE_DIR", "beside the package, or the user's"),
    }
    if as_json:
        print_json(facts)
        return
    print_table(["what", "value"], [[name, str(value)] for name, value in facts.items()])


def bench(
    width: options.Width = 1000,
    batch: options.Batch = 10,
    activation: options.Activation = "relu",
    seconds: Annotated[float, typer.Option(help="Of each measurement; there are sixteen.")] = 0.5,
    threads: options.Threads = None,
    as_json: options.Json = False,
    progress: options.ProgressFlag = None,
) -> None:
    """How fast this machine simulates, beside NumPy.

    NumPy draws the weights and multiplies.

    Example: bnmc bench --width 4000 --batch 10
    """
    from bnmc import Chain, _bench
    from bnmc._kernels.jit import host_cpu

    chain = Chain(width, batch, activation)
    report = progress_report(progress, "measurement")
    rows = _bench.measure(chain, seconds=seconds, threads=threads, progress=report)
    if as_json:
        print_json({"chain": repr(chain), "processor": host_cpu(), "rows": rows})
        return
    print(f"{chain}\n")
    print_table(
        ["what", "layers a second", "normals a second", "speed"],
        [[str(row["what"]), *(f"{value:.3g}" for value in list(row.values())[1:])] for row in rows],
    )
    print(f"\nprocessor {host_cpu()}; layers of all networks together, medians of 3 rounds")


COMMANDS: dict[str, Callable[..., None]] = {
    "fixed-point": fixed_point,
    "stability": stability,
    "certify": certify,
    "rates": rates,
    "regularity": regularity,
    "check": check,
    "bench": bench,
    "info": info,
}


@contextmanager
def _pool(threads: int | None) -> Iterator[ThreadPoolExecutor | None]:
    """Yield an executor of so many threads; None, which stands for all, unless given."""
    from bnmc._validate import integer

    if threads is None:
        yield None
        return
    with ThreadPoolExecutor(integer("threads", threads, low=1)) as pool:
        yield pool


def _of_eigenvalue(value: complex) -> float | list[float]:
    return value.real if value.imag == 0 else [value.real, value.imag]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_shown(entry) for entry in value) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return plain_number(value)
