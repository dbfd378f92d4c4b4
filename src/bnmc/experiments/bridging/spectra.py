"""TODO-DOC bnmc.experiments.bridging.common.spectra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._experiment import (
    Experiment,
    Parts,
    Sources,
    Store,
    Table,
    Variable,
    axes_of,
    dataset,
    estimated,
    interval,
    label_outer,
    sized,
    with_parameters,
)
from bnmc.experiments.bridging.common import DEFAULT, FULL, FloatArray, _regular
from bnmc.experiments.bridging.same_network import _rows_of
from bnmc.mean_field import FixedPoint, MeanField
from bnmc.random_matrix import MarchenkoPastur
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["fig_2"]


@with_parameters
def fig_2(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 2 a–f: the spectrum of six activations, and what its width really is.

    Singular values of the activations, :math:`\sqrt{\lambda_i/\mu}` with the :math:`\lambda_i` the
    n − 1 eigenvalues of G_20 orthogonal to the ones and μ = b*(1−c*), for relu, tanh, sigmoid, sin,
    selu and celu; n = 20, width 500, 200 networks (``full``: width 1000, 1000 networks).  Beside
    them the same of a single layer whose pre-activations are drawn with rows N(0, G*): the input
    of all layers here, so that layer 0 of a run is that single layer.

    What should be seen: the single layer has about the Marchenko–Pastur law of ratio n/d, a little
    narrower: its variance over n/d is exactly (n−2)/n for linear networks, and .89 to .95 for
    these.  Layer 20 has not: it is wider.  Fluctuations of former layers add up, in the two sectors
    of traceless symmetric matrices by the factor :math:`1/(1-\lambda^2)`, with λ_L and λ_M the
    eigenvalues of the mean-field map.  The table has the variance over n/d, which is 1 for
    Marchenko–Pastur, and that prediction, made of the measured fluctuation of the single layer.

    The paper says that the stationary spectrum "accurately follows" Marchenko–Pastur; it is the
    fluctuation of one step that does, about.  The authors' notebook draws the density of
    eigenvalues over singular values, and those of W times activations, a layer of fluctuation
    wider: the variance over n/d is 5.5 (tanh) and 3.4 (relu).  Paper and poster take layers 10 and
    20.

    Returns
    -------
    Experiment
        Densities by ``activation``, ``which`` ("one step", "deep") and ``bin``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.fig_2()  # doctest: +SKIP
    """
    sizes, sources = sized("2", full, DEFAULT, FULL), Sources(rng)
    n, width, names = 20, sizes.width, sizes.activations
    spectra, rows, predictions = [], [], []
    with Parts(progress, "bridging-2", [1.0] * len(names), sources, full, store) as parts:
        for name in names:
            chain = Chain(width, n, name)
            star = MeanField(chain).fixed_point()
            matrices = parts.run(
                simulate, chain, sizes.layer, chains=sizes.chains, initial=_rows_of(star.gram),
                every=sizes.layer, rng=sources.generator, threads=threads,
            )["gram"]  # fmt: skip
            level = star.b * (1.0 - star.c)
            bulk = _regular(matrices) / level
            predictions.append(_amplified(bulk[:, 0], star, n / width))
            values = np.linalg.eigvalsh(bulk)
            spectra.append(values)
            rows.append([_spread(values[:, which], n / width) for which in (0, 1)])
    edges = np.linspace(0.4, 1.6, 61)
    densities = np.array(
        [
            [_density(np.sqrt(np.maximum(values[:, which], 0.0)), edges) for which in (0, 1)]
            for values in spectra
        ]
    )
    middle = (edges[1:] + edges[:-1]) / 2
    law = MarchenkoPastur(n / width).singular_values.pdf(middle)
    kinds = ("one step", f"layer {sizes.layer}")
    per = ("activation", "which")
    data = dataset(
        {
            "density": Variable(
                (*per, "bin"), densities[:, :, 0], "density of the singular values"
            ),
            "density_low": Variable((*per, "bin"), densities[:, :, 1], "lower end of its interval"),
            "density_high": Variable(
                (*per, "bin"), densities[:, :, 2], "upper end of its interval"
            ),
            "marchenko_pastur": Variable(("bin",), law, "density of the law of Marchenko-Pastur"),
            **estimated("variance", per, rows, "variance of eigenvalues over n/d"),
            **estimated(
                "predicted", ("activation",), predictions,
                "its stationary value, of one step and the mean field",
            ),
        },
        {
            "activation": Variable(("activation",), list(names), "activation", ""),
            "which": Variable(("which",), list(kinds), "layer", ""),
            "bin": Variable(("bin",), middle, "singular value over √(b*(1-c*))"),
        },
        sources, full,
        {
            "width": width, "batch": n, "norm": "batch", "layer": sizes.layer,
            "networks": sizes.chains, "initial": "rows N(0, G*)",
        },
    )  # fmt: skip
    table = Table(
        (
            "activation", "one step: variance d/n", f"layer {sizes.layer}: variance d/n",
            "predicted", "Marchenko-Pastur",
        ),
        tuple(
            (name, *row, predicted, 1.0)
            for name, row, predicted in zip(names, rows, predictions, strict=True)
        ),
    )  # fmt: skip
    findings = (
        *(
            f"{name}: the variance of the bulk is {interval(row[0])} times that of "
            f"Marchenko-Pastur in one step, and {interval(row[1])} at layer {sizes.layer}; "
            f"predicted: {interval(predicted)}."
            for name, row, predicted in zip(names, rows, predictions, strict=True)
        ),
        f"Of linear networks it is (n - 2)/n = {(n - 2) / n:.4g} in one step, exactly.",
    )
    title = "One layer about follows Marchenko-Pastur; the stationary spectrum is wider"
    return Experiment("bridging-2", title, data, table, findings, _draw_2)


def _draw_2(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot.axes import COLOURS

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


def _spread(eigenvalues: NDArray[np.floating[Any]], ratio: float) -> Estimate:
    """Variance of eigenvalues (networks, n - 1) about their common mean, over it and over n/d."""
    relative = eigenvalues / eigenvalues.mean()
    return Estimate.from_samples(np.square(relative - 1.0).mean(axis=1) / ratio)


def _amplified(single: FloatArray, star: FixedPoint, ratio: float) -> Estimate:
    """Predict the stationary variance of the bulk, over n/d, from matrices of a step.

    A deviation lasts: in each of the sectors of traceless symmetric matrices, those of P diag(v) P
    and the rest, variances are 1/(1 - λ²) times those of a step.  The trace is forgotten at once.
    """
    from scipy.linalg import helmert

    m = single.shape[-1]
    n = m + 1
    deviation = single / (np.trace(single, axis1=1, axis2=2).mean() / m) - np.eye(m)
    trace = np.trace(deviation, axis1=1, axis2=2)
    traceless = deviation - (trace / m)[:, None, None] * np.eye(m)
    basis = helmert(n)
    diagonal = np.einsum("ai,cab,bi->ci", basis, traceless, basis)
    # P diag(v) P has the diagonal (1 - 2/n) v where v sums to 0.
    light = n / (n - 2) * np.square(diagonal).sum(axis=1)
    rest = np.square(traceless).sum(axis=(1, 2)) - light
    slow, fast = np.abs(np.asarray(star.eigenvalues[:2], dtype=np.float64))
    total = trace**2 / m + light / (1.0 - slow**2) + rest / (1.0 - fast**2)
    return Estimate.from_samples(total / m / ratio, method="linear response")


def _density(values: FloatArray, edges: FloatArray) -> FloatArray:
    """Density of values (networks, n - 1) in bins with an interval, (3, bins).

    Eigenvalues of one network are not independent, networks are: each is one sample.
    """
    counts = np.array([np.histogram(row, edges)[0] for row in values])
    shares = counts / (values.shape[1] * np.diff(edges))
    reach = 1.96 * shares.std(axis=0, ddof=1) / np.sqrt(len(shares))
    mean = shares.mean(axis=0)
    return np.array([mean, np.maximum(mean - reach, 0.0), mean + reach])
