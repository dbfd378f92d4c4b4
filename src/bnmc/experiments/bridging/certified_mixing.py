"""Assumption 1: certified mixing in total variation, beside the decay that the paper assumes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.experiments.bridging.common import ACTIVATIONS
from bnmc.experiments.data import Variable, dataset, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, label_outer
from bnmc.experiments.statistics import interval, rate_as_estimate
from bnmc.mean_field.field import MeanField
from bnmc.mixing import RateEstimate, TVBound, contraction, tv_bound
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "certificate", "experiment"]


class Sizes(NamedTuple):
    """Activations, width, pairs for the bound, pairs for the contraction, and layers."""

    activations: tuple[str, ...]
    width: int
    replicates: int
    pairs: int
    depth: int


DEFAULT = Sizes(("linear", *ACTIVATIONS), 1000, 500, 32, 40)
FULL = DEFAULT._replace(replicates=5000)

BATCH = 5


@with_parameters
def certificate(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Assumption 1: certified mixing in total variation, which the paper assumes.

    Networks of width 1000 start from 5 independent normal samples, with linear, relu, tanh,
    sigmoid, sin, selu and celu activations.  The picture shows upper bounds of
    :math:`\|\mu_l - \mu_*\|_{tv}`, the total-variation distance to the stationary law, from 500
    coupled pairs of chains (`bnmc.mixing.tv_bound`; ``full``: 5000 pairs).  Beside them is the
    assumed decay :math:`(1-\alpha)^l`, with α = 1 − rate of the fixed point.

    Expected: the chains mix, and in the end the bounds fall geometrically.  They lie above
    (1−α)^l, because a coupled pair needs some layers until it is near enough to meet.  So the
    certified decay is C(1−α)^l with a constant C above 1, which depends on the start and on the
    coupling.  Assumption 1 has C at most 1.  The factor of the tail is that of the meeting times,
    measured at the layers where pairs meet.  A pair that misses its chance to meet increases this
    factor above the chain's own rate.  `bnmc.mixing.contraction` measures the chain's rate, which
    agrees with the mean field.

    Returns
    -------
    Experiment
        Variables by ``activation`` and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.certificate()  # doctest: +SKIP
    """
    call = Call("bridging-certificate", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Certified(NamedTuple):
    """Results for one activation: rate of the mean field, bound, and measured contraction."""

    rate: float
    bound: TVBound
    contraction: RateEstimate


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = _measure(sizes, call)
    rows = tuple(
        (
            name,
            one.rate,
            rate_as_estimate(one.contraction),
            rate_as_estimate(one.bound.rate_estimate),
            one.bound.layers_to(0.25),
        )
        for name, one in zip(sizes.activations, found, strict=True)
    )
    columns = (
        "activation", "rate of the mean field", "contraction", "tail of meeting times",
        "TV <= 1/4 from layer",
    )  # fmt: skip
    findings = tuple(
        f"{name}: total variation at most 1/4 from layer {layer} on (95 %); contraction by "
        f"{interval(measured)} per layer, mean field {rate:.4g}."
        for name, rate, measured, _, layer in rows
    )
    return Experiment(
        call.name,
        "Certified mixing, beside what the paper assumes",
        _data(sizes, call, found),
        Table(columns, rows),
        findings,
        _draw,
    )


def _measure(sizes: Sizes, call: Call) -> list[_Certified]:
    processors = call.processors()
    found = []
    with (
        call.parts([4.0, 1.0] * len(sizes.activations)) as parts,
        ThreadPoolExecutor(processors) as pool,
    ):
        for name in sizes.activations:
            chain = Chain(sizes.width, BATCH, name)
            rate = MeanField(chain).fixed_point().rate
            bound = parts.run(
                tv_bound, chain, sizes.depth, lag=sizes.depth, replicates=sizes.replicates,
                rng=call.generator, executor=pool,
            )  # fmt: skip
            measured = parts.run(
                contraction, chain, pairs=sizes.pairs, rng=call.generator, executor=pool
            )
            found.append(_Certified(rate, bound, measured.rate_estimate))
    return found


def _data(sizes: Sizes, call: Call, found: list[_Certified]) -> xarray.Dataset:
    per, along = ("activation",), ("activation", "layer")
    rates, bounds = [one.rate for one in found], [one.bound for one in found]
    layers = bounds[0].layers
    return dataset(
        {
            "bound": Variable(
                along, [one.bound for one in bounds], "bound of the total variation distance"
            ),
            "bound_low": Variable(
                along, [one.ci[:, 0] for one in bounds], "lower end of its interval"
            ),
            "bound_high": Variable(
                along, [one.ci[:, 1] for one in bounds], "upper end of its interval"
            ),
            "assumed": Variable(
                along, [rate**layers for rate in rates], "(1-α)^l, α = 1 - rate of the fixed point"
            ),
            "mean_field_rate": Variable(per, rates, "rate of the fixed point"),
            **estimated(
                "tail", per, [one.rate_estimate for one in bounds],
                "factor of the tail of meeting times, per layer",
            ),
            **estimated(
                "rate", per, [one.contraction for one in found], "contraction of coupled chains"
            ),
        },
        {
            "activation": Variable(per, list(sizes.activations), "activation", ""),
            "layer": Variable(("layer",), layers, "layer"),
        },
        call,
        {
            "width": sizes.width, "batch": BATCH, "norm": "batch", "replicates": sizes.replicates,
            "lag": sizes.depth, "initial": "gaussian", "level": bounds[0].level,
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    names = data["activation"].values
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    axes = axes_of(figure, columns, rows, width=3.4, height=2.9)
    label_outer(axes, len(names), "layer", r"$\|\mu_\ell - \mu_*\|_{tv}$, at most")
    layers = data["layer"].values
    least = 0.1 / data.attrs["replicates"]
    for ax, name in zip(axes.flat, names, strict=False):
        one = data.sel(activation=name)
        bound = np.where(one["bound"].values > 0.0, one["bound"].values, np.nan)
        ax.fill_between(
            layers, np.maximum(one["bound_low"], least), one["bound_high"], color=COLOURS[0],
            alpha=0.2, linewidth=0, label="95 % intervals",
        )  # fmt: skip
        ax.plot(layers, bound, color=COLOURS[0], label="certified bound")
        ax.plot(
            layers, one["assumed"], "--", color=COLOURS[1], linewidth=1.3,
            label=r"assumed $(1-\alpha)^\ell$",
        )  # fmt: skip
        ax.axhline(1.0, color="black", linewidth=0.8)
        ax.set(yscale="log", ylim=(least, 2.0 * max(2.0, float(data["bound"].max()))))
        ax.set_title(
            f"{name}, α = {1 - float(one['mean_field_rate']):.3f}", loc="left", fontsize="medium"
        )
    attrs = data.attrs
    figure.suptitle(
        f"Total variation from the quasi-stationary law, n = {attrs['batch']}, "
        f"d = {attrs['width']}, {attrs['replicates']} pairs"
    )
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
