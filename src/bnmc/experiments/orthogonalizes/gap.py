"""TODO-DOC bnmc.experiments.orthogonalizes.common.gap."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._support.progress import Progress
from bnmc.bounds import orthogonalizes as bounds
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._common import (
    banded,
    chosen,
    curve,
    draw_band,
    ends,
    label_widths,
    logarithmic,
    with_ends,
)
from bnmc.experiments._experiment import (
    Experiment,
    Parts,
    Sources,
    Store,
    Table,
    Variable,
    axes_of,
    dataset,
    interval,
    slope,
    with_parameters,
)
from bnmc.experiments.orthogonalizes.common import (
    _TINY,
    _estimate,
    _freedom,
    _gap,
    _run,
    _Sizes,
    _wide_gaps,
)
from bnmc.plot.axes import COLOURS, estimates

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["fig_2a", "fig_2b", "mean_gap"]
_FIG_2A = _Sizes((32, 512), 50, 200), _Sizes((32, 512), 50, 5_000)


@with_parameters
def fig_2a(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 2a: the orthogonality gap over depth, from nearly collinear samples.

    The paper has batch 4, widths 32 and 512, 50 layers and 20 networks, and the mean of log V.
    Here are 200 networks, and 5000 with `full`; the spectrum of the input is that of the authors'
    code, one singular value 1 beside three of 1e-6.

    The gap falls by n/(n+2) = 2/3 a layer, to a plateau where
    ``E V² ≃ (n−1)(n+2)²/(4n(n+1)d)``.  Both the chain at infinite width (`expected_shares`,
    iterated) and the plateaus are drawn.

    What the figure hides: its first layers are not those of infinite width.  A lost direction comes
    back through the rare rows that hardly see the dominant one; in the mean its share grows
    from s to √s, in a network of width d typically to s·d.  So wide networks leave collinearity
    sooner.  Theorem 1 is not drawn: at these widths its floor, at least ``3n²/√d``, exceeds the
    largest possible gap.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_2a()
    >>> found.data.gap.sel(layer=50).values.round(2)
    array([0.2 , 0.05])
    """
    return _fig_2a(chosen(_FIG_2A, full), full, rng, progress, threads, store)


def _fig_2a(
    sizes: _Sizes,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    n = sizes.batch
    gaps, halves, one_step = [], [], []
    with Parts(progress, "orthogonalizes-2a", sizes.widths, sources, full, store) as parts:
        for d in sizes.widths:
            run = parts.run(_run, d, n, sizes, sources, threads, "eigenvalues")
            eigenvalues = run["eigenvalues"]
            gap = _gap(eigenvalues)
            gaps.append(np.exp(banded(np.log(gap))))
            halves.append((gap < 0.5).argmax(axis=1) + 1.0)
            # The martingale of the exact law of a layer: what V² is beside its mean given the last.
            surprise = np.square(gap[:, 1:]) - bounds.expected_squared_gap(eigenvalues[:, :-1], d)
            one_step.append(Estimate.from_samples(surprise.mean(axis=1)))
    layers = np.arange(1, sizes.layers + 1)
    plateaus = [_typical_gap(d, n) for d in sizes.widths]
    data = dataset(
        {
            **with_ends("gap", ("width", "layer"), gaps, "orthogonality gap, geometric mean"),
            "gap_at_infinite_width": Variable(
                ("layer",), _wide_gaps(n, sizes.layers), "orthogonality gap at infinite width"
            ),
            "plateau": Variable(("width",), plateaus, "stationary geometric mean, leading order"),
            **with_ends(
                "one_step_excess",
                ("width",),
                ends(one_step),
                "squared gap less its exact mean given the layer before",
            ),
        },
        {
            "width": Variable(("width",), list(sizes.widths), "width"),
            "layer": Variable(("layer",), layers, "layer"),
        },
        sources,
        full,
        {"batch": n, "chains": sizes.chains, "start": f"singular values 1 and {_TINY:g}"},
    )
    rows = tuple(
        (d, Estimate.from_samples(half), _estimate(gap[-1], sizes.chains), plateau)
        for d, half, gap, plateau in zip(sizes.widths, halves, gaps, plateaus, strict=True)
    )
    table = Table(("width", "first layer with V < 1/2", "V, last layer", "plateau, theory"), rows)
    findings = (
        *(
            f"At width {d} the gap falls below 1/2 at layer {half.value:.1f} [{half.ci[0]:.1f}, "
            f"{half.ci[1]:.1f}] and ends at {gap[-1][0]:.3f}; the plateau is {plateau:.3f}."
            for (d, half, _, plateau), gap in zip(rows, gaps, strict=True)
        ),
        "V^2 less its exact mean given the layer before is "
        + ", ".join(
            f"({one.value:.1e} ± {one.stderr:.0e}) at width {d}"
            for d, one in zip(sizes.widths, one_step, strict=True)
        )
        + ", in theory 0.",
    )
    title = f"Orthogonality gap over depth, batch {n}"
    return Experiment("orthogonalizes-2a", title, data, table, findings, _draw_2a)


def _typical_gap(width: int, batch: int) -> float:
    """Geometric mean of V where the chain has settled, to leading order in 1/d."""
    from scipy.special import digamma

    m = _freedom(batch)
    log_square = math.log(float(bounds.stationary_squared_gap(width, batch)))
    return math.exp((log_square + float(digamma(m / 2)) - math.log(m / 2)) / 2)


def mean_gap(width: int, batch: int) -> float:
    """Mean of V where the chain has settled, to leading order in 1/d.

    There ``HᵀH − I/n`` is normal.  Its law does not see rotations of the samples, so it is a
    multiple of a χ variable of as many degrees of freedom as a traceless symmetric matrix has.
    """
    m = _freedom(batch)
    ratio = math.exp(math.lgamma((m + 1) / 2) - math.lgamma(m / 2)) * math.sqrt(2 / m)
    return math.sqrt(float(bounds.stationary_squared_gap(width, batch))) * ratio


def _draw_2a(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=6.4, height=4.8)
    layers = data.layer.values
    for index, (width, colour) in enumerate(zip(data.width.values, COLOURS, strict=False)):
        draw_band(ax, layers, curve(data, "gap")[index], colour, f"$d = {width}$")
        plateau = float(data.plateau[index])
        ax.axhline(plateau, color=colour, linestyle="--", linewidth=1, label="its plateau, theory")
    wide = data.gap_at_infinite_width.values
    bottom = data.gap.values.min() / 1.5
    shown = wide > bottom
    ax.plot(layers[shown], wide[shown], ":", color="black", label=r"$d = \infty$, exact")
    logarithmic(ax)
    ax.set(xlabel="layer", ylabel="orthogonality gap $V$, geometric mean", ylim=(bottom, 1.2))
    ax.legend()
    ax.set_title(
        f"Orthogonality gap from nearly collinear samples, batch {data.attrs['batch']}:\n"
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )


_FIG_2B = (
    _Sizes((16, 32, 64, 128, 256, 512), 500, 64),
    _Sizes((16, 32, 64, 128, 256, 512, 1024, 2048, 4096), 500, 400),
)


#: From which layer on the chain of Fig. 2b counts as settled: at width 16 the start takes some 20
#: layers, and what is left of it falls by (2/3) a layer.
_SETTLED = 100


@with_parameters
def fig_2b(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 2b: the orthogonality gap of deep layers against the width, slope −1/2.

    The paper has batch 4, widths 16 to 512, the average of V over 500 layers and 20 networks.
    Here are 64 networks; with `full` 400, and widths up to 4096.

    The points lie on ``E V ≃ E χ_m/√m · √((n−1)(n+2)²/(4n(n+1)d))``, with the m = (n−1)(n+2)/2
    degrees of freedom of a traceless symmetric matrix, and the slope tends to −1/2.

    What the figure gets wrong: the authors' code divides by the number of networks and then
    averages over them, so that its curve lies log 20 = 3.0 too low.  And its average starts at the
    first layer, where V is near 1: that does not fall with the width, and flattens the slope.  The
    average over all layers is drawn beside that over settled ones.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_2b()
    >>> round(float(found.data.slope), 2)
    -0.51
    """
    return _fig_2b(chosen(_FIG_2B, full), full, rng, progress, threads, store)


def _fig_2b(
    sizes: _Sizes,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    n = sizes.batch
    settled, printed = [], []
    with Parts(progress, "orthogonalizes-2b", sizes.widths, sources, full, store) as parts:
        for d in sizes.widths:
            run = parts.run(_run, d, n, sizes, sources, threads, "orthogonality_gap")
            gap = run["orthogonality_gap"]
            settled.append(Estimate.from_samples(gap[:, _SETTLED:].mean(axis=1)))
            printed.append(Estimate.from_samples(gap.mean(axis=1)))
    theory = [mean_gap(d, n) for d in sizes.widths]
    slopes = [
        slope(sizes.widths, found, method="weighted least squares of logs")
        for found in (settled, printed)
    ]
    data = dataset(
        {
            **with_ends("gap", ("width",), ends(settled), "mean orthogonality gap, settled"),
            **with_ends(
                "gap_of_all_layers",
                ("width",), ends(printed), "mean orthogonality gap, first layers included"
            ),
            "theory": Variable(("width",), theory, "stationary mean, leading order"),
            **with_ends("slope", (), ends(slopes[:1])[0], "slope of log V in log d, settled"),
            **with_ends(
                "slope_of_all_layers",
                (), ends(slopes[1:])[0], "slope of log V in log d, first layers included"
            ),
        },
        {"width": Variable(("width",), list(sizes.widths), "width"),},
        sources,
        full,
        {
            "batch": n, "chains": sizes.chains, "layers": sizes.layers,
            "settled_from_layer": _SETTLED + 1,
        },
    )  # fmt: skip
    table = Table(
        ("width", f"V, layers {_SETTLED + 1}-{sizes.layers}", "V, all layers", "theory"),
        tuple(zip(sizes.widths, settled, printed, theory, strict=True)),
    )
    excess = settled[-1].value / theory[-1] - 1
    findings = (
        f"The slope in the width is {interval(slopes[0])} over settled layers, in theory -1/2 up "
        f"to terms of 1/d; over all layers, as printed, it is {interval(slopes[1])}.",
        f"At width {sizes.widths[-1]} the mean gap is {interval(settled[-1])}, {excess:+.1%} "
        f"beside the theory's {theory[-1]:.4f}.",
    )
    title = f"Orthogonality gap of deep layers against width, batch {n}"
    return Experiment("orthogonalizes-2b", title, data, table, findings, _draw_2b)


def _draw_2b(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=6.4, height=4.8)
    widths = data.width.values
    low, high = data.attrs["settled_from_layer"], data.attrs["layers"]
    for name, colour, marker, label in (
        ("gap", COLOURS[0], "o", f"layers {low} to {high}: slope"),
        ("gap_of_all_layers", COLOURS[1], "s", f"layers 1 to {high}, as printed: slope"),
    ):
        found = float(data[name.replace("gap", "slope")])
        estimates(
            ax,
            widths,
            *curve(data, name).T,
            colour=colour,
            fmt=marker,
            label=f"{label} {found:.3f}",
        )
    ax.plot(widths, data.theory, "--", color="black", linewidth=1, label="leading order in $1/d$")
    logarithmic(ax)
    label_widths(ax, widths)
    ax.set(ylabel="mean orthogonality gap $V$")
    ax.legend()
    ax.set_title(
        f"Orthogonality gap of deep layers, batch {data.attrs['batch']}:\n"
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )
