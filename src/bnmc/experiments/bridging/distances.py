"""Figs. 1a and 1b, and those of the poster: distances from the fixed point."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import integer
from bnmc.bounds import bridging as bounds
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.bridging.common import (
    ACTIVATIONS,
    first_layer_of_covariance,
    paired_samples,
    stationary_linear,
)
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.sizes import Builtin, Integers, Natural, Several
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.gram import distance
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, band, colours_of, estimates, plain_ticks
from bnmc.random_matrix import vanilla_deviation
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

# --- Fig. 1a


#: Width and batch size of the paper.
_WIDTH_1A, _BATCH_1A = 1000, 5


class _DepthSizes(NamedTuple):
    """Sizes of the figure.

    chains: networks with batch normalization
    vanilla_chains: networks without it
    points: about how many layers are recorded
    """

    depth: int = 1000
    chains: Several = 200
    vanilla_chains: Several = 1000
    points: int = 200


@kit.figure("bridging-1a", _DepthSizes(), depth=3000, chains=1000, vanilla_chains=5000)
def fig_1a(run: Run, sizes: _DepthSizes) -> Experiment:
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
    inputs = _orthogonal_samples(run.generator)
    normalised = Chain(_WIDTH_1A, _BATCH_1A, "linear")
    chains = {"batch": normalised, "none": Chain(_WIDTH_1A, _BATCH_1A, "linear", norm="none")}
    # Without normalization every Gram matrix is a fixed point; the networks start at the identity.
    stars = {"batch": MeanField(normalised).fixed_point().gram, "none": np.eye(_BATCH_1A)}
    counts = {"batch": sizes.chains, "none": sizes.vanilla_chains}

    def distances(norm: str, progress: Progress) -> tuple[Float64Array, NDArray[np.int64]]:
        """Return the error of each network, (networks, layers), and the layers."""
        recorded = simulate(
            chains[norm], sizes.depth, chains=counts[norm], initial=inputs, burn_in=1,
            every=max(1, sizes.depth // sizes.points), observables=Distance(stars[norm]),
            **run.options(progress),
        )  # fmt: skip
        return recorded["distance"], recorded.layers

    parts = run.parts(distances, [("batch",), ("none",)], [3 * sizes.chains, sizes.vanilla_chains])
    errors, layers = kit.entry(parts, 0), parts["none",][1]
    results = kit.Results(run, norm=counts, layer=layers)
    both, unit = ("norm", "layer"), "Frobenius norm"
    means = kit.each(errors, lambda values: values.mean(axis=0))
    results.add("mean", both, means, "mean error", unit)
    for end, level, text in (("low", 0.05, "5 %"), ("high", 0.95, "95 %")):
        ends = kit.each(errors, partial(np.quantile, q=level, axis=0))
        results.add(f"band_{end}", both, ends, f"{text} of networks", unit)
    squares = {
        (*norm, layer): rms(column)
        for norm, values in errors.items()
        for layer, column in zip(layers, values.T, strict=True)
    }
    results.add("rms", both, squares, "root mean square error", unit)
    plateau = float(np.sqrt(stationary_linear(_WIDTH_1A, _BATCH_1A)))
    exact = np.sqrt(vanilla_deviation(_WIDTH_1A, _BATCH_1A, layers))
    results.add(
        "exact", both, {("batch",): np.full(len(layers), plateau), ("none",): exact},
        "exact r.m.s.; with batch norm that of deep layers, to leading order in 1/width", unit,
    )  # fmt: skip
    late = np.square(errors["batch",][:, layers >= sizes.depth // 2])
    deep = rms(np.sqrt(late.mean(axis=1)))
    results.add("level", (), {(): deep}, "r.m.s. error of deep layers with batch norm", unit)
    growth = np.exp(layers / _WIDTH_1A)
    results.add(
        "equation_6", ("layer",), np.sqrt(_BATCH_1A * (_BATCH_1A + 2) / 3) * growth,
        "eq. (6), in scale with the exact", unit,
    )  # fmt: skip
    results.add(
        "bound", ("layer",), bounds.equation_6(depth=layers, width=_WIDTH_1A, batch=_BATCH_1A),
        "exp(3nl/2d), printed as a bound of the mean operator norm", "operator norm",
    )  # fmt: skip
    shown = [int(np.abs(layers - layer).argmin()) for layer in (1, 10, 100, sizes.depth)]
    early, vanilla = shown[2], errors["none",]
    table = Table(
        (
            "layer", "batch norm, mean", "no norm, mean", "no norm, r.m.s.",
            "no norm, exact r.m.s.", "exp(layer/width)",
        ),
        tuple(
            (
                int(layers[k]), Estimate.from_samples(errors["batch",][:, k]),
                Estimate.from_samples(vanilla[:, k]), rms(vanilla[:, k]), float(exact[k]),
                float(growth[k]),
            )
            for k in dict.fromkeys(shown)
        ),
    )  # fmt: skip
    findings = (
        f"With batch norm the error of deep layers is {interval(deep)} (r.m.s.); theory, "
        f"to leading order in 1/width: {plateau:.4g}.",
        f"Without batch norm it is {interval(rms(vanilla[:, early]))} at layer {layers[early]} "
        f"(r.m.s.); exactly: {exact[early]:.4g}.",
        f"From layer {layers[0]} to {layers[-1]} the mean error grew by the factor "
        f"{_grown(vanilla):.3g} without batch norm and {_grown(errors['batch',]):.3g} with it.",
    )
    return results.experiment(
        "The error of the mean field grows without batch norm and stays constant with it", table,
        findings, _draw_depth, width=_WIDTH_1A, batch=_BATCH_1A, activation="linear",
        chains=[sizes.chains, sizes.vanilla_chains], initial="orthogonal samples",
    )  # fmt: skip


def _orthogonal_samples(generator: np.random.Generator) -> Float64Array:
    """Draw orthogonal inputs of shape (_WIDTH, _BATCH) whose Gram matrix is the identity."""
    basis = np.linalg.qr(generator.standard_normal((_WIDTH_1A, _BATCH_1A)))[0]
    samples: Float64Array = basis * np.sqrt(_WIDTH_1A)
    return samples


def _grown(values: Float64Array) -> float:
    """Return the factor by which the mean grew from the first to the last layer."""
    mean = values.mean(axis=0)
    return float(mean[-1] / mean[0])


def _draw_depth(data: Dataset, figure: Drawing) -> None:
    (ax,) = pictures.axes_of(figure, 1, width=9.5, height=5.6).flat
    layers, counts = data["layer"].values, data.attrs["chains"]
    labels = {"batch": "batch norm", "none": "no normalization"}
    for colour, (norm, label) in zip(COLOURS, labels.items(), strict=False):
        of_norm = data.sel(norm=norm)
        values = (of_norm[name] for name in ("rms", "band_low", "band_high"))
        band(ax, layers, *values, colour=colour, label=label)
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
    ax.set_title(
        "With batch norm the error stays constant\n"
        f"linear, n = {data.attrs['batch']}, d = {data.attrs['width']}; r.m.s. and 90 % band of "
        f"{counts[0]} networks (batch norm) and {counts[1]} (none)", loc="left", fontsize=10,
    )  # fmt: skip
    ax.set(xlabel="layer", ylabel=r"error of the mean field, $\|G_\ell - G_*\|_F$")
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)


# --- Fig. 1b


#: Batch size of the paper.
_WIDTH_BATCH = 10


class _WidthSizes(NamedTuple):
    """Sizes of the figure.

    widths: widths, two or more of them at least 400
    chains: networks per width
    """

    widths: tuple[int, ...] = (100, 200, 400, 800, 1600, 3200)
    chains: Several = 16
    first: Natural = 41
    last: int = 599


@kit.figure(
    "bridging-1b", _WidthSizes(), widths=(100, 200, 500, 1000, 2000, 5000, 10_000), chains=32
)  # fmt: skip
def fig_1b(run: Run, sizes: _WidthSizes) -> Experiment:
    r"""Fig. 1b: the distance from the fixed point against the width.

    Linear networks with batch normalization and n = 10 samples.  As in the paper,
    :math:`\|G_l - G_*\|_F` is averaged over layers 40 < l < 600.  There are 16 networks at each
    width d from 100 to 3200 (``full``: 32 networks, widths to 10000).

    Expected: the slope in the width is −1/2.  The paper's dashed line, 2n/√d, lies about a fifth
    above the points.  With m = n − 1 the mean square is :math:`n^2(m-1)(m+2)^2/(4m(m+1)d)` to
    leading order in 1/d, and about :math:`n^3/(4d)` for large n.  So 2n/√d is neither the law nor
    a bound: from n = 16 on the root mean square exceeds it, and grows as
    :math:`n^{3/2}/(2\sqrt d)`.  The authors' notebook shows tanh and sin without centring, in the
    spectral norm; it compares tanh with the second moment of sin, and divides the error of sin by
    51.

    Returns
    -------
    Experiment
        Variables by ``width``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> print(bridging.fig_1b().findings[0])  # doctest: +SKIP
    Log-log slope of the distance against the width, for widths >= 4n²: -0.50...
    """
    n, widths = _WIDTH_BATCH, sizes.widths
    wide = [width for width in widths if width >= 4 * n**2]
    if len(wide) < 2:
        raise ArgumentError("widths", widths, f"two or more widths >= {4 * n**2}, for the slope")
    integer("first", sizes.first, high=sizes.last)
    star = MeanField(Chain(widths[0], n, "linear")).fixed_point().gram

    def distances(width: int, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return the mean and the root mean square distance of each network."""
        values = simulate(
            Chain(width, n, "linear"), sizes.last, chains=sizes.chains,
            burn_in=sizes.first, observables=Distance(star), **run.options(progress),
        )["distance"]  # fmt: skip
        return values.mean(axis=1), np.sqrt(np.square(values).mean(axis=1))

    results = kit.Results(run, width=widths)
    parts = run.parts(distances, results.points("width"), widths)
    means = kit.each(kit.entry(parts, 0), Estimate.from_samples)
    squares = kit.each(kit.entry(parts, 1), rms)
    fitted = slope(wide, [means[width,] for width in wide])
    per, unit = ("width",), "Frobenius norm"
    law = np.sqrt([stationary_linear(width, n) for width in widths])
    printed = 2 * n / np.sqrt(widths)
    table = kit.table_of({
        "mean distance": results.add("distance", per, means, "mean distance from G*", unit),
        "r.m.s. distance": results.add("rms", per, squares, "root mean square distance", unit),
        "theory, r.m.s.": results.add(
            "law", per, law, "theory of the r.m.s., leading order in 1/width", unit
        ),
        "2n/√d": results.add("printed", per, printed, "2n/√d, the line of the paper", unit),
    })  # fmt: skip
    last = squares[widths[-1],]
    findings = (
        f"Log-log slope of the distance against the width, for widths >= 4n²: {interval(fitted)}; "
        "theory, for large widths: -1/2.",
        f"At width {widths[-1]} the r.m.s. distance is {interval(last)}; theory, to leading order "
        f"in 1/width: {law[-1]:.4g}.",
        f"The paper's line 2n/√d is {printed[-1] / last.value:.3g} times as high.",
    )
    return results.experiment(
        "The distance from the fixed point decreases as 1/√width", table, findings, _draw_width,
        batch=n, activation="linear", norm="batch", chains=sizes.chains,
        layers=[sizes.first, sizes.last], slope=fitted.value, slope_ci=fitted.ci,
    )  # fmt: skip


def _draw_width(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2, width=5.4, height=4.4)[0]
    width, law = data["width"].values, data["law"].values
    squares = pictures.curve(data, "rms").T
    estimates(left, width, *squares, colour=COLOURS[0], label="simulated, r.m.s.")
    left.plot(width, law, color=COLOURS[1], label="theory, to leading order in 1/d")
    left.plot(width, data["printed"], "k--", linewidth=1.2, label=r"$2n/\sqrt{d}$ (paper)")
    left.set(xscale="log", yscale="log", ylabel=r"$\|G_\ell - G_*\|_F$")
    value, low, high = (
        pictures.signed(each, 3) for each in (data.attrs["slope"], *data.attrs["slope_ci"])
    )
    left.set_title(f"slope {value} [{low}, {high}]", loc="left")
    left.legend()
    ratios = np.square(squares / law)
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
    text = "Linear, batch norm, n = {batch}: layers {layers[0]} to {layers[1]} of {chains} networks"
    figure.suptitle(text.format(**data.attrs))


# --- Fig. 1 of the poster, and its Theorem 2


#: Sizes of the poster: layer of (b, c), width of (a, c), batch size of (a, b).
_LAYER, _POSTER_WIDTH, _POSTER_BATCH = 20, 1000, 10

#: Panels (a), (b) and (c), and the axis of each.
_PANELS = {"depth": "layer", "width": "width", "batch": "batch"}


class _PosterSizes(NamedTuple):
    """Sizes of the figure.

    depth: number of layers of (a)
    widths: widths of (b)
    batches: batch sizes of (c)
    """

    activations: tuple[Builtin, ...] = ("relu", "tanh", "selu")
    depth: int = 40
    chains: Several = 64
    widths: Integers = (100, 200, 400, 800, 1600, 3200)
    batches: tuple[int, ...] = (4, 6, 10, 16, 25, 40)


@kit.figure(
    "bridging-poster", _PosterSizes(), activations=ACTIVATIONS, chains=256,
    widths=(100, 200, 400, 800, 1600, 3200, 6400, 12_800),
)  # fmt: skip
def poster(run: Run, sizes: _PosterSizes) -> Experiment:
    r"""Fig. 1 a–c of the poster: the error against depth, width and batch, and its Theorem 2.

    Panel (a) shows width 1000 and batch 10 over depth; (b) layer 20 and batch 10 over the width;
    (c) width 1000 and layer 20 over the batch size.  These are the sizes of the poster.  There are
    64 networks with relu, tanh and selu, the activations of the authors' code (``full``: 256
    networks, six activations, larger widths).  The poster does not name its inputs.  Here those of
    (a) are pairs of samples with correlation 0.99, whose error decays visibly; those of (b) and (c)
    are independent samples.

    Expected: in (a) the error follows the mean field, :math:`\|F^l(G_0) - G_*\|` (dotted), down to
    a level.  The level (b) falls as 1/√width and (c) rises with the batch size.  Dash-dotted lines
    are its prediction: the mean distance of the stationary law to leading order in 1/width
    (`bnmc.MeanField.fluctuations`).  Dashed lines
    are the poster's radius :math:`\kappa (1-\alpha)^{l/2} + n (d \alpha)^{-1/2} \ln^{1/2}(d/n)`
    with d the width and n the batch size.  The poster gives it as O(·), with high probability, and
    names neither constant nor probability; here the constant is 1.  It assumes α; here α is 1 −
    rate of the fixed point.  The exponent of the radius is half of that of deviations near the
    fixed point.  Far from the fixed point the mean field itself decays more slowly than its rate
    (tanh), so no :math:`\kappa(1-\alpha)^{l/2}` describes it from layer 0 on.

    Errors of the figure, by the authors' notebook: its G* is the mean over all layers, including
    the input and the transient, which makes the error of relu at width 1000 too large by 30 %.  Its
    G is of W times activations, with weights of variance gain²/d by Xavier's rule.  Its dashed
    line, :math:`2\kappa (2^{-l/2} + n/(2\sqrt d))`, has no logarithm, and a chosen constant and α.
    Its inputs are orthogonal, but one direction is 20 times as large as the others.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.poster()  # doctest: +SKIP
    """
    laws = {
        (name, batch): MeanField(Chain(2, batch, name)).fluctuations()
        for name in sizes.activations
        for batch in dict.fromkeys((_POSTER_BATCH, *sizes.batches))
    }

    def distances(
        name: str, panel: str, width: int, batch: int, progress: Progress
    ) -> Float64Array:
        """Return distances from G*, (networks, layers), or those of the mean field, (layers,)."""
        star, chain = laws[name, batch].fixed_point.gram, Chain(width, batch, name)
        if panel == "mean field":
            # Layer 0 is one step of the mean field from the covariance of the inputs.
            path = MeanField(chain).trajectory(
                paired_samples(batch), sizes.depth + 1, rtol=1e-2, rng=run.generator
            )
            return distance(path.gram[1:], star)
        is_depth = panel == "depth"
        inputs = paired_samples(batch) if is_depth else np.eye(batch)
        return simulate(
            chain, sizes.depth if is_depth else _LAYER, chains=sizes.chains,
            initial=first_layer_of_covariance(inputs), burn_in=0 if is_depth else _LAYER,
            observables=Distance(star), **run.options(progress),
        )["distance"]  # fmt: skip

    settings = {
        "depth": [(_POSTER_WIDTH, _POSTER_BATCH)],
        "mean field": [(_POSTER_WIDTH, _POSTER_BATCH)],
        "width": [(width, _POSTER_BATCH) for width in sizes.widths],
        "batch": [(_POSTER_WIDTH, batch) for batch in sizes.batches],
    }
    points = [
        (name, panel, *setting)
        for name in sizes.activations
        for panel, of_panel in settings.items()
        for setting in of_panel
    ]
    parts = run.parts(distances, points, [float(width * n**2) for _, _, width, n in points])
    results = kit.Results(
        run, activation=sizes.activations, layer=range(sizes.depth + 1), width=sizes.widths,
        batch=sizes.batches,
    )  # fmt: skip
    unit = "Frobenius norm"
    fields = {
        (name,): parts[name, "mean field", _POSTER_WIDTH, _POSTER_BATCH]
        for name in sizes.activations
    }
    results.add("mean_field", ("activation", "layer"), fields, "mean field, ‖F^l(G_0) - G*‖", unit)
    columns: dict[str, tuple[kit.Column, ...]] = {}
    for panel, axis in _PANELS.items():
        per = ("activation", axis)
        errors, radii, levels = {}, {}, {}
        for name, label in results.points(*per):
            setting = {"layer": _LAYER, "width": _POSTER_WIDTH, "batch": _POSTER_BATCH} | {
                axis: label
            }
            layer, width, batch = setting.values()
            samples = parts[name, panel, width, batch][:, layer if panel == "depth" else 0]
            law = laws[name, batch]
            star = law.fixed_point
            errors[name, label] = Estimate.from_samples(samples)
            radii[name, label] = bounds.poster_theorem(
                depth=layer, width=width, batch=batch, alpha=1.0 - star.rate, star=star.gram
            )
            levels[name, label] = law.mean_distance(width).value
        columns[panel] = tuple(
            results.add(f"{name}by_{panel}", per, values, text, unit)
            for name, values, text in (
                ("", errors, "mean error"),
                ("theorem_", radii, "radius of the poster's theorem, constant 1"),
                ("predicted_", levels, "predicted mean error at stationarity"),
            )
        )
    last, radius, level = (column.at(layer=-1) for column in columns["depth"])
    rates = [laws[name, _POSTER_BATCH].fixed_point.rate for name in sizes.activations]
    slopes = [slope(sizes.widths, row) for row in columns["width"][0].values]
    per_name = ("activation",)
    table = kit.table_of({
        "rate of the mean field": results.column(per_name, rates),
        f"error at layer {sizes.depth}": last,
        "slope in width": results.column(per_name, slopes),
        "theorem over error": results.column(per_name, radius.values / last.means().values),
        "predicted": level,
    })  # fmt: skip
    looseness = [row[4] for row in table.rows]
    below = all(
        (error.means().values <= theorem.values).all() for error, theorem, _ in columns.values()
    )
    findings = (
        *(
            f"{name}: the error converges to {interval(end)} (predicted: {prediction:.4g}); its "
            f"slope in the width is {interval(fitted)} (theory, for large widths: -1/2)."
            for name, _, end, fitted, _, prediction in table.rows
        ),
        "The poster's radius with the constant 1 is "
        + ("above all measured means" if below else "below some measured means")
        + f", by {min(looseness):.2g} to {max(looseness):.2g} times in deep layers.",
    )
    return results.experiment(
        "The error converges with depth, falls with the width and rises with the batch", table,
        findings, _draw_poster, width_fixed=_POSTER_WIDTH, batch_fixed=_POSTER_BATCH,
        layer_fixed=_LAYER, norm="batch", chains=sizes.chains, rates=rates,
        initial="(a) pairs of samples of correlation 0.99, (b, c) independent samples",
    )  # fmt: skip


def _draw_poster(data: Dataset, figure: Drawing) -> None:
    axes = pictures.axes_of(figure, 3, width=4.4, height=4.0)[0]
    attrs, names = data.attrs, data["activation"].values
    d, n, layer = attrs["width_fixed"], attrs["batch_fixed"], attrs["layer_fixed"]
    titles = {
        "depth": (f"(a) depth: d = {d}, n = {n}", "layer"),
        "width": (f"(b) width: layer {layer}, n = {n}", "width $d$"),
        "batch": (f"(c) batch: layer {layer}, d = {d}", "batch $n$"),
    }
    for ax, (panel, (title, label)) in zip(axes, titles.items(), strict=True):
        x = data[_PANELS[panel]].values
        for colour, name in zip(colours_of(names), names, strict=True):
            part: Any = data.sel(activation=name)
            draw = band if panel == "depth" else estimates
            draw(ax, x, *pictures.curve(part, f"by_{panel}").T, colour=colour, label=name)
            ax.plot(x, part[f"theorem_by_{panel}"], "--", color=colour, linewidth=1.2)
            ax.plot(x, part[f"predicted_by_{panel}"], "-.", color=colour, linewidth=1.0)
        pictures.finish(ax, title, label, yscale="log")
        if panel != "depth":
            ax.set_xscale("log")
            plain_ticks(ax.xaxis, x)
        ax.set_ylabel(r"$\|G_\ell - G_*\|_F$")
    for colour, field in zip(colours_of(names), data["mean_field"].values, strict=True):
        axes[0].plot(data["layer"], field, ":", color=colour, linewidth=1.5)
    axes[0].set_ylim(bottom=float(data["by_depth"].min()) / 3)
    axes[0].plot([], [], ":", color="0.4", label="mean field")
    axes[0].plot([], [], "--", color="0.4", label="poster's theorem, constant 1")
    axes[0].plot([], [], "-.", color="0.4", label="predicted, stationary")
    text = "Error of the mean field, mean of {chains} networks with 95 % intervals"
    figure.suptitle(text.format(**attrs))
    pictures.legend_below(figure, axes[0])
