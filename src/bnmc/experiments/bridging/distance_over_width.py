"""Fig. 1b: the distance from the fixed point against the width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.bridging.linear_networks import stationary_linear
from bnmc.experiments.data import Variable, curve, dataset, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, estimates, plain_ticks
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "fig_1b"]


class Sizes(NamedTuple):
    """Widths, networks per width, and the first and last layer of the average."""

    widths: tuple[int, ...]
    chains: int
    first: int = 41
    last: int = 599


DEFAULT = Sizes((100, 200, 400, 800, 1600, 3200), 16)
FULL = Sizes((100, 200, 500, 1000, 2000, 5000, 10000), 32)

#: Batch size of the paper.
BATCH = 10


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
    call = Call("bridging-1b", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    n, widths = BATCH, sizes.widths
    means, squares = _distances(sizes, call)
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
        call,
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
        f"Log-log slope of the distance against the width, for widths >= 4n²: {interval(fitted)}; "
        "theory, for large widths: -1/2.",
        f"At width {widths[-1]} the r.m.s. distance is {interval(last)}; theory, to leading order "
        f"in 1/width: {law[-1]:.4g}.",
        f"The paper's line 2n/√d is {printed[-1] / last.value:.3g} times as high.",
    )
    title = "The distance from the fixed point decreases as 1/√width"
    return Experiment(call.name, title, data, table, findings, _draw)


def _distances(sizes: Sizes, call: Call) -> tuple[list[Estimate], list[Estimate]]:
    """Return the mean and the root mean square of the distance at each width."""
    star = MeanField(Chain.bn_mlp(sizes.widths[0], BATCH, "linear")).fixed_point().gram
    means, squares = [], []
    with call.parts(sizes.widths) as parts:
        for width in sizes.widths:
            values = parts.run(
                simulate, Chain.bn_mlp(width, BATCH, "linear"), sizes.last, chains=sizes.chains,
                burn_in=sizes.first, rng=call.generator, observables=Distance(star),
                threads=call.threads,
            )["distance"]  # fmt: skip
            means.append(Estimate.from_samples(values.mean(axis=1)))
            squares.append(rms(np.sqrt(np.square(values).mean(axis=1))))
    return means, squares


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2, width=5.4, height=4.4)[0]
    width, law = data["width"].values, data["law"].values
    found = curve(data, "rms").T
    estimates(left, width, *found, colour=COLOURS[0], label="simulated, r.m.s.")
    left.plot(width, law, color=COLOURS[1], label="theory, to leading order in 1/d")
    left.plot(width, data["printed"], "k--", linewidth=1.2, label=r"$2n/\sqrt{d}$ (paper)")
    left.set(xscale="log", yscale="log", ylabel=r"$\|G_\ell - G_*\|_F$")
    low, high = data.attrs["slope_ci"]
    left.set_title(f"slope {data.attrs['slope']:.3f} [{low:.3f}, {high:.3f}]", loc="left")
    left.legend()
    ratios = np.square(found / law)
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
