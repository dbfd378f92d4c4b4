"""The figures and claims of *On bridging the gap between mean field and finite width …*.

Joudaki, Daneshmand and Bach, *On bridging the gap between mean field and finite width in deep
random neural networks with batch normalization* (arXiv 2205.13076), and its poster.
Intervals are at level 0.95, bands hold 90 % of the networks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc import gram as grams
from bnmc._machine import available_processors
from bnmc._progress import Progress
from bnmc._validate import integer
from bnmc.bounds import bridging as bounds
from bnmc.chain import Chain
from bnmc.estimate import Estimate
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
    rms,
    sized,
    slope,
    split,
    with_parameters,
)
from bnmc.initial import FirstLayer
from bnmc.mean_field import FixedPoint, MeanField
from bnmc.mixing import contraction, tv_bound
from bnmc.observables import Distance
from bnmc.random_matrix import MarchenkoPastur, vanilla_deviation
from bnmc.simulation import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = [
    "certificate", "conditioning", "fig_1a", "fig_1b", "fig_2", "poster", "stationary_linear",
    "two_inputs",
]  # fmt: skip

FloatArray = NDArray[np.float64]

#: The activations of the paper's set F.
ACTIVATIONS = ("relu", "tanh", "sigmoid", "sin", "selu", "celu")

#: Sizes of each experiment, and what ``full`` changes of them.
DEFAULT: dict[str, dict[str, Any]] = {
    "1a": {"depth": 1000, "networks": 200, "vanilla": 1000, "points": 200},
    "1b": {"widths": (100, 200, 400, 800, 1600, 3200), "chains": 16, "first": 41, "last": 599},
    "2": {"activations": ACTIVATIONS, "width": 500, "layer": 20, "chains": 200},
    "poster": {
        "activations": ("relu", "tanh"), "depth": 40, "chains": 64,
        "widths": (100, 200, 400, 800, 1600, 3200), "batches": (4, 6, 10, 16, 25, 40),
    },
    "two-inputs": {
        "activations": ("relu", "tanh"), "widths": (250, 1000, 4000), "depth": 60, "chains": 64,
    },
    "conditioning": {
        "activations": ("relu", "tanh"), "widths": (200, 400, 800, 1600, 3200), "depth": 60,
        "chains": 64,
    },
    "certificate": {
        "activations": ("linear", *ACTIVATIONS), "width": 1000, "replicates": 500, "pairs": 32,
        "depth": 40,
    },
}  # fmt: skip
FULL: dict[str, dict[str, Any]] = {
    "1a": {"depth": 3000, "networks": 1000, "vanilla": 5000},
    "1b": {"widths": (100, 200, 500, 1000, 2000, 5000, 10000), "chains": 32},
    "2": {"width": 1000, "chains": 1000},
    "poster": {
        "activations": ACTIVATIONS, "chains": 256,
        "widths": (100, 200, 400, 800, 1600, 3200, 6400, 12800),
    },
    "two-inputs": {
        "activations": ACTIVATIONS, "widths": (250, 1000, 4000, 16000), "chains": 256,
    },
    "conditioning": {
        "activations": ACTIVATIONS, "chains": 256, "widths": (200, 400, 800, 1600, 3200, 6400),
    },
    "certificate": {"replicates": 5000},
}  # fmt: skip


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

    Linear networks of width 1000 with 5 samples, as in the paper, whose bands are those of 10
    simulations; here there are 200 networks with normalization and five times as many without,
    whose error has heavy tails, over 1000 layers (``full``: 1000 and 5000, over 3000).  Both start
    from orthogonal samples: :math:`G_0 = I` is the fixed point without normalization.

    What should be seen: with normalization the error is the same at every depth, at the root mean
    square of `stationary_linear`; without, it grows as the exact
    :math:`E\|G_l - I\|_F^2 = n(n+2)/3 (1+2/d)^l - n(n-1)/3 (1-1/d)^l - n`.

    Eq. (6), "error ≈ exp(depth/width)", has the exponent of that formula, but neither its scale nor
    its start, as √depth.  The bound exp(3nl/2d) before it is of the operator norm.  In depth it is
    far above the Frobenius norm drawn here, but at l = d/(3n) by no more than 19 % of its mean;
    from n = 8 on it is below there (`bnmc.bounds.bridging.equation_6`).  In great depth the mean
    over any ensemble falls below the exact value: ever fewer networks carry it.  The text calls G*
    the identity; with centring it is (n I − 11ᵀ)/(n−1), which is used here.  The authors' notebook
    has another figure: relu with normalization, from rows that are nearly equal, and a linear
    network without, from Gaussian samples, both of 70 layers.

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
    sizes, sources = sized("1a", full, DEFAULT, FULL), Sources(rng)
    width, n = 1000, 5
    samples = sources.generator.standard_normal((width, n))
    orthogonal = np.linalg.qr(samples)[0] * np.sqrt(width)
    chains = {"batch": Chain.bn_mlp(width, n, "linear"), "none": Chain.vanilla(width, n)}
    stars = {"batch": MeanField(chains["batch"]).fixed_point().gram, "none": np.eye(n)}
    counts = {"batch": sizes.networks, "none": sizes.vanilla}
    every = max(1, sizes.depth // sizes.points)
    errors = {}
    with Parts(
        progress, "bridging-1a", [3 * counts["batch"], counts["none"]], sources, full, store
    ) as parts:
        for norm, chain in chains.items():
            run = parts.run(
                simulate, chain, sizes.depth, chains=counts[norm], initial=orthogonal, burn_in=1,
                every=every, rng=sources.generator, observables=Distance(stars[norm]),
                threads=threads,
            )  # fmt: skip
            errors[norm] = run["distance"]
    layers = run.layers
    exact = np.sqrt(vanilla_deviation(width, n, layers))
    growth = np.sqrt(n * (n + 2) / 3) * np.exp(layers / width)
    plateau = np.sqrt(stationary_linear(width, n))
    squares = {norm: [rms(column) for column in values.T] for norm, values in errors.items()}
    bands = {norm: np.quantile(values, (0.05, 0.95), axis=0) for norm, values in errors.items()}
    late = np.square(errors["batch"][:, layers >= sizes.depth // 2])
    deep = rms(np.sqrt(late.mean(axis=1)))
    both = ("norm", "layer")
    unit = "Frobenius norm"

    def stacked(name: str) -> list[FloatArray]:
        return [split(values)[name] for values in squares.values()]

    data = dataset(
        {
            "mean": Variable(both, [v.mean(axis=0) for v in errors.values()], "mean error", unit),
            "band_low": Variable(both, [b[0] for b in bands.values()], "5 % of networks", unit),
            "band_high": Variable(both, [b[1] for b in bands.values()], "95 % of networks", unit),
            "rms": Variable(both, stacked("value"), "root mean square error", unit),
            "rms_low": Variable(both, stacked("low"), "lower end of its interval", unit),
            "rms_high": Variable(both, stacked("high"), "upper end of its interval", unit),
            "exact": Variable(
                both, [np.full(len(layers), plateau), exact],
                "exact r.m.s.; with batch norm that of deep layers, to leading order in 1/width",
                unit,
            ),
            **estimated("level", (), deep, "r.m.s. error of deep layers with batch norm", unit),
            "equation_6": Variable(("layer",), growth, "eq. (6), in scale with the exact", unit),
            "bound": Variable(
                ("layer",), bounds.equation_6(depth=layers, width=width, batch=n),
                "exp(3nl/2d), printed as a bound of the mean operator norm", "operator norm",
            ),
        },
        {
            "norm": Variable(("norm",), list(chains), "normalization", ""),
            "layer": Variable(("layer",), layers, "layer"),
        },
        sources, full,
        {
            "width": width, "batch": n, "activation": "linear", "networks": list(counts.values()),
            "initial": "orthogonal samples",
        },
    )  # fmt: skip
    shown = [_nearest(layers, layer) for layer in (1, 10, 100, sizes.depth)]
    table = Table(
        (
            "layer", "batch norm, mean", "no norm, mean", "no norm, r.m.s.",
            "no norm, exact r.m.s.", "exp(layer/width)",
        ),
        tuple(
            (
                int(layers[k]), Estimate.from_samples(errors["batch"][:, k]),
                Estimate.from_samples(errors["none"][:, k]), squares["none"][k], float(exact[k]),
                float(np.exp(layers[k] / width)),
            )
            for k in dict.fromkeys(shown)
        ),
    )  # fmt: skip
    early = shown[2]
    findings = (
        f"With batch norm the error of deep layers is {interval(deep)} (r.m.s.); theory, to "
        f"leading order in 1/width: {plateau:.4g}.",
        f"Without, it is {interval(squares['none'][early])} at layer {layers[early]} (r.m.s.); "
        f"exactly: {exact[early]:.4g}.",
        f"From layer {layers[0]} to {layers[-1]} the mean error grew by the factor "
        f"{_grown(errors['none']):.3g} without batch norm and {_grown(errors['batch']):.3g} with "
        "it.",
    )
    title = "The error of the mean field grows without batch norm and stays put with it"
    return Experiment("bridging-1a", title, data, table, findings, _draw_1a)


def _draw_1a(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot import COLOURS, band

    (ax,) = axes_of(figure, 1, width=7.2, height=5.0).flat
    layers = data["layer"].values
    labels = {"batch": "batch norm", "none": "no normalization"}
    for colour, (norm, label) in zip(COLOURS, labels.items(), strict=False):
        one = data.sel(norm=norm)
        band(ax, layers, one["mean"], one["band_low"], one["band_high"], colour=colour, label=label)
    vanilla, normalised = data["exact"].sel(norm="none"), data["exact"].sel(norm="batch")
    ax.plot(layers, vanilla, "k--", linewidth=1.2, label="no normalization, exact r.m.s.")
    ax.plot(layers, normalised, "k-.", linewidth=1.2, label="batch norm, theory, r.m.s.")
    grey = {"color": "0.4", "linewidth": 1.2}
    ax.plot(layers, data["equation_6"], ":", label="eq. (6), ∝ exp(depth/width)", **grey)
    ax.set_yscale("log")
    top = 20 * float(vanilla.max())
    inside = data["bound"].values < top
    ax.plot(
        layers[inside], data["bound"].values[inside], linestyle=(0, (1, 4)),
        label="printed bound exp(3nl/2d)", **grey,
    )  # fmt: skip
    ax.set_ylim(top=top)
    counts = data.attrs["networks"]
    ax.set_title("The error grows without batch norm and stays put with it", loc="left")
    ax.set_xlabel(
        f"layer\nlinear, n = {data.attrs['batch']}, d = {data.attrs['width']}; mean and 90 % of "
        f"{counts[0]} and {counts[1]} networks"
    )
    ax.set_ylabel(r"error of the mean field, $\|G_\ell - G_*\|_F$")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")


@with_parameters
def fig_1b(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 1b: the distance from the fixed point against the width.

    Linear networks with batch normalization, 10 samples; :math:`\|G_l - G_*\|_F` averaged over
    layers 40 < l < 600, as in the paper, of 16 networks at widths 100 to 3200 (``full``: 32, to
    10000).

    What should be seen: slope −1/2 in the width.  The dashed line of the paper, 2n/√d, lies about a
    fifth above: with m = n − 1 the mean square is :math:`n^2(m-1)(m+2)^2/(4m(m+1)d)` to leading
    order in 1/d, about :math:`n^3/(4d)` for large n.  So 2n/√d is neither law nor bound: from
    n = 16 on the root mean square exceeds it, and grows as :math:`n^{3/2}/(2\sqrt d)`.  The
    authors' notebook has tanh and sin, not centred, in the spectral norm; it compares tanh with the
    second moment of sin, and divides the error of sin by 51.

    Returns
    -------
    Experiment
        Variables by ``width``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> print(bridging.fig_1b().findings[0])  # doctest: +SKIP
    Slope of the distance against width, in logs, of widths >= 4n²: -0.50...
    """
    sizes, sources = sized("1b", full, DEFAULT, FULL), Sources(rng)
    n, widths = 10, sizes.widths
    star = MeanField(Chain.bn_mlp(widths[0], n, "linear")).fixed_point().gram
    means, squares = [], []
    with Parts(progress, "bridging-1b", widths, sources, full, store) as parts:
        for width in widths:
            values = parts.run(
                simulate, Chain.bn_mlp(width, n, "linear"), sizes.last, chains=sizes.chains,
                burn_in=sizes.first, rng=sources.generator, observables=Distance(star),
                threads=threads,
            )["distance"]  # fmt: skip
            means.append(Estimate.from_samples(values.mean(axis=1)))
            squares.append(rms(np.sqrt(np.square(values).mean(axis=1))))
    law = np.sqrt([stationary_linear(width, n) for width in widths])
    printed = 2 * n / np.sqrt(widths)
    wide = [k for k, width in enumerate(widths) if width >= 4 * n**2]
    fitted = slope([widths[k] for k in wide], [means[k] for k in wide])
    along, unit = ("width",), "Frobenius norm"
    data = dataset(
        {
            **estimated("distance", along, means, "mean distance from G*", unit),
            **estimated("rms", along, squares, "root mean square distance", unit),
            "law": Variable(along, law, "theory of the r.m.s., leading order in 1/width", unit),
            "printed": Variable(along, printed, "2n/√d, the line of the paper", unit),
        },
        {"width": Variable(along, widths, "width d", "neurons")},
        sources, full,
        {
            "batch": n, "activation": "linear", "norm": "batch", "networks": sizes.chains,
            "layers": [sizes.first, sizes.last], "slope": fitted.value, "slope_ci": fitted.ci,
        },
    )  # fmt: skip
    table = Table(
        ("width", "mean distance", "r.m.s. distance", "theory, r.m.s.", "2n/√d"),
        tuple(zip(widths, means, squares, law.tolist(), printed.tolist(), strict=True)),
    )
    last = squares[-1]
    findings = (
        f"Slope of the distance against width, in logs, of widths >= 4n²: {interval(fitted)}; "
        "theory, for large widths: -1/2.",
        f"At width {widths[-1]} the r.m.s. distance is {interval(last)}; theory, to leading order "
        f"in 1/width: {law[-1]:.4g}.",
        f"The paper's line 2n/√d is {printed[-1] / last.value:.3g} times as high.",
    )
    title = "The distance from the fixed point falls as the root of the width"
    return Experiment("bridging-1b", title, data, table, findings, _draw_1b)


def _draw_1b(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot import COLOURS, estimates, plain_ticks

    left, right = axes_of(figure, 2, width=5.4, height=4.4)[0]
    width, law = data["width"].values, data["law"].values
    ends = [data[f"rms{end}"].values for end in ("", "_low", "_high")]
    estimates(left, width, *ends, colour=COLOURS[0], label="simulated, r.m.s.")
    left.plot(width, law, color=COLOURS[1], label="theory, to leading order in 1/d")
    left.plot(width, data["printed"], "k--", linewidth=1.2, label=r"$2n/\sqrt{d}$ (paper)")
    left.set(xscale="log", yscale="log", ylabel=r"$\|G_\ell - G_*\|_F$")
    low, high = data.attrs["slope_ci"]
    left.set_title(f"slope {data.attrs['slope']:.3f} [{low:.3f}, {high:.3f}]", loc="left")
    left.legend()
    ratios = [np.square(end / law) for end in ends]
    estimates(right, width, *ratios, colour=COLOURS[0], label="simulated, 95 % intervals")
    right.axhline(1.0, color=COLOURS[1], label="theory")
    printed = np.square(data["printed"].values / law)
    right.plot(width, printed, "k--", linewidth=1.2, label=r"$2n/\sqrt{d}$ (paper)")
    right.set(xscale="log", ylabel="mean square over its theory", ylim=(0.9, None))
    right.set_title("corrections are of order 1/d", loc="left")
    right.legend(loc="center right")
    for ax in (left, right):
        plain_ticks(ax.xaxis, width)
        ax.set_xlabel("width $d$")
    plain_ticks(left.yaxis)
    attrs = data.attrs
    figure.suptitle(
        f"Linear, batch norm, n = {attrs['batch']}: layers {attrs['layers'][0]} to "
        f"{attrs['layers'][1]} of {attrs['networks']} networks"
    )


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
    from bnmc.plot import COLOURS

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


@with_parameters
def poster(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 1 a–c of the poster: the error against depth, width and batch, and its Theorem 2.

    (a) width 1000, batch 10, over depth; (b) layer 20, batch 10, over width; (c) width 1000, layer
    20, over the batch: sizes of the poster.  relu and tanh, 64 networks (``full``: six activations,
    256 networks, wider).  Inputs, which the poster does not name, are in (a) pairs of samples with
    correlation 0.99, so that there is something to forget, and else independent samples.

    What should be seen: (a) the error follows the mean field, ‖F^l(G_0) − G*‖ (dotted), down to a
    level, (b) which falls as the root of the width and (c) rises with the batch.  Dashed lines are
    the poster's radius :math:`\kappa (1-\alpha)^{l/2} + n (d \alpha)^{-1/2} \ln^{1/2}(d/n)` with
    the constant 1 and α = 1 − rate of the fixed point, which the poster only assumes.  Its
    transient part falls half as fast, in logs, as deviations do near the fixed point; far from it
    the mean field itself is slower than its rate (tanh), so that no κ(1−α)^{l/2} follows at once.
    The poster says O(·), with high probability, and names neither.

    What the figure gets wrong, by the authors' notebook: its G* is the mean over all layers, the
    input and its transient included, which makes the error of relu at width 1000 too large by 30 %;
    its G is of W times activations, with weights of variance gain²/d by Xavier's rule; and its
    dashed line, :math:`2\kappa (2^{-l/2} + n/(2\sqrt d))`, has no logarithm, and a constant and α
    that are chosen.  Its inputs are orthogonal but for one direction that is 20 times as large.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.poster()  # doctest: +SKIP
    """
    sizes, sources = sized("poster", full, DEFAULT, FULL), Sources(rng)
    n, width, layer = 10, 1000, 20
    points = [("depth", width, n)]
    points += [("width", d, n) for d in sizes.widths] + [("batch", width, b) for b in sizes.batches]
    weights = [d * b**2 for _, d, b in points] * len(sizes.activations)
    values: dict[tuple[str, str], list[Any]] = {}
    theory: dict[tuple[str, str], list[Any]] = {}
    rates, fields = [], []
    with Parts(progress, "bridging-poster", weights, sources, full, store) as parts:
        for name in sizes.activations:
            for kind, d, b in points:
                chain = Chain(d, b, name)
                star = MeanField(chain).fixed_point()
                depth = sizes.depth if kind == "depth" else layer
                inputs = _paired(b) if kind == "depth" else np.eye(b)
                run = parts.run(
                    simulate, chain, depth, chains=sizes.chains, initial=_rows_of(inputs),
                    burn_in=0 if kind == "depth" else depth, rng=sources.generator,
                    observables=Distance(star.gram), threads=threads,
                )  # fmt: skip
                bound = bounds.poster_theorem(
                    depth=run.layers, width=d, batch=b, alpha=1.0 - star.rate, star=star.gram
                )
                values.setdefault((kind, name), []).append(run["distance"])
                theory.setdefault((kind, name), []).append(np.atleast_1d(bound))
                if kind == "depth":
                    rates.append(star.rate)
                    # Layer 0 is one step of the mean field from the covariance of the inputs.
                    field = MeanField(chain).trajectory(
                        inputs, depth + 1, rtol=1e-2, rng=sources.generator
                    )
                    fields.append(grams.distance(field.gram[1:], star.gram))
    names = sizes.activations
    coordinates = {
        "activation": Variable(("activation",), list(names), "activation", ""),
        "layer": Variable(("layer",), np.arange(sizes.depth + 1), "layer"),
        "width": Variable(("width",), sizes.widths, "width d", "neurons"),
        "batch": Variable(("batch",), sizes.batches, "batch n", "samples"),
    }
    unit = "Frobenius norm"
    variables = {
        "mean_field": Variable(("activation", "layer"), fields, "mean field, ‖F^l(G_0) - G*‖", unit)
    }
    found: dict[str, list[list[Estimate]]] = {}
    for kind, axis in (("depth", "layer"), ("width", "width"), ("batch", "batch")):
        per = ("activation", axis)
        found[kind] = [
            [
                Estimate.from_samples(column)
                for column in np.concatenate(values[kind, name], axis=1).T
            ]
            for name in names
        ]
        variables |= estimated(f"by_{kind}", per, found[kind], "mean error", unit)
        variables[f"theorem_by_{kind}"] = Variable(
            per, [np.concatenate(theory[kind, name]) for name in names],
            "radius of the poster's theorem, constant 1", unit,
        )  # fmt: skip
    data = dataset(
        variables, coordinates, sources, full,
        {
            "width_fixed": width, "batch_fixed": n, "layer_fixed": layer, "norm": "batch",
            "networks": sizes.chains, "rates": rates,
            "initial": "(a) pairs of samples of correlation 0.99, (b, c) independent samples",
        },
    )  # fmt: skip
    slopes = [slope(sizes.widths, row) for row in found["width"]]
    ends = [row[-1] for row in found["depth"]]
    looseness = [
        float(np.concatenate(theory["depth", name])[-1]) / end.value
        for name, end in zip(names, ends, strict=True)
    ]
    table = Table(
        (
            "activation", "rate of the mean field", f"error at layer {sizes.depth}",
            "slope in width", "theorem over error",
        ),
        tuple(zip(names, rates, ends, slopes, looseness, strict=True)),
    )  # fmt: skip
    below = all((data[f"by_{kind}"] <= data[f"theorem_by_{kind}"]).all() for kind in found)
    findings = (
        *(
            f"{name}: the error settles at {interval(end)}; its slope in the width is "
            f"{interval(fitted)} (theory, for large widths: -1/2)."
            for name, end, fitted in zip(names, ends, slopes, strict=True)
        ),
        "The poster's radius with the constant 1 is "
        + ("above all measured means" if below else "below some measured means")
        + f", by {min(looseness):.2g} to {max(looseness):.2g} times in deep layers.",
    )
    title = "The error settles with depth, falls with width and rises with the batch"
    return Experiment("bridging-poster", title, data, table, findings, _draw_poster)


def _draw_poster(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot import COLOURS, band, estimates, plain_ticks

    axes = axes_of(figure, 3, width=4.4, height=4.0)[0]
    attrs = data.attrs
    d, n, layer = attrs["width_fixed"], attrs["batch_fixed"], attrs["layer_fixed"]
    panels = (
        ("depth", "layer", f"(a) depth: d = {d}, n = {n}", "layer"),
        ("width", "width", f"(b) width: layer {layer}, n = {n}", "width $d$"),
        ("batch", "batch", f"(c) batch: layer {layer}, d = {d}", "batch $n$"),
    )
    for ax, (kind, axis, title, label) in zip(axes, panels, strict=True):
        x = data[axis].values
        for colour, name in zip(COLOURS, data["activation"].values, strict=False):
            one = data.sel(activation=name)
            curve = [one[f"by_{kind}{end}"] for end in ("", "_low", "_high")]
            draw = band if kind == "depth" else estimates
            draw(ax, x, *curve, colour=colour, label=name)
            ax.plot(x, one[f"theorem_by_{kind}"], "--", color=colour, linewidth=1.2)
        ax.set(yscale="log", xlabel=label)
        if kind != "depth":
            ax.set_xscale("log")
            plain_ticks(ax.xaxis, x)
        ax.set_title(title, loc="left")
    axes[0].set_ylabel(r"$\|G_\ell - G_*\|_F$")
    for colour, field in zip(COLOURS, data["mean_field"].values, strict=False):
        axes[0].plot(data["layer"], field, ":", color=colour, linewidth=1.5)
    lowest = float(data["by_depth"].min())
    axes[0].set_ylim(bottom=lowest / 3)
    axes[0].plot([], [], ":", color="0.4", label="mean field")
    axes[0].plot([], [], "--", color="0.4", label="poster's theorem, constant 1")
    figure.suptitle(
        f"Error of the mean field, mean of {attrs['networks']} networks with 95 % intervals"
    )
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


@with_parameters
def two_inputs(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Corollaries 2 and 4: two inputs through one network certify stability without G*.

    Two independent inputs of pairs of samples with correlation 0.99, in the one, and in the other
    of independent samples, go through the same networks, 5 samples each.  Shown are
    :math:`\sum_i |\lambda_i/\lambda_i' - 1|` (Remark 2) and :math:`\|G_l^{-1} G_l' - I\|_F`.

    What should be seen: both fall to a level that falls as the root of the width and does not
    depend on depth.  The dashed line is nγ‖G*^{-1/2}‖/√d, the ε of Corollary 4, which holds with
    probability 1 − O(t⁻²) at t times this; it has the slope, and about the size.  Corollary 4 is
    printed without a transient part, which at layer 0 is false.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``width`` and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.two_inputs()  # doctest: +SKIP
    """
    sizes, sources = sized("two-inputs", full, DEFAULT, FULL), Sources(rng)
    n, names, widths = 5, sizes.activations, sizes.widths
    measured: dict[str, list[Any]] = {"spectral": [], "relative": []}
    levels: dict[str, list[Any]] = {"spectral": [], "relative": []}
    printed = []
    with Parts(
        progress, "bridging-two-inputs", list(widths) * len(names), sources, full, store
    ) as parts:
        for name in names:
            gamma = bounds.distortion(name, n)
            for width in widths:
                chain = Chain(width, n, name)
                star = MeanField(chain).fixed_point()
                normals = sources.generator.standard_normal((2, width, n))
                normals[0] = normals[0] @ _root(_paired(n))
                run = parts.run(
                    simulate, chain, sizes.depth, chains=sizes.chains, initial=normals, inputs=2,
                    rng=sources.generator, threads=threads,
                )  # fmt: skip
                first, second = run["gram"][:, :, 0], run["gram"][:, :, 1]
                ratio = grams.eigenvalues(first) / grams.eigenvalues(second)
                both = {
                    "spectral": np.abs(ratio - 1.0).sum(axis=-1),
                    "relative": grams.relative_deviation(first, second),
                }
                for kind, values in both.items():
                    measured[kind].append(values)
                    deep = values[:, sizes.depth // 2 :].mean(axis=1)
                    levels[kind].append(Estimate.from_samples(deep))
                printed.append(
                    float(
                        bounds.corollary_4(
                            width=width, batch=n, t=1.0, star=star.gram, distortion=gamma
                        ).radius
                    )
                )
    shape = (len(names), len(widths))
    per = ("activation", "width")
    variables: dict[str, Variable] = {}
    slopes: dict[tuple[str, str], Estimate] = {}
    for kind, long_name in (
        ("spectral", "Σ|λ/λ′ - 1|"),
        ("relative", "‖G⁻¹G′ - I‖, Frobenius norm"),
    ):
        stack = np.array(measured[kind]).reshape(*shape, sizes.chains, -1)
        curve = ("activation", "width", "layer")
        low, high = np.quantile(stack, (0.05, 0.95), axis=2)
        variables[kind] = Variable(curve, stack.mean(axis=2), long_name)
        variables[f"{kind}_band_low"] = Variable(curve, low, "5 % of networks")
        variables[f"{kind}_band_high"] = Variable(curve, high, "95 % of networks")
        rows = [levels[kind][k : k + len(widths)] for k in range(0, len(printed), len(widths))]
        variables |= estimated(f"{kind}_level", per, rows, f"mean over deep layers of {long_name}")
        for name, row in zip(names, rows, strict=True):
            slopes[kind, name] = slope(widths, row)
    variables["epsilon"] = Variable(
        per, np.reshape(printed, shape), "ε of Corollary 4, nγ‖G*^(-1/2)‖/√d"
    )
    data = dataset(
        variables,
        {
            "activation": Variable(("activation",), list(names), "activation", ""),
            "width": Variable(("width",), widths, "width d", "neurons"),
            "layer": Variable(("layer",), run.layers, "layer"),
        },
        sources, full,
        {
            "batch": n, "norm": "batch", "networks": sizes.chains,
            "initial": "pairs of samples of correlation 0.99, and independent samples",
        },
    )  # fmt: skip
    table = Table(
        ("activation", "width", "Σ|λ/λ′ - 1|", "‖G⁻¹G′ - I‖", "ε of Corollary 4"),
        tuple(
            (
                name,
                width,
                levels["spectral"][i * len(widths) + j],
                levels["relative"][i * len(widths) + j],
                printed[i * len(widths) + j],
            )
            for i, name in enumerate(names)
            for j, width in enumerate(widths)
        ),
    )
    findings = tuple(
        f"{name}: slopes of the levels in the width {interval(slopes['spectral', name])} (spectra) "
        f"and {interval(slopes['relative', name])} (matrices); theory, for large "
        "widths: -1/2."
        for name in names
    )
    title = "Two inputs to one network end at one spectrum, up to the root of the width"
    return Experiment("bridging-two-inputs", title, data, table, findings, _draw_two_inputs)


def _draw_two_inputs(data: xarray.Dataset, figure: Figure) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    from bnmc.plot import COLOURS, band, estimates, plain_ticks

    left, *levels = axes_of(figure, 3, width=4.6, height=4.2)[0]
    name = str(data["activation"].values[0])
    one = data.sel(activation=name)
    layers, widths = data["layer"].values, data["width"].values
    # Not those of the activations beside it.
    shades = colormaps["viridis"](np.linspace(0.0, 0.85, len(widths)))
    for colour, width in zip(map(to_hex, shades), widths, strict=True):
        part = one.sel(width=width)
        curve = [part[f"spectral{end}"] for end in ("", "_band_low", "_band_high")]
        band(left, layers, *curve, colour=colour, label=f"d = {width}")
    left.set(yscale="log", xlabel="layer", ylabel=r"$\Sigma_i\, |\lambda_i/\lambda_i' - 1|$")
    left.set_title(f"{name}, mean and 90 % of {data.attrs['networks']} networks", loc="left")
    left.legend()
    panels = (
        ("spectral", r"deep layers, $\Sigma_i\, |\lambda_i/\lambda_i' - 1|$"),
        ("relative", r"deep layers, $\|G_\ell^{-1} G_\ell' - I\|_F$"),
    )
    for ax, (kind, title) in zip(levels, panels, strict=True):
        for colour, label in zip(COLOURS, data["activation"].values, strict=False):
            part = data.sel(activation=label)
            curve = [part[f"{kind}_level{end}"] for end in ("", "_low", "_high")]
            estimates(ax, widths, *curve, colour=colour, fmt="o-", label=label)
            if kind == "relative":
                ax.plot(widths, part["epsilon"], "--", color=colour, linewidth=1.2)
        ax.set(xscale="log", yscale="log", xlabel="width $d$")
        plain_ticks(ax.xaxis, widths)
        plain_ticks(ax.yaxis)
        ax.set_title(title, loc="left")
    levels[0].set_ylabel("mean, with 95 % intervals")
    levels[1].plot([], [], "--", color="0.4", label="ε of Corollary 4")
    handles, labels = levels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(f"Two inputs through the same networks, n = {data.attrs['batch']}")


@with_parameters
def conditioning(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Corollary 8: n − 1 eigenvalues of deep layers lie near b*(1−c*), and so G is conditioned.

    Batch 10, inputs of pairs of samples with correlation 0.99, 60 layers, 64 networks (``full``:
    256, and six activations): the condition number of the bulk, the n − 1 eigenvalues orthogonal to
    the ones, over depth, and its extremes against the width.

    What should be seen: the condition number falls from about 100 to near 1 within 10 to 30
    layers.  The bulk widens as √(n/d): with the print's :math:`1 \mp \sqrt{n/d}`
    most networks have an eigenvalue outside, and so they have with Marchenko–Pastur's
    :math:`(1 \mp \sqrt{n/d})^2`; the stationary bulk is wider than either (see `fig_2`).  The print
    says that c depends on σ alone and that the outlier is c*n; it is b*(1 + (n−1)c*), and for
    negative c* the smallest eigenvalue.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``layer`` and ``width``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.conditioning()  # doctest: +SKIP
    """
    sizes, sources = sized("conditioning", full, DEFAULT, FULL), Sources(rng)
    n, names, widths = 10, sizes.activations, sizes.widths
    widest = max(range(len(widths)), key=widths.__getitem__)
    conditions, lows, highs, inside = [], [], [], []
    with Parts(
        progress, "bridging-conditioning", list(widths) * len(names), sources, full, store
    ) as parts:
        for name in names:
            for index, width in enumerate(widths):
                chain = Chain(width, n, name)
                star = MeanField(chain).fixed_point()
                run = parts.run(
                    simulate, chain, sizes.depth, chains=sizes.chains, initial=_rows_of(_paired(n)),
                    rng=sources.generator, threads=threads,
                )  # fmt: skip
                values = np.linalg.eigvalsh(_regular(run["gram"])) / (star.b * (1.0 - star.c))
                if index == widest:
                    conditions.append(values[..., -1] / values[..., 0])
                last = values[:, -1]
                lows.append(Estimate.from_samples(last[:, 0]))
                highs.append(Estimate.from_samples(last[:, -1]))
                inside.append(
                    [
                        _share((last[:, 0] >= low) & (last[:, -1] <= high))
                        for low, high in _windows(n, width)
                    ]
                )
    per, shape = ("activation", "width"), (len(names), len(widths))
    curves = np.array(conditions)
    band_low, band_high = np.quantile(curves, (0.05, 0.95), axis=1)
    along = ("activation", "layer")
    windows = np.array([_windows(n, width) for width in widths])

    def folded(flat: list[Any]) -> list[list[Any]]:
        return [flat[k : k + shape[1]] for k in range(0, len(flat), shape[1])]

    data = dataset(
        {
            "condition": Variable(along, curves.mean(axis=1), "condition number of the bulk"),
            "condition_band_low": Variable(along, band_low, "5 % of networks"),
            "condition_band_high": Variable(along, band_high, "95 % of networks"),
            **estimated("smallest", per, folded(lows), "smallest of the bulk over b*(1-c*)"),
            **estimated("largest", per, folded(highs), "largest of the bulk over b*(1-c*)"),
            "printed_window": Variable(("width", "end"), windows[:, 0], "1 ∓ √(n/d)"),
            "mp_window": Variable(("width", "end"), windows[:, 1], "(1 ∓ √(n/d))²"),
        },
        {
            "activation": Variable(("activation",), list(names), "activation", ""),
            "width": Variable(("width",), widths, "width d", "neurons"),
            "layer": Variable(("layer",), run.layers, "layer"),
            "end": Variable(("end",), ["low", "high"], "end of the interval", ""),
        },
        sources, full,
        {
            "batch": n, "norm": "batch", "networks": sizes.chains, "depth": sizes.depth,
            "initial": "pairs of samples of correlation 0.99",
        },
    )  # fmt: skip
    table = Table(
        (
            "activation", "width", "smallest", "largest", "all in 1 ∓ √(n/d)",
            "all in (1 ∓ √(n/d))²",
        ),
        tuple(
            (name, width, lows[k], highs[k], *inside[k])
            for i, name in enumerate(names)
            for j, width in enumerate(widths)
            for k in [i * len(widths) + j]
        ),
    )  # fmt: skip
    findings = []
    for i, name in enumerate(names):
        start, end = (Estimate.from_samples(curves[i][:, k]) for k in (0, -1))
        k = i * len(widths) + widest
        findings.append(
            f"{name}: the condition number of the bulk falls from {interval(start)} to "
            f"{interval(end)} at width {widths[widest]}; all n - 1 eigenvalues are in "
            f"1 ∓ √(n/d) in a share of {interval(inside[k][0])} of the networks."
        )
    title = "Deep layers are well-conditioned, in a window wider than the print's"
    return Experiment(
        "bridging-conditioning", title, data, table, tuple(findings), _draw_conditioning
    )


def _draw_conditioning(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot import COLOURS, band, estimates, plain_ticks

    left, right = axes_of(figure, 2, width=5.6, height=4.4)[0]
    widths, layers = data["width"].values, data["layer"].values
    for colour, name in zip(COLOURS, data["activation"].values, strict=False):
        one = data.sel(activation=name)
        curve = [one[f"condition{end}"] for end in ("", "_band_low", "_band_high")]
        band(left, layers, *curve, colour=colour, label=name)
        for extreme in ("smallest", "largest"):
            points = [one[f"{extreme}{end}"] for end in ("", "_low", "_high")]
            estimates(
                right, widths, *points, colour=colour, fmt="o-",
                label=name if extreme == "largest" else None,
            )  # fmt: skip
    for window, style, label in (
        ("printed_window", ":", r"$1 \mp \sqrt{n/d}$ (paper)"),
        ("mp_window", "--", r"$(1 \mp \sqrt{n/d})^2$ (Marchenko–Pastur)"),
    ):
        right.plot(widths, data[window].sel(end="high"), "k" + style, linewidth=1.2, label=label)
        right.plot(widths, data[window].sel(end="low"), "k" + style, linewidth=1.2)
    left.set(yscale="log", xlabel="layer", ylabel="condition number of the bulk")
    left.set_title(f"d = {widths.max()}: mean and 90 % of the networks", loc="left")
    left.legend()
    right.set(xscale="log", xlabel="width $d$", ylabel=r"$\lambda/(b_*(1-c_*))$")
    plain_ticks(right.xaxis, widths)
    right.set_title(f"extremes of the bulk at layer {data.attrs['depth']}", loc="left")
    right.legend(fontsize="small")
    figure.suptitle(
        f"Bulk of n − 1 eigenvalues, n = {data.attrs['batch']}, {data.attrs['networks']} networks"
    )


@with_parameters
def certificate(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Assumption 1: certified mixing in total variation, which the paper assumes.

    Of linear, relu, tanh, sigmoid, sin, selu and celu networks of width 1000 with 5 samples that
    start from independent normal samples: the bound of :math:`\|\mu_l - \mu_*\|_{tv}` by coupled
    chains (`bnmc.mixing.tv_bound`), of 500 pairs (``full``: 5000), beside the assumed
    :math:`(1-\alpha)^l`, with α = 1 − rate of the fixed point.

    What should be seen: the chains mix, and the bounds fall geometrically in the end.  They lie
    above (1−α)^l, for a coupled pair needs some layers until it is near enough to meet at all: what
    is certified is C(1−α)^l with a constant C above 1, a property of the start (and of the
    coupling); Assumption 1 has C at most 1.  The factor of the tail is that of the meeting times,
    measured at the layers where pairs meet; a pair that misses its chance makes it larger than
    the chain's own rate, which `bnmc.mixing.contraction` measures and which agrees with the mean
    field.

    Returns
    -------
    Experiment
        Variables by ``activation`` and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.certificate()  # doctest: +SKIP
    """
    sizes, sources = sized("certificate", full, DEFAULT, FULL), Sources(rng)
    n, names = 5, sizes.activations
    processors = available_processors() if threads is None else integer("threads", threads, low=1)
    certs, rates, measured = [], [], []
    with (
        Parts(
            progress, "bridging-certificate", [4.0, 1.0] * len(names), sources, full, store
        ) as parts,
        ThreadPoolExecutor(processors) as pool,
    ):
        for name in names:
            chain = Chain(sizes.width, n, name)
            rates.append(MeanField(chain).fixed_point().rate)
            certs.append(
                parts.run(
                    tv_bound, chain, sizes.depth, lag=sizes.depth, replicates=sizes.replicates,
                    rng=sources.generator, executor=pool,
                )
            )  # fmt: skip
            measured.append(
                parts.run(
                    contraction, chain, pairs=sizes.pairs, rng=sources.generator, executor=pool,
                ).rate_estimate
            )  # fmt: skip
    layers = certs[0].layers
    per = ("activation", "layer")
    data = dataset(
        {
            "bound": Variable(
                per, [cert.bound for cert in certs], "bound of the total variation distance"
            ),
            "bound_low": Variable(
                per, [cert.ci[:, 0] for cert in certs], "lower end of its interval"
            ),
            "bound_high": Variable(
                per, [cert.ci[:, 1] for cert in certs], "upper end of its interval"
            ),
            "assumed": Variable(
                per, [rate**layers for rate in rates], "(1-α)^l, α = 1 - rate of the fixed point"
            ),
            "mean_field_rate": Variable(("activation",), rates, "rate of the fixed point"),
            **estimated(
                "tail", ("activation",), [cert.rate_estimate for cert in certs],
                "factor of the tail of meeting times, a layer",
            ),
            **estimated("rate", ("activation",), measured, "contraction of coupled chains"),
        },
        {
            "activation": Variable(("activation",), list(names), "activation", ""),
            "layer": Variable(("layer",), layers, "layer"),
        },
        sources, full,
        {
            "width": sizes.width, "batch": n, "norm": "batch", "replicates": sizes.replicates,
            "lag": sizes.depth, "initial": "gaussian", "level": certs[0].level,
        },
    )  # fmt: skip
    estimates = [
        Estimate(one.rate, one.stderr, one.ci, one.n, one.method)
        for one in (*measured, *(cert.rate_estimate for cert in certs))
    ]
    rows = list(
        zip(
            names, rates, estimates[: len(names)], estimates[len(names) :],
            [cert.layers_to(0.25) for cert in certs], strict=True,
        )
    )  # fmt: skip
    table = Table(
        (
            "activation", "rate of the mean field", "contraction", "tail of meeting times",
            "TV <= 1/4 from layer",
        ),
        tuple(rows),
    )  # fmt: skip
    findings = tuple(
        f"{name}: total variation at most 1/4 from layer {layer} on (95 %); contraction by "
        f"{interval(found)} a layer, mean field {rate:.4g}."
        for name, rate, found, _, layer in rows
    )
    title = "Certified mixing, beside what the paper assumes"
    return Experiment("bridging-certificate", title, data, table, findings, _draw_certificate)


def _draw_certificate(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot import COLOURS

    names = data["activation"].values
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    axes = axes_of(figure, columns, rows, width=3.4, height=2.9)
    label_outer(axes, len(names), "layer", r"$\|\mu_\ell - \mu_*\|_{tv}$, at most")
    layers = data["layer"].values
    least = 0.1 / data.attrs["replicates"]
    for ax, name in zip(axes.flat, names, strict=False):
        one = data.sel(activation=name)
        bound = np.where(one["bound"].values > 0.0, one["bound"].values, np.nan)
        ax.fill_between(
            layers, np.maximum(one["bound_low"], least), one["bound_high"], color=COLOURS[0],
            alpha=0.2, linewidth=0, label="95 % intervals",
        )  # fmt: skip
        ax.plot(layers, bound, color=COLOURS[0], label="certified bound")
        ax.plot(
            layers, one["assumed"], "--", color=COLOURS[1], linewidth=1.3,
            label=r"assumed $(1-\alpha)^\ell$",
        )  # fmt: skip
        ax.axhline(1.0, color="black", linewidth=0.8)
        ax.set(yscale="log", ylim=(least, 2.0 * max(2.0, float(data["bound"].max()))))
        ax.set_title(
            f"{name}, α = {1 - float(one['mean_field_rate']):.3f}", loc="left", fontsize="medium"
        )
    attrs = data.attrs
    figure.suptitle(
        f"Total variation from the invariant law, n = {attrs['batch']}, d = {attrs['width']}, "
        f"{attrs['replicates']} pairs"
    )
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)


def stationary_linear(width: int, batch: int) -> float:
    r"""Mean square of :math:`\|G - G_*\|_F` in deep linear layers with batch normalization.

    :math:`n^2 (m-1)(m+2)^2 / (4 m (m+1) d)` with m = n − 1, to leading order in 1/d: that of one
    layer, :math:`n^2 (m-1)/(m d)`, over 1 − λ² with λ = m/(m+2).

    Parameters
    ----------
    width, batch : int
        d >= 1 and n >= 2.

    Returns
    -------
    float

    Examples
    --------
    >>> round(stationary_linear(1000, 10), 4)
    0.2689
    """
    d, m = integer("width", width, low=1), integer("batch", batch, low=2) - 1
    return (m + 1) ** 2 * (m - 1) * (m + 2) ** 2 / (4 * m * (m + 1) * d)


def _nearest(layers: NDArray[np.int64], layer: int) -> int:
    return int(np.abs(layers - layer).argmin())


def _grown(values: FloatArray) -> float:
    """Factor by which the mean grew from the first to the last layer."""
    mean = values.mean(axis=0)
    return float(mean[-1] / mean[0])


def _root(covariance: FloatArray) -> FloatArray:
    values, vectors = np.linalg.eigh(covariance)
    root: FloatArray = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return root


def _rows_of(covariance: FloatArray) -> FirstLayer:
    """A start whose rows are N(0, covariance), drawn anew for each network."""
    return FirstLayer(_root(covariance) * np.sqrt(len(covariance)))


def _paired(batch: int) -> FloatArray:
    """Covariance of pairs of samples with correlation 0.99."""
    covariance = np.eye(batch)
    for first in range(0, batch - 1, 2):
        covariance[first, first + 1] = covariance[first + 1, first] = 0.99
    return covariance


def _regular(matrices: FloatArray) -> FloatArray:
    """The part of Gram matrices orthogonal to the ones, in n - 1 dimensions."""
    from scipy.linalg import helmert

    basis = helmert(matrices.shape[-1])
    part: FloatArray = basis @ matrices @ basis.T
    return part


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


def _windows(batch: int, width: int) -> list[tuple[float, float]]:
    root = float(np.sqrt(batch / width))
    return [(1.0 - root, 1.0 + root), ((1.0 - root) ** 2, (1.0 + root) ** 2)]


def _share(hits: ArrayLike) -> Estimate:
    """A proportion with its Clopper-Pearson interval."""
    from scipy.special import betaincinv

    k, count = int(np.sum(hits)), int(np.size(hits))
    low = 0.0 if k == 0 else float(betaincinv(k, count - k + 1, 0.025))
    high = 1.0 if k == count else float(betaincinv(k + 1, count - k, 0.975))
    share = k / count
    return Estimate(
        share, float(np.sqrt(share * (1 - share) / count)), (low, high), count, "Clopper-Pearson"
    )
