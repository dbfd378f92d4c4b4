"""Fig. 2a: the orthogonality gap over depth, from nearly collinear samples."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.bounds import orthogonalizes as bounds
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.experiment import Dataset, Drawing, Experiment
from bnmc.experiments.kit import Float64Array
from bnmc.experiments.orthogonalizes import common
from bnmc.experiments.runs import Run
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import banded
from bnmc.plot.axes import COLOURS
from bnmc.simulation.run import simulate


class Sizes(NamedTuple):
    """Sizes of the figure.

    networks: networks per width
    """

    widths: tuple[int, ...] = (32, 512)
    layers: Several = 50
    networks: Several = 200
    batch: Several = 4


@kit.figure("orthogonalizes-2a", Sizes(), networks=5000)
def fig_2a(run: Run, sizes: Sizes) -> Experiment:
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
    n = sizes.batch

    def gaps(width: int, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return V, (networks, layers), and V² less its exact mean given the layer before."""
        eigenvalues = simulate(
            Chain.bn_linear(width, n), sizes.layers - 1, chains=sizes.networks,
            initial=FirstLayer(common.collinear_samples(n)), observables="eigenvalues",
            rng=run.generator, threads=run.threads, progress=progress,
        )["eigenvalues"]  # fmt: skip
        gap = common.gap_of_spectrum(eigenvalues)
        # A martingale difference: its mean is 0 in theory, at every layer.
        excess = np.square(gap[:, 1:]) - bounds.expected_squared_gap(eigenvalues[:, :-1], width)
        return gap, excess.mean(axis=1)

    results = kit.Results(run, width=sizes.widths, layer=np.arange(1, sizes.layers + 1))
    per = ("width",)
    parts = run.parts(gaps, results.points("width"), sizes.widths)
    means = {width: np.exp(banded(np.log(gap))) for width, (gap, _) in parts.items()}
    gap = results.add(
        "gap", ("width", "layer"), means, "orthogonality gap, geometric mean",
        networks=sizes.networks,
    )  # fmt: skip
    results.add(
        "gap_at_infinite_width", ("layer",), _gaps_at_infinite_width(n, sizes.layers),
        "orthogonality gap at infinite width",
    )  # fmt: skip
    first_below_half = {
        width: Estimate.from_samples((gap < 0.5).argmax(axis=1) + 1.0)
        for width, (gap, _) in parts.items()
    }
    one_step = {width: Estimate.from_samples(excess) for width, (_, excess) in parts.items()}
    results.add(
        "one_step_excess", per, one_step, "squared gap less its exact mean given the layer before"
    )
    table = kit.table_of({
        "first layer with V < 1/2": results.column(per, first_below_half),
        "V, last layer": gap.at(layer=-1),
        "plateau, theory": results.add(
            "plateau", per, [_stationary_geometric_mean(width, n) for width in sizes.widths],
            "stationary geometric mean, leading order",
        ),
    })  # fmt: skip
    findings = (
        *(
            f"At width {width} the gap falls below 1/2 at layer {half.value:.1f} "
            f"[{half.ci[0]:.1f}, {half.ci[1]:.1f}] and ends at {last.value:.3f}; the plateau is "
            f"{plateau:.3f}."
            for width, half, last, plateau in table.rows
        ),
        "V^2 less its exact mean given the layer before is "
        + ", ".join(
            f"({excess.value:.1e} ± {excess.stderr:.0e}) at width {width}"
            for (width,), excess in one_step.items()
        )
        + ", in theory 0.",
    )
    return results.experiment(
        f"Orthogonality gap over depth, batch {n}", table, findings, _draw, batch=n,
        chains=sizes.networks, start=f"singular values 1 and {common.SMALL_SINGULAR_VALUE:g}",
    )  # fmt: skip


def _gaps_at_infinite_width(batch: int, layers: int) -> list[float]:
    """Return V of the chain of infinite width from the nearly collinear input, layer by layer."""
    shares = np.square(np.diag(common.collinear_samples(batch)))
    gaps = []
    for _ in range(layers):
        shares = bounds.expected_shares(shares)
        gaps.append(float(common.gap_of_spectrum(shares)))
    return gaps


def _stationary_geometric_mean(width: int, batch: int) -> float:
    """Return the geometric mean of V in the stationary law, to leading order in 1/d."""
    from scipy.special import digamma

    m = common.traceless_dimensions(batch)
    log_square = math.log(float(bounds.stationary_squared_gap(width, batch)))
    return math.exp((log_square + float(digamma(m / 2)) - math.log(m / 2)) / 2)


def _draw(data: Dataset, figure: Drawing) -> None:
    ((ax,),) = pictures.axes_of(figure, 1, width=6.4, height=4.8)
    layers = data.layer.values
    for index, (width, colour) in enumerate(zip(data.width.values, COLOURS, strict=False)):
        values = pictures.curve(data, "gap")[index]
        pictures.draw_band(ax, layers, values, colour, f"$d = {width}$")
        plateau = float(data.plateau[index])
        ax.axhline(plateau, color=colour, linestyle="--", linewidth=1, label="its plateau, theory")
    wide = data.gap_at_infinite_width.values
    bottom = data.gap.values.min() / 1.5
    shown = wide > bottom
    ax.plot(layers[shown], wide[shown], ":", color="black", label=r"$d = \infty$, exact")
    pictures.logarithmic(ax)
    ax.set(xlabel="layer", ylabel="orthogonality gap $V$, geometric mean", ylim=(bottom, 1.2))
    ax.legend()
    ax.set_title(
        f"Orthogonality gap from nearly collinear samples, batch {data.attrs['batch']}:\n"
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )
