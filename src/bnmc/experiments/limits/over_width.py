"""Against the width: tangent kernels, and powers of the width in one step of training."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from bnmc._support.linalg import semidefinite_root
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.limits import ensembles
from bnmc.experiments.limits.ensembles import Classes, Count, two_classes
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.gradients import tangent_kernel
from bnmc.infinite_width import SCALINGS, nngp, ntk
from bnmc.plot.axes import COLOURS, logarithmic

# --- tangent kernels of finite networks beside that of infinite width


#: The networks with batch normalization, and the number of their hidden layers.
_NORMALIZED, _LAYERS = "batch norm, 2 hidden layers, from the mean", 2


class _KernelSizes(NamedTuple):
    """Sizes of the figure."""

    depths: tuple[int, ...] = (1, 2, 6)
    widths: Integers = (64, 256, 1024, 4096)
    chains: Several = 200
    images: Count = 10
    classes: Classes = (0, 1)


@kit.figure(
    "limits-ntk-convergence", _KernelSizes(), trains=True, depths=(1, 2, 6, 11),
    widths=(64, 256, 1024, 4096, 16_384), chains=1000, images=16,
)  # fmt: skip
def ntk_convergence(run: Run, sizes: _KernelSizes) -> Experiment:
    r"""Tangent kernels of random networks approach that of infinite width as 1/√width.

    The picture shows the root mean square over networks of
    :math:`\|\Theta_d - \Theta_\infty\|_F / \|\Theta_\infty\|_F` against the width d, for ReLU
    networks with 1, 2 and 6 hidden layers (`full`: 11, too), 10 images of two classes, and 200
    networks of each kind.  With one hidden layer all weights are trained.  In deeper networks the
    first layer is random and fixed, `bnmc.gradients.tangent_kernel` draws their kernels
    :math:`\Theta_d`, and `bnmc.infinite_width.ntk` computes :math:`\Theta_\infty`.

    Expected: slopes of −1/2.  With one hidden layer :math:`\Theta_d` is a mean of d independent
    terms and :math:`E \Theta_d = \Theta_\infty`, so the mean square is exactly proportional to 1/d.
    With more layers this is the leading order in depth/d.  Jacot, Gabriel and Hongler (arXiv
    1806.07572) and Golikov's lectures state the convergence without a rate.

    For networks with batch normalization and two hidden layers, the picture has the root mean
    square of :math:`\|\Theta_d - E\Theta_d\|_F / \|E\Theta_d\|_F`: the distance from the mean over
    networks, without a kernel of infinite width.

    Returns
    -------
    Experiment
        Variables by ``network`` and ``width``.

    Examples
    --------
    >>> from bnmc.experiments import limits
    >>> found = limits.ntk_convergence()  # doctest: +SKIP
    """
    inputs = two_classes(run.data, sizes.images, sizes.images, sizes.classes)
    x, n = inputs.train, inputs.train.shape[1]
    depths = {f"{depth} hidden layer{'s' * (depth > 1)}": depth for depth in sizes.depths}
    limits = {name: _limit(x, depth) for name, depth in depths.items()}
    depths[_NORMALIZED] = _LAYERS

    def distances(name: str, width: int, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return the distance of each network, and that of the mean with its expected size.

        If there is a kernel of infinite width, the distances are those from it.  The expected size
        of that of the mean is its root mean square if the mean is right.
        """
        if depths[name] == 1:
            kernels = _shallow_kernels(x, width, sizes.chains, run.generator, progress)
        else:
            kernels = tangent_kernel(
                Chain(width, n, "relu", norm="batch" if name == _NORMALIZED else "none"),
                depths[name] - 1, chains=sizes.chains, initial=FirstLayer(x),
                **run.options(progress),
            ).kernels  # fmt: skip
        mean = kernels.mean(axis=0)
        centre = limits.get(name, mean)
        size = np.linalg.norm(centre)
        lengths = np.linalg.norm(kernels - centre, axis=(1, 2)) / size
        if name not in limits:
            # Networks are nearer to their own mean than to the expectation.
            return lengths * math.sqrt(sizes.chains / (sizes.chains - 1)), np.full(2, np.nan)
        spread = kernels.var(axis=0, ddof=1).sum() / sizes.chains
        return lengths, np.array([np.linalg.norm(mean - centre), math.sqrt(spread)]) / size

    results = kit.Results(run, network=depths, width=sizes.widths)
    per = ("network", "width")
    points = results.points(*per)
    costs = [float(depths[name] * width) for name, width in points]
    parts = run.parts(distances, points, costs, {"images": inputs.digest})
    values = kit.each(kit.entry(parts, 0), rms)
    distance = results.add("distance", per, values, "relative distance of tangent kernels")
    slopes = results.add(
        "slope", ("network",),
        {(name,): slope(sizes.widths, [values[name, d] for d in sizes.widths]) for name in depths},
        "slope of its logarithm",
    )  # fmt: skip
    of_mean, noise = (kit.entry(kit.entry(parts, 1), place) for place in (0, 1))
    results.add("distance_of_mean", per, of_mean, "distance of the mean kernel")
    results.add("noise", per, noise, "the same if the mean is right")
    at_widths = {f"d = {d}": distance.at(width=k).means() for k, d in enumerate(sizes.widths)}
    narrow, wide = sizes.widths[0], sizes.widths[-1]
    findings = [
        f"{name}: slope {interval(fitted)}, theory -0.5; the distance is "
        f"{interval(values[name, narrow])} at width {narrow} and {interval(values[name, wide])} at "
        f"width {wide}."
        for (name,), fitted in slopes.cells().items()
    ]
    for name in limits:
        ratios = ", ".join(
            f"{of_mean[name, d] / noise[name, d]:.2g} at width {d}" for d in sizes.widths
        )
        findings.append(
            f"{name}: distance of the mean of {sizes.chains} networks from infinite "
            f"width, over its root mean square if they are equal in expectation: {ratios}."
        )
    first, second = sizes.classes
    return results.experiment(
        "Tangent kernels of finite networks, distance from infinite width",
        kit.table_of({**at_widths, "slope": slopes}), findings, _draw_kernel,
        images=f"{inputs.name}, {n} images of classes {first}, {second}", chains=sizes.chains,
        activation="relu",
    )  # fmt: skip


def _limit(x: Float64Array, depth: int) -> Float64Array:
    """Return the kernel of infinite width; of deeper networks with a fixed first layer."""
    if depth == 1:
        return np.asarray(ntk(x, 1), np.float64)
    # The activations of the first layer, as inputs of a network with one layer less.
    root = semidefinite_root(np.asarray(nngp(x, 1), np.float64))
    return np.asarray(ntk(math.sqrt(len(root)) * root, depth - 1), np.float64)


def _shallow_kernels(
    x: Float64Array, width: int, chains: Several, rng: np.random.Generator, progress: Progress
) -> Float64Array:
    """Return tangent kernels of networks with one hidden layer, (networks, n, n).

    Given h = W x, with rows N(0, K) and K = xᵀx/features, the kernel is
    ``(aᵀa + bᵀb ⊙ K) / width`` with a = relu(h) and the rows of b those of relu′(h), each times
    its output weight.
    """
    products = x.T @ x / len(x)
    root = semidefinite_root(products)
    kernels = np.empty((chains, *products.shape))
    for network in range(chains):
        progress(network, chains)
        h = rng.standard_normal((width, len(root))) @ root
        a, b = np.maximum(h, 0.0), rng.standard_normal((width, 1)) * (h > 0.0)
        kernels[network] = (a.T @ a + b.T @ b * products) / width
    return kernels


def _draw_kernel(data: Dataset, figure: Drawing) -> None:
    ax = pictures.axes_of(figure, 1, width=6.4, height=4.6)[0, 0]
    widths = data["width"].values
    for row, name in enumerate(data["network"].values):
        values = pictures.curve(data, "distance")[row]
        label = f"{name}: slope {pictures.signed(data['slope'][row], 3)}"
        pictures.draw_band(ax, widths, values, COLOURS[row % len(COLOURS)], label, marker="o")
    guide = 0.7 * float(data["distance"].min()) * np.sqrt(widths[-1] / widths)
    ax.plot(widths, guide, "k:", linewidth=0.8, label="slope $-1/2$")
    pictures.label_widths(ax, widths)
    logarithmic(ax)
    distance = r"$\|\Theta_d - \Theta_\infty\|_F\,/\,\|\Theta_\infty\|_F$, root mean square"
    pictures.finish(ax, "Tangent kernels against the width", y=distance, legend=True)
    figure.suptitle("ReLU, {images}: {chains} networks, 95 % interval".format(**data.attrs))


# --- powers of the width, measured, beside the theory of scalings


_QUANTITIES = (
    "outputs", "kernel of output weights", "kernel of input weights", "change of outputs",
    "square of output weights", "change of output weights", "change of input weights",
    "change of kernel of output weights", "change of kernel of input weights",
)  # fmt: skip

#: The changes of kernels.
_KERNEL_CHANGES = _QUANTITIES[7:]


class _PowerSizes(NamedTuple):
    """Sizes of the figure.

    reference: reference width
    chains: networks of each scaling and width
    """

    images: ensembles.Count = 24
    widths: Integers = (128, 512, 2048, 4096)
    reference: int = 1
    chains: Several = 60
    rate: float = 4.0
    classes: ensembles.Classes = (0, 1)


@kit.figure(
    "limits-exponents", _PowerSizes(), trains=True, images=100, chains=200,
    widths=(128, 512, 2048, 8192, 32_768),
)  # fmt: skip
def exponents(run: Run, sizes: _PowerSizes) -> Experiment:
    r"""Measured powers of the width at the start and in the first step, beside the theory.

    Networks with one hidden layer and leaky ReLU make one step of gradient descent on the logistic
    loss of 24 images of two classes, at widths 128 to 4096.  The slopes in logarithms of root mean
    squares over 60 networks are the measured powers of the outputs, of the two kernels, of their
    relative change, of the change of the outputs, of the relative change of the weights, and of the
    mean square of the output weights.  Output weights have standard deviation
    :math:`d^{q_σ}`, and learning rates are :math:`4 d^{\tilde q}` for weights of variance 1.  With
    smaller rates, random parts of first order hide the second order below at these widths.

    Expected, with output power :math:`q_σ` and powers :math:`\tilde q` of the learning rates
    (Golikov, arXiv 2006.06574): outputs :math:`q_σ + 1/2` (IC-MF: 0), kernels
    :math:`2 q_σ + \tilde q + 1`, change of outputs: that of the larger kernel, relative change of
    weights :math:`q_σ + \tilde q`, square of output weights :math:`2 q_σ`.

    For the change of kernels, the theory has the power of the weights, :math:`δ = q_σ + \tilde q`,
    which holds for each neuron's part.  In the sum over neurons, parts of first order have random
    signs: their relative sum has the power δ − 1/2.  The second order adds parts of one sign, with
    the power 2 δ.  So the relative change of a kernel has max(δ − 1/2, 2 δ): −1 instead of −1/2
    under NTK, and 0 as in the theory if δ = 0.  The table has both.  Which kernels evolve, δ >= 0,
    is the same.

    Returns
    -------
    Experiment
        Variables by ``scaling``, ``quantity`` and ``width``.
    """
    inputs = ensembles.standardized(ensembles.two_classes(run.data, sizes.images, 0, sizes.classes))

    def numbers(scaling: str, width: int, progress: Progress) -> Float64Array:
        """Return all quantities of each network, (networks, quantities)."""
        trained = ensembles.train_ensemble(
            scaling, inputs.train, inputs.labels, (0, 1), chains=sizes.chains,
            rng=run.generator, threads=run.parallel.threads, progress=progress, width=width,
            reference_width=sizes.reference, learning_rate=sizes.rate,
        )  # fmt: skip
        start, end = trained.outputs.swapaxes(0, 1)
        before, after = trained.kernels.swapaxes(0, 1)
        squares = trained.weight_squares[:, 0]
        return np.column_stack(
            [
                _sizes(start), before, _sizes(end - start), squares[:, 0],
                np.sqrt(trained.weight_changes[:, 1] / squares), after / before - 1.0,
            ]
        )  # fmt: skip

    results = kit.Results(
        run, scaling=kit.Axis(SCALINGS, "scaling", ""),
        quantity=kit.Axis(_QUANTITIES, "quantity", ""), width=sizes.widths,
    )  # fmt: skip
    points = results.points("scaling", "width")
    costs = [float(width) for _, width in points]
    parts = run.parts(numbers, points, costs, {"images": inputs.digest})
    per = ("scaling", "quantity")
    values = {
        (scaling, quantity, width): rms(samples[:, j])
        for (scaling, width), samples in parts.items()
        for j, quantity in enumerate(_QUANTITIES)
    }
    results.add("size", (*per, "width"), values, "root mean square over networks")
    slopes = {
        case: slope(sizes.widths, [values[*case, width] for width in sizes.widths])
        for case in results.points(*per)
    }
    power = results.add("power", per, slopes, "measured power of the width")
    printed = results.add("printed", per, _theory(kernels=False), "power of the theory")
    summed = results.add("summed", per, _theory(kernels=True), "power of sums over neurons")
    table = kit.table_of(
        {"measured power": power, "theory": printed, "theory, sum over neurons": summed}
    )
    return results.experiment(
        "Powers of the width at the start and in the first step", table, _findings(table.rows),
        _draw_power, images=f"{inputs.name}, {inputs.train.shape[1]} images",
        chains=sizes.chains, reference_width=sizes.reference,
        learning_rate=sizes.rate, activation="leaky_relu",
    )  # fmt: skip


def _sizes(outputs: Float64Array) -> Float64Array:
    """Return root mean squares over samples."""
    return np.asarray(np.sqrt(np.square(outputs).mean(axis=-1)))


def _theory(kernels: bool) -> Float64Array:
    """Return the powers by scaling and quantity; `kernels`: those of sums over neurons."""
    powers = []
    for scaling in SCALINGS.values():
        limit, half = scaling.properties(), 0.5
        output, inputs = (float(scaling.q_sigma + rate) for rate in scaling.q_tilde)
        changes = [float(power) for power in limit.evolution]
        if kernels:
            changes = [max(power - half, 2.0 * power) for power in changes]
        powers.append(
            [
                float(limit.logits), *map(float, limit.kernels), float(max(limit.kernels)),
                2.0 * float(scaling.q_sigma), output, inputs, *changes,
            ]
        )  # fmt: skip
    return np.array(powers)


def _findings(rows: tuple[tuple[Any, ...], ...]) -> tuple[str, ...]:
    findings = []
    for name in SCALINGS:
        others = [row[1:] for row in rows if row[0] == name and row[1] not in _KERNEL_CHANGES]
        quantity, power, theory, _ = max(others, key=lambda row: abs(row[1].value - row[2]))
        findings.append(
            f"{name}: the powers of all quantities but the change of kernels are within "
            f"{abs(power.value - theory):.2g} of the theory; the largest difference is that of "
            f"{quantity}: {interval(power)}, theory {theory:g}."
        )
    for name in SCALINGS:
        changes = "; ".join(
            f"{quantity.removeprefix('change of ')} {interval(power)}, printed {theory:g}, sum "
            f"over neurons {summed:g}"
            for scaling, quantity, power, theory, summed in rows
            if scaling == name and quantity in _KERNEL_CHANGES
        )
        findings.append(f"{name}, relative change of kernels: {changes}.")
    return tuple(findings)


def _draw_power(data: Dataset, figure: Drawing) -> None:
    ax = pictures.axes_of(figure, 1, width=9.0, height=5.4)[0, 0]
    names, quantities = data["scaling"].values, data["quantity"].values
    places = np.arange(len(quantities), dtype=np.float64)[::-1]
    for row, name in enumerate(names):
        at = places + 0.3 - 0.15 * row
        value, low, high = pictures.curve(data, "power")[row].T
        ax.errorbar(
            value, at, xerr=[value - low, high - value], fmt="o", markersize=4, capsize=2.5,
            color=COLOURS[row], label=str(name),
        )  # fmt: skip
        ax.plot(data["printed"].values[row], at, "|", color="black", markersize=10)
        ax.plot(data["summed"].values[row], at, "x", color="black", markersize=4)
    ax.plot([], [], "|", color="black", markersize=10, label="theory")
    ax.plot([], [], "x", color="black", markersize=4, label="theory, sum over neurons")
    ax.set_yticks(places, list(map(str, quantities)))
    pictures.finish(ax, "Measured powers beside the theory", "power of the width", "quantity")
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.suptitle("{images}: {chains} networks, 95 % interval".format(**data.attrs))
