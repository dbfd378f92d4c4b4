"""Norms of gradients over depth, under several laws of weights, and their directions."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import interval, short_interval
from bnmc.gradients import backpropagate
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, colours_of, estimates, label_ends

# --- rank collapse, Prop. 19: directions


#: The networks, with their norms.
_NETWORKS = {"vanilla": "none", "batch norm": "batch"}

#: Gains that keep the size of representations without a norm.
_GAINS = {"relu": math.sqrt(2.0)}


class _DirectionSizes(NamedTuple):
    """Sizes of the figure.

    batch: batch size, and number of classes
    """

    width: int = 32
    batch: int = 10
    depth: int = 256
    chains: int = 50
    activations: tuple[Builtin, ...] = ("linear", "relu")


@kit.figure("gradients-directions", _DirectionSizes(), width=128, depth=1024, chains=200)
def directions(run: Run, sizes: _DirectionSizes) -> Experiment:
    r"""Prop. 19 and Fig. 10 of *rank collapse*: directions of gradients of single samples.

    If the representations a_i of all samples in the last layer are collinear, then so are the
    gradients of the samples' losses with respect to the weights of a neuron of the readout (Prop.
    19): they are multiples of a_i.  Fig. 10 shows this while a VGG19 network trains.  Here the
    networks are random: width 32, batch 10 with 10 classes, cross-entropy, 256 layers, 50 networks
    (`full`: width 128, 1024 layers, 200 networks), linear and relu, with batch normalization and
    without it (with gain √2 for relu, which keeps the size of representations).

    The left pictures show the mean over pairs of samples of \|cos(a_i, a_j)\| in layer ℓ: for the
    readout of a network of ℓ layers.  The right pictures show it for the parts of samples of the
    gradient with respect to the hidden weights W_ℓ of the whole network, which is
    :math:`|\cos(δ_i, δ_j) \cos(a_i, a_j)|` (`Backpropagation.cosines`).

    Expected: without normalization the cosines of the readout tend to 1.  For linear networks, this
    takes a number of layers of the order of the width.  With it they stay near those of the mean
    field: .265 in relu networks of batch 10, and 1/9 in linear networks, where fluctuations of the
    size √(batch/width) are larger.  For hidden weights without normalization, gradients align in
    the middle layers, far from the input, where samples differ, and from the loss, where errors
    differ.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import gradients
    >>> found = gradients.directions()  # doctest: +SKIP
    """
    depth, middle = sizes.depth, sizes.depth // 2

    def moduli(name: str, network: str, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return mean moduli of cosines, (networks, layers), of readout and of hidden weights."""
        norm = _NETWORKS[network]
        gain = _GAINS.get(name, 1.0) if norm == "none" else 1.0
        chain = Chain(sizes.width, sizes.batch, name, norm=norm, gain=gain)
        passed = backpropagate(
            chain, depth, chains=sizes.chains, loss="cross-entropy",
            labels=np.arange(chain.batch), observables=("gram", "delta_gram"),
            **run.options(progress),
        )  # fmt: skip
        grams = passed["gram"]
        lengths = np.sqrt(np.diagonal(grams, axis1=-2, axis2=-1))
        with np.errstate(invalid="ignore"):
            cosines = grams / lengths[..., :, None] / lengths[..., None, :]
        return _mean_of_pairs(cosines), _mean_of_pairs(passed.cosines())

    results = kit.Results(
        run, activation=sizes.activations, network=_NETWORKS, layer=np.arange(1, depth + 1),
        weight_layer=np.arange(1, depth),
    )  # fmt: skip
    per = ("activation", "network")
    parts = run.parts(moduli, results.points(*per))
    readout = results.add_means(
        "readout", (*per, "layer"), kit.entry(parts, 0),
        "mean modulus of the cosine of gradients of two samples, readout",
    )  # fmt: skip
    hidden = results.add_means(
        "hidden", (*per, "weight_layer"), kit.entry(parts, 1), "the same, hidden weights"
    )
    table = kit.table_of({
        f"readout after {depth} layers": readout.at(layer=-1),
        f"weights {middle}": hidden.at(weight_layer=middle - 1),
    })  # fmt: skip
    findings = (
        f"{name}, {network}: the mean modulus of the cosine between gradients of samples is "
        f"{short_interval(last)} for the readout after {depth} layers, and "
        f"{short_interval(inner)} for the weights of layer {middle}."
        for name, network, last, inner in table.rows
    )
    return results.experiment(
        f"Directions of gradients, width {sizes.width}, batch {sizes.batch}", table, findings,
        _draw, width=sizes.width, batch=sizes.batch, depth=depth, chains=sizes.chains,
        loss="cross-entropy",
    )  # fmt: skip


def _mean_of_pairs(cosines: Float64Array) -> Float64Array:
    """Return the mean modulus over pairs of samples, (networks, layers).

    A sample whose activations or errors vanish has no direction and is left out.
    """
    first, second = np.triu_indices(cosines.shape[-1], 1)
    means: Float64Array = np.nanmean(np.abs(cosines[..., first, second]), axis=-1)
    return means


def _draw(data: Dataset, figure: Drawing) -> None:
    names = data["activation"].values
    axes = pictures.axes_of(figure, 2, len(names), height=3.4)
    layers = {"readout": "layer", "hidden": "weight_layer"}
    for row, name in zip(axes, names, strict=True):
        for ax, (kind, axis) in zip(row, layers.items(), strict=True):
            pictures.lines(ax, data.sel(activation=name), kind, axis, by="network")
            of = "readout after layer" if kind == "readout" else "hidden weights"
            title = f"{name}: {of} $\\ell$"
            pictures.finish(ax, title, r"layer $\ell$", "mean |cosine|", ylim=(0.0, 1.02))
        row[0].legend(fontsize="small")
    text = "Cosines between gradients of samples, width {width}"
    figure.suptitle(pictures.about(data, text))


# --- norms


#: The laws of weights, with the marks of their measurements.
_MARKS = {"gaussian": "o", "haar": "x"}

#: Labels of the axes.
_LAYER, _NORM = r"layer $\ell$", r"$\ln\, \|\partial L/\partial W_\ell\|_F$, relative"

#: Number of layers in the data, evenly spaced.
_POINTS = 101

#: Layers that the estimate of the rate of Gaussian weights leaves out at both ends.
_ENDS = 30


def _layers(depth: int) -> NDArray[np.int64]:
    """Return the layers in the data."""
    return np.unique(np.linspace(0, depth - 1, _POINTS).astype(np.int64))


def _add_norms(
    results: kit.Results, per: tuple[str, str], logs: dict[kit.Point, Float64Array]
) -> None:
    """Add the logarithms of norms (networks, depth), at the layers in the data."""
    layers = results.axes["layer"]
    results.add_means(
        "log_norm", (*per, "layer"), kit.each(logs, lambda norms: norms[:, layers] - norms[:, -1:]),
        "ln of the gradient norm, relative to the last layer",
    )  # fmt: skip


# --- all activations


class _ExplosionSizes(NamedTuple):
    """Sizes of the figure."""

    width: int = 500
    batch: int = 10
    depth: Several = 1000
    chains: Several = 6
    activations: tuple[Builtin, ...] = tuple(BUILTIN)
    weights: tuple[Annotated[str, {"allowed": tuple(_MARKS)}], ...] = tuple(_MARKS)


@kit.figure("gradients-explosion", _ExplosionSizes(), width=1000, chains=50)
def explosion(run: Run, sizes: _ExplosionSizes) -> Experiment:
    r"""Gradients of networks with batch normalization explode with depth, for every activation.

    The picture shows :math:`\ln \|\partial L/\partial W_\ell\|_F` against the layer ℓ, relative to
    the last layer, beside lines of the growth of the mean field, and the measured growth over that
    of the mean field, for 1000 layers, the thirteen named activations, batch 10 and width 500
    (`full`: 1000), with 6 networks (`full`: 50) for each law of weights: Gaussian, and uniformly
    distributed on the orthogonal matrices ("haar").  The gradient with respect to the last layer
    has independent normal entries.  The table has the growth of the squared gradient norm per layer
    towards the input, between layers 30 from both ends, and `FixedPoint.backward_rate`, the growth
    at infinite width with Gaussian weights.

    Expected: straight lines.  With Gaussian weights their slope is the rate of the mean field up to
    a relative difference of order batch/width, which is measured here: at width 500 it is larger
    than the error.  Rows of wide orthogonal matrices are nearly independent and normal, so the
    slope with orthogonal weights differs from it by the same order.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import gradients
    >>> found = gradients.explosion()  # doctest: +SKIP
    """
    depth, ends = sizes.depth, min(_ENDS, sizes.depth // 4)
    predicted = {
        name: MeanField(Chain(sizes.width, sizes.batch, name)).fixed_point().backward_rate
        for name in sizes.activations
    }

    def log_norms(weights: str, name: str, progress: Progress) -> Float64Array:
        """Return the log norms of the gradients of all layers, (networks, depth)."""
        return backpropagate(
            Chain(sizes.width, sizes.batch, name, weights=weights), depth, chains=sizes.chains,
            dtype="float32", observables=(), **run.options(progress),
        ).log_gradient_norm  # fmt: skip

    results = kit.Results(
        run, weights=sizes.weights, activation=sizes.activations, layer=_layers(depth)
    )
    per = ("weights", "activation")
    logs = run.parts(log_norms, results.points(*per))
    _add_norms(results, per, logs)

    def growth(norms: Float64Array) -> Estimate:
        """Return the growth of the squared norm per layer."""
        slopes = 2.0 * (norms[:, ends] - norms[:, depth - 1 - ends]) / (depth - 1 - 2 * ends)
        return Estimate.from_samples(slopes, method="growth of norms").exp()

    rates = kit.each(logs, growth)
    results.add("backward_rate", per, rates, "squared gradient norm, growth per layer")
    results.add(
        "mean_field", ("activation",), list(predicted.values()),
        "the same at infinite width, Gaussian weights",
    )  # fmt: skip
    table = Table(
        (
            "activation", "weights", "squared gradient norm, growth per layer",
            "mean field, Gaussian weights", "difference, %",
        ),
        tuple(
            (name, weights, rate, predicted[name], 100.0 * (rate.value / predicted[name] - 1.0))
            for (weights, name), rate in rates.items()
        ),
    )  # fmt: skip
    findings = (
        f"{name}, {weights} weights: the squared gradient norm grows by {interval(rate)} per layer "
        f"towards the input; mean field of Gaussian weights: {theory:.5g}."
        for name, weights, rate, theory, _ in table.rows
    )
    return results.experiment(
        f"Gradients explode with depth: batch {sizes.batch}, width {sizes.width}", table, findings,
        _draw_activations, width=sizes.width, batch=sizes.batch, depth=depth,
        chains=sizes.chains, norm="batch", dtype="float32",
    )  # fmt: skip


def _draw_activations(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2, width=4.8, height=4.6)[0]
    names, laws = data["activation"].values, data["weights"].values
    colours = colours_of(names)
    layers, last = data["layer"].values, data.attrs["depth"] - 1
    norms = pictures.curve(data, "log_norm")
    for index, colour in enumerate(colours):
        slope = 0.5 * math.log(float(data["mean_field"][index]))
        left.plot(layers, slope * (last - layers), color=colour, linewidth=0.8)
        for row, weights in enumerate(laws):  # their marks alternate
            pictures.draw_band(
                left, layers, norms[row, index], colour, None, linestyle="",
                marker=_MARKS[weights], markersize=5, markevery=(8 * row, 16),
            )  # fmt: skip
    for weights in laws:
        left.plot([], [], _MARKS[weights], color="0.3", label=f"measured, {weights} weights")
    left.plot([], [], color="0.3", linewidth=0.8, label="mean field, Gaussian weights")
    pictures.finish(left, "Gradient norms", _LAYER, _NORM)
    left.set_xlim(left=-0.28 * last)
    left.set_xticks([tick for tick in left.get_xticks() if 0 <= tick <= last])
    label_ends(left, norms[0, :, 0, 0].tolist(), list(map(str, names)), colours)
    left.legend(fontsize="small")
    places = np.arange(len(names))
    for row, weights in enumerate(laws):
        rates = pictures.curve(data, "backward_rate")[row] / data["mean_field"].values[:, None]
        estimates(
            right, places + 0.25 * row, *rates.T, colour=COLOURS[row], fmt=_MARKS[weights],
            label=f"{weights} weights",
        )  # fmt: skip
    right.axhline(1.0, color="black", linewidth=0.8)
    right.set_xticks(places, names, rotation=60)
    pictures.finish(
        right, "Growth of the squared norm per layer", "activation", "measured over mean field",
        legend=True,
    )  # fmt: skip
    text = "Gradients with batch norm, width {width}, batch {batch}"
    figure.suptitle(pictures.about(data, text))


# --- orthogonal weights, at a width of the order of the batch


class _KindSizes(NamedTuple):
    """Sizes of the figure.

    kinds: activation and batch size of each kind of network
    """

    width: int = 100
    depth: Several = 160
    chains: Several = 6
    kinds: tuple[tuple[Builtin, int], ...] = (("linear", 100), ("linear", 50), ("tanh", 100))


@kit.figure("gradients-orthogonal", _KindSizes(), depth=1000, chains=20)
def orthogonal(run: Run, sizes: _KindSizes) -> Experiment:
    r"""Gradients under Gaussian and under orthogonal weights (Meterez et al., arXiv 2310.02012).

    The networks have width 100, uncentred batch normalization, and weights that are Gaussian or
    uniformly distributed on the orthogonal matrices: linear ones with batches of 100 and of 50
    samples, and tanh with a batch of 100.  They have 160 layers (`full`: 1000) and there are 6
    networks of each kind (`full`: 20).  The gradient with respect to the last layer has independent
    normal entries.  The pictures show :math:`\ln \|\partial L/\partial W_\ell\|_F` relative to the
    last layer.  The table has its growth per layer towards the input, between a quarter and three
    quarters of the depth, and half the logarithm of `FixedPoint.backward_rate`, the growth at
    infinite width.

    Expected: Gaussian weights make gradients explode.  The mean field of linear networks has
    ½ ln((n − 1)/(n − 2)) per layer, .0051 for a batch of n = 100.  At width 100 the rate is larger.
    Networks of up to 1000 layers in the paper have .0096.

    In linear networks with orthogonal weights whose batch is as large as the width, gradients are
    bounded.  Let δ be the gradient with respect to h.  If the samples are orthogonal, one layer of
    backpropagation is a rotation and a projection that removes the diagonal of :math:`δ h^T`.
    Hence

    .. math:: E \|δ_{L-k}\|^2 = \frac{d (d - 1)}{2}
              + \Big(\frac{d (d + 1)}{2} - 1\Big) \Big(\frac{d}{d + 2}\Big)^k, \qquad k \ge 1,

    which falls from about :math:`d^2` to half of it.  With fewer samples than the width, or with
    tanh, normalization changes the lengths of rows in every layer, and gradients explode with
    orthogonal weights, too.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import gradients
    >>> found = gradients.orthogonal()  # doctest: +SKIP
    """
    depth = sizes.depth

    def chain(kind: str, weights: str) -> Chain:
        name, batch = kinds[kind]
        return Chain(sizes.width, batch, name, norm="batch-uncentred", weights=weights)

    def log_norms(kind: str, weights: str, progress: Progress) -> Float64Array:
        """Return the log norms of the gradients of all layers, (networks, depth)."""
        return backpropagate(
            chain(kind, weights), depth, chains=sizes.chains, observables=(),
            **run.options(progress),
        ).log_gradient_norm  # fmt: skip

    kinds = {f"{name}, batch {batch}": (name, batch) for name, batch in sizes.kinds}
    predicted = {
        kind: 0.5 * math.log(MeanField(chain(kind, "gaussian")).fixed_point().backward_rate)
        for kind in kinds
    }
    results = kit.Results(
        run, network=kit.Axis(kinds, "activation and batch size", ""),
        weights=("gaussian", "haar"), layer=_layers(depth),
    )  # fmt: skip
    per = ("network", "weights")
    points = results.points(*per)
    logs = run.parts(log_norms, points, [float(kinds[kind][1]) ** 2 for kind, _ in points])
    _add_norms(results, per, logs)
    first, end = depth // 4, 3 * depth // 4

    def change(norms: Float64Array, first: int, last: int, per: int = 1) -> Estimate:
        return Estimate.from_samples((norms[:, first] - norms[:, last]) / per)

    growths = kit.each(logs, lambda norms: change(norms, first, end, end - first))
    totals = kit.each(logs, lambda norms: change(norms, 0, -1))
    results.add("growth", per, growths, "growth of ln of the norm per layer")
    results.add("total", per, totals, "ln of first over last gradient norm")
    results.add(
        "mean_field", ("network",), list(predicted.values()), "growth per layer at infinite width"
    )
    table = Table(
        (
            "activation", "batch", "weights", "ln norm, per layer", "mean field",
            f"first layer over last of {depth}",
        ),
        tuple(
            (*kinds[kind], weights, growths[kind, weights], predicted[kind], totals[kind, weights])
            for kind, weights in points
        ),
    )  # fmt: skip
    findings = (
        f"{name}, width {sizes.width}, batch {batch}, {weights} weights: ln of the gradient norm "
        f"grows by {interval(growth)} per layer towards the input; the interval "
        f"{'contains' if growth.ci[0] <= theory <= growth.ci[1] else 'excludes'} the {theory:.3g} "
        f"of the mean field. Over all {depth} layers it changes by {interval(total)}."
        for name, batch, weights, growth, theory, total in table.rows
    )
    return results.experiment(
        f"Gradients under Gaussian and orthogonal weights, width {sizes.width}", table, findings,
        _draw_kinds, width=sizes.width, depth=depth, chains=sizes.chains,
        norm="batch-uncentred",
    )  # fmt: skip


def _draw_kinds(data: Dataset, figure: Drawing) -> None:
    kinds = data["network"].values
    axes = pictures.axes_of(figure, len(kinds), width=4.6)
    layers, last = data["layer"].values, data.attrs["depth"] - 1
    for ax, kind in zip(axes[0], kinds, strict=True):
        part = data.sel(network=kind)
        pictures.lines(ax, part, "log_norm", "layer", by="weights", text="{} weights")
        slope = float(part["mean_field"])
        ax.plot(layers, slope * (last - layers), ":", color="black", label="mean field")
        ax.set_title(str(kind), loc="left")
    pictures.label_outer(axes, len(kinds), _LAYER, _NORM)
    axes[0, 0].legend(fontsize="small")
    text = "Gradients under Gaussian and orthogonal weights, width {width}"
    figure.suptitle(pictures.about(data, text))
