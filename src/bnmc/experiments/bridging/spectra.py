"""Fig. 2: the spectrum of the Gram matrix beside the Marchenko-Pastur law, for six activations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.bridging.common import (
    ACTIVATIONS,
    FloatArray,
    bulk,
    first_layer_of_covariance,
)
from bnmc.experiments.data import Variable, dataset, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, label_outer
from bnmc.experiments.statistics import interval
from bnmc.mean_field import FixedPoint
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS
from bnmc.random_matrix import MarchenkoPastur
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "fig_2", "stationary_spread"]


class Sizes(NamedTuple):
    """Activations, width, the deep layer to look at, and networks."""

    activations: tuple[str, ...]
    width: int
    layer: int
    chains: int


DEFAULT = Sizes(ACTIVATIONS, 500, 20, 200)
FULL = Sizes(ACTIVATIONS, 1000, 20, 1000)

#: Batch size of the paper.
BATCH = 20

#: Bins of the singular values.
_EDGES = np.linspace(0.4, 1.6, 61)


@with_parameters
def fig_2(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 2 a–f: the spectrum of G for six activations, and its width in theory.

    The picture shows densities of the singular values :math:`\sqrt{\lambda_i/\mu}`.  The
    :math:`\lambda_i` are the n − 1 eigenvalues of :math:`G_{20}` orthogonal to the ones, and
    μ = b*(1−c*).  Activations are relu, tanh, sigmoid, sin, selu and celu; n = 20, width d = 500,
    200 networks (``full``: width 1000, 1000 networks).  Beside layer 20 is one single layer whose
    pre-activations have rows N(0, G*).  All networks start from such rows, so layer 0 of a run is
    that single layer.

    Expected: the single layer nearly follows the Marchenko–Pastur law of ratio n/d, but is a little
    narrower.  Its variance over n/d is exactly (n−2)/n for linear networks, and .89 to .95 for
    these activations.  Layer 20 is wider, because the fluctuations of former layers add up.  In the
    two sectors of traceless symmetric matrices the sum is the factor :math:`1/(1-\lambda^2)`, with
    λ_L and λ_M the eigenvalues of the mean-field map.  The table shows the variance over n/d, which
    is 1 for Marchenko–Pastur, and the prediction for deep layers: the measured fluctuation of the
    single layer times these factors.

    The paper says that the stationary spectrum "accurately follows" Marchenko–Pastur.  Only the
    fluctuation of one layer does, approximately.  The authors' notebook draws the density of
    eigenvalues over singular values.  It uses eigenvalues of W times activations, which have one
    more layer of fluctuations: their variance over n/d is 5.5 (tanh) and 3.4 (relu).  Paper and
    poster show layers 10 and 20.

    Returns
    -------
    Experiment
        Densities by ``activation``, ``which`` ("one step", "layer 20") and ``bin``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.fig_2()  # doctest: +SKIP
    """
    call = Call("bridging-2", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Spectra(NamedTuple):
    """Results by activation, at layer 0 and at the deep layer.

    Eigenvalues of the bulk are divided by μ and have the shape (networks, 2, n - 1).  Variances are
    divided by n/d.  Predictions are those of the variance in deep layers.
    """

    eigenvalues: list[NDArray[np.floating[Any]]]
    variances: list[list[Estimate]]
    predictions: list[Estimate]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = _measure(sizes, call)
    table = Table(
        (
            "activation", "one step: variance d/n", f"layer {sizes.layer}: variance d/n",
            "predicted", "Marchenko-Pastur",
        ),
        tuple(
            (name, *row, predicted, 1.0)
            for name, row, predicted in zip(
                sizes.activations, found.variances, found.predictions, strict=True
            )
        ),
    )  # fmt: skip
    findings = (
        *(
            f"{name}: the variance of the bulk is {interval(first)} times that of "
            f"Marchenko-Pastur in one step, and {interval(deep)} at layer {sizes.layer}; "
            f"predicted: {interval(predicted)}."
            for name, first, deep, predicted, _ in table.rows
        ),
        f"For linear networks it is exactly (n - 2)/n = {(BATCH - 2) / BATCH:.4g} in one step.",
    )
    title = "One layer nearly follows Marchenko-Pastur; the stationary spectrum is wider"
    return Experiment(call.name, title, _data(sizes, call, found), table, findings, _draw)


def _measure(sizes: Sizes, call: Call) -> _Spectra:
    found = _Spectra([], [], [])
    ratio = BATCH / sizes.width
    with call.parts([1.0] * len(sizes.activations)) as parts:
        for name in sizes.activations:
            chain = Chain(sizes.width, BATCH, name)
            star = MeanField(chain).fixed_point()
            matrices = parts.run(
                simulate, chain, sizes.layer, chains=sizes.chains,
                initial=first_layer_of_covariance(star.gram), every=sizes.layer,
                rng=call.generator, threads=call.threads,
            )["gram"]  # fmt: skip
            relative = bulk(matrices) / (star.b * (1.0 - star.c))
            eigenvalues = np.linalg.eigvalsh(relative)
            found.eigenvalues.append(eigenvalues)
            found.variances.append([_spread(eigenvalues[:, which], ratio) for which in (0, 1)])
            found.predictions.append(stationary_spread(relative[:, 0], star, ratio))
    return found


def _spread(eigenvalues: NDArray[np.floating[Any]], ratio: float) -> Estimate:
    """Return the variance of eigenvalues relative to their mean, over the ratio n/d.

    Eigenvalues have the shape (networks, n - 1); the mean is over all of them.
    """
    relative = eigenvalues / eigenvalues.mean()
    return Estimate.from_samples(np.square(relative - 1.0).mean(axis=1) / ratio)


def stationary_spread(single: FloatArray, star: FixedPoint, ratio: float) -> Estimate:
    """Predict the stationary variance of the bulk from matrices of one layer, by linear response.

    Traceless symmetric matrices have two sectors: matrices P diag(v) P, P the projector orthogonal
    to the ones, and the rest.  In the sector with eigenvalue λ of the mean-field map, the
    stationary variance is 1/(1 - λ²) times that of one layer.  The next layer does not depend on
    the trace.

    Parameters
    ----------
    single : (networks, n - 1, n - 1) ndarray of float64
        Bulks of Gram matrices, one layer after rows N(0, G*).
    star : FixedPoint
        Fixed point G* of the mean field.
    ratio : float
        n/d.

    Returns
    -------
    Estimate
        Variance over n/d, relative to the squared mean eigenvalue.
    """
    from scipy.linalg import helmert

    m = single.shape[-1]
    n = m + 1
    deviation = single / (np.trace(single, axis1=1, axis2=2).mean() / m) - np.eye(m)
    trace = np.trace(deviation, axis1=1, axis2=2)
    traceless = deviation - (trace / m)[:, None, None] * np.eye(m)
    basis = helmert(n)
    diagonal = np.einsum("ai,cab,bi->ci", basis, traceless, basis)
    # If v sums to 0, the diagonal of P diag(v) P is (1 - 2/n) v.
    light = n / (n - 2) * np.square(diagonal).sum(axis=1)
    rest = np.square(traceless).sum(axis=(1, 2)) - light
    slow, fast = np.abs(np.asarray(star.eigenvalues[:2], dtype=np.float64))
    total = trace**2 / m + light / (1.0 - slow**2) + rest / (1.0 - fast**2)
    return Estimate.from_samples(total / m / ratio, method="linear response")


def _data(sizes: Sizes, call: Call, found: _Spectra) -> xarray.Dataset:
    densities = np.array(
        [
            [_density(np.sqrt(np.maximum(values[:, which], 0.0))) for which in (0, 1)]
            for values in found.eigenvalues
        ]
    )
    middle = (_EDGES[1:] + _EDGES[:-1]) / 2
    law = MarchenkoPastur(BATCH / sizes.width).singular_values.pdf(middle)
    per = ("activation", "which")
    axes = (*per, "bin")
    return dataset(
        {
            "density": Variable(axes, densities[:, :, 0], "density of the singular values"),
            "density_low": Variable(axes, densities[:, :, 1], "lower end of its interval"),
            "density_high": Variable(axes, densities[:, :, 2], "upper end of its interval"),
            "marchenko_pastur": Variable(("bin",), law, "density of the law of Marchenko-Pastur"),
            **estimated("variance", per, found.variances, "variance of eigenvalues over n/d"),
            **estimated(
                "predicted", ("activation",), found.predictions,
                "its stationary value, of one step and the mean field",
            ),
        },
        {
            "activation": Variable(("activation",), list(sizes.activations), "activation", ""),
            "which": Variable(("which",), ["one step", f"layer {sizes.layer}"], "layer", ""),
            "bin": Variable(("bin",), middle, "singular value over √(b*(1-c*))"),
        },
        call,
        {
            "width": sizes.width, "batch": BATCH, "norm": "batch", "layer": sizes.layer,
            "networks": sizes.chains, "initial": "rows N(0, G*)",
        },
    )  # fmt: skip


def _density(values: NDArray[np.floating[Any]]) -> FloatArray:
    """Return the density of values (networks, n - 1) in the bins, and its interval: (3, bins).

    Eigenvalues of one network depend on each other, so each network is one sample.
    """
    counts = np.array([np.histogram(row, _EDGES)[0] for row in values])
    shares = counts / (values.shape[1] * np.diff(_EDGES))
    reach = 1.96 * shares.std(axis=0, ddof=1) / np.sqrt(len(shares))
    mean = shares.mean(axis=0)
    return np.array([mean, np.maximum(mean - reach, 0.0), mean + reach])


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    names = data["activation"].values
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    axes = axes_of(figure, columns, rows, width=4.2, height=3.1)
    x = data["bin"].values
    label_outer(axes, len(names), r"singular value $\sqrt{\lambda_i/(b_*(1-c_*))}$", "density")
    for index, (ax, name) in enumerate(zip(axes.flat, names, strict=False)):
        one = data.sel(activation=name)
        for colour, which in zip((COLOURS[0], COLOURS[1]), data["which"].values, strict=True):
            part = one.sel(which=which)
            ax.fill_between(
                x, part["density_low"], part["density_high"], step="mid", color=colour, alpha=0.25,
                linewidth=0,
            )  # fmt: skip
            ax.step(x, part["density"], where="mid", color=colour, linewidth=1.3, label=which)
        ax.plot(x, data["marchenko_pastur"], "k--", linewidth=1.2, label="Marchenko–Pastur")
        deep = float(one["variance"].values[1])
        ax.set_title(f"({'abcdefghij'[index]}) {name}: variance {deep:.2f} n/d", loc="left")
        ax.set_ylim(bottom=0.0)
    attrs = data.attrs
    figure.suptitle(
        f"Spectra of $G_{{{attrs['layer']}}}$, n = {attrs['batch']}, d = {attrs['width']}, "
        f"{attrs['networks']} networks, with 95 % intervals"
    )
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
