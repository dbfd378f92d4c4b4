"""Fig. 1b: the distance from the fixed point against the width."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._support.arguments import integer
from bnmc.chain.chain import Chain
from bnmc.errors import ArgumentError
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.bridging.common import stationary_linear
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Natural, Several
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, estimates, plain_ticks
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

#: Batch size of the paper.
_BATCH = 10


class Sizes(NamedTuple):
    """Sizes of the figure.

    widths: widths, two or more of them at least 400
    networks: networks per width
    """

    widths: tuple[int, ...] = (100, 200, 400, 800, 1600, 3200)
    networks: Several = 16
    first: Natural = 41
    last: int = 599


@kit.figure(
    "bridging-1b", Sizes(), widths=(100, 200, 500, 1000, 2000, 5000, 10_000), networks=32
)  # fmt: skip
def fig_1b(run: Run, sizes: Sizes) -> Experiment:
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
    n, widths = _BATCH, sizes.widths
    wide = [width for width in widths if width >= 4 * n**2]
    if len(wide) < 2:
        raise ArgumentError("widths", widths, f"two or more widths >= {4 * n**2}, for the slope")
    integer("first", sizes.first, high=sizes.last)
    star = MeanField(Chain.bn_mlp(widths[0], n, "linear")).fixed_point().gram

    def distances(width: int, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return the mean and the root mean square distance of each network."""
        values = simulate(
            Chain.bn_mlp(width, n, "linear"), sizes.last, chains=sizes.networks,
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
        "The distance from the fixed point decreases as 1/√width", table, findings, _draw,
        batch=n, activation="linear", norm="batch", networks=sizes.networks,
        layers=[sizes.first, sizes.last], slope=fitted.value, slope_ci=fitted.ci,
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    left, right = pictures.axes_of(figure, 2, width=5.4, height=4.4)[0]
    width, law = data["width"].values, data["law"].values
    squares = pictures.curve(data, "rms").T
    estimates(left, width, *squares, colour=COLOURS[0], label="simulated, r.m.s.")
    left.plot(width, law, color=COLOURS[1], label="theory, to leading order in 1/d")
    left.plot(width, data["printed"], "k--", linewidth=1.2, label=r"$2n/\sqrt{d}$ (paper)")
    left.set(xscale="log", yscale="log", ylabel=r"$\|G_\ell - G_*\|_F$")
    low, high = data.attrs["slope_ci"]
    left.set_title(f"slope {data.attrs['slope']:.3f} [{low:.3f}, {high:.3f}]", loc="left")
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
    text = (
        "Linear, batch norm, n = {batch}: layers {layers[0]} to {layers[1]} of {networks} networks"
    )
    figure.suptitle(text.format(**data.attrs))
