"""Fig. 2 and Corollaries 2, 4 and 8: spectra of Gram matrices."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.linalg import semidefinite_root
from bnmc.bounds import bridging as bounds
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.bridging import common
from bnmc.experiments.bridging.common import (
    ACTIVATIONS,
    bulk,
    first_layer_of_covariance,
    paired_samples,
)
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Builtin, Integers, Several
from bnmc.experiments.statistics import interval, proportion, slope
from bnmc.gram import eigenvalues, relative_deviation
from bnmc.mean_field import FixedPoint
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, plain_ticks
from bnmc.random_matrix import MarchenkoPastur
from bnmc.simulation.run import simulate

# --- Fig. 2: beside the Marchenko-Pastur law


#: Batch size of the paper.
_DENSITY_BATCH = 20

#: Bins of the singular values.
_EDGES = np.linspace(0.4, 1.6, 61)


class _DensitySizes(NamedTuple):
    """Sizes of the figure.

    layer: the deep layer that is shown
    """

    activations: tuple[Builtin, ...] = ACTIVATIONS
    width: int = 500
    layer: int = 20
    chains: Several = 200


@kit.figure("bridging-2", _DensitySizes(), width=1000, chains=1000)
def fig_2(run: Run, sizes: _DensitySizes) -> Experiment:
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

    The deep spectrum is close to the law of Marchenko and Pastur of the ratio v n/d, with v the
    variance that the mean field predicts (`bnmc.mean_field.StationaryBulk`): the solid line.
    One eigenvalue lies outside of the bulk, along the ones: b*(1 + (n−1)c*).

    The paper says that the stationary spectrum "accurately follows" Marchenko–Pastur.  Only the
    fluctuation of one layer does, approximately.  The authors' notebook draws the density of
    eigenvalues over singular values.  It uses eigenvalues of W times activations, which have one
    more layer of fluctuations: their variance over n/d is 5.5 (tanh) and 3.4 (relu).  Paper and
    poster show layers 10 and 20, at widths 100, 200, 500 and 1000: ``layer=10, width=200``.

    Returns
    -------
    Experiment
        Densities by ``activation``, ``which`` ("one step", "layer 20") and ``bin``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.fig_2()  # doctest: +SKIP
    """
    ratio = _DENSITY_BATCH / sizes.width

    def spectra(name: str, progress: Progress) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return eigenvalues of the bulk over b*(1-c*), (networks, 2, n - 1), and predictions.

        Also those along the ones at the deep layer.
        """
        chain = Chain(sizes.width, _DENSITY_BATCH, name)
        star = MeanField(chain).fixed_point()
        matrices = simulate(
            chain, sizes.layer, chains=sizes.chains, every=sizes.layer,
            initial=first_layer_of_covariance(star.gram), **run.options(progress),
        )["gram"]  # fmt: skip
        relative = bulk(matrices) / (star.b * (1.0 - star.c))
        eigenvalues: NDArray[Any] = np.linalg.eigvalsh(relative)
        along_ones = matrices[:, 1].sum(axis=(-2, -1)) / _DENSITY_BATCH
        return eigenvalues, stationary_spread(relative[:, 0], star, ratio), along_ones

    middle = (_EDGES[1:] + _EDGES[:-1]) / 2
    results = kit.Results(
        run, activation=sizes.activations,
        which=kit.Axis(("one step", f"layer {sizes.layer}"), "layer", ""),
        bin=kit.Axis(middle, "singular value over √(b*(1-c*))"),
    )  # fmt: skip
    parts = run.parts(spectra, results.points("activation"))
    spectrum = {
        (*name, which): eigenvalues[:, place]
        for name, (eigenvalues, *_) in parts.items()
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
    laws = {
        (name,): MeanField(Chain(sizes.width, _DENSITY_BATCH, name))
        .fluctuations().bulk(sizes.width) for name in sizes.activations
    }  # fmt: skip
    results.add(
        "stationary_bulk", ("activation", "bin"),
        kit.each(laws, lambda law: MarchenkoPastur(
            law.spread * _DENSITY_BATCH / sizes.width).singular_values.pdf(middle)),
        "density of the law of Marchenko-Pastur of ratio v n/d",
    )  # fmt: skip
    outlier = results.add(
        "outlier", ("activation",), kit.each(kit.entry(parts, 2), Estimate.from_samples),
        f"eigenvalue along the ones at layer {sizes.layer}",
    )  # fmt: skip
    along_ones = results.add(
        "outlier_theory", ("activation",), kit.each(laws, lambda law: law.outlier),
        "b*(1 + (n-1)c*)",
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
        "v": results.column(("activation",), kit.each(laws, lambda law: law.spread)),
        "eigenvalue outside": outlier, "b*(1+(n-1)c*)": along_ones,
    })  # fmt: skip
    findings = (
        *(
            f"{name}: the variance of the bulk is {interval(first)} times that of "
            f"Marchenko-Pastur in one step, and {interval(deep)} at layer {sizes.layer}; "
            f"predicted: {interval(prediction)}."
            for name, first, deep, prediction, *_ in table.rows
        ),
        "For linear networks it is exactly (n - 2)/n = "
        f"{(_DENSITY_BATCH - 2) / _DENSITY_BATCH:.4g} in one step.",
    )
    return results.experiment(
        "One layer nearly follows Marchenko-Pastur; the stationary spectrum is wider", table,
        findings, _draw_density, width=sizes.width, batch=_DENSITY_BATCH, norm="batch",
        layer=sizes.layer, chains=sizes.chains, initial="rows N(0, G*)",
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


def _draw_density(data: Dataset, figure: Drawing) -> None:
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
        law = of_name["stationary_bulk"]
        ax.plot(x, law, "k-", linewidth=1.0, label="Marchenko–Pastur of ratio v n/d")
        deep = float(of_name["variance"].values[1])
        ax.set_title(f"({'abcdefghij'[index]}) {name}: variance {deep:.2f} n/d", loc="left")
        ax.set_ylim(bottom=0.0)
    text = "Spectra of $G_{{{layer}}}$, n = {batch}, d = {width}, {chains} networks, with 95 % "
    figure.suptitle(text.format(**data.attrs) + "intervals")
    pictures.legend_below(figure, figure.axes[0])


# --- Corollary 8: the condition number of deep layers on the complement of the ones


_BULK_BATCH = 10

#: The intervals of the bulk: that of the paper and that of Marchenko-Pastur.
_WINDOWS = {"printed_window": "1 ∓ √(n/d)", "mp_window": "(1 ∓ √(n/d))²"}


class _BulkSizes(NamedTuple):
    """Sizes of the figure.

    chains: networks per activation and width
    """

    activations: tuple[Builtin, ...] = ("relu", "tanh")
    widths: tuple[int, ...] = (200, 400, 800, 1600, 3200)
    depth: int = 60
    chains: Several = 64


@kit.figure(
    "bridging-conditioning", _BulkSizes(), activations=common.ACTIVATIONS,
    widths=(200, 400, 800, 1600, 3200, 6400), chains=256,
)  # fmt: skip
def conditioning(run: Run, sizes: _BulkSizes) -> Experiment:
    r"""Corollary 8: in deep layers n − 1 eigenvalues lie near b*(1−c*), so G is well-conditioned.

    The inputs are n = 10 samples in pairs of correlation 0.99; 64 networks have 60 layers
    (``full``: 256 networks, six activations).  The bulk is the n − 1 eigenvalues orthogonal to the
    ones.  The picture shows its condition number over depth, and its extremes against the width d.

    Expected: the condition number falls from about 100 to near 1 within 10 to 30 layers.  The bulk
    widens as √(n/d).  Most networks have an eigenvalue outside the printed interval
    :math:`1 \mp \sqrt{n/d}`, and also outside :math:`(1 \mp \sqrt{n/d})^2` of Marchenko–Pastur,
    because the stationary bulk is wider than both (see `fig_2`).  The paper states that c depends
    on σ alone and that the outlier is c*n.  The outlier is b*(1 + (n−1)c*); for negative c* it is
    the smallest eigenvalue.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``layer`` and ``width``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.conditioning()  # doctest: +SKIP
    """
    inputs = common.first_layer_of_covariance(common.paired_samples(_BULK_BATCH))

    def extremes(name: str, width: int, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return smallest and largest eigenvalue over b*(1-c*), (networks, layers)."""
        chain = Chain(width, _BULK_BATCH, name)
        star = MeanField(chain).fixed_point()
        grams = simulate(
            chain, sizes.depth, chains=sizes.chains, initial=inputs, **run.options(progress)
        )["gram"]
        values: NDArray[Any] = np.linalg.eigvalsh(common.bulk(grams)) / (star.b * (1.0 - star.c))
        return values[..., 0], values[..., -1]

    results = kit.Results(
        run, activation=sizes.activations, width=sizes.widths, layer=np.arange(sizes.depth + 1),
        end=("low", "high"),
    )  # fmt: skip
    per, widest = ("activation", "width"), max(sizes.widths)
    points = results.points(*per)
    parts = run.parts(extremes, points, [float(width) for _, width in points])
    conditions = {(name,): np.divide(*reversed(parts[name, widest])) for name in sizes.activations}
    results.add_range(
        "condition", ("activation", "layer"), conditions, "condition number of the bulk"
    )
    columns = {}
    for place, name in enumerate(("smallest", "largest")):
        deep = {point: Estimate.from_samples(part[place][:, -1]) for point, part in parts.items()}
        columns[name] = results.add(name, per, deep, f"{name} of the bulk over b*(1-c*)")
    windows = np.array([_windows(width) for width in sizes.widths])
    for place, (name, text) in enumerate(_WINDOWS.items()):
        results.add(name, ("width", "end"), windows[:, place], text)
        inside = {
            (activation, width): _inside(low, high, *_windows(width)[place])
            for (activation, width), (low, high) in parts.items()
        }
        columns[f"all in {text}"] = results.column(per, inside)
    printed = columns["all in 1 ∓ √(n/d)"].cells()
    findings = []
    for name in sizes.activations:
        start, end = (Estimate.from_samples(conditions[name,][:, layer]) for layer in (0, -1))
        findings.append(
            f"{name}: the condition number of the bulk falls from {interval(start)} to "
            f"{interval(end)} at width {widest}; all n - 1 eigenvalues are in "
            f"1 ∓ √(n/d) in a share of {interval(printed[name, widest])} of the networks."
        )
    return results.experiment(
        "Deep layers are well-conditioned, in a window wider than the printed one",
        kit.table_of(columns), findings, _draw_bulk, batch=_BULK_BATCH, norm="batch",
        chains=sizes.chains, depth=sizes.depth, initial="pairs of samples of correlation 0.99",
    )  # fmt: skip


def _windows(width: int) -> list[tuple[float, float]]:
    """Return both intervals of the bulk."""
    root = float(np.sqrt(_BULK_BATCH / width))
    return [(1.0 - root, 1.0 + root), ((1.0 - root) ** 2, (1.0 + root) ** 2)]


def _inside(low: Float64Array, high: Float64Array, least: float, most: float) -> Estimate:
    """Return the share of networks whose last layer has all eigenvalues in an interval."""
    return proportion((low[:, -1] >= least) & (high[:, -1] <= most))


def _draw_bulk(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2, width=5.6, height=4.4)[0]
    widths = data["width"].values
    pictures.lines(left, data, "condition", "layer", by="activation", kind="_band")
    for colour, name in zip(COLOURS, data["activation"].values, strict=False):
        part, line = data.sel(activation=name), {"colour": colour, "fmt": "o-"}
        pictures.points(right, part, "smallest", "width", **line)
        pictures.points(right, part, "largest", "width", label=name, **line)
    for window, style, label in (
        ("printed_window", ":", r"$1 \mp \sqrt{n/d}$ (paper)"),
        ("mp_window", "--", r"$(1 \mp \sqrt{n/d})^2$ (Marchenko–Pastur)"),
    ):
        right.plot(widths, data[window].sel(end="high"), "k" + style, linewidth=1.2, label=label)
        right.plot(widths, data[window].sel(end="low"), "k" + style, linewidth=1.2)
    title = f"d = {widths.max()}: mean and 90 % of the networks"
    pictures.finish(left, title, "layer", "condition number of the bulk", yscale="log")
    left.legend()
    title, ratio = f"extremes of the bulk at layer {data.attrs['depth']}", r"$\lambda/(b_*(1-c_*))$"
    pictures.finish(right, title, "width $d$", ratio, xscale="log", legend=True)
    plain_ticks(right.xaxis, widths)
    figure.suptitle(
        f"Bulk of n − 1 eigenvalues, n = {data.attrs['batch']}, {data.attrs['chains']} networks"
    )


# --- Corollaries 2 and 4: two inputs through one network converge to the same spectrum


#: Batch size of each input.
_PAIR_BATCH = 5

#: The two differences of a pair of Gram matrices, by name, with their description.
_DIFFERENCES = {"spectral": "Σ|λ/λ′ - 1|", "relative": "‖G⁻¹G′ - I‖, Frobenius norm"}


class _PairSizes(NamedTuple):
    """Sizes of the figure."""

    activations: tuple[Builtin, ...] = ("relu", "tanh")
    widths: Integers = (250, 1000, 4000)
    depth: int = 60
    chains: Several = 64


@kit.figure(
    "bridging-two-inputs", _PairSizes(), activations=ACTIVATIONS, widths=(250, 1000, 4000, 16000),
    chains=256,
)  # fmt: skip
def two_inputs(run: Run, sizes: _PairSizes) -> Experiment:
    r"""Corollaries 2 and 4: two inputs through one network certify stability without G*.

    Two independent inputs of n = 5 samples go through the same networks.  One consists of pairs of
    samples with correlation 0.99, the other of independent samples.  The picture shows two
    differences of their Gram matrices G and G': :math:`\sum_i |\lambda_i/\lambda_i' - 1|` of the
    eigenvalues (Remark 2), and :math:`\|G_l^{-1} G_l' - I\|_F`.

    Expected: both differences fall to a level that does not depend on the depth.  The level falls
    as 1/√d with the width d.  The dashed line is ε = nγ‖G*^{-1/2}‖/√d of Corollary 4, with γ the
    distortion of the activation.  The corollary bounds the difference by t ε with probability
    1 − O(t⁻²).  The line has the slope of the points and about their size.  The printed
    Corollary 4 lacks a transient part, so at layer 0 it is false.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``width`` and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.two_inputs()  # doctest: +SKIP
    """

    def differences(name: str, width: int, progress: Progress) -> dict[str, Float64Array]:
        """Return both differences of each network, (networks, layers)."""
        normals = run.generator.standard_normal((2, width, _PAIR_BATCH))
        normals[0] = normals[0] @ semidefinite_root(paired_samples(_PAIR_BATCH))
        grams = simulate(
            Chain(width, _PAIR_BATCH, name), sizes.depth, chains=sizes.chains, initial=normals,
            inputs=2, **run.options(progress),
        )["gram"]  # fmt: skip
        first, second = grams[:, :, 0], grams[:, :, 1]
        ratio = eigenvalues(first) / eigenvalues(second)
        return {
            "spectral": np.abs(ratio - 1.0).sum(axis=-1),
            "relative": relative_deviation(first, second),
        }

    results = kit.Results(
        run, activation=sizes.activations, width=sizes.widths, layer=np.arange(sizes.depth + 1)
    )
    per = ("activation", "width")
    points = results.points(*per)
    parts = run.parts(differences, points, costs=[float(width) for _, width in points])
    levels = {}
    for kind, text in _DIFFERENCES.items():
        samples = kit.entry(parts, kind)
        results.add_range(kind, (*per, "layer"), samples, text)
        deep = kit.each(samples, lambda values: values[:, sizes.depth // 2 :].mean(axis=1))
        levels[kind] = results.add(
            f"{kind}_level", per, kit.each(deep, Estimate.from_samples),
            f"mean over deep layers of {text}",
        )  # fmt: skip
    radii = {point: _radius(*point) for point in points}
    epsilon = results.add("epsilon", per, radii, "ε of Corollary 4, nγ‖G*^(-1/2)‖/√d")
    table = kit.table_of({
        "Σ|λ/λ′ - 1|": levels["spectral"], "‖G⁻¹G′ - I‖": levels["relative"],
        "ε of Corollary 4": epsilon,
    })  # fmt: skip
    findings = (
        f"{name}: slopes of the levels in the width {interval(slope(sizes.widths, spectral))} "
        f"(spectra) and {interval(slope(sizes.widths, relative))} (matrices); theory, for large "
        "widths: -1/2."
        for name, spectral, relative in zip(
            sizes.activations, levels["spectral"].values, levels["relative"].values, strict=True
        )
    )
    return results.experiment(
        "Two inputs to one network converge to one spectrum, up to 1/√width", table, findings,
        _draw_pair, batch=_PAIR_BATCH, norm="batch", chains=sizes.chains,
        initial="pairs of samples of correlation 0.99, and independent samples",
    )  # fmt: skip


def _radius(name: str, width: int) -> float:
    """Return ε of Corollary 4."""
    star = MeanField(Chain(width, _PAIR_BATCH, name)).fixed_point().gram
    distortion = bounds.distortion(name, _PAIR_BATCH)
    bound = bounds.corollary_4(
        width=width, batch=_PAIR_BATCH, t=1.0, star=star, distortion=distortion
    )
    return float(bound.radius)


def _draw_pair(data: Dataset, figure: Drawing) -> None:
    left, *levels = pictures.axes_of(figure, 3, width=4.6, height=4.2)[0]
    widths = data["width"].values
    # Other colours than the panels beside it, where a colour is an activation.
    name, shades = str(data["activation"].values[0]), pictures.shades(len(widths))
    pictures.lines(
        left, data.sel(activation=name), "spectral", "layer", by="width", kind="_band",
        colours=shades, text="d = {}",
    )  # fmt: skip
    title = f"{name}, mean and 90 % of {data.attrs['chains']} networks"
    pictures.finish(left, title, "layer", r"$\Sigma_i\, |\lambda_i/\lambda_i' - 1|$", yscale="log")
    left.legend()
    panels = {
        "spectral": r"deep layers, $\Sigma_i\, |\lambda_i/\lambda_i' - 1|$",
        "relative": r"deep layers, $\|G_\ell^{-1} G_\ell' - I\|_F$",
    }
    for ax, (kind, title) in zip(levels, panels.items(), strict=True):
        for colour, label in zip(COLOURS, data["activation"].values, strict=False):
            part = data.sel(activation=label)
            pictures.points(
                ax, part, f"{kind}_level", "width", colour=colour, fmt="o-", label=label
            )
            if kind == "relative":
                ax.plot(widths, part["epsilon"], "--", color=colour, linewidth=1.2)
        pictures.finish(ax, title, "width $d$", xscale="log", yscale="log")
        plain_ticks(ax.xaxis, widths)
        plain_ticks(ax.yaxis)
    levels[0].set_ylabel("mean, with 95 % intervals")
    levels[1].plot([], [], "--", color="0.4", label="ε of Corollary 4")
    pictures.legend_below(figure, levels[1])
    figure.suptitle(f"Two inputs through the same networks, n = {data.attrs['batch']}")
