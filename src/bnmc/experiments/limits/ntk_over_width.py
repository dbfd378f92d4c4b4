"""Tangent kernels of finite networks beside that of infinite width, against the width."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.linalg import semidefinite_root
from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.limits.inputs import two_classes
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band, label_widths, logarithmic
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.gradients import tangent_kernel
from bnmc.infinite_width import nngp, ntk
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "ntk_convergence"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Hidden layers, widths, networks of each kind, images, and classes."""

    depths: tuple[int, ...]
    widths: tuple[int, ...]
    networks: int
    images: int
    classes: tuple[int, int] = (0, 1)


DEFAULT = Sizes((1, 2, 6), (64, 256, 1024, 4096), 200, 10)
FULL = Sizes((1, 2, 6, 11), (64, 256, 1024, 4096, 16_384), 1000, 16)


@with_parameters
def ntk_convergence(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
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
    call = Call("limits-ntk-convergence", full, rng, progress, threads, store, data)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Case(NamedTuple):
    """Label, norm and number of hidden layers of networks, and their kernel of infinite width."""

    label: str
    norm: str
    depth: int
    limit: Float64Array | None


class _Found(NamedTuple):
    """Results by network and width.

    `of_mean` is the distance of the mean over networks from the limit, and `noise` its root mean
    square if the expectation is the limit; both are NaN without a limit.
    """

    distance: list[list[Estimate]]
    of_mean: Float64Array
    noise: Float64Array
    slopes: list[Estimate]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = two_classes(call, sizes.images, sizes.images, sizes.classes)
    x = found.train
    cases = [
        _Case(f"{depth} hidden layer{'s' * (depth > 1)}", "none", depth, _limit(x, depth))
        for depth in sizes.depths
    ]
    cases.append(_Case("batch norm, 2 hidden layers, from the mean", "batch", 2, None))
    measured = _measure(sizes, call, x, cases)
    rows = tuple(
        (case.label, *(cell.value for cell in cells), fitted)
        for case, cells, fitted in zip(cases, measured.distance, measured.slopes, strict=True)
    )
    table = Table(("network", *(f"d = {width}" for width in sizes.widths), "slope"), rows)
    title = "Tangent kernels of finite networks, distance from infinite width"
    about = f"{found.name}, {x.shape[1]} images of classes {sizes.classes[0]}, {sizes.classes[1]}"
    data = _data(sizes, call, cases, measured, about)
    return Experiment(call.name, title, data, table, _findings(sizes, cases, measured), _draw)


def _limit(x: Float64Array, depth: int) -> Float64Array:
    """Return the kernel of infinite width; of deeper networks with a fixed first layer."""
    if depth == 1:
        return np.asarray(ntk(x, 1), np.float64)
    # The activations of the first layer, as inputs of a network with one layer less.
    root = semidefinite_root(np.asarray(nngp(x, 1), np.float64))
    return np.asarray(ntk(math.sqrt(len(root)) * root, depth - 1), np.float64)


def _measure(sizes: Sizes, call: Call, x: Float64Array, cases: list[_Case]) -> _Found:
    shape = len(cases), len(sizes.widths)
    of_mean, noise = np.full(shape, np.nan), np.full(shape, np.nan)
    distance: list[list[Estimate]] = []
    costs = [float(case.depth * width) for case in cases for width in sizes.widths]
    with call.parts(costs) as parts:
        for row, case in enumerate(cases):
            distance.append([])
            for column, width in enumerate(sizes.widths):
                options = {"networks": sizes.networks, "rng": call.generator}
                if case.depth == 1:
                    kernels = parts.run(_shallow_kernels, x, width, **options)
                else:
                    kernels = parts.run(
                        _deep_kernels, x, Chain(width, x.shape[1], "relu", norm=case.norm),
                        case.depth - 1, threads=call.threads, **options,
                    )  # fmt: skip
                mean = kernels.mean(axis=0)
                centre = mean if case.limit is None else case.limit
                size = np.linalg.norm(centre)
                lengths = np.linalg.norm(kernels - centre, axis=(1, 2)) / size
                if case.limit is None:
                    # Networks are nearer to their own mean than to the expectation.
                    lengths = lengths * math.sqrt(sizes.networks / (sizes.networks - 1))
                else:
                    spread = kernels.var(axis=0, ddof=1).sum() / sizes.networks
                    of_mean[row, column] = np.linalg.norm(mean - centre) / size
                    noise[row, column] = math.sqrt(spread) / size
                distance[-1].append(rms(lengths))
    slopes = [slope(sizes.widths, cells) for cells in distance]
    return _Found(distance, of_mean, noise, slopes)


def _shallow_kernels(
    x: Float64Array, width: int, networks: int, rng: np.random.Generator, progress: Progress
) -> Float64Array:
    """Return tangent kernels of networks with one hidden layer, (networks, n, n).

    Given h = W x, with rows N(0, K) and K = xᵀx/features, the kernel is
    ``(aᵀa + bᵀb ⊙ K) / width`` with a = relu(h) and the rows of b those of relu′(h), each times
    its output weight.
    """
    products = x.T @ x / len(x)
    root = semidefinite_root(products)
    found = np.empty((networks, *products.shape))
    for run in range(networks):
        progress(run, networks)
        h = rng.standard_normal((width, len(root))) @ root
        a, b = np.maximum(h, 0.0), rng.standard_normal((width, 1)) * (h > 0.0)
        found[run] = (a.T @ a + b.T @ b * products) / width
    return found


def _deep_kernels(
    x: Float64Array,
    chain: Chain,
    depth: int,
    networks: int,
    rng: np.random.Generator,
    threads: int | None,
    progress: Progress,
) -> Float64Array:
    """Return tangent kernels of networks with a fixed first layer, (networks, n, n)."""
    return tangent_kernel(
        chain, depth, chains=networks, initial=FirstLayer(x), rng=rng, threads=threads,
        progress=progress,
    ).kernels  # fmt: skip


def _findings(sizes: Sizes, cases: list[_Case], found: _Found) -> tuple[str, ...]:
    narrow, wide = sizes.widths[0], sizes.widths[-1]
    findings = [
        f"{case.label}: slope {interval(fitted)}, theory -0.5; the distance is "
        f"{interval(cells[0])} at width {narrow} and {interval(cells[-1])} at width {wide}."
        for case, cells, fitted in zip(cases, found.distance, found.slopes, strict=True)
    ]
    for row, case in enumerate(cases):
        if case.limit is not None:
            ratios = ", ".join(
                f"{ratio:.2g} at width {width}"
                for width, ratio in zip(
                    sizes.widths, found.of_mean[row] / found.noise[row], strict=True
                )
            )
            findings.append(
                f"{case.label}: distance of the mean of {sizes.networks} networks from infinite "
                f"width, over its root mean square if they are equal in expectation: {ratios}."
            )
    return tuple(findings)


def _data(
    sizes: Sizes, call: Call, cases: list[_Case], found: _Found, about: str
) -> xarray.Dataset:
    over = ("network", "width")
    return dataset(
        {
            **estimated(
                "distance", over, found.distance, "relative distance of tangent kernels",
            ),
            **estimated("slope", ("network",), found.slopes, "slope of its logarithm"),
            "distance_of_mean": Variable(over, found.of_mean, "distance of the mean kernel"),
            "noise": Variable(over, found.noise, "the same if the mean is right"),
        },
        {
            "network": Variable(("network",), [case.label for case in cases], "network", ""),
            "width": Variable(("width",), list(sizes.widths), "width d", "neurons"),
        },
        call,
        {"images": about, "networks": sizes.networks, "activation": "relu"},
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    ax = axes_of(figure, 1, width=6.4, height=4.6)[0, 0]
    widths = data["width"].values
    for row, name in enumerate(data["network"].values):
        values = curve(data, "distance")[row]
        label = f"{name}: slope {float(data['slope'][row]):.3f}"
        draw_band(ax, widths, values, COLOURS[row % len(COLOURS)], label, marker="o")
    guide = 0.7 * float(data["distance"].min()) * np.sqrt(widths[-1] / widths)
    ax.plot(widths, guide, "k:", linewidth=0.8, label="slope $-1/2$")
    label_widths(ax, widths)
    logarithmic(ax)
    ax.set_ylabel(r"$\|\Theta_d - \Theta_\infty\|_F\,/\,\|\Theta_\infty\|_F$, root mean square")
    ax.set_title("Tangent kernels against the width", loc="left")
    ax.legend(fontsize="small")
    figure.suptitle(
        f"ReLU, {data.attrs['images']}: {data.attrs['networks']} networks, 95 % interval"
    )
