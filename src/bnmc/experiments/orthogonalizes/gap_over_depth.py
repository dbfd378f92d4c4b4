"""Fig. 2a: the orthogonality gap over depth, from nearly collinear samples."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.bounds import orthogonalizes as bounds
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, estimated, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.orthogonalizes.common import (
    SMALL_SINGULAR_VALUE,
    Float64Array,
    Sizes,
    collinear_samples,
    gap_of_spectrum,
    run_from_collinear,
    traceless_dimensions,
)
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band, logarithmic
from bnmc.experiments.statistics import banded, mean_of_band
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "experiment", "fig_2a"]

DEFAULT = Sizes((32, 512), 50, 200)
FULL = Sizes((32, 512), 50, 5_000)


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

    The paper uses batch size n = 4, widths 32 and 512, 50 layers and 20 networks, and shows the
    mean of log V.  Here there are 200 networks, and 5000 with `full`.  The input has the spectrum
    of the authors' code: one singular value 1 and three of 1e-6.

    Expected: the gap falls by n/(n+2) = 2/3 per layer, to a plateau with
    ``E V² ≃ (n−1)(n+2)²/(4n(n+1)d)``.  The picture shows the plateaus and the chain at infinite
    width (`expected_shares`, iterated).

    The figure hides that its first layers differ from those of infinite width.  A lost direction
    returns through the rare rows that are nearly orthogonal to the dominant direction.  In the mean
    its share grows from s to √s; in a network of width d it typically grows to s·d.  So wide
    networks leave collinearity sooner.  Theorem 1 is not drawn: at these widths its floor, at least
    ``3n²/√d``, exceeds the largest possible gap.

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
    call = Call("orthogonalizes-2a", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """Results by width.

    `gaps` are geometric means of V, shape (layers, 3).  `one_step` is V² minus its exact mean given
    the layer before.
    """

    gaps: list[Float64Array]
    first_below_half: list[Estimate]
    one_step: list[Estimate]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    n = sizes.batch
    found = _measure(sizes, call)
    plateaus = [_stationary_geometric_mean(d, n) for d in sizes.widths]
    data = dataset(
        {
            **with_ends("gap", ("width", "layer"), found.gaps, "orthogonality gap, geometric mean"),
            "gap_at_infinite_width": Variable(
                ("layer",), _gaps_at_infinite_width(n, sizes.layers),
                "orthogonality gap at infinite width",
            ),
            "plateau": Variable(("width",), plateaus, "stationary geometric mean, leading order"),
            **estimated(
                "one_step_excess", ("width",), found.one_step,
                "squared gap less its exact mean given the layer before",
            ),
        },
        {
            "width": Variable(("width",), list(sizes.widths), "width"),
            "layer": Variable(("layer",), np.arange(1, sizes.layers + 1), "layer"),
        },
        call,
        {
            "batch": n, "chains": sizes.chains,
            "start": f"singular values 1 and {SMALL_SINGULAR_VALUE:g}",
        },
    )  # fmt: skip
    rows = tuple(
        (d, half, mean_of_band(gap[-1], sizes.chains), plateau)
        for d, half, gap, plateau in zip(
            sizes.widths, found.first_below_half, found.gaps, plateaus, strict=True
        )
    )
    table = Table(("width", "first layer with V < 1/2", "V, last layer", "plateau, theory"), rows)
    findings = (
        *(
            f"At width {d} the gap falls below 1/2 at layer {half.value:.1f} [{half.ci[0]:.1f}, "
            f"{half.ci[1]:.1f}] and ends at {last.value:.3f}; the plateau is {plateau:.3f}."
            for d, half, last, plateau in rows
        ),
        "V^2 less its exact mean given the layer before is "
        + ", ".join(
            f"({one.value:.1e} ± {one.stderr:.0e}) at width {d}"
            for d, one in zip(sizes.widths, found.one_step, strict=True)
        )
        + ", in theory 0.",
    )
    title = f"Orthogonality gap over depth, batch {n}"
    return Experiment(call.name, title, data, table, findings, _draw)


def _measure(sizes: Sizes, call: Call) -> _Measured:
    found = _Measured([], [], [])
    with call.parts(sizes.widths) as parts:
        for d in sizes.widths:
            run = parts.run(run_from_collinear, d, sizes, call, "eigenvalues")
            eigenvalues = run["eigenvalues"]
            gap = gap_of_spectrum(eigenvalues)
            found.gaps.append(np.exp(banded(np.log(gap))))
            found.first_below_half.append(
                Estimate.from_samples((gap < 0.5).argmax(axis=1) + 1.0)
            )  # fmt: skip
            # A martingale difference: its mean is 0 in theory, at every layer.
            excess = np.square(gap[:, 1:]) - bounds.expected_squared_gap(eigenvalues[:, :-1], d)
            found.one_step.append(Estimate.from_samples(excess.mean(axis=1)))
    return found


def _gaps_at_infinite_width(batch: int, layers: int) -> Float64Array:
    """Return V of the chain of infinite width from the nearly collinear input, layer by layer."""
    shares = np.square(np.diag(collinear_samples(batch)))
    found = []
    for _ in range(layers):
        shares = bounds.expected_shares(shares)
        found.append(float(gap_of_spectrum(shares)))
    return np.array(found)


def _stationary_geometric_mean(width: int, batch: int) -> float:
    """Return the geometric mean of V in the stationary law, to leading order in 1/d."""
    from scipy.special import digamma

    m = traceless_dimensions(batch)
    log_square = math.log(float(bounds.stationary_squared_gap(width, batch)))
    return math.exp((log_square + float(digamma(m / 2)) - math.log(m / 2)) / 2)


def _draw(data: xarray.Dataset, figure: Figure) -> None:
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
