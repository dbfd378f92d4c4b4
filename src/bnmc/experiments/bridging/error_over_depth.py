"""Fig. 1a: the error of the mean field over depth, with and without batch normalization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.bounds import bridging as bounds
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.bridging.common import FloatArray
from bnmc.experiments.bridging.linear_networks import (
    BATCH,
    WIDTH,
    equation_6,
    linear_cases,
    orthogonal_samples,
    simulate_errors,
    stationary_linear,
)
from bnmc.experiments.data import Variable, dataset, ends, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.statistics import interval, rms
from bnmc.plot.axes import COLOURS, band
from bnmc.random_matrix import vanilla_deviation

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "fig_1a"]


class Sizes(NamedTuple):
    """Layers, networks with and without normalization, and about how many layers to record."""

    depth: int
    networks: int
    vanilla: int
    points: int = 200


DEFAULT = Sizes(1000, 200, 1000)
FULL = Sizes(3000, 1000, 5000)


@with_parameters
def fig_1a(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 1a: the error of the mean field over depth, with and without batch normalization.

    Linear networks of width d = 1000 with n = 5 samples, as in the paper.  The paper's bands show
    10 simulations.  Here 200 networks have normalization and 1000 have none, because errors
    without it are heavy-tailed; the depth is 1000 layers (``full``: 1000 and 5000 networks, 3000
    layers).  All networks start from orthogonal samples: :math:`G_0 = I` is the fixed point
    without normalization.

    Expected: with normalization, the root mean square error equals the root of `stationary_linear`
    at every depth.  Without normalization, it follows the exact formula
    :math:`E\|G_l - I\|_F^2 = n(n+2)/3 (1+2/d)^l - n(n-1)/3 (1-1/d)^l - n`.

    Eq. (6), "error ≈ exp(depth/width)", has the exponent of that formula, but not its scale and
    not its start, which grows as √depth.  The bound exp(3nl/2d) in the line before eq. (6) is of
    the operator norm.  In depth the bound is far above the Frobenius norm drawn here.  At
    l = d/(3n) it is at most 19 % above the mean Frobenius norm, and from n = 8 on it is below
    (`bnmc.bounds.bridging.equation_6`).  In very deep networks the mean over any finite ensemble
    falls below the exact value, because a few networks dominate it.  The text calls G* the
    identity; with centring the fixed point is (n I − 11ᵀ)/(n−1), which is used here.  The authors'
    notebook has another figure: 70 layers of relu networks with normalization from nearly equal
    rows, and of linear networks without normalization from Gaussian samples.

    Returns
    -------
    Experiment
        Variables by ``norm`` ("batch", "none") and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.fig_1a()  # doctest: +SKIP
    >>> dict(found.data.sizes)  # doctest: +SKIP
    {'norm': 2, 'layer': 201}
    """
    call = Call("bridging-1a", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """Errors by norm, (networks, layers); their r.m.s. by norm and layer; that of deep layers."""

    layers: NDArray[np.int64]
    errors: dict[str, FloatArray]
    rms: dict[str, list[Estimate]]
    deep: Estimate


class _Theory(NamedTuple):
    """Exact r.m.s. without normalization; r.m.s. of deep layers with it; the growth of eq. (6)."""

    exact: FloatArray
    plateau: float
    growth: FloatArray


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    measured = _measure(sizes, call)
    layers = measured.layers
    growth = equation_6(WIDTH, layers)
    theory = _Theory(
        np.sqrt(vanilla_deviation(WIDTH, BATCH, layers)),
        float(np.sqrt(stationary_linear(WIDTH, BATCH))),
        growth,
    )
    shown = [_nearest(layers, layer) for layer in (1, 10, 100, sizes.depth)]
    return Experiment(
        call.name,
        "The error of the mean field grows without batch norm and stays constant with it",
        _data(sizes, call, measured, theory),
        _table(measured, theory, shown),
        _findings(measured, theory, shown[2]),
        _draw,
    )


def _measure(sizes: Sizes, call: Call) -> _Measured:
    inputs = orthogonal_samples(call.generator)
    cases = linear_cases()
    counts = {"batch": sizes.networks, "none": sizes.vanilla}
    errors = {}
    with call.parts([3 * sizes.networks, sizes.vanilla]) as parts:
        for norm, case in cases.items():
            run = parts.run(
                simulate_errors, case, sizes.depth, networks=counts[norm], inputs=inputs,
                every=max(1, sizes.depth // sizes.points), rng=call.generator,
                threads=call.threads,
            )  # fmt: skip
            errors[norm] = run["distance"]
    late = np.square(errors["batch"][:, run.layers >= sizes.depth // 2])
    return _Measured(
        run.layers,
        errors,
        {norm: [rms(column) for column in values.T] for norm, values in errors.items()},
        rms(np.sqrt(late.mean(axis=1))),
    )


def _data(sizes: Sizes, call: Call, measured: _Measured, theory: _Theory) -> xarray.Dataset:
    layers, errors = measured.layers, measured.errors
    both, unit = ("norm", "layer"), "Frobenius norm"
    bands = [np.quantile(values, (0.05, 0.95), axis=0) for values in errors.values()]
    squares = ends(measured.rms.values())
    scale = np.sqrt(BATCH * (BATCH + 2) / 3)
    return dataset(
        {
            "mean": Variable(both, [v.mean(axis=0) for v in errors.values()], "mean error", unit),
            "band_low": Variable(both, [low for low, _ in bands], "5 % of networks", unit),
            "band_high": Variable(both, [high for _, high in bands], "95 % of networks", unit),
            "rms": Variable(both, squares[..., 0], "root mean square error", unit),
            "rms_low": Variable(both, squares[..., 1], "lower end of its interval", unit),
            "rms_high": Variable(both, squares[..., 2], "upper end of its interval", unit),
            "exact": Variable(
                both, [np.full(len(layers), theory.plateau), theory.exact],
                "exact r.m.s.; with batch norm that of deep layers, to leading order in 1/width",
                unit,
            ),
            **estimated(
                "level", (), measured.deep, "r.m.s. error of deep layers with batch norm", unit
            ),
            "equation_6": Variable(
                ("layer",), scale * theory.growth, "eq. (6), in scale with the exact", unit
            ),
            "bound": Variable(
                ("layer",), bounds.equation_6(depth=layers, width=WIDTH, batch=BATCH),
                "exp(3nl/2d), printed as a bound of the mean operator norm", "operator norm",
            ),
        },
        {
            "norm": Variable(("norm",), list(errors), "normalization", ""),
            "layer": Variable(("layer",), layers, "layer"),
        },
        call,
        {
            "width": WIDTH, "batch": BATCH, "activation": "linear",
            "networks": [sizes.networks, sizes.vanilla], "initial": "orthogonal samples",
        },
    )  # fmt: skip


def _table(measured: _Measured, theory: _Theory, shown: list[int]) -> Table:
    columns = (
        "layer", "batch norm, mean", "no norm, mean", "no norm, r.m.s.", "no norm, exact r.m.s.",
        "exp(layer/width)",
    )  # fmt: skip
    return Table(
        columns,
        tuple(
            (
                int(measured.layers[k]),
                Estimate.from_samples(measured.errors["batch"][:, k]),
                Estimate.from_samples(measured.errors["none"][:, k]),
                measured.rms["none"][k],
                float(theory.exact[k]),
                float(theory.growth[k]),
            )
            for k in dict.fromkeys(shown)
        ),
    )


def _findings(measured: _Measured, theory: _Theory, early: int) -> tuple[str, ...]:
    layers, errors = measured.layers, measured.errors
    return (
        f"With batch norm the error of deep layers is {interval(measured.deep)} (r.m.s.); theory, "
        f"to leading order in 1/width: {theory.plateau:.4g}.",
        f"Without batch norm it is {interval(measured.rms['none'][early])} at layer "
        f"{layers[early]} (r.m.s.); exactly: {theory.exact[early]:.4g}.",
        f"From layer {layers[0]} to {layers[-1]} the mean error grew by the factor "
        f"{_grown(errors['none']):.3g} without batch norm and {_grown(errors['batch']):.3g} with "
        "it.",
    )


def _nearest(layers: NDArray[np.int64], layer: int) -> int:
    """Return the index of the recorded layer nearest to `layer`."""
    return int(np.abs(layers - layer).argmin())


def _grown(values: FloatArray) -> float:
    """Return the factor by which the mean grew from the first to the last layer."""
    mean = values.mean(axis=0)
    return float(mean[-1] / mean[0])


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    (ax,) = axes_of(figure, 1, width=7.2, height=5.0).flat
    layers = data["layer"].values
    labels = {"batch": "batch norm", "none": "no normalization"}
    for colour, (norm, label) in zip(COLOURS, labels.items(), strict=False):
        one = data.sel(norm=norm)
        band(ax, layers, one["mean"], one["band_low"], one["band_high"], colour=colour, label=label)
    _draw_theory(ax, data)
    counts = data.attrs["networks"]
    ax.set_title("The error grows without batch norm and stays constant with it", loc="left")
    ax.set_xlabel(
        f"layer\nlinear, n = {data.attrs['batch']}, d = {data.attrs['width']}; mean and 90 % of "
        f"{counts[0]} and {counts[1]} networks"
    )
    ax.set_ylabel(r"error of the mean field, $\|G_\ell - G_*\|_F$")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")


def _draw_theory(ax: Axes, data: xarray.Dataset) -> None:
    layers = data["layer"].values
    vanilla, normalised = data["exact"].sel(norm="none"), data["exact"].sel(norm="batch")
    ax.plot(layers, vanilla, "k--", linewidth=1.2, label="no normalization, exact r.m.s.")
    ax.plot(layers, normalised, "k-.", linewidth=1.2, label="batch norm, theory, r.m.s.")
    grey: dict[str, Any] = {"color": "0.4", "linewidth": 1.2}
    ax.plot(layers, data["equation_6"], ":", label="eq. (6), ∝ exp(depth/width)", **grey)
    ax.set_yscale("log")
    top = 20 * float(vanilla.max())
    inside = data["bound"].values < top
    ax.plot(
        layers[inside], data["bound"].values[inside], linestyle=(0, (1, 4)),
        label="printed bound exp(3nl/2d)", **grey,
    )  # fmt: skip
    ax.set_ylim(top=top)
