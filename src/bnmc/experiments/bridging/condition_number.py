"""Corollary 8: the condition number of deep layers on the complement of the ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.bridging.common import (
    ACTIVATIONS,
    FloatArray,
    bulk,
    first_layer_of_covariance,
    paired_samples,
)
from bnmc.experiments.data import Variable, curve, dataset, estimated, with_band
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.statistics import interval, proportion
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, band, estimates, plain_ticks
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "conditioning", "experiment"]


class Sizes(NamedTuple):
    """Activations, widths, layers, and networks per activation and width."""

    activations: tuple[str, ...]
    widths: tuple[int, ...]
    depth: int
    chains: int


DEFAULT = Sizes(("relu", "tanh"), (200, 400, 800, 1600, 3200), 60, 64)
FULL = Sizes(ACTIVATIONS, (200, 400, 800, 1600, 3200, 6400), 60, 256)

BATCH = 10


@with_parameters
def conditioning(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
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
    call = Call("bridging-conditioning", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """Condition numbers and extremes of the bulk.

    `conditions` are those at the largest width, shape (activations, networks, layers).  By
    activation and width: the extremes of the bulk in the last layer, and the share of networks
    `inside` each of the two `_windows`.
    """

    layers: NDArray[np.int64]
    conditions: FloatArray
    smallest: list[list[Estimate]]
    largest: list[list[Estimate]]
    inside: list[list[list[Estimate]]]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    names, widths = sizes.activations, sizes.widths
    found = _measure(sizes, call)
    columns = (
        "activation", "width", "smallest", "largest", "all in 1 ∓ √(n/d)", "all in (1 ∓ √(n/d))²",
    )  # fmt: skip
    table = Table(
        columns,
        tuple(
            (name, width, found.smallest[i][j], found.largest[i][j], *found.inside[i][j])
            for i, name in enumerate(names)
            for j, width in enumerate(widths)
        ),
    )
    widest = widths.index(max(widths))
    findings = []
    for name, values, inside in zip(names, found.conditions, found.inside, strict=True):
        start, end = (Estimate.from_samples(values[:, k]) for k in (0, -1))
        findings.append(
            f"{name}: the condition number of the bulk falls from {interval(start)} to "
            f"{interval(end)} at width {widths[widest]}; all n - 1 eigenvalues are in "
            f"1 ∓ √(n/d) in a share of {interval(inside[widest][0])} of the networks."
        )
    title = "Deep layers are well-conditioned, in a window wider than the printed one"
    data = _data(sizes, call, found)
    return Experiment(call.name, title, data, table, tuple(findings), _draw)


def _measure(sizes: Sizes, call: Call) -> _Measured:
    names, widths = sizes.activations, sizes.widths
    widest = widths.index(max(widths))
    inputs = first_layer_of_covariance(paired_samples(BATCH))
    conditions = []
    smallest: list[list[Estimate]] = [[] for _ in names]
    largest: list[list[Estimate]] = [[] for _ in names]
    inside: list[list[list[Estimate]]] = [[] for _ in names]
    with call.parts(list(widths) * len(names)) as parts:
        for i, name in enumerate(names):
            for j, width in enumerate(widths):
                chain = Chain(width, BATCH, name)
                star = MeanField(chain).fixed_point()
                run = parts.run(
                    simulate, chain, sizes.depth, chains=sizes.chains, initial=inputs,
                    rng=call.generator, threads=call.threads,
                )  # fmt: skip
                values = np.linalg.eigvalsh(bulk(run["gram"])) / (star.b * (1.0 - star.c))
                if j == widest:
                    conditions.append(values[..., -1] / values[..., 0])
                low, high = values[:, -1, 0], values[:, -1, -1]
                smallest[i].append(Estimate.from_samples(low))
                largest[i].append(Estimate.from_samples(high))
                inside[i].append(
                    [proportion((low >= least) & (high <= most)) for least, most in _windows(width)]
                )
    return _Measured(run.layers, np.array(conditions), smallest, largest, inside)


def _windows(width: int) -> list[tuple[float, float]]:
    """Return the interval that the paper prints for the bulk, and that of Marchenko-Pastur."""
    root = float(np.sqrt(BATCH / width))
    return [(1.0 - root, 1.0 + root), ((1.0 - root) ** 2, (1.0 + root) ** 2)]


def _data(sizes: Sizes, call: Call, found: _Measured) -> xarray.Dataset:
    per, along = ("activation", "width"), ("activation", "layer")
    windows = np.array([_windows(width) for width in sizes.widths])
    return dataset(
        {
            **with_band("condition", along, found.conditions, 1, "condition number of the bulk"),
            **estimated("smallest", per, found.smallest, "smallest of the bulk over b*(1-c*)"),
            **estimated("largest", per, found.largest, "largest of the bulk over b*(1-c*)"),
            "printed_window": Variable(("width", "end"), windows[:, 0], "1 ∓ √(n/d)"),
            "mp_window": Variable(("width", "end"), windows[:, 1], "(1 ∓ √(n/d))²"),
        },
        {
            "activation": Variable(("activation",), list(sizes.activations), "activation", ""),
            "width": Variable(("width",), sizes.widths, "width d", "neurons"),
            "layer": Variable(("layer",), found.layers, "layer"),
            "end": Variable(("end",), ["low", "high"], "end of the interval", ""),
        },
        call,
        {
            "batch": BATCH, "norm": "batch", "networks": sizes.chains, "depth": sizes.depth,
            "initial": "pairs of samples of correlation 0.99",
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2, width=5.6, height=4.4)[0]
    widths, layers = data["width"].values, data["layer"].values
    for colour, name in zip(COLOURS, data["activation"].values, strict=False):
        one = data.sel(activation=name)
        band(left, layers, *curve(one, "condition", "_band").T, colour=colour, label=name)
        for extreme in ("smallest", "largest"):
            estimates(
                right, widths, *curve(one, extreme).T, colour=colour, fmt="o-",
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
