"""Fig. 1a: the error of the mean field over depth, with and without batch normalization."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc.bounds import bridging as bounds
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.bridging.common import stationary_linear
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array, Progress, Run, Table
from bnmc.experiments.sizes import Several
from bnmc.experiments.statistics import interval, rms
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, band
from bnmc.random_matrix import vanilla_deviation
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

#: Width and batch size of the paper.
_WIDTH, _BATCH = 1000, 5


class Sizes(NamedTuple):
    """Sizes of the figure.

    networks: networks with batch normalization
    vanilla: networks without it
    points: about how many layers are recorded
    """

    depth: int = 1000
    networks: Several = 200
    vanilla: Several = 1000
    points: int = 200


@kit.figure("bridging-1a", Sizes(), depth=3000, networks=1000, vanilla=5000)
def fig_1a(run: Run, sizes: Sizes) -> Experiment:
    r"""Fig. 1a: the error of the mean field over depth, with and without batch normalization.

    Linear networks of width d = 1000 with n = 5 samples, as in the paper.  The paper's bands show
    10 simulations.  Here 200 networks have normalization and 1000 have none, because errors
    without it are heavy-tailed; the depth is 1000 layers (``full``: 1000 and 5000 networks, 3000
    layers).  All networks start from orthogonal samples: :math:`G_0 = I` is the fixed point
    without normalization.

    Expected: with normalization, the root mean square error equals the root of `stationary_linear`
    at every depth.  Without normalization, it follows the exact formula
    :math:`E\|G_l - I\|_F^2 = n(n+2)/3 (1+2/d)^l - n(n-1)/3 (1-1/d)^l - n`.

    Eq. (6), "error ≈ exp(depth/width)", has the exponent of that formula, but not its scale and
    not its start, which grows as √depth.  The bound exp(3nl/2d) in the line before eq. (6) is of
    the operator norm.  In depth the bound is far above the Frobenius norm drawn here.  At
    l = d/(3n) it is at most 19 % above the mean Frobenius norm, and from n = 8 on it is below
    (`bnmc.bounds.bridging.equation_6`).  In very deep networks the mean over any finite ensemble
    falls below the exact value, because a few networks dominate it.  The text calls G* the
    identity; with centring the fixed point is (n I − 11ᵀ)/(n−1), which is used here.  The authors'
    notebook has another figure: 70 layers of relu networks with normalization from nearly equal
    rows, and of linear networks without normalization from Gaussian samples.

    Returns
    -------
    Experiment
        Variables by ``norm`` ("batch", "none") and ``layer``.

    Examples
    --------
    >>> from bnmc.experiments import bridging
    >>> found = bridging.fig_1a()  # doctest: +SKIP
    >>> dict(found.data.sizes)  # doctest: +SKIP
    {'norm': 2, 'layer': 201}
    """
    inputs = _orthogonal_samples(run.generator)
    normalised = Chain.bn_mlp(_WIDTH, _BATCH, "linear")
    chains = {"batch": normalised, "none": Chain.vanilla(_WIDTH, _BATCH)}
    # Without normalization every Gram matrix is a fixed point; the networks start at the identity.
    stars = {"batch": MeanField(normalised).fixed_point().gram, "none": np.eye(_BATCH)}
    counts = {"batch": sizes.networks, "none": sizes.vanilla}

    def distances(norm: str, progress: Progress) -> tuple[Float64Array, NDArray[np.int64]]:
        """Return the error of each network, (networks, layers), and the layers."""
        recorded = simulate(
            chains[norm], sizes.depth, chains=counts[norm], initial=inputs, burn_in=1,
            every=max(1, sizes.depth // sizes.points), observables=Distance(stars[norm]),
            **run.options(progress),
        )  # fmt: skip
        return recorded["distance"], recorded.layers

    parts = run.parts(distances, [("batch",), ("none",)], [3 * sizes.networks, sizes.vanilla])
    errors, layers = kit.entry(parts, 0), parts["none",][1]
    results = kit.Results(run, norm=counts, layer=layers)
    both, unit = ("norm", "layer"), "Frobenius norm"
    means = kit.each(errors, lambda values: values.mean(axis=0))
    results.add("mean", both, means, "mean error", unit)
    for end, level, text in (("low", 0.05, "5 %"), ("high", 0.95, "95 %")):
        ends = kit.each(errors, partial(np.quantile, q=level, axis=0))
        results.add(f"band_{end}", both, ends, f"{text} of networks", unit)
    squares = {
        (*norm, layer): rms(column)
        for norm, values in errors.items()
        for layer, column in zip(layers, values.T, strict=True)
    }
    results.add("rms", both, squares, "root mean square error", unit)
    plateau = float(np.sqrt(stationary_linear(_WIDTH, _BATCH)))
    exact = np.sqrt(vanilla_deviation(_WIDTH, _BATCH, layers))
    results.add(
        "exact", both, {("batch",): np.full(len(layers), plateau), ("none",): exact},
        "exact r.m.s.; with batch norm that of deep layers, to leading order in 1/width", unit,
    )  # fmt: skip
    late = np.square(errors["batch",][:, layers >= sizes.depth // 2])
    deep = rms(np.sqrt(late.mean(axis=1)))
    results.add("level", (), {(): deep}, "r.m.s. error of deep layers with batch norm", unit)
    growth = np.exp(layers / _WIDTH)
    results.add(
        "equation_6", ("layer",), np.sqrt(_BATCH * (_BATCH + 2) / 3) * growth,
        "eq. (6), in scale with the exact", unit,
    )  # fmt: skip
    results.add(
        "bound", ("layer",), bounds.equation_6(depth=layers, width=_WIDTH, batch=_BATCH),
        "exp(3nl/2d), printed as a bound of the mean operator norm", "operator norm",
    )  # fmt: skip
    shown = [int(np.abs(layers - layer).argmin()) for layer in (1, 10, 100, sizes.depth)]
    early, vanilla = shown[2], errors["none",]
    table = Table(
        (
            "layer", "batch norm, mean", "no norm, mean", "no norm, r.m.s.",
            "no norm, exact r.m.s.", "exp(layer/width)",
        ),
        tuple(
            (
                int(layers[k]), Estimate.from_samples(errors["batch",][:, k]),
                Estimate.from_samples(vanilla[:, k]), rms(vanilla[:, k]), float(exact[k]),
                float(growth[k]),
            )
            for k in dict.fromkeys(shown)
        ),
    )  # fmt: skip
    findings = (
        f"With batch norm the error of deep layers is {interval(deep)} (r.m.s.); theory, "
        f"to leading order in 1/width: {plateau:.4g}.",
        f"Without batch norm it is {interval(rms(vanilla[:, early]))} at layer {layers[early]} "
        f"(r.m.s.); exactly: {exact[early]:.4g}.",
        f"From layer {layers[0]} to {layers[-1]} the mean error grew by the factor "
        f"{_grown(vanilla):.3g} without batch norm and {_grown(errors['batch',]):.3g} with it.",
    )
    return results.experiment(
        "The error of the mean field grows without batch norm and stays constant with it", table,
        findings, _draw, width=_WIDTH, batch=_BATCH, activation="linear",
        networks=[sizes.networks, sizes.vanilla], initial="orthogonal samples",
    )  # fmt: skip


def _orthogonal_samples(generator: np.random.Generator) -> Float64Array:
    """Draw orthogonal inputs of shape (_WIDTH, _BATCH) whose Gram matrix is the identity."""
    basis = np.linalg.qr(generator.standard_normal((_WIDTH, _BATCH)))[0]
    samples: Float64Array = basis * np.sqrt(_WIDTH)
    return samples


def _grown(values: Float64Array) -> float:
    """Return the factor by which the mean grew from the first to the last layer."""
    mean = values.mean(axis=0)
    return float(mean[-1] / mean[0])


def _draw(data: Dataset, figure: Drawing) -> None:
    (ax,) = pictures.axes_of(figure, 1, width=7.2, height=5.0).flat
    layers, counts = data["layer"].values, data.attrs["networks"]
    labels = {"batch": "batch norm", "none": "no normalization"}
    for colour, (norm, label) in zip(COLOURS, labels.items(), strict=False):
        of_norm = data.sel(norm=norm)
        values = (of_norm[name] for name in ("mean", "band_low", "band_high"))
        band(ax, layers, *values, colour=colour, label=label)
    vanilla, normalised = data["exact"].sel(norm="none"), data["exact"].sel(norm="batch")
    ax.plot(layers, vanilla, "k--", linewidth=1.2, label="no normalization, exact r.m.s.")
    ax.plot(layers, normalised, "k-.", linewidth=1.2, label="batch norm, theory, r.m.s.")
    grey: dict[str, Any] = {"color": "0.4", "linewidth": 1.2}
    ax.plot(layers, data["equation_6"], ":", label="eq. (6), ∝ exp(depth/width)", **grey)
    ax.set_yscale("log")
    top = 20 * float(vanilla.max())
    inside = data["bound"].values < top
    ax.plot(
        layers[inside], data["bound"].values[inside], linestyle=(0, (1, 4)),
        label="printed bound exp(3nl/2d)", **grey,
    )  # fmt: skip
    ax.set_ylim(top=top)
    ax.set_title("The error grows without batch norm and stays constant with it", loc="left")
    ax.set_xlabel(
        f"layer\nlinear, n = {data.attrs['batch']}, d = {data.attrs['width']}; mean and 90 % of "
        f"{counts[0]} and {counts[1]} networks"
    )
    ax.set_ylabel(r"error of the mean field, $\|G_\ell - G_*\|_F$")
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
