"""Corollaries 2 and 4: two inputs through one network converge to the same spectrum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.linalg import semidefinite_root
from bnmc._support.progress import Progress
from bnmc.bounds import bridging as bounds
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.bridging.common import (
    ACTIVATIONS,
    FloatArray,
    paired_samples,
)
from bnmc.experiments.data import Variable, curve, dataset, estimated, with_band
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.statistics import interval, slope
from bnmc.gram import eigenvalues, relative_deviation
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, band, estimates, plain_ticks
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "two_inputs"]


class Sizes(NamedTuple):
    """Activations, widths, layers, and networks."""

    activations: tuple[str, ...]
    widths: tuple[int, ...]
    depth: int
    chains: int


DEFAULT = Sizes(("relu", "tanh"), (250, 1000, 4000), 60, 64)
FULL = Sizes(ACTIVATIONS, (250, 1000, 4000, 16000), 60, 256)

#: Batch size of each input.
BATCH = 5

#: The two differences of a pair of Gram matrices, by name, with their description.
_DIFFERENCES = {"spectral": "Σ|λ/λ′ - 1|", "relative": "‖G⁻¹G′ - I‖, Frobenius norm"}


@with_parameters
def two_inputs(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Corollaries 2 and 4: two inputs through one network certify stability without G*.

    Two independent inputs of n = 5 samples go through the same networks.  One consists of pairs of
    samples with correlation 0.99, the other of independent samples.  The picture shows two
    differences of their Gram matrices G and G': :math:`\sum_i |\lambda_i/\lambda_i' - 1|` of the
    eigenvalues (Remark 2), and :math:`\|G_l^{-1} G_l' - I\|_F`.

    Expected: both differences fall to a level that does not depend on the depth.  The level falls
    as 1/√d with the width d.  The dashed line is ε = nγ‖G*^{-1/2}‖/√d of Corollary 4, with γ the
    distortion of the activation.  The corollary bounds the difference by t ε with probability
    1 − O(t⁻²).  The line has the slope of the points and about their size.  The printed
    Corollary 4 lacks a transient part, so at layer 0 it is false.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``width`` and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.two_inputs()  # doctest: +SKIP
    """
    call = Call("bridging-two-inputs", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """Recorded layers, differences by name, and ε of Corollary 4.

    Differences have the shape (activations, widths, networks, layers), and ε (activations, widths).
    """

    layers: NDArray[np.int64]
    differences: dict[str, FloatArray]
    epsilon: FloatArray


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    names, widths = sizes.activations, sizes.widths
    measured = _measure(sizes, call)
    levels = {
        kind: [
            [
                Estimate.from_samples(one[:, sizes.depth // 2 :].mean(axis=1))
                for one in of_activation
            ]
            for of_activation in values
        ]
        for kind, values in measured.differences.items()
    }
    table = Table(
        ("activation", "width", "Σ|λ/λ′ - 1|", "‖G⁻¹G′ - I‖", "ε of Corollary 4"),
        tuple(
            (
                name,
                width,
                levels["spectral"][i][j],
                levels["relative"][i][j],
                float(measured.epsilon[i, j]),
            )
            for i, name in enumerate(names)
            for j, width in enumerate(widths)
        ),
    )
    findings = tuple(
        f"{name}: slopes of the levels in the width {interval(slope(widths, spectral))} (spectra) "
        f"and {interval(slope(widths, relative))} (matrices); theory, for large "
        "widths: -1/2."
        for name, spectral, relative in zip(
            names, levels["spectral"], levels["relative"], strict=True
        )
    )
    title = "Two inputs to one network converge to one spectrum, up to 1/√width"
    data = _data(sizes, call, measured, levels)
    return Experiment(call.name, title, data, table, findings, _draw)


def _measure(sizes: Sizes, call: Call) -> _Measured:
    differences: dict[str, list[list[FloatArray]]] = {kind: [] for kind in _DIFFERENCES}
    epsilon = np.empty((len(sizes.activations), len(sizes.widths)))
    with call.parts(list(sizes.widths) * len(sizes.activations)) as parts:
        for i, name in enumerate(sizes.activations):
            gamma = bounds.distortion(name, BATCH)
            of_widths: dict[str, list[FloatArray]] = {kind: [] for kind in _DIFFERENCES}
            for j, width in enumerate(sizes.widths):
                chain = Chain(width, BATCH, name)
                star = MeanField(chain).fixed_point()
                normals = call.generator.standard_normal((2, width, BATCH))
                normals[0] = normals[0] @ semidefinite_root(paired_samples(BATCH))
                run = parts.run(
                    simulate, chain, sizes.depth, chains=sizes.chains, initial=normals, inputs=2,
                    rng=call.generator, threads=call.threads,
                )  # fmt: skip
                first, second = run["gram"][:, :, 0], run["gram"][:, :, 1]
                ratio = eigenvalues(first) / eigenvalues(second)
                of_widths["spectral"].append(np.abs(ratio - 1.0).sum(axis=-1))
                of_widths["relative"].append(relative_deviation(first, second))
                epsilon[i, j] = bounds.corollary_4(
                    width=width, batch=BATCH, t=1.0, star=star.gram, distortion=gamma
                ).radius
            for kind, values in of_widths.items():
                differences[kind].append(values)
    stacked = {kind: np.array(values) for kind, values in differences.items()}
    return _Measured(run.layers, stacked, epsilon)


def _data(
    sizes: Sizes, call: Call, measured: _Measured, levels: dict[str, list[list[Estimate]]]
) -> xarray.Dataset:
    per = ("activation", "width")
    variables: dict[str, Variable] = {}
    for kind, long_name in _DIFFERENCES.items():
        values = measured.differences[kind]
        variables |= with_band(kind, (*per, "layer"), values, 2, long_name)
        variables |= estimated(
            f"{kind}_level", per, levels[kind], f"mean over deep layers of {long_name}"
        )
    variables["epsilon"] = Variable(per, measured.epsilon, "ε of Corollary 4, nγ‖G*^(-1/2)‖/√d")
    return dataset(
        variables,
        {
            "activation": Variable(("activation",), list(sizes.activations), "activation", ""),
            "width": Variable(("width",), sizes.widths, "width d", "neurons"),
            "layer": Variable(("layer",), measured.layers, "layer"),
        },
        call,
        {
            "batch": BATCH, "norm": "batch", "networks": sizes.chains,
            "initial": "pairs of samples of correlation 0.99, and independent samples",
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    left, *levels = axes_of(figure, 3, width=4.6, height=4.2)[0]
    _draw_depth(left, data)
    widths = data["width"].values
    panels = (
        ("spectral", r"deep layers, $\Sigma_i\, |\lambda_i/\lambda_i' - 1|$"),
        ("relative", r"deep layers, $\|G_\ell^{-1} G_\ell' - I\|_F$"),
    )
    for ax, (kind, title) in zip(levels, panels, strict=True):
        for colour, label in zip(COLOURS, data["activation"].values, strict=False):
            part = data.sel(activation=label)
            found = curve(part, f"{kind}_level").T
            estimates(ax, widths, *found, colour=colour, fmt="o-", label=label)
            if kind == "relative":
                ax.plot(widths, part["epsilon"], "--", color=colour, linewidth=1.2)
        ax.set(xscale="log", yscale="log", xlabel="width $d$")
        plain_ticks(ax.xaxis, widths)
        plain_ticks(ax.yaxis)
        ax.set_title(title, loc="left")
    levels[0].set_ylabel("mean, with 95 % intervals")
    levels[1].plot([], [], "--", color="0.4", label="ε of Corollary 4")
    handles, labels = levels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(f"Two inputs through the same networks, n = {data.attrs['batch']}")


def _draw_depth(ax: Axes, data: xarray.Dataset) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    name = str(data["activation"].values[0])
    one = data.sel(activation=name)
    layers, widths = data["layer"].values, data["width"].values
    # Other colours than the panels beside it, where a colour is an activation.
    shades = colormaps["viridis"](np.linspace(0.0, 0.85, len(widths)))
    for colour, width in zip(map(to_hex, shades), widths, strict=True):
        found = curve(one.sel(width=width), "spectral", "_band").T
        band(ax, layers, *found, colour=colour, label=f"d = {width}")
    ax.set(yscale="log", xlabel="layer", ylabel=r"$\Sigma_i\, |\lambda_i/\lambda_i' - 1|$")
    ax.set_title(f"{name}, mean and 90 % of {data.attrs['networks']} networks", loc="left")
    ax.legend()
