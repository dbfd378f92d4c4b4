"""Random networks to first order: spectra of Jacobians, and of the Fisher matrix."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import short_interval
from bnmc.gradients import jacobian, tangent_kernel
from bnmc.gradients.limit_law import jacobian_law
from bnmc.plot.axes import COLOURS, estimates

# --- Jacobians

#: The laws of weights, with the styles of their curves.
_STYLES = {"gaussian": "-", "haar": "--"}

#: Styles of lines at infinite width, by law of weights.
_LIMITS = {"gaussian": ":", "haar": "-."}

#: Layers at which the deep networks are shown.
_POINTS = 40


class _SpectrumSizes(NamedTuple):
    """Sizes of the figure.

    batch: batch size under batch normalization; without it, one sample
    deep: layers of the deep networks
    activation: activation of all networks
    """

    width: int = 32
    batch: int = 6
    depth: int = 8
    deep: int = 800
    chains: Several = 6
    activation: Builtin = "tanh"


@kit.figure("isometry-spectrum", _SpectrumSizes(), width=100, depth=20, deep=2000, chains=20)
def isometry_spectrum(run: Run, sizes: _SpectrumSizes) -> Experiment:
    r"""Spectra of input-output Jacobians: Gaussian and orthogonal weights, with and without BN.

    Let s be the singular values of the Jacobian of the activations of layer ℓ with respect to those
    of layer 0.  A network is near an isometry if their squares have a small variance over their
    squared mean.  The left picture shows this number for networks of width 32 and 8 layers, with
    intervals in the last layer, and theory (dotted): the law at infinite width
    (`bnmc.gradients.jacobian_law`).  Without a norm there is one sample; under batch normalization
    the Jacobian is that of a batch of 6 samples.

    Joudaki, Daneshmand and Bach (arXiv:2205.13076, section 8) ask for the Jacobian at infinite
    depth and finite width: without normalization its rank diminishes, and by mean-field theory
    batch normalization makes small changes of inputs grow.  The middle picture shows ln s of the
    largest of two singular values on two random directions through 800 layers, and the right one
    the ratio of the first to the second.

    Expected: the variance grows linearly with the depth, and orthogonal weights take 1 per layer
    from it.  At finite width it fluctuates, and falls below theory as depth/width grows; under
    batch normalization much, since rare rows of small variance carry much of the second moment.  In
    deep networks with batch normalization ln s grows at every depth, by a rate that tends with the
    width to half the logarithm of the backward rate (here .197).  Without it s of tanh shrinks.
    With orthogonal weights and gain 1 activations shrink until tanh is linear, so that networks
    stay near an isometry.  With Gaussian weights the ratio of singular values grows exponentially
    in both cases, so at finite width the rank of the Jacobian diminishes to 1 with batch
    normalization, too, only more slowly, as its Jacobian has batch times as many directions.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import gradients
    >>> found = gradients.isometry_spectrum()  # doctest: +SKIP
    """
    step = max(1, sizes.deep // _POINTS)

    def chain_of(norm: str, weights: str) -> Chain:
        batch = sizes.batch if norm == "batch" else 1
        return Chain(sizes.width, batch, sizes.activation, norm=norm, weights=weights)

    def spectra(norm: str, weights: str, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return variances over squared means, and ln of two singular values of deep networks."""
        chain = chain_of(norm, weights)
        whole = jacobian(chain, sizes.depth, chains=sizes.chains, **run.options(progress))
        squares = np.exp(2.0 * whole.log_singular_values[:, :, 0])
        few = jacobian(
            chain, sizes.deep, directions=2, every=step, chains=sizes.chains,
            **run.options(progress),
        )  # fmt: skip
        return squares.var(axis=2) / squares.mean(axis=2) ** 2, few.log_singular_values[:, :, 0]

    deep = np.minimum(step * np.arange(1, -(-sizes.deep // step) + 1), sizes.deep)
    results = kit.Results(
        run, norm=("none", "batch"), weights=tuple(_STYLES), layer=np.arange(1, sizes.depth + 1),
        deep_layer=kit.Axis(deep.tolist(), "layer of the deep networks"),
    )  # fmt: skip
    per = ("norm", "weights")
    parts = run.parts(spectra, results.points(*per))
    theory = {
        point: np.array(
            [
                jacobian_law(chain_of(*point), layer).dispersion
                for layer in range(1, sizes.depth + 1)
            ]
        )
        for point in results.points(*per)
    }
    spread = results.add_means(
        "dispersion", (*per, "layer"), kit.entry(parts, 0),
        "variance of squared singular values over squared mean", within=(0.0, math.inf),
    )  # fmt: skip
    limit = results.add("limit", (*per, "layer"), theory, "the same at infinite width")
    logs = kit.entry(parts, 1)
    results.add_means(
        "log_largest", (*per, "deep_layer"), kit.each(logs, lambda values: values[:, :, 0]),
        "ln of the largest singular value on two directions",
    )  # fmt: skip
    results.add_means(
        "log_ratio", (*per, "deep_layer"),
        kit.each(logs, lambda values: values[:, :, 0] - values[:, :, 1]),
        "ln of the ratio of two singular values", within=(0.0, math.inf),
    )  # fmt: skip

    def slope(values: Float64Array) -> Estimate:
        """Return the growth of logarithms per layer, in the second half."""
        half = len(deep) // 2
        slopes = (values[:, -1] - values[:, half]) / (deep[-1] - deep[half])
        return Estimate.from_samples(slopes, method="growth per layer")

    growth = kit.each(logs, lambda values: slope(values[:, :, 0]))
    parting = kit.each(logs, lambda values: slope(values[:, :, 0] - values[:, :, 1]))
    rates = results.column(per, growth), results.column(per, parting)
    table = kit.table_of({
        f"variance/mean², layer {sizes.depth}": spread.at(layer=-1),
        "infinite width": limit.at(layer=-1),
        "ln s per layer": rates[0], "ln ratio per layer": rates[1],
    })  # fmt: skip
    findings = (
        f"{norm}, {weights}: variance over squared mean {short_interval(measured)} in layer "
        f"{sizes.depth}, {expected:.3g} at infinite width; deep networks: ln s grows by "
        f"{short_interval(size)} per layer, and the ratio of two singular values by "
        f"{short_interval(ratio)}."
        for norm, weights, measured, expected, size, ratio in table.rows
    )
    return results.experiment(
        f"Spectra of Jacobians, {sizes.activation}, width {sizes.width}", table, findings,
        _draw_spectra, width=sizes.width, batch=sizes.batch, depth=sizes.depth,
        activation=sizes.activation, chains=sizes.chains,
    )  # fmt: skip


def _draw_spectra(data: Dataset, figure: Drawing) -> None:
    axes = pictures.axes_of(figure, 3, width=4.4, height=3.9)[0]
    shown = {"dispersion": "layer", "log_largest": "deep_layer", "log_ratio": "deep_layer"}
    for ax, (name, axis) in zip(axes, shown.items(), strict=True):
        for colour, norm in zip(COLOURS, data["norm"].values, strict=False):
            for weights in data["weights"].values:
                part = data.sel(norm=norm, weights=weights)
                curve, label = pictures.curve(part, name), f"{norm}, {weights}"
                layers, style = part[axis].values, _STYLES[weights]
                if name != "dispersion":
                    pictures.draw_band(ax, layers, curve, colour, label, linestyle=style)
                else:  # bands would cover the lines
                    ax.plot(layers, curve[:, 0], style, color=colour, label=label)
                    estimates(ax, layers[-1:], *curve[-1:].T, colour=colour)
                    ax.plot(
                        part[axis], part["limit"], _LIMITS[weights], color=colour, linewidth=1.0
                    )
    for weights, line in _LIMITS.items():
        axes[0].plot([], [], line, color="black", label=f"{weights}, infinite width")
    pictures.finish(axes[0], "all singular values", r"layer $\ell$", "variance over squared mean")
    axes[0].legend(fontsize="small", title="norm, weights")
    pictures.finish(axes[1], "deep networks: size", r"layer $\ell$", r"$\ln\, s_1$")
    pictures.finish(axes[2], "deep networks: rank", r"layer $\ell$", r"$\ln\, s_1/s_2$")
    text = "Jacobians of {activation} networks, no skip, width {width}"
    figure.suptitle(pictures.about(data, text))


# --- the Fisher matrix


class _FisherSizes(NamedTuple):
    """Sizes of the figure.

    depth: hidden layers
    norms: normalizations
    """

    width: int = 256
    depth: int = 3
    batches: tuple[int, ...] = (4, 8, 16, 32)
    chains: Several = 10
    norms: tuple[str, ...] = ("none", "batch", "layer")


@kit.figure("fisher", _FisherSizes(), batches=(4, 8, 16, 32, 64), chains=40)
def fisher(run: Run, sizes: _FisherSizes) -> Experiment:
    r"""The largest eigenvalue of the Fisher matrix, which bounds the learning rate.

    Karakida, Akaho and Amari (arXiv 1806.01316 and 1906.02926).  For the squared loss of n samples
    the Fisher matrix of a network of one output has the eigenvalues of Θ/n, with Θ the tangent
    kernel, here of the NTK parametrization, ReLU with weights of variance 2/width.  If Θ has the
    mean Θ_d on the diagonal and Θ_o elsewhere, their formula is λ = ((n − 1) Θ_o + Θ_d)/n.
    Gradient descent of the linearized network is stable below the rate 2/λ.

    Expected: without a norm over the batch the formula holds, and one eigenvalue lies far above the
    others.  Batch normalization in the hidden layers makes it smaller and does not remove it, and
    the formula holds for large n: 3 % too small for 32 samples, and .3222 instead of .3224 for 256.
    In small batches rows of small variance have large derivatives, so that λ is several times the
    formula.  Subtracting the mean of the outputs over the batch removes the eigenvalue without a
    norm over the batch, and under batch normalization only for large n, where Θ_o dominates.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import gradients
    >>> found = gradients.fisher()  # doctest: +SKIP
    """

    def numbers(norm: str, batch: int, progress: Progress) -> Float64Array:
        """Return λ, the formula, and λ of centred outputs of each network, (networks, 3)."""
        gain = 2.0**0.5 if norm == "none" else 1.0
        chain = Chain(sizes.width, batch, "relu", norm=norm, gain=gain)
        kernels = tangent_kernel(
            chain, sizes.depth, chains=sizes.chains, **run.options(progress)
        ).kernels
        trace = np.trace(kernels, axis1=1, axis2=2)
        others = (kernels.sum(axis=(1, 2)) - trace) / (batch * (batch - 1))
        formula = ((batch - 1) * others + trace / batch) / batch
        projector = np.eye(batch) - 1.0 / batch
        largest = [
            np.linalg.eigvalsh(each)[:, -1] / batch
            for each in (kernels, projector @ kernels @ projector)
        ]
        return np.stack([largest[0], formula, largest[1]], axis=1)

    results = kit.Results(run, norm=sizes.norms, batch=sizes.batches)
    per = ("norm", "batch")
    costs = [float(batch**3 if norm == "batch" else batch) for norm, batch in results.points(*per)]
    parts = run.parts(numbers, results.points(*per), costs)
    texts = {
        "eigenvalue": "largest eigenvalue of the Fisher matrix",
        "formula": "formula of Karakida et al.",
        "centred": "largest eigenvalue with centred outputs",
    }
    columns = {}
    for place, (name, text) in enumerate(texts.items()):
        values = {point: part[:, place] for point, part in parts.items()}
        columns[text] = results.add_means(name, per, values, text)
    table: Table = kit.table_of(columns)
    last = sizes.batches[-1]
    findings = (
        f"norm {norm}, {batch} samples: {short_interval(value)}, formula "
        f"{short_interval(formula)}, with centred outputs {short_interval(centred)}."
        for norm, batch, value, formula, centred in table.rows
        if batch == last
    )
    return results.experiment(
        f"Largest eigenvalue of the Fisher matrix, {sizes.depth} hidden layers", table, findings,
        _draw_fisher, width=sizes.width, depth=sizes.depth, chains=sizes.chains,
        activation="relu",
    )  # fmt: skip


def _draw_fisher(data: Dataset, figure: Drawing) -> None:
    names = data["norm"].values
    axes = pictures.axes_of(figure, len(names), width=4.0, height=3.6)[0]
    for ax, norm in zip(axes, names, strict=True):
        part = data.sel(norm=norm)
        for colour, (name, label) in zip(
            COLOURS, {"eigenvalue": "largest", "centred": "largest, centred outputs"}.items(),
            strict=False,
        ):  # fmt: skip
            pictures.points(ax, part, name, "batch", colour=colour, fmt="o-", label=label)
        ax.plot(part["batch"], part["formula"], "k--", linewidth=1.2, label="formula", zorder=3)
        pictures.label_widths(ax, part["batch"].values)
        pictures.finish(ax, f"norm {norm}", "samples n", r"eigenvalue of $\Theta/n$", yscale="log")
    axes[0].legend(fontsize="small")
    figure.suptitle(pictures.about(data, "Fisher matrix, ReLU, width {width}"))
