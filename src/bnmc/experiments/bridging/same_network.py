"""Corollaries 2 and 4: two inputs through one network converge to the same spectrum."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bnmc._support.linalg import semidefinite_root
from bnmc.bounds import bridging as bounds
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.bridging.common import ACTIVATIONS, paired_samples
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run
from bnmc.experiments.sizes import Builtin, Integers, Several
from bnmc.experiments.statistics import interval, slope
from bnmc.gram import eigenvalues, relative_deviation
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, plain_ticks
from bnmc.simulation.run import simulate

#: Batch size of each input.
_BATCH = 5

#: The two differences of a pair of Gram matrices, by name, with their description.
_DIFFERENCES = {"spectral": "Σ|λ/λ′ - 1|", "relative": "‖G⁻¹G′ - I‖, Frobenius norm"}


class Sizes(NamedTuple):
    """Sizes of the figure."""

    activations: tuple[Builtin, ...] = ("relu", "tanh")
    widths: Integers = (250, 1000, 4000)
    depth: int = 60
    networks: Several = 64


@kit.figure(
    "bridging-two-inputs", Sizes(), activations=ACTIVATIONS, widths=(250, 1000, 4000, 16000),
    networks=256,
)  # fmt: skip
def two_inputs(run: Run, sizes: Sizes) -> Experiment:
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

    def differences(name: str, width: int, progress: Progress) -> dict[str, Float64Array]:
        """Return both differences of each network, (networks, layers)."""
        normals = run.generator.standard_normal((2, width, _BATCH))
        normals[0] = normals[0] @ semidefinite_root(paired_samples(_BATCH))
        grams = simulate(
            Chain(width, _BATCH, name), sizes.depth, chains=sizes.networks, initial=normals,
            inputs=2, **run.options(progress),
        )["gram"]  # fmt: skip
        first, second = grams[:, :, 0], grams[:, :, 1]
        ratio = eigenvalues(first) / eigenvalues(second)
        return {
            "spectral": np.abs(ratio - 1.0).sum(axis=-1),
            "relative": relative_deviation(first, second),
        }

    results = kit.Results(
        run, activation=sizes.activations, width=sizes.widths, layer=np.arange(sizes.depth + 1)
    )
    per = ("activation", "width")
    points = results.points(*per)
    parts = run.parts(differences, points, costs=[float(width) for _, width in points])
    levels = {}
    for kind, text in _DIFFERENCES.items():
        samples = kit.entry(parts, kind)
        results.add_range(kind, (*per, "layer"), samples, text)
        deep = kit.each(samples, lambda values: values[:, sizes.depth // 2 :].mean(axis=1))
        levels[kind] = results.add(
            f"{kind}_level", per, kit.each(deep, Estimate.from_samples),
            f"mean over deep layers of {text}",
        )  # fmt: skip
    radii = {point: _radius(*point) for point in points}
    epsilon = results.add("epsilon", per, radii, "ε of Corollary 4, nγ‖G*^(-1/2)‖/√d")
    table = kit.table_of({
        "Σ|λ/λ′ - 1|": levels["spectral"], "‖G⁻¹G′ - I‖": levels["relative"],
        "ε of Corollary 4": epsilon,
    })  # fmt: skip
    findings = (
        f"{name}: slopes of the levels in the width {interval(slope(sizes.widths, spectral))} "
        f"(spectra) and {interval(slope(sizes.widths, relative))} (matrices); theory, for large "
        "widths: -1/2."
        for name, spectral, relative in zip(
            sizes.activations, levels["spectral"].values, levels["relative"].values, strict=True
        )
    )
    return results.experiment(
        "Two inputs to one network converge to one spectrum, up to 1/√width", table, findings,
        _draw, batch=_BATCH, norm="batch", networks=sizes.networks,
        initial="pairs of samples of correlation 0.99, and independent samples",
    )  # fmt: skip


def _radius(name: str, width: int) -> float:
    """Return ε of Corollary 4."""
    star = MeanField(Chain(width, _BATCH, name)).fixed_point().gram
    distortion = bounds.distortion(name, _BATCH)
    bound = bounds.corollary_4(width=width, batch=_BATCH, t=1.0, star=star, distortion=distortion)
    return float(bound.radius)


def _draw(data: Dataset, figure: Drawing) -> None:
    left, *levels = pictures.axes_of(figure, 3, width=4.6, height=4.2)[0]
    widths = data["width"].values
    # Other colours than the panels beside it, where a colour is an activation.
    name, shades = str(data["activation"].values[0]), pictures.shades(len(widths))
    pictures.lines(
        left, data.sel(activation=name), "spectral", "layer", by="width", kind="_band",
        colours=shades, text="d = {}",
    )  # fmt: skip
    title = f"{name}, mean and 90 % of {data.attrs['networks']} networks"
    pictures.finish(left, title, "layer", r"$\Sigma_i\, |\lambda_i/\lambda_i' - 1|$", yscale="log")
    left.legend()
    panels = {
        "spectral": r"deep layers, $\Sigma_i\, |\lambda_i/\lambda_i' - 1|$",
        "relative": r"deep layers, $\|G_\ell^{-1} G_\ell' - I\|_F$",
    }
    for ax, (kind, title) in zip(levels, panels.items(), strict=True):
        for colour, label in zip(COLOURS, data["activation"].values, strict=False):
            part = data.sel(activation=label)
            pictures.points(
                ax, part, f"{kind}_level", "width", colour=colour, fmt="o-", label=label
            )
            if kind == "relative":
                ax.plot(widths, part["epsilon"], "--", color=colour, linewidth=1.2)
        pictures.finish(ax, title, "width $d$", xscale="log", yscale="log")
        plain_ticks(ax.xaxis, widths)
        plain_ticks(ax.yaxis)
    levels[0].set_ylabel("mean, with 95 % intervals")
    levels[1].plot([], [], "--", color="0.4", label="ε of Corollary 4")
    pictures.legend_below(figure, levels[1])
    figure.suptitle(f"Two inputs through the same networks, n = {data.attrs['batch']}")
