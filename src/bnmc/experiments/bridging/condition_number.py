"""TODO-DOC bnmc.experiments.bridging.common.condition_number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
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
    with_parameters,
)
from bnmc.experiments.bridging.certified_mixing import _share
from bnmc.experiments.bridging.common import DEFAULT, FULL, _regular, _windows
from bnmc.experiments.bridging.same_network import _paired, _rows_of
from bnmc.mean_field import MeanField
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["conditioning"]


@with_parameters
def conditioning(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Corollary 8: n − 1 eigenvalues of deep layers lie near b*(1−c*), and so G is conditioned.

    Batch 10, inputs of pairs of samples with correlation 0.99, 60 layers, 64 networks (``full``:
    256, and six activations): the condition number of the bulk, the n − 1 eigenvalues orthogonal to
    the ones, over depth, and its extremes against the width.

    What should be seen: the condition number falls from about 100 to near 1 within 10 to 30
    layers.  The bulk widens as √(n/d): with the print's :math:`1 \mp \sqrt{n/d}`
    most networks have an eigenvalue outside, and so they have with Marchenko–Pastur's
    :math:`(1 \mp \sqrt{n/d})^2`; the stationary bulk is wider than either (see `fig_2`).  The print
    says that c depends on σ alone and that the outlier is c*n; it is b*(1 + (n−1)c*), and for
    negative c* the smallest eigenvalue.

    Returns
    -------
    Experiment
        Variables by ``activation``, ``layer`` and ``width``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.conditioning()  # doctest: +SKIP
    """
    sizes, sources = sized("conditioning", full, DEFAULT, FULL), Sources(rng)
    n, names, widths = 10, sizes.activations, sizes.widths
    widest = max(range(len(widths)), key=widths.__getitem__)
    conditions, lows, highs, inside = [], [], [], []
    with Parts(
        progress, "bridging-conditioning", list(widths) * len(names), sources, full, store
    ) as parts:
        for name in names:
            for index, width in enumerate(widths):
                chain = Chain(width, n, name)
                star = MeanField(chain).fixed_point()
                run = parts.run(
                    simulate, chain, sizes.depth, chains=sizes.chains, initial=_rows_of(_paired(n)),
                    rng=sources.generator, threads=threads,
                )  # fmt: skip
                values = np.linalg.eigvalsh(_regular(run["gram"])) / (star.b * (1.0 - star.c))
                if index == widest:
                    conditions.append(values[..., -1] / values[..., 0])
                last = values[:, -1]
                lows.append(Estimate.from_samples(last[:, 0]))
                highs.append(Estimate.from_samples(last[:, -1]))
                inside.append(
                    [
                        _share((last[:, 0] >= low) & (last[:, -1] <= high))
                        for low, high in _windows(n, width)
                    ]
                )
    per, shape = ("activation", "width"), (len(names), len(widths))
    curves = np.array(conditions)
    band_low, band_high = np.quantile(curves, (0.05, 0.95), axis=1)
    along = ("activation", "layer")
    windows = np.array([_windows(n, width) for width in widths])

    def folded(flat: list[Any]) -> list[list[Any]]:
        return [flat[k : k + shape[1]] for k in range(0, len(flat), shape[1])]

    data = dataset(
        {
            "condition": Variable(along, curves.mean(axis=1), "condition number of the bulk"),
            "condition_band_low": Variable(along, band_low, "5 % of networks"),
            "condition_band_high": Variable(along, band_high, "95 % of networks"),
            **estimated("smallest", per, folded(lows), "smallest of the bulk over b*(1-c*)"),
            **estimated("largest", per, folded(highs), "largest of the bulk over b*(1-c*)"),
            "printed_window": Variable(("width", "end"), windows[:, 0], "1 ∓ √(n/d)"),
            "mp_window": Variable(("width", "end"), windows[:, 1], "(1 ∓ √(n/d))²"),
        },
        {
            "activation": Variable(("activation",), list(names), "activation", ""),
            "width": Variable(("width",), widths, "width d", "neurons"),
            "layer": Variable(("layer",), run.layers, "layer"),
            "end": Variable(("end",), ["low", "high"], "end of the interval", ""),
        },
        sources, full,
        {
            "batch": n, "norm": "batch", "networks": sizes.chains, "depth": sizes.depth,
            "initial": "pairs of samples of correlation 0.99",
        },
    )  # fmt: skip
    table = Table(
        (
            "activation", "width", "smallest", "largest", "all in 1 ∓ √(n/d)",
            "all in (1 ∓ √(n/d))²",
        ),
        tuple(
            (name, width, lows[k], highs[k], *inside[k])
            for i, name in enumerate(names)
            for j, width in enumerate(widths)
            for k in [i * len(widths) + j]
        ),
    )  # fmt: skip
    findings = []
    for i, name in enumerate(names):
        start, end = (Estimate.from_samples(curves[i][:, k]) for k in (0, -1))
        k = i * len(widths) + widest
        findings.append(
            f"{name}: the condition number of the bulk falls from {interval(start)} to "
            f"{interval(end)} at width {widths[widest]}; all n - 1 eigenvalues are in "
            f"1 ∓ √(n/d) in a share of {interval(inside[k][0])} of the networks."
        )
    title = "Deep layers are well-conditioned, in a window wider than the print's"
    return Experiment(
        "bridging-conditioning", title, data, table, tuple(findings), _draw_conditioning
    )


def _draw_conditioning(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot.axes import COLOURS, band, estimates, plain_ticks

    left, right = axes_of(figure, 2, width=5.6, height=4.4)[0]
    widths, layers = data["width"].values, data["layer"].values
    for colour, name in zip(COLOURS, data["activation"].values, strict=False):
        one = data.sel(activation=name)
        curve = [one[f"condition{end}"] for end in ("", "_band_low", "_band_high")]
        band(left, layers, *curve, colour=colour, label=name)
        for extreme in ("smallest", "largest"):
            points = [one[f"{extreme}{end}"] for end in ("", "_low", "_high")]
            estimates(
                right, widths, *points, colour=colour, fmt="o-",
                label=name if extreme == "largest" else None,
            )  # fmt: skip
    for window, style, label in (
        ("printed_window", ":", r"$1 \mp \sqrt{n/d}$ (paper)"),
        ("mp_window", "--", r"$(1 \mp \sqrt{n/d})^2$ (Marchenko–Pastur)"),
    ):
        right.plot(widths, data[window].sel(end="high"), "k" + style, linewidth=1.2, label=label)
        right.plot(widths, data[window].sel(end="low"), "k" + style, linewidth=1.2)
    left.set(yscale="log", xlabel="layer", ylabel="condition number of the bulk")
    left.set_title(f"d = {widths.max()}: mean and 90 % of the networks", loc="left")
    left.legend()
    right.set(xscale="log", xlabel="width $d$", ylabel=r"$\lambda/(b_*(1-c_*))$")
    plain_ticks(right.xaxis, widths)
    right.set_title(f"extremes of the bulk at layer {data.attrs['depth']}", loc="left")
    right.legend(fontsize="small")
    figure.suptitle(
        f"Bulk of n − 1 eigenvalues, n = {data.attrs['batch']}, {data.attrs['networks']} networks"
    )
