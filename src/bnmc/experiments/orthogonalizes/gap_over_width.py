"""Fig. 2b: the orthogonality gap of deep layers against the width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bnmc._support.progress import Progress
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.orthogonalizes.common import Sizes, run_from_collinear, stationary_mean_gap
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, label_widths, logarithmic
from bnmc.experiments.statistics import interval, slope
from bnmc.plot.axes import COLOURS, estimates

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "experiment", "fig_2b"]

DEFAULT = Sizes((16, 32, 64, 128, 256, 512), 500, 64)
FULL = Sizes((16, 32, 64, 128, 256, 512, 1024, 2048, 4096), 500, 400)

#: Layers before this index count as burn-in.  At width 16 the gap takes about 20 layers to leave
#: the start, and the rest of the start decays by 2/3 per layer.
_BURN_IN = 100


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
    call = Call("orthogonalizes-2b", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    n = sizes.batch
    stationary, printed = _measure(sizes, call)
    theory = [stationary_mean_gap(d, n) for d in sizes.widths]
    fitted, flattened = (
        slope(sizes.widths, found, method="weighted least squares of logs")
        for found in (stationary, printed)
    )
    data = dataset(
        {
            **estimated("gap", ("width",), stationary, "mean orthogonality gap, stationary"),
            **estimated(
                "gap_of_all_layers", ("width",), printed,
                "mean orthogonality gap, first layers included",
            ),
            "theory": Variable(("width",), theory, "stationary mean, leading order"),
            **estimated("slope", (), fitted, "slope of log V in log d, stationary"),
            **estimated(
                "slope_of_all_layers", (), flattened,
                "slope of log V in log d, first layers included",
            ),
        },
        {"width": Variable(("width",), list(sizes.widths), "width")},
        call,
        {
            "batch": n, "chains": sizes.chains, "layers": sizes.layers,
            "settled_from_layer": _BURN_IN + 1,
        },
    )  # fmt: skip
    table = Table(
        ("width", f"V, layers {_BURN_IN + 1}-{sizes.layers}", "V, all layers", "theory"),
        tuple(zip(sizes.widths, stationary, printed, theory, strict=True)),
    )
    excess = stationary[-1].value / theory[-1] - 1
    findings = (
        f"The slope in the width is {interval(fitted)} over stationary layers, in theory -1/2 up "
        f"to terms of 1/d; over all layers, as in the paper, it is {interval(flattened)}.",
        f"At width {sizes.widths[-1]} the mean gap is {interval(stationary[-1])}, {excess:+.1%} "
        f"beside the theory's {theory[-1]:.4f}.",
    )
    title = f"Orthogonality gap of deep layers against width, batch {n}"
    return Experiment(call.name, title, data, table, findings, _draw)


def _measure(sizes: Sizes, call: Call) -> tuple[list[Estimate], list[Estimate]]:
    """Return means of V by width, over stationary layers and over all layers."""
    stationary, printed = [], []
    with call.parts(sizes.widths) as parts:
        for d in sizes.widths:
            run = parts.run(run_from_collinear, d, sizes, call, "orthogonality_gap")
            gap = run["orthogonality_gap"]
            stationary.append(Estimate.from_samples(gap[:, _BURN_IN:].mean(axis=1)))
            printed.append(Estimate.from_samples(gap.mean(axis=1)))
    return stationary, printed


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=6.4, height=4.8)
    widths = data.width.values
    low, high = data.attrs["settled_from_layer"], data.attrs["layers"]
    for name, colour, marker, label in (
        ("gap", COLOURS[0], "o", f"layers {low} to {high}: slope"),
        ("gap_of_all_layers", COLOURS[1], "s", f"layers 1 to {high}, as printed: slope"),
    ):
        fitted = float(data[name.replace("gap", "slope")])
        estimates(
            ax, widths, *curve(data, name).T, colour=colour, fmt=marker,
            label=f"{label} {fitted:.3f}",
        )  # fmt: skip
    ax.plot(widths, data.theory, "--", color="black", linewidth=1, label="leading order in $1/d$")
    logarithmic(ax)
    label_widths(ax, widths)
    ax.set(ylabel="mean orthogonality gap $V$")
    ax.legend()
    ax.set_title(
        f"Orthogonality gap of deep layers, batch {data.attrs['batch']}:\n"
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )
