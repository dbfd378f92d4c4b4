"""Tangent kernels of finite networks beside that of infinite width, against the width."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc._support.linalg import semidefinite_root
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.limits.ensembles import Classes, Count, two_classes
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.gradients import tangent_kernel
from bnmc.infinite_width import nngp, ntk
from bnmc.plot.axes import COLOURS, logarithmic

#: The networks with batch normalization, and the number of their hidden layers.
_NORMALIZED, _LAYERS = "batch norm, 2 hidden layers, from the mean", 2


class Sizes(NamedTuple):
    """Sizes of the figure."""

    depths: tuple[int, ...] = (1, 2, 6)
    widths: Integers = (64, 256, 1024, 4096)
    networks: Several = 200
    images: Count = 10
    classes: Classes = (0, 1)


@kit.figure(
    "limits-ntk-convergence", Sizes(), trains=True, depths=(1, 2, 6, 11),
    widths=(64, 256, 1024, 4096, 16_384), networks=1000, images=16,
)  # fmt: skip
def ntk_convergence(run: Run, sizes: Sizes) -> Experiment:
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
            kernels = _shallow_kernels(x, width, sizes.networks, run.generator, progress)
        else:
            kernels = tangent_kernel(
                Chain(width, n, "relu", norm="batch" if name == _NORMALIZED else "none"),
                depths[name] - 1, chains=sizes.networks, initial=FirstLayer(x),
                **run.options(progress),
            ).kernels  # fmt: skip
        mean = kernels.mean(axis=0)
        centre = limits.get(name, mean)
        size = np.linalg.norm(centre)
        lengths = np.linalg.norm(kernels - centre, axis=(1, 2)) / size
        if name not in limits:
            # Networks are nearer to their own mean than to the expectation.
            return lengths * math.sqrt(sizes.networks / (sizes.networks - 1)), np.full(2, np.nan)
        spread = kernels.var(axis=0, ddof=1).sum() / sizes.networks
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
            f"{name}: distance of the mean of {sizes.networks} networks from infinite "
            f"width, over its root mean square if they are equal in expectation: {ratios}."
        )
    first, second = sizes.classes
    return results.experiment(
        "Tangent kernels of finite networks, distance from infinite width",
        kit.table_of({**at_widths, "slope": slopes}), findings, _draw,
        images=f"{inputs.name}, {n} images of classes {first}, {second}", networks=sizes.networks,
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
    x: Float64Array, width: int, networks: Several, rng: np.random.Generator, progress: Progress
) -> Float64Array:
    """Return tangent kernels of networks with one hidden layer, (networks, n, n).

    Given h = W x, with rows N(0, K) and K = xᵀx/features, the kernel is
    ``(aᵀa + bᵀb ⊙ K) / width`` with a = relu(h) and the rows of b those of relu′(h), each times
    its output weight.
    """
    products = x.T @ x / len(x)
    root = semidefinite_root(products)
    kernels = np.empty((networks, *products.shape))
    for network in range(networks):
        progress(network, networks)
        h = rng.standard_normal((width, len(root))) @ root
        a, b = np.maximum(h, 0.0), rng.standard_normal((width, 1)) * (h > 0.0)
        kernels[network] = (a.T @ a + b.T @ b * products) / width
    return kernels


def _draw(data: Dataset, figure: Drawing) -> None:
    ax = pictures.axes_of(figure, 1, width=6.4, height=4.6)[0, 0]
    widths = data["width"].values
    for row, name in enumerate(data["network"].values):
        values = pictures.curve(data, "distance")[row]
        label = f"{name}: slope {float(data['slope'][row]):.3f}"
        pictures.draw_band(ax, widths, values, COLOURS[row % len(COLOURS)], label, marker="o")
    guide = 0.7 * float(data["distance"].min()) * np.sqrt(widths[-1] / widths)
    ax.plot(widths, guide, "k:", linewidth=0.8, label="slope $-1/2$")
    pictures.label_widths(ax, widths)
    logarithmic(ax)
    distance = r"$\|\Theta_d - \Theta_\infty\|_F\,/\,\|\Theta_\infty\|_F$, root mean square"
    pictures.finish(ax, "Tangent kernels against the width", y=distance, legend=True)
    figure.suptitle("ReLU, {images}: {networks} networks, 95 % interval".format(**data.attrs))
