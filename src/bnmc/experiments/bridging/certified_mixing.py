"""TODO-DOC bnmc.experiments.bridging.common.certified_mixing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc._support.arguments import integer
from bnmc._support.machine import available_processors
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
    label_outer,
    sized,
    with_parameters,
)
from bnmc.experiments.bridging.common import DEFAULT, FULL
from bnmc.mean_field import MeanField
from bnmc.mixing import contraction, tv_bound

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["certificate"]


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

    Of linear, relu, tanh, sigmoid, sin, selu and celu networks of width 1000 with 5 samples that
    start from independent normal samples: the bound of :math:`\|\mu_l - \mu_*\|_{tv}` by coupled
    chains (`bnmc.mixing.tv_bound`), of 500 pairs (``full``: 5000), beside the assumed
    :math:`(1-\alpha)^l`, with α = 1 − rate of the fixed point.

    What should be seen: the chains mix, and the bounds fall geometrically in the end.  They lie
    above (1−α)^l, for a coupled pair needs some layers until it is near enough to meet at all: what
    is certified is C(1−α)^l with a constant C above 1, a property of the start (and of the
    coupling); Assumption 1 has C at most 1.  The factor of the tail is that of the meeting times,
    measured at the layers where pairs meet; a pair that misses its chance makes it larger than
    the chain's own rate, which `bnmc.mixing.contraction` measures and which agrees with the mean
    field.

    Returns
    -------
    Experiment
        Variables by ``activation`` and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.certificate()  # doctest: +SKIP
    """
    sizes, sources = sized("certificate", full, DEFAULT, FULL), Sources(rng)
    n, names = 5, sizes.activations
    processors = available_processors() if threads is None else integer("threads", threads, low=1)
    certs, rates, measured = [], [], []
    with (
        Parts(
            progress, "bridging-certificate", [4.0, 1.0] * len(names), sources, full, store
        ) as parts,
        ThreadPoolExecutor(processors) as pool,
    ):
        for name in names:
            chain = Chain(sizes.width, n, name)
            rates.append(MeanField(chain).fixed_point().rate)
            certs.append(
                parts.run(
                    tv_bound, chain, sizes.depth, lag=sizes.depth, replicates=sizes.replicates,
                    rng=sources.generator, executor=pool,
                )
            )  # fmt: skip
            measured.append(
                parts.run(
                    contraction, chain, pairs=sizes.pairs, rng=sources.generator, executor=pool,
                ).rate_estimate
            )  # fmt: skip
    layers = certs[0].layers
    per = ("activation", "layer")
    data = dataset(
        {
            "bound": Variable(
                per, [cert.bound for cert in certs], "bound of the total variation distance"
            ),
            "bound_low": Variable(
                per, [cert.ci[:, 0] for cert in certs], "lower end of its interval"
            ),
            "bound_high": Variable(
                per, [cert.ci[:, 1] for cert in certs], "upper end of its interval"
            ),
            "assumed": Variable(
                per, [rate**layers for rate in rates], "(1-α)^l, α = 1 - rate of the fixed point"
            ),
            "mean_field_rate": Variable(("activation",), rates, "rate of the fixed point"),
            **estimated(
                "tail", ("activation",), [cert.rate_estimate for cert in certs],
                "factor of the tail of meeting times, a layer",
            ),
            **estimated("rate", ("activation",), measured, "contraction of coupled chains"),
        },
        {
            "activation": Variable(("activation",), list(names), "activation", ""),
            "layer": Variable(("layer",), layers, "layer"),
        },
        sources, full,
        {
            "width": sizes.width, "batch": n, "norm": "batch", "replicates": sizes.replicates,
            "lag": sizes.depth, "initial": "gaussian", "level": certs[0].level,
        },
    )  # fmt: skip
    estimates = [
        Estimate(one.rate, one.stderr, one.ci, one.n, one.method)
        for one in (*measured, *(cert.rate_estimate for cert in certs))
    ]
    rows = list(
        zip(
            names, rates, estimates[: len(names)], estimates[len(names) :],
            [cert.layers_to(0.25) for cert in certs], strict=True,
        )
    )  # fmt: skip
    table = Table(
        (
            "activation", "rate of the mean field", "contraction", "tail of meeting times",
            "TV <= 1/4 from layer",
        ),
        tuple(rows),
    )  # fmt: skip
    findings = tuple(
        f"{name}: total variation at most 1/4 from layer {layer} on (95 %); contraction by "
        f"{interval(found)} a layer, mean field {rate:.4g}."
        for name, rate, found, _, layer in rows
    )
    title = "Certified mixing, beside what the paper assumes"
    return Experiment("bridging-certificate", title, data, table, findings, _draw_certificate)


def _draw_certificate(data: xarray.Dataset, figure: Figure) -> None:
    from bnmc.plot.axes import COLOURS

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
        f"Total variation from the invariant law, n = {attrs['batch']}, d = {attrs['width']}, "
        f"{attrs['replicates']} pairs"
    )
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)


def _share(hits: ArrayLike) -> Estimate:
    """A proportion with its Clopper-Pearson interval."""
    from scipy.special import betaincinv

    k, count = int(np.sum(hits)), int(np.size(hits))
    low = 0.0 if k == 0 else float(betaincinv(k, count - k + 1, 0.025))
    high = 1.0 if k == count else float(betaincinv(k + 1, count - k, 0.975))
    share = k / count
    return Estimate(
        share, float(np.sqrt(share * (1 - share) / count)), (low, high), count, "Clopper-Pearson"
    )
