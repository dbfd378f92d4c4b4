"""TODO-DOC bnmc.experiments.bridging.common.same_network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc import gram as grams
from bnmc._support.progress import Progress
from bnmc.bounds import bridging as bounds
from bnmc.chain.chain import Chain
from bnmc.chain.start import FirstLayer
from bnmc.estimate.estimate import Estimate
from bnmc.experiments._experiment import (
    Experiment,
    Parts,
    Sources,
    Store,
    Table,
    Variable,
    axes_of,
    dataset,
    estimated,
    interval,
    sized,
    slope,
    with_parameters,
)
from bnmc.experiments.bridging.common import DEFAULT, FULL, FloatArray
from bnmc.mean_field import MeanField
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["two_inputs"]


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

    Two independent inputs of pairs of samples with correlation 0.99, in the one, and in the other
    of independent samples, go through the same networks, 5 samples each.  Shown are
    :math:`\sum_i |\lambda_i/\lambda_i' - 1|` (Remark 2) and :math:`\|G_l^{-1} G_l' - I\|_F`.

    What should be seen: both fall to a level that falls as the root of the width and does not
    depend on depth.  The dashed line is nγ‖G*^{-1/2}‖/√d, the ε of Corollary 4, which holds with
    probability 1 − O(t⁻²) at t times this; it has the slope, and about the size.  Corollary 4 is
    printed without a transient part, which at layer 0 is false.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``width`` and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.two_inputs()  # doctest: +SKIP
    """
    sizes, sources = sized("two-inputs", full, DEFAULT, FULL), Sources(rng)
    n, names, widths = 5, sizes.activations, sizes.widths
    measured: dict[str, list[Any]] = {"spectral": [], "relative": []}
    levels: dict[str, list[Any]] = {"spectral": [], "relative": []}
    printed = []
    with Parts(
        progress, "bridging-two-inputs", list(widths) * len(names), sources, full, store
    ) as parts:
        for name in names:
            gamma = bounds.distortion(name, n)
            for width in widths:
                chain = Chain(width, n, name)
                star = MeanField(chain).fixed_point()
                normals = sources.generator.standard_normal((2, width, n))
                normals[0] = normals[0] @ _root(_paired(n))
                run = parts.run(
                    simulate, chain, sizes.depth, chains=sizes.chains, initial=normals, inputs=2,
                    rng=sources.generator, threads=threads,
                )  # fmt: skip
                first, second = run["gram"][:, :, 0], run["gram"][:, :, 1]
                ratio = grams.eigenvalues(first) / grams.eigenvalues(second)
                both = {
                    "spectral": np.abs(ratio - 1.0).sum(axis=-1),
                    "relative": grams.relative_deviation(first, second),
                }
                for kind, values in both.items():
                    measured[kind].append(values)
                    deep = values[:, sizes.depth // 2 :].mean(axis=1)
                    levels[kind].append(Estimate.from_samples(deep))
                printed.append(
                    float(
                        bounds.corollary_4(
                            width=width, batch=n, t=1.0, star=star.gram, distortion=gamma
                        ).radius
                    )
                )
    shape = (len(names), len(widths))
    per = ("activation", "width")
    variables: dict[str, Variable] = {}
    slopes: dict[tuple[str, str], Estimate] = {}
    for kind, long_name in (
        ("spectral", "Σ|λ/λ′ - 1|"),
        ("relative", "‖G⁻¹G′ - I‖, Frobenius norm"),
    ):
        stack = np.array(measured[kind]).reshape(*shape, sizes.chains, -1)
        curve = ("activation", "width", "layer")
        low, high = np.quantile(stack, (0.05, 0.95), axis=2)
        variables[kind] = Variable(curve, stack.mean(axis=2), long_name)
        variables[f"{kind}_band_low"] = Variable(curve, low, "5 % of networks")
        variables[f"{kind}_band_high"] = Variable(curve, high, "95 % of networks")
        rows = [levels[kind][k : k + len(widths)] for k in range(0, len(printed), len(widths))]
        variables |= estimated(f"{kind}_level", per, rows, f"mean over deep layers of {long_name}")
        for name, row in zip(names, rows, strict=True):
            slopes[kind, name] = slope(widths, row)
    variables["epsilon"] = Variable(
        per, np.reshape(printed, shape), "ε of Corollary 4, nγ‖G*^(-1/2)‖/√d"
    )
    data = dataset(
        variables,
        {
            "activation": Variable(("activation",), list(names), "activation", ""),
            "width": Variable(("width",), widths, "width d", "neurons"),
            "layer": Variable(("layer",), run.layers, "layer"),
        },
        sources, full,
        {
            "batch": n, "norm": "batch", "networks": sizes.chains,
            "initial": "pairs of samples of correlation 0.99, and independent samples",
        },
    )  # fmt: skip
    table = Table(
        ("activation", "width", "Σ|λ/λ′ - 1|", "‖G⁻¹G′ - I‖", "ε of Corollary 4"),
        tuple(
            (
                name,
                width,
                levels["spectral"][i * len(widths) + j],
                levels["relative"][i * len(widths) + j],
                printed[i * len(widths) + j],
            )
            for i, name in enumerate(names)
            for j, width in enumerate(widths)
        ),
    )
    findings = tuple(
        f"{name}: slopes of the levels in the width {interval(slopes['spectral', name])} (spectra) "
        f"and {interval(slopes['relative', name])} (matrices); theory, for large "
        "widths: -1/2."
        for name in names
    )
    title = "Two inputs to one network end at one spectrum, up to the root of the width"
    return Experiment("bridging-two-inputs", title, data, table, findings, _draw_two_inputs)


def _draw_two_inputs(data: xarray.Dataset, figure: Figure) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    from bnmc.plot.axes import COLOURS, band, estimates, plain_ticks

    left, *levels = axes_of(figure, 3, width=4.6, height=4.2)[0]
    name = str(data["activation"].values[0])
    one = data.sel(activation=name)
    layers, widths = data["layer"].values, data["width"].values
    # Not those of the activations beside it.
    shades = colormaps["viridis"](np.linspace(0.0, 0.85, len(widths)))
    for colour, width in zip(map(to_hex, shades), widths, strict=True):
        part = one.sel(width=width)
        curve = [part[f"spectral{end}"] for end in ("", "_band_low", "_band_high")]
        band(left, layers, *curve, colour=colour, label=f"d = {width}")
    left.set(yscale="log", xlabel="layer", ylabel=r"$\Sigma_i\, |\lambda_i/\lambda_i' - 1|$")
    left.set_title(f"{name}, mean and 90 % of {data.attrs['networks']} networks", loc="left")
    left.legend()
    panels = (
        ("spectral", r"deep layers, $\Sigma_i\, |\lambda_i/\lambda_i' - 1|$"),
        ("relative", r"deep layers, $\|G_\ell^{-1} G_\ell' - I\|_F$"),
    )
    for ax, (kind, title) in zip(levels, panels, strict=True):
        for colour, label in zip(COLOURS, data["activation"].values, strict=False):
            part = data.sel(activation=label)
            curve = [part[f"{kind}_level{end}"] for end in ("", "_low", "_high")]
            estimates(ax, widths, *curve, colour=colour, fmt="o-", label=label)
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


def _root(covariance: FloatArray) -> FloatArray:
    values, vectors = np.linalg.eigh(covariance)
    root: FloatArray = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return root


def _rows_of(covariance: FloatArray) -> FirstLayer:
    """A start whose rows are N(0, covariance), drawn anew for each network."""
    return FirstLayer(_root(covariance) * np.sqrt(len(covariance)))


def _paired(batch: int) -> FloatArray:
    """Covariance of pairs of samples with correlation 0.99."""
    covariance = np.eye(batch)
    for first in range(0, batch - 1, 2):
        covariance[first, first + 1] = covariance[first + 1, first] = 0.99
    return covariance
