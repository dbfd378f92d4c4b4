"""Corollary 8: the condition number of deep layers on the complement of the ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.bridging import common
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import interval, proportion
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, plain_ticks
from bnmc.simulation.run import simulate

_BATCH = 10

#: The intervals of the bulk: that of the paper and that of Marchenko-Pastur.
_WINDOWS = {"printed_window": "1 ∓ √(n/d)", "mp_window": "(1 ∓ √(n/d))²"}


class Sizes(NamedTuple):
    """Sizes of the figure.

    networks: networks per activation and width
    """

    activations: tuple[Builtin, ...] = ("relu", "tanh")
    widths: tuple[int, ...] = (200, 400, 800, 1600, 3200)
    depth: int = 60
    networks: Several = 64


@kit.figure(
    "bridging-conditioning", Sizes(), activations=common.ACTIVATIONS,
    widths=(200, 400, 800, 1600, 3200, 6400), networks=256,
)  # fmt: skip
def conditioning(run: Run, sizes: Sizes) -> Experiment:
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
    inputs = common.first_layer_of_covariance(common.paired_samples(_BATCH))

    def extremes(name: str, width: int, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return smallest and largest eigenvalue over b*(1-c*), (networks, layers)."""
        chain = Chain(width, _BATCH, name)
        star = MeanField(chain).fixed_point()
        grams = simulate(
            chain, sizes.depth, chains=sizes.networks, initial=inputs, **run.options(progress)
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
        kit.table_of(columns), findings, _draw, batch=_BATCH, norm="batch",
        networks=sizes.networks, depth=sizes.depth, initial="pairs of samples of correlation 0.99",
    )  # fmt: skip


def _windows(width: int) -> list[tuple[float, float]]:
    """Return both intervals of the bulk."""
    root = float(np.sqrt(_BATCH / width))
    return [(1.0 - root, 1.0 + root), ((1.0 - root) ** 2, (1.0 + root) ** 2)]


def _inside(low: Float64Array, high: Float64Array, least: float, most: float) -> Estimate:
    """Return the share of networks whose last layer has all eigenvalues in an interval."""
    return proportion((low[:, -1] >= least) & (high[:, -1] <= most))


def _draw(data: Dataset, figure: Drawing) -> None:
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
        f"Bulk of n − 1 eigenvalues, n = {data.attrs['batch']}, {data.attrs['networks']} networks"
    )
