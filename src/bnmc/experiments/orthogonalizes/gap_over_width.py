"""Fig. 2b: the orthogonality gap of deep layers against the width."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.experiment import Dataset, Drawing, Experiment
from bnmc.experiments.kit import Float64Array
from bnmc.experiments.orthogonalizes.common import collinear_samples, stationary_mean_gap
from bnmc.experiments.runs import Run
from bnmc.experiments.sizes import Integers, Several
from bnmc.experiments.statistics import interval, slope
from bnmc.plot.axes import COLOURS
from bnmc.simulation.run import simulate

#: Layers before this index count as burn-in.  At width 16 the gap takes about 20 layers to leave
#: the start, and the rest of the start decays by 2/3 per layer.
_BURN_IN = 100


class Sizes(NamedTuple):
    """Sizes of the figure.

    layers: number of layers, of which the first 100 are burn-in
    networks: networks per width
    """

    widths: Integers = (16, 32, 64, 128, 256, 512)
    layers: Annotated[int, {"low": _BURN_IN + 1}] = 500
    networks: Several = 64
    batch: Several = 4


@kit.figure(
    "orthogonalizes-2b", Sizes(), widths=(16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    networks=400,
)  # fmt: skip
def fig_2b(run: Run, sizes: Sizes) -> Experiment:
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
            Chain.bn_linear(width, n), sizes.layers - 1, chains=sizes.networks,
            initial=FirstLayer(collinear_samples(n)), observables="orthogonality_gap",
            rng=run.generator, threads=run.threads, progress=progress,
        )["orthogonality_gap"]  # fmt: skip
        return gap[:, _BURN_IN:].mean(axis=1), gap.mean(axis=1)

    results = kit.Results(run, width=widths)
    parts = run.parts(gaps, results.points("width"), widths)
    columns, slopes = {}, []
    for place, (head, suffix, text) in enumerate((
        (f"V, layers {_BURN_IN + 1}-{sizes.layers}", "", "stationary"),
        ("V, all layers", "_of_all_layers", "first layers included"),
    )):  # fmt: skip
        means = {width: Estimate.from_samples(part[place]) for width, part in parts.items()}
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
        f"Orthogonality gap of deep layers against width, batch {n}", table, findings, _draw,
        batch=n, chains=sizes.networks, layers=sizes.layers, settled_from_layer=_BURN_IN + 1,
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    ((ax,),) = pictures.axes_of(figure, 1, width=6.4, height=4.8)
    widths = data.width.values
    low, high = data.attrs["settled_from_layer"], data.attrs["layers"]
    for name, colour, marker, label in (
        ("gap", COLOURS[0], "o", f"layers {low} to {high}: slope"),
        ("gap_of_all_layers", COLOURS[1], "s", f"layers 1 to {high}, as printed: slope"),
    ):
        fitted = float(data[name.replace("gap", "slope")])
        pictures.points(
            ax, data, name, "width", colour=colour, fmt=marker, label=f"{label} {fitted:.3f}"
        )
    ax.plot(widths, data.theory, "--", color="black", linewidth=1, label="leading order in $1/d$")
    pictures.logarithmic(ax)
    pictures.label_widths(ax, widths)
    ax.set(ylabel="mean orthogonality gap $V$")
    ax.legend()
    ax.set_title(
        f"Orthogonality gap of deep layers, batch {data.attrs['batch']}:\n"
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )
