"""Fig. 2: the spectrum of the Gram matrix beside the Marchenko-Pastur law, for six activations."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.bridging.common import ACTIVATIONS, bulk, first_layer_of_covariance
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import interval
from bnmc.mean_field import FixedPoint
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS
from bnmc.random_matrix import MarchenkoPastur
from bnmc.simulation.run import simulate

#: Batch size of the paper.
_BATCH = 20

#: Bins of the singular values.
_EDGES = np.linspace(0.4, 1.6, 61)


class Sizes(NamedTuple):
    """Sizes of the figure.

    layer: the deep layer that is shown
    """

    activations: tuple[Builtin, ...] = ACTIVATIONS
    width: int = 500
    layer: int = 20
    networks: Several = 200


@kit.figure("bridging-2", Sizes(), width=1000, networks=1000)
def fig_2(run: Run, sizes: Sizes) -> Experiment:
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
    ratio = _BATCH / sizes.width

    def spectra(name: str, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return eigenvalues of the bulk over b*(1-c*), (networks, 2, n - 1), and predictions."""
        chain = Chain(sizes.width, _BATCH, name)
        star = MeanField(chain).fixed_point()
        matrices = simulate(
            chain, sizes.layer, chains=sizes.networks, every=sizes.layer,
            initial=first_layer_of_covariance(star.gram), **run.options(progress),
        )["gram"]  # fmt: skip
        relative = bulk(matrices) / (star.b * (1.0 - star.c))
        eigenvalues: NDArray[Any] = np.linalg.eigvalsh(relative)
        return eigenvalues, stationary_spread(relative[:, 0], star, ratio)

    middle = (_EDGES[1:] + _EDGES[:-1]) / 2
    results = kit.Results(
        run, activation=sizes.activations,
        which=kit.Axis(("one step", f"layer {sizes.layer}"), "layer", ""),
        bin=kit.Axis(middle, "singular value over √(b*(1-c*))"),
    )  # fmt: skip
    parts = run.parts(spectra, results.points("activation"))
    spectrum = {
        (*name, which): eigenvalues[:, place]
        for name, (eigenvalues, _) in parts.items()
        for place, which in enumerate(results.axes["which"])
    }
    per = ("activation", "which")
    densities = kit.each(spectrum, _density)
    for place, (end, text) in enumerate({
        "": "density of the singular values", "_low": "lower end of its interval",
        "_high": "upper end of its interval",
    }.items()):  # fmt: skip
        results.add(f"density{end}", (*per, "bin"), kit.entry(densities, place), text)
    results.add(
        "marchenko_pastur", ("bin",), MarchenkoPastur(ratio).singular_values.pdf(middle),
        "density of the law of Marchenko-Pastur",
    )  # fmt: skip
    variance = results.add(
        "variance", per, kit.each(spectrum, partial(_spread, ratio=ratio)),
        "variance of eigenvalues over n/d",
    )  # fmt: skip
    predictions = kit.each(
        kit.entry(parts, 1), partial(Estimate.from_samples, method="linear response")
    )
    predicted = results.add(
        "predicted", ("activation",), predictions,
        "its stationary value, of one step and the mean field",
    )  # fmt: skip
    table = kit.table_of({
        "one step: variance d/n": variance.at(which=0),
        f"layer {sizes.layer}: variance d/n": variance.at(which=1),
        "predicted": predicted,
        "Marchenko-Pastur": results.column(("activation",), dict.fromkeys(parts, 1.0)),
    })  # fmt: skip
    findings = (
        *(
            f"{name}: the variance of the bulk is {interval(first)} times that of "
            f"Marchenko-Pastur in one step, and {interval(deep)} at layer {sizes.layer}; "
            f"predicted: {interval(prediction)}."
            for name, first, deep, prediction, _ in table.rows
        ),
        f"For linear networks it is exactly (n - 2)/n = {(_BATCH - 2) / _BATCH:.4g} in one step.",
    )
    return results.experiment(
        "One layer nearly follows Marchenko-Pastur; the stationary spectrum is wider", table,
        findings, _draw, width=sizes.width, batch=_BATCH, norm="batch", layer=sizes.layer,
        networks=sizes.networks, initial="rows N(0, G*)",
    )  # fmt: skip


def _spread(eigenvalues: Float64Array, ratio: float) -> Estimate:
    """Return the variance of eigenvalues relative to their mean, over the ratio n/d.

    Eigenvalues have the shape (networks, n - 1); the mean is over all of them.
    """
    relative = eigenvalues / eigenvalues.mean()
    return Estimate.from_samples(np.square(relative - 1.0).mean(axis=1) / ratio)


def stationary_spread(single: Float64Array, star: FixedPoint, ratio: float) -> Float64Array:
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
    (networks,) ndarray of float64
        Predictions of the variance over n/d, relative to the squared mean eigenvalue, of which the
        mean is the best one.
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
    total: Float64Array = trace**2 / m + light / (1.0 - slow**2) + rest / (1.0 - fast**2)
    return total / m / ratio


def _density(eigenvalues: Float64Array) -> Float64Array:
    """Return the density of singular values in the bins, and its interval: (3, bins).

    Eigenvalues of one network depend on each other, so each network is one sample.
    """
    values = np.sqrt(np.maximum(eigenvalues, 0.0))
    counts = np.array([np.histogram(row, _EDGES)[0] for row in values])
    shares = counts / (values.shape[1] * np.diff(_EDGES))
    reach = 1.96 * shares.std(axis=0, ddof=1) / np.sqrt(len(shares))
    mean = shares.mean(axis=0)
    return np.array([mean, np.maximum(mean - reach, 0.0), mean + reach])


def _draw(data: Dataset, figure: Drawing) -> None:
    names = data["activation"].values
    columns = min(3, len(names))
    axes = pictures.axes_of(figure, columns, -(-len(names) // columns), width=4.2, height=3.1)
    x = data["bin"].values
    singular = r"singular value $\sqrt{\lambda_i/(b_*(1-c_*))}$"
    pictures.label_outer(axes, len(names), singular, "density")
    for index, (ax, name) in enumerate(zip(axes.flat, names, strict=False)):
        of_name = data.sel(activation=name)
        for colour, which in zip(COLOURS, data["which"].values, strict=False):
            part = of_name.sel(which=which)
            ax.fill_between(
                x, part["density_low"], part["density_high"], step="mid", color=colour, alpha=0.25,
                linewidth=0,
            )  # fmt: skip
            ax.step(x, part["density"], where="mid", color=colour, linewidth=1.3, label=which)
        ax.plot(x, data["marchenko_pastur"], "k--", linewidth=1.2, label="Marchenko–Pastur")
        deep = float(of_name["variance"].values[1])
        ax.set_title(f"({'abcdefghij'[index]}) {name}: variance {deep:.2f} n/d", loc="left")
        ax.set_ylim(bottom=0.0)
    text = "Spectra of $G_{{{layer}}}$, n = {batch}, d = {width}, {networks} networks, with 95 % "
    figure.suptitle(text.format(**data.attrs) + "intervals")
    pictures.legend_below(figure, figure.axes[0], 3)
