"""Figs. 2a and 2b: the orthogonality gap over depth and width; its laws for other figures."""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import numpy as np
from scipy.special import digamma

from bnmc.bounds import orthogonalizes as bounds
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import banded, interval, slope
from bnmc.plot.axes import COLOURS, logarithmic
from bnmc.simulation.run import simulate

#: All singular values of the nearly collinear inputs except the largest, which is 1.
_SMALL_SINGULAR_VALUE = 1e-6

#: Layers of Fig. 2b before this index count as burn-in.  At width 16 the gap takes about 20 layers
#: to leave the start, and the rest of the start decays by 2/3 per layer.
_BURN_IN = 100


# --- laws


def _collinear_samples(batch: int) -> Float64Array:
    """Return nearly collinear inputs, shape (batch, batch), by their singular values."""
    return np.diag([1.0] + [_SMALL_SINGULAR_VALUE] * (batch - 1))


def gap_of_spectrum(eigenvalues: Float64Array) -> Float64Array:
    """Return the orthogonality gap V of Gram matrices with these eigenvalues, the last axis."""
    shares = eigenvalues / eigenvalues.sum(axis=-1, keepdims=True)
    gap: Float64Array = np.linalg.norm(shares - 1 / shares.shape[-1], axis=-1)
    return gap


def _traceless_dimensions(batch: int) -> int:
    """Return the dimension of the traceless symmetric matrices, (n − 1)(n + 2)/2."""
    return (batch - 1) * (batch + 2) // 2


def stationary_mean_gap(width: int, batch: int) -> float:
    """Return the stationary mean of V, to leading order in 1/d.

    In the stationary law ``HᵀH − I/n`` is normal, and its law is invariant under rotations of the
    samples.  So V is a multiple of a χ variable with m degrees of freedom, m the dimension of the
    traceless symmetric matrices.
    """
    m = _traceless_dimensions(batch)
    ratio = math.exp(math.lgamma((m + 1) / 2) - math.lgamma(m / 2)) * math.sqrt(2 / m)
    return math.sqrt(float(bounds.stationary_squared_gap(width, batch))) * ratio


# --- Fig. 2a


class _DepthSizes(NamedTuple):
    """Sizes of the figure.

    chains: networks per width
    """

    widths: tuple[int, ...] = (32, 512)
    layers: Several = 50
    chains: Several = 200
    batch: Several = 4


@kit.figure("orthogonalizes-2a", _DepthSizes(), chains=5000)
def fig_2a(run: Run, sizes: _DepthSizes) -> Experiment:
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
            Chain(width, n, "linear", norm="batch-uncentred"), sizes.layers - 1,
            chains=sizes.chains,
            initial=FirstLayer(_collinear_samples(n)), observables="eigenvalues",
            **run.options(progress),
        )["eigenvalues"]  # fmt: skip
        gap = gap_of_spectrum(eigenvalues)
        # A martingale difference: its mean is 0 in theory, at every layer.
        excess = np.square(gap[:, 1:]) - bounds.expected_squared_gap(eigenvalues[:, :-1], width)
        return gap, excess.mean(axis=1)

    results = kit.Results(run, width=sizes.widths, layer=np.arange(1, sizes.layers + 1))
    per = ("width",)
    parts = run.parts(gaps, results.points("width"), sizes.widths)
    means = kit.each(kit.entry(parts, 0), lambda gap: np.exp(banded(np.log(gap))))
    gap = results.add(
        "gap", ("width", "layer"), means, "orthogonality gap, geometric mean",
        chains=sizes.chains,
    )  # fmt: skip
    results.add(
        "gap_at_infinite_width", ("layer",), _gaps_at_infinite_width(n, sizes.layers),
        "orthogonality gap at infinite width",
    )  # fmt: skip
    first_below_half = kit.each(
        kit.entry(parts, 0), lambda gap: Estimate.from_samples((gap < 0.5).argmax(axis=1) + 1.0)
    )
    one_step = kit.each(kit.entry(parts, 1), Estimate.from_samples)
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
        f"Orthogonality gap over depth, batch {n}", table, findings, _draw_depths, batch=n,
        chains=sizes.chains, start=f"singular values 1 and {_SMALL_SINGULAR_VALUE:g}",
    )  # fmt: skip


def _gaps_at_infinite_width(batch: int, layers: int) -> list[float]:
    """Return V of the chain of infinite width from the nearly collinear input, layer by layer."""
    shares = np.square(np.diag(_collinear_samples(batch)))
    gaps = []
    for _ in range(layers):
        shares = bounds.expected_shares(shares)
        gaps.append(float(gap_of_spectrum(shares)))
    return gaps


def _stationary_geometric_mean(width: int, batch: int) -> float:
    """Return the geometric mean of V in the stationary law, to leading order in 1/d."""
    m = _traceless_dimensions(batch)
    log_square = math.log(float(bounds.stationary_squared_gap(width, batch)))
    return math.exp((log_square + float(digamma(m / 2)) - math.log(m / 2)) / 2)


def _draw_depths(data: Dataset, figure: Drawing) -> None:
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
    logarithmic(ax)
    ax.set(xlabel="layer", ylabel="orthogonality gap $V$, geometric mean", ylim=(bottom, 1.2))
    ax.legend()
    text = "Orthogonality gap from nearly collinear samples, batch {batch}"
    ax.set_title(pictures.about(data, text, "\n"))


# --- Fig. 2b


class _WidthSizes(NamedTuple):
    """Sizes of the figure.

    layers: number of layers, of which the first 100 are burn-in
    chains: networks per width
    """

    widths: Integers = (16, 32, 64, 128, 256, 512)
    layers: Annotated[int, {"low": _BURN_IN + 1}] = 500
    chains: Several = 64
    batch: Several = 4


@kit.figure(
    "orthogonalizes-2b", _WidthSizes(), widths=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    chains=400,
)  # fmt: skip
def fig_2b(run: Run, sizes: _WidthSizes) -> Experiment:
    r"""Fig. 2b: the orthogonality gap of deep layers against the width, slope −1/2.

    The paper uses batch size n = 4, widths 16 to 512, and the average of V over 500 layers and 20
    networks.  Here there are 64 networks.  With `full` there are 400, and widths to 4096.

    Expected: the points lie on ``E V ≃ E χ_m/√m · √((n−1)(n+2)²/(4n(n+1)d))``, with m =
    (n−1)(n+2)/2 the dimension of the traceless symmetric matrices.  The slope tends to −1/2.

    Errors of the figure: the authors' code divides by the number of networks and then averages over
    the networks, so its curve lies log 20 = 3.0 too low.  Its average includes the first layers,
    where V is near 1 at every width; that flattens the slope.  The picture shows the average over
    all layers beside the average over stationary layers.

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
    n, widths = sizes.batch, sizes.widths

    def gaps(width: int, progress: Progress) -> tuple[Float64Array, Float64Array]:
        """Return the mean of V by network, over stationary layers and over all layers."""
        gap = simulate(
            Chain(width, n, "linear", norm="batch-uncentred"), sizes.layers - 1,
            chains=sizes.chains,
            initial=FirstLayer(_collinear_samples(n)), observables="orthogonality_gap",
            **run.options(progress),
        )["orthogonality_gap"]  # fmt: skip
        return gap[:, _BURN_IN:].mean(axis=1), gap.mean(axis=1)

    results = kit.Results(run, width=widths)
    parts = run.parts(gaps, results.points("width"), widths)
    columns, slopes = {}, []
    for place, (head, suffix, text) in enumerate((
        (f"V, layers {_BURN_IN + 1}-{sizes.layers}", "", "stationary"),
        ("V, all layers", "_of_all_layers", "first layers included"),
    )):  # fmt: skip
        means = kit.each(kit.entry(parts, place), Estimate.from_samples)
        columns[head] = results.add(
            f"gap{suffix}", ("width",), means, f"mean orthogonality gap, {text}"
        )
        slopes.append(slope(widths, list(means.values()), method="weighted least squares of logs"))
        results.add(f"slope{suffix}", (), {(): slopes[-1]}, f"slope of log V in log d, {text}")
    columns["theory"] = results.add(
        "theory", ("width",), [stationary_mean_gap(width, n) for width in widths],
        "stationary mean, leading order",
    )  # fmt: skip
    table = kit.table_of(columns)
    fitted, flattened = slopes
    width, last, _, theory = table.rows[-1]
    findings = (
        f"The slope in the width is {interval(fitted)} over stationary layers, in theory -1/2 up "
        f"to terms of 1/d; over all layers, as in the paper, it is {interval(flattened)}.",
        f"At width {width} the mean gap is {interval(last)}, {last.value / theory - 1:+.1%} "
        f"beside the theory's {theory:.4f}.",
    )
    return results.experiment(
        f"Orthogonality gap of deep layers against width, batch {n}", table, findings, _draw_widths,
        batch=n, chains=sizes.chains, layers=sizes.layers, settled_from_layer=_BURN_IN + 1,
    )  # fmt: skip


def _draw_widths(data: Dataset, figure: Drawing) -> None:
    ((ax,),) = pictures.axes_of(figure, 1, width=6.4, height=4.8)
    widths = data.width.values
    low, high = data.attrs["settled_from_layer"], data.attrs["layers"]
    for name, colour, marker, label in (
        ("gap", COLOURS[0], "o", f"layers {low} to {high}: slope"),
        ("gap_of_all_layers", COLOURS[1], "s", f"layers 1 to {high}, as printed: slope"),
    ):
        fitted = pictures.signed(data[name.replace("gap", "slope")], 3)
        pictures.points(
            ax, data, name, "width", colour=colour, fmt=marker, label=f"{label} {fitted}"
        )
    ax.plot(widths, data.theory, "--", color="black", linewidth=1, label="leading order in $1/d$")
    logarithmic(ax)
    pictures.label_widths(ax, widths)
    ax.set(ylabel="mean orthogonality gap $V$")
    ax.legend()
    ax.set_title(pictures.about(data, "Orthogonality gap of deep layers, batch {batch}", "\n"))
