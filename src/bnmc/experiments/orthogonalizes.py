"""The figures of *Batch normalization orthogonalizes representations in deep random networks*.

Daneshmand, Joudaki and Bach, arXiv 2106.03970.  The chain is ``H₊ = BN(W H)/√d``, linear and
uncentred, `bnmc.Chain.bn_linear`; its orthogonality gap is ``V(H) = ‖HᵀH/‖H‖_F² − I/n‖_F``.

Layers are counted by the weights that the input went through: layer 1 is the first normalized one,
layer 0 of `bnmc.simulate`.

All figures start from inputs that one direction dominates.  The chain does not see how the samples
are rotated among each other, so that only the spectrum of the input matters: one large sample
beside tiny ones, as the authors' code has it, is the same start as nearly equal samples.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._progress import Progress
from bnmc.activations import Activation
from bnmc.bounds import orthogonalizes as bounds
from bnmc.chain import Chain
from bnmc.estimate import Estimate
from bnmc.experiments._common import (
    LEVEL,
    banded,
    chosen,
    curve,
    draw_band,
    ends,
    label_widths,
    logarithmic,
    with_ends,
)
from bnmc.experiments._experiment import (
    Experiment,
    Parts,
    Sources,
    Store,
    Table,
    Variable,
    axes_of,
    dataset,
    interval,
    slope,
    with_parameters,
)
from bnmc.initial import FirstLayer
from bnmc.observables import Distance
from bnmc.plot import COLOURS, estimates
from bnmc.simulation import simulate
from bnmc.trajectory import Trajectory

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["fig_1", "fig_2a", "fig_2b", "fig_6", "wasserstein"]

Float64Array = NDArray[np.float64]


class _Sizes(NamedTuple):
    """Sizes of a figure."""

    widths: tuple[int, ...]
    layers: int
    chains: int
    batch: int = 4


_FIG_1 = _Sizes((32,), 50, 400, batch=2), _Sizes((32,), 50, 20_000, batch=2)


@with_parameters
def fig_1(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 1: the cosine of two samples over depth, with and without batch normalization.

    The paper has width 32, 50 layers and 20 networks.  The network with batch normalization starts
    from two nearly equal samples, e₁ and .999 e₁ + .001 e₂, the vanilla network from the
    orthogonal e₁ and e₂.  Here are 400 networks of each, and 20 000 with `full`.

    With batch normalization the cosine falls to its plateau within ten layers.  At infinite width
    a layer takes a cosine c to ``c/(1 + √(1−c²))``, at width d it settles where
    ``E|c| ≃ √(4/(3πd))``, below the ``√(2/(πd))`` of independent samples: both are drawn.
    Without it the samples align, at a known pace: the sine of their angle has
    ``E log sin² = l [ψ((d−1)/2) − ψ(d/2)] ≃ −l/d``, exactly at every layer l and width d:
    the straight line of the right panel.

    The print names neither the axis nor that the two networks start from opposite ends: at layer
    50 the vanilla network of width 32 is still far from collinear, and wider ones need
    proportionally more layers.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_1()
    >>> print(found.data.cosine.sel(network="batch norm", layer=50).round(2).item())
    0.11
    """
    return _fig_1(chosen(_FIG_1, full), full, rng, progress, threads, store)


def _fig_1(
    sizes: _Sizes,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    d = sizes.widths[0]
    starts = {
        "batch norm": (Chain.bn_linear(d, 2), [[1.0, 1.0 - _NEAR], [0.0, _NEAR]]),
        "vanilla": (Chain.vanilla(d, 2), [[1.0, 0.0], [0.0, 1.0]]),
    }
    cosines, log_sines = [], []
    with Parts(progress, "orthogonalizes-1", [1, 1], sources, full, store) as parts:
        for chain, columns in starts.values():
            run = parts.run(
                simulate, chain, sizes.layers - 1, chains=sizes.chains, initial=FirstLayer(columns),
                observables="scaled_gram", rng=sources.generator, threads=threads,
            )  # fmt: skip
            found = run["scaled_gram"]
            scale = np.sqrt(found[..., 0, 0] * found[..., 1, 1])
            cosine = found[..., 0, 1] / scale
            cosines.append(banded(np.abs(cosine)))
            log_sines.append(banded(np.log1p(-np.square(cosine))))
    layers = np.arange(1, sizes.layers + 1)
    pace = vanilla_pace(d)
    wide = [(1 - _NEAR) / math.hypot(1 - _NEAR, _NEAR)]
    for _ in layers:
        wide.append(wide[-1] / (1 + math.sqrt(1 - wide[-1] ** 2)))
    plateau = math.sqrt(4 / (3 * math.pi * d))
    over = ("network", "layer")
    data = dataset(
        {
            **with_ends("cosine", over, cosines, "absolute cosine of two samples"),
            **with_ends("log_squared_sine", over, log_sines, "log of the squared sine"),
            "cosine_at_infinite_width": Variable(
                ("layer",), wide[1:], "cosine with batch normalization at infinite width"
            ),
            "cosine_plateau": Variable((), plateau, "stationary mean of the absolute cosine"),
            "vanilla_log_squared_sine": Variable(
                ("layer",), pace * layers, "exact mean of the log of the squared sine, vanilla"
            ),
        },
        {
            "network": Variable(("network",), list(starts), "network", ""),
            "layer": Variable(("layer",), layers, "layer"),
        },
        sources,
        full,
        {"width": d, "batch": 2, "chains": sizes.chains, "start": f"cosine 1 - {_NEAR**2 / 2:g}"},
    )
    last = [_estimate(one[-1], sizes.chains) for one in (*cosines, log_sines[1])]
    table = Table(
        ("network", "|cosine|, first layer", "|cosine|, last layer", "theory, last layer"),
        (
            ("batch norm", float(cosines[0][0, 0]), last[0], plateau),
            ("vanilla", float(cosines[1][0, 0]), last[1], None),
        ),
    )
    findings = (
        f"With batch norm the mean |cosine| at layer {layers[-1]} is {interval(last[0])}; the "
        f"plateau sqrt(4/(3 pi d)) at width {d} is {plateau:.3f}.",
        f"Without it the mean |cosine| has grown from {cosines[1][0, 0]:.2f} to "
        f"{interval(last[1])}, and log sin^2 is {interval(last[2])}; the exact law has "
        f"{pace * layers[-1]:.3f}.",
    )
    title = f"Cosine of two samples, linear networks of width {d}"
    return Experiment("orthogonalizes-1", title, data, table, findings, _draw_1)


#: How far apart the two samples of Fig. 1 are.
_NEAR = 1e-3


def vanilla_pace(width: int) -> float:
    """``E log sin²`` of the angle between two samples that one vanilla layer adds, exactly."""
    from scipy.special import digamma

    return float(digamma((width - 1) / 2) - digamma(width / 2))


def _draw_1(data: xarray.Dataset, figure: Figure) -> None:
    left, right = axes_of(figure, 2)[0]
    layers = data.layer.values
    labels = ("batch norm, from nearly equal samples", "vanilla, from orthogonal samples")
    for network, (colour, label) in enumerate(zip(COLOURS[:2], labels, strict=True)):
        for ax, name in ((left, "cosine"), (right, "log_squared_sine")):
            draw_band(ax, layers, curve(data, name)[network], colour, label)
    left.plot(
        layers, data.cosine_at_infinite_width, ":", color="black", label="batch norm, $d = \\infty$"
    )
    left.axhline(
        float(data.cosine_plateau), color="black", linestyle="--", linewidth=1,
        label=r"plateau $\sqrt{4/(3\pi d)}$",
    )  # fmt: skip
    right.plot(
        layers, data.vanilla_log_squared_sine, "--", color="black", linewidth=1,
        label=r"exact: $\ell\,[\psi(\frac{d-1}{2}) - \psi(\frac{d}{2})]$",
    )  # fmt: skip
    left.set(ylabel="absolute cosine of the two samples", ylim=(0, 1.02), title="As in the paper")
    right.set(ylabel=r"mean of $\log\,\sin^2$ of their angle", title="The angle itself")
    for ax in (left, right):
        ax.set_xlabel("layer")
        ax.legend(fontsize="small")
    figure.suptitle(
        f"Cosine of two samples, width {data.attrs['width']}: "
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )


_FIG_2A = _Sizes((32, 512), 50, 200), _Sizes((32, 512), 50, 5_000)


@with_parameters
def fig_2a(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 2a: the orthogonality gap over depth, from nearly collinear samples.

    The paper has batch 4, widths 32 and 512, 50 layers and 20 networks, and the mean of log V.
    Here are 200 networks, and 5000 with `full`; the spectrum of the input is that of the authors'
    code, one singular value 1 beside three of 1e-6.

    The gap falls by n/(n+2) = 2/3 a layer, to a plateau where
    ``E V² ≃ (n−1)(n+2)²/(4n(n+1)d)``.  Both the chain at infinite width (`expected_shares`,
    iterated) and the plateaus are drawn.

    What the figure hides: its first layers are not those of infinite width.  A lost direction comes
    back through the rare rows that hardly see the dominant one; in the mean its share grows
    from s to √s, in a network of width d typically to s·d.  So wide networks leave collinearity
    sooner.  Theorem 1 is not drawn: at these widths its floor, at least ``3n²/√d``, exceeds the
    largest possible gap.

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
    return _fig_2a(chosen(_FIG_2A, full), full, rng, progress, threads, store)


def _fig_2a(
    sizes: _Sizes,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    n = sizes.batch
    gaps, halves, one_step = [], [], []
    with Parts(progress, "orthogonalizes-2a", sizes.widths, sources, full, store) as parts:
        for d in sizes.widths:
            run = parts.run(_run, d, n, sizes, sources, threads, "eigenvalues")
            eigenvalues = run["eigenvalues"]
            gap = _gap(eigenvalues)
            gaps.append(np.exp(banded(np.log(gap))))
            halves.append((gap < 0.5).argmax(axis=1) + 1.0)
            # The martingale of the exact law of a layer: what V² is beside its mean given the last.
            surprise = np.square(gap[:, 1:]) - bounds.expected_squared_gap(eigenvalues[:, :-1], d)
            one_step.append(Estimate.from_samples(surprise.mean(axis=1)))
    layers = np.arange(1, sizes.layers + 1)
    plateaus = [_typical_gap(d, n) for d in sizes.widths]
    data = dataset(
        {
            **with_ends("gap", ("width", "layer"), gaps, "orthogonality gap, geometric mean"),
            "gap_at_infinite_width": Variable(
                ("layer",), _wide_gaps(n, sizes.layers), "orthogonality gap at infinite width"
            ),
            "plateau": Variable(("width",), plateaus, "stationary geometric mean, leading order"),
            **with_ends(
                "one_step_excess",
                ("width",),
                ends(one_step),
                "squared gap less its exact mean given the layer before",
            ),
        },
        {
            "width": Variable(("width",), list(sizes.widths), "width"),
            "layer": Variable(("layer",), layers, "layer"),
        },
        sources,
        full,
        {"batch": n, "chains": sizes.chains, "start": f"singular values 1 and {_TINY:g}"},
    )
    rows = tuple(
        (d, Estimate.from_samples(half), _estimate(gap[-1], sizes.chains), plateau)
        for d, half, gap, plateau in zip(sizes.widths, halves, gaps, plateaus, strict=True)
    )
    table = Table(("width", "first layer with V < 1/2", "V, last layer", "plateau, theory"), rows)
    findings = (
        *(
            f"At width {d} the gap falls below 1/2 at layer {half.value:.1f} [{half.ci[0]:.1f}, "
            f"{half.ci[1]:.1f}] and ends at {gap[-1][0]:.3f}; the plateau is {plateau:.3f}."
            for (d, half, _, plateau), gap in zip(rows, gaps, strict=True)
        ),
        "V^2 less its exact mean given the layer before is "
        + ", ".join(
            f"({one.value:.1e} ± {one.stderr:.0e}) at width {d}"
            for d, one in zip(sizes.widths, one_step, strict=True)
        )
        + ", in theory 0.",
    )
    title = f"Orthogonality gap over depth, batch {n}"
    return Experiment("orthogonalizes-2a", title, data, table, findings, _draw_2a)


#: The small singular values of the nearly collinear inputs of Fig. 2.
_TINY = 1e-6


def _collinear(n: int) -> Float64Array:
    return np.diag([1.0] + [_TINY] * (n - 1))


def _run(
    d: int, n: int, sizes: _Sizes, sources: Sources, threads: int | None, observables: str, *,
    progress: Progress,
) -> Trajectory:  # fmt: skip
    return simulate(
        Chain.bn_linear(d, n), sizes.layers - 1, chains=sizes.chains,
        initial=FirstLayer(_collinear(n)), observables=observables, rng=sources.generator,
        threads=threads, progress=progress,
    )  # fmt: skip


def _gap(eigenvalues: Float64Array) -> Float64Array:
    """V of the eigenvalues of Gram matrices."""
    shares = eigenvalues / eigenvalues.sum(axis=-1, keepdims=True)
    gap: Float64Array = np.linalg.norm(shares - 1 / shares.shape[-1], axis=-1)
    return gap


def _wide_gaps(n: int, layers: int) -> Float64Array:
    """V of the chain of infinite width from the nearly collinear input, layer by layer."""
    shares = np.square(np.diag(_collinear(n)))
    found = []
    for _ in range(layers):
        shares = bounds.expected_shares(shares)
        found.append(float(_gap(shares)))
    return np.array(found)


def _typical_gap(width: int, batch: int) -> float:
    """Geometric mean of V where the chain has settled, to leading order in 1/d."""
    from scipy.special import digamma

    m = _freedom(batch)
    log_square = math.log(float(bounds.stationary_squared_gap(width, batch)))
    return math.exp((log_square + float(digamma(m / 2)) - math.log(m / 2)) / 2)


def mean_gap(width: int, batch: int) -> float:
    """Mean of V where the chain has settled, to leading order in 1/d.

    There ``HᵀH − I/n`` is normal.  Its law does not see rotations of the samples, so it is a
    multiple of a χ variable of as many degrees of freedom as a traceless symmetric matrix has.
    """
    m = _freedom(batch)
    ratio = math.exp(math.lgamma((m + 1) / 2) - math.lgamma(m / 2)) * math.sqrt(2 / m)
    return math.sqrt(float(bounds.stationary_squared_gap(width, batch))) * ratio


def _freedom(batch: int) -> int:
    return (batch - 1) * (batch + 2) // 2


def _draw_2a(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=6.4, height=4.8)
    layers = data.layer.values
    for index, (width, colour) in enumerate(zip(data.width.values, COLOURS, strict=False)):
        draw_band(ax, layers, curve(data, "gap")[index], colour, f"$d = {width}$")
        plateau = float(data.plateau[index])
        ax.axhline(plateau, color=colour, linestyle="--", linewidth=1, label="its plateau, theory")
    wide = data.gap_at_infinite_width.values
    bottom = data.gap.values.min() / 1.5
    shown = wide > bottom
    ax.plot(layers[shown], wide[shown], ":", color="black", label=r"$d = \infty$, exact")
    logarithmic(ax)
    ax.set(xlabel="layer", ylabel="orthogonality gap $V$, geometric mean", ylim=(bottom, 1.2))
    ax.legend()
    ax.set_title(
        f"Orthogonality gap from nearly collinear samples, batch {data.attrs['batch']}:\n"
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )


_FIG_2B = (
    _Sizes((16, 32, 64, 128, 256, 512), 500, 64),
    _Sizes((16, 32, 64, 128, 256, 512, 1024, 2048, 4096), 500, 400),
)
#: From which layer on the chain of Fig. 2b counts as settled: at width 16 the start takes some 20
#: layers, and what is left of it falls by (2/3) a layer.
_SETTLED = 100


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

    The paper has batch 4, widths 16 to 512, the average of V over 500 layers and 20 networks.
    Here are 64 networks; with `full` 400, and widths up to 4096.

    The points lie on ``E V ≃ E χ_m/√m · √((n−1)(n+2)²/(4n(n+1)d))``, with the m = (n−1)(n+2)/2
    degrees of freedom of a traceless symmetric matrix, and the slope tends to −1/2.

    What the figure gets wrong: the authors' code divides by the number of networks and then
    averages over them, so that its curve lies log 20 = 3.0 too low.  And its average starts at the
    first layer, where V is near 1: that does not fall with the width, and flattens the slope.  The
    average over all layers is drawn beside that over settled ones.

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
    return _fig_2b(chosen(_FIG_2B, full), full, rng, progress, threads, store)


def _fig_2b(
    sizes: _Sizes,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    n = sizes.batch
    settled, printed = [], []
    with Parts(progress, "orthogonalizes-2b", sizes.widths, sources, full, store) as parts:
        for d in sizes.widths:
            run = parts.run(_run, d, n, sizes, sources, threads, "orthogonality_gap")
            gap = run["orthogonality_gap"]
            settled.append(Estimate.from_samples(gap[:, _SETTLED:].mean(axis=1)))
            printed.append(Estimate.from_samples(gap.mean(axis=1)))
    theory = [mean_gap(d, n) for d in sizes.widths]
    slopes = [
        slope(sizes.widths, found, method="weighted least squares of logs")
        for found in (settled, printed)
    ]
    data = dataset(
        {
            **with_ends("gap", ("width",), ends(settled), "mean orthogonality gap, settled"),
            **with_ends(
                "gap_of_all_layers",
                ("width",), ends(printed), "mean orthogonality gap, first layers included"
            ),
            "theory": Variable(("width",), theory, "stationary mean, leading order"),
            **with_ends("slope", (), ends(slopes[:1])[0], "slope of log V in log d, settled"),
            **with_ends(
                "slope_of_all_layers",
                (), ends(slopes[1:])[0], "slope of log V in log d, first layers included"
            ),
        },
        {"width": Variable(("width",), list(sizes.widths), "width"),},
        sources,
        full,
        {
            "batch": n, "chains": sizes.chains, "layers": sizes.layers,
            "settled_from_layer": _SETTLED + 1,
        },
    )  # fmt: skip
    table = Table(
        ("width", f"V, layers {_SETTLED + 1}-{sizes.layers}", "V, all layers", "theory"),
        tuple(zip(sizes.widths, settled, printed, theory, strict=True)),
    )
    excess = settled[-1].value / theory[-1] - 1
    findings = (
        f"The slope in the width is {interval(slopes[0])} over settled layers, in theory -1/2 up "
        f"to terms of 1/d; over all layers, as printed, it is {interval(slopes[1])}.",
        f"At width {sizes.widths[-1]} the mean gap is {interval(settled[-1])}, {excess:+.1%} "
        f"beside the theory's {theory[-1]:.4f}.",
    )
    title = f"Orthogonality gap of deep layers against width, batch {n}"
    return Experiment("orthogonalizes-2b", title, data, table, findings, _draw_2b)


def _draw_2b(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=6.4, height=4.8)
    widths = data.width.values
    low, high = data.attrs["settled_from_layer"], data.attrs["layers"]
    for name, colour, marker, label in (
        ("gap", COLOURS[0], "o", f"layers {low} to {high}: slope"),
        ("gap_of_all_layers", COLOURS[1], "s", f"layers 1 to {high}, as printed: slope"),
    ):
        found = float(data[name.replace("gap", "slope")])
        estimates(
            ax,
            widths,
            *curve(data, name).T,
            colour=colour,
            fmt=marker,
            label=f"{label} {found:.3f}",
        )
    ax.plot(widths, data.theory, "--", color="black", linewidth=1, label="leading order in $1/d$")
    logarithmic(ax)
    label_widths(ax, widths)
    ax.set(ylabel="mean orthogonality gap $V$")
    ax.legend()
    ax.set_title(
        f"Orthogonality gap of deep layers, batch {data.attrs['batch']}:\n"
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )


class _Activations(NamedTuple):
    """Sizes of Fig. 6: `layers` settle before as many are averaged over."""

    activations: tuple[Activation, ...]
    widths: tuple[int, ...]
    layers: int
    chains: int


#: Batch of Fig. 6.
_SAMPLES = 4


# Rows of length 1 are x/2 where those of mean square 1 are x.  `_kept` knows the names of these.
_tanh, _sin, _sigmoid = (
    Activation.named(one).scalar("float64") for one in ("tanh", "sin", "sigmoid")
)


def _tanh_half(x: Any) -> Any:
    return _tanh(x / 2)


def _sin_half(x: Any) -> Any:
    return _sin(x / 2)


def _sigmoid_half(x: Any) -> Any:
    return _sigmoid(x / 2)


_PUBLISHED = (
    # Of these two normalization undoes the scale.
    Activation.named("linear"),
    Activation.named("relu"),
    Activation(_tanh_half, name="tanh(x/2)"),
    Activation(_sin_half, name="sin(x/2)"),
    Activation(_sigmoid_half, name="sigmoid(x/2)"),
)
_FIG_6 = (
    _Activations(_PUBLISHED, (16, 32, 64, 128, 256), 100, 64),
    _Activations(_PUBLISHED, (16, 32, 64, 128, 256, 512, 1024), 1000, 64),
)


@with_parameters
def fig_6(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Fig. 6: with other activations the Gram matrix keeps to its mean, to order 1/√d.

    The paper conjectures that ``L = E‖G − E G‖_F`` under the invariant law falls like 1/√d for any
    activation, where the mean need no longer be orthogonal.  It has relu, tanh, sin and a sigmoid,
    batch 4, widths 16 to 256, 5000 layers for the mean and 1000 more for L.  Here 64 networks are
    averaged over 100 layers each, after as many, and of linear networks the law is known:
    ``E‖G − I‖_F² ≃ n(n−1)(n+2)²/(4(n+1)d)``.  With `full` 1000 layers, and widths up to 1024.

    All curves fall with a slope near −1/2.

    Without centring a sample that relu takes to zero in every neuron is zero for ever, at each
    layer with probability 2^−d: at width 16 a thousand layers of 4 samples bring that about in 6 %
    of the networks.  Averages are of networks that lost no sample (``alive`` of them).

    What the figure gets wrong: the authors' loop draws the curve of its last activation, sin, four
    times; it keeps relu networks of width 16 that lost a sample; and their sigmoid is tanh + 1.

    Their BN gives rows length 1, and this library's mean square 1, so that their activations see
    x/√n: here ``tanh(x/2)``, ``sin(x/2)`` and ``sigmoid(x/2)``, nearer to linear than without.  G
    is of the activations, as everywhere in this library; theirs is of what they are applied to.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.fig_6()  # doctest: +SKIP
    >>> found.plot().savefig("fig_6.png")  # doctest: +SKIP
    """
    return _fig_6(chosen(_FIG_6, full), full, rng, progress, threads, store)


def _fig_6(
    sizes: _Activations,
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    n, names = _SAMPLES, [one.name for one in sizes.activations]
    deviations: list[list[Estimate]] = []
    means, alive = [], []
    with Parts(
        progress,
        "orthogonalizes-6",
        2 * len(sizes.activations) * sizes.widths,
        sources,
        full,
        store,
    ) as parts:
        for activation in sizes.activations:
            of_widths = []
            for d in sizes.widths:
                chain = Chain(d, n, activation, norm="batch-uncentred")

                def settled(observable: Any, chain: Chain = chain) -> Trajectory:
                    return parts.run(
                        simulate, chain, 2 * sizes.layers, burn_in=sizes.layers,
                        chains=sizes.chains,
                        observables=observable, reduce="layer", rng=sources.generator,
                        threads=threads,
                    )  # fmt: skip

                run = settled("gram")
                mean = run.moments["gram"].mean[_alive(run)].mean(axis=0)
                run = settled(Distance((mean + mean.T) / 2))
                kept = _alive(run)
                of_widths.append(Estimate.from_samples(run.moments["distance"].mean[kept]))
                means.append(mean)
                alive.append(int(kept.sum()))
            deviations.append(of_widths)
    slopes = [slope(sizes.widths, one) for one in deviations]
    theory = [n * mean_gap(d, n) for d in sizes.widths]
    shape = (len(sizes.activations), len(sizes.widths), n, n)
    data = dataset(
        {
            **with_ends(
                "deviation",
                ("activation", "width"), [ends(one) for one in deviations],
                "mean distance of G from its mean",
            ),
            **with_ends("slope", ("activation",), ends(slopes), "slope of log L in log d"),
            "linear_theory": Variable(
                ("width",), theory, "the same for linear networks, leading order"
            ),
            "mean_gram": Variable(
                ("activation", "width", "sample_i", "sample_j"), np.reshape(means, shape),
                "mean Gram matrix",
            ),
            "alive": Variable(
                ("activation", "width"), np.reshape(alive, shape[:2]),
                "networks that lost no sample, of which L is the mean", "networks",
            ),
        },
        {
            "activation": Variable(("activation",), names, "activation", ""),
            "width": Variable(("width",), list(sizes.widths), "width"),
        },
        sources,
        full,
        {"batch": n, "chains": sizes.chains, "layers": sizes.layers, "norm": "batch-uncentred"},
    )  # fmt: skip
    table = Table(
        ("activation", "width", "L", "in theory", "networks"),
        tuple(
            (name, d, one, known if name == "linear" else None, one.n)
            for name, found in zip(names, deviations, strict=True)
            for d, one, known in zip(sizes.widths, found, theory, strict=True)
        ),
    )
    findings = tuple(
        f"{name}: L falls with a slope of {interval(fitted)} in the width; conjectured is -1/2."
        for name, fitted in zip(names, slopes, strict=True)
    )
    title = f"Deviation of the Gram matrix from its mean against width, batch {n}"
    return Experiment("orthogonalizes-6", title, data, table, findings, _draw_6)


def _alive(run: Trajectory) -> NDArray[np.bool_]:
    """Which networks lost no sample: one that is zero in a layer is zero in all that follow."""
    last = simulate(run.chain, 0, initial=run.final_state, observables="gram")["gram"][:, -1]
    alive: NDArray[np.bool_] = (np.einsum("cii->ci", last) > 0.0).all(axis=1)
    return alive


def _draw_6(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=8.0, height=4.8)
    widths = data.width.values
    markers = "osv^D"
    for index, name in enumerate(data.activation.values):
        found = curve(data, "deviation")[index]
        colour = COLOURS[index % len(COLOURS)]
        label = f"{name}: slope {data.slope.values[index]:.3f}"
        estimates(ax, widths, *found.T, colour=colour, fmt=markers[index % 5], label=label)
        guide = found[-1, 0] * np.sqrt(widths[-1] / widths)
        ax.plot(widths, guide, color=colour, linewidth=0.8)
    ax.plot([], [], color="grey", linewidth=0.8, label="slope $-1/2$ through the widest")
    if "linear" in data.activation.values:
        ax.plot(
            widths, data.linear_theory, "--", color="black", linewidth=1, label="linear, theory"
        )
    logarithmic(ax)
    label_widths(ax, widths)
    ax.set(ylabel=r"$L = E\,\|G - E\,G\|_F$")
    figure.legend(fontsize="small", loc="outside right center")
    ax.set_title(
        f"The Gram matrix keeps to its mean, batch {data.attrs['batch']}:\n"
        f"mean of {data.attrs['chains']} networks, 95 % interval"
    )


_WASSERSTEIN = (
    (_Sizes((32, 512), 40, 200), _Sizes((10**6,), 40, 8)),
    (_Sizes((32, 512, 8192), 40, 1000), _Sizes((10**6,), 40, 20)),
)


@with_parameters
def wasserstein(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Corollary 3: how far W H is from a Gaussian matrix, over depth, and the bounds.

    The paper has the theorem and no figure.  For given H the squared Wasserstein-2 distance of W H
    from i.i.d. normal entries is ``Σ (σ_i − 1/√n)²``; its mean over H is drawn, which bounds that
    of the law of W H.  Batch 4, widths 32, 512 and a million, from samples whose spectrum has the
    shares (1, .2, .2, .2); with `full` more networks, deeper.

    The distance falls by ``(n/(n+2))²`` a layer to ``(n/4) E V² ≃ (n−1)(n+2)²/(16(n+1)d)``, both
    drawn as theory.  The bound of Lemma 2, ``2n E V``, falls at half that pace, to a floor of order
    ``1/√d``.  Corollary 3 needs a bound α of the smallest squared singular value; with the
    smallest that occurred in any of the networks and layers, it says something only at widths of
    a million, and there exceeds the distance by five orders of magnitude.  The print takes α for
    the singular values themselves, with which the theorem is false (`bnmc.bounds.orthogonalizes`).

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import orthogonalizes
    >>> found = orthogonalizes.wasserstein()  # doctest: +SKIP
    >>> found.plot().savefig("wasserstein.png")  # doctest: +SKIP
    """
    return _wasserstein(chosen(_WASSERSTEIN, full), full, rng, progress, threads, store)


#: Squared singular values of the input of `wasserstein`, relative to the largest.
_SPREAD = 0.2


def _wasserstein(
    groups: tuple[_Sizes, ...],
    full: bool,
    rng: Any,
    progress: bool | Progress,
    threads: int | None,
    store: Store = None,
) -> Experiment:
    sources = Sources(rng)
    n = groups[0].batch
    sizes = [(d, group.layers, group.chains) for group in groups for d in group.widths]
    deepest = max(layers for _, layers, _ in sizes)
    shape = (len(sizes), deepest)
    distances, lemmas = np.full((*shape, 3), np.nan), np.full(shape, np.nan)
    corollaries, theories = np.full(shape, np.nan), np.full(shape, np.nan)
    alphas, settled = [], []
    start = np.diag([1.0] + [math.sqrt(_SPREAD)] * (n - 1))
    wide = _wide_distances(n, deepest)
    with Parts(
        progress,
        "orthogonalizes-wasserstein",
        [math.prod(one) for one in sizes],
        sources,
        full,
        store,
    ) as parts:
        for index, (d, layers, chains) in enumerate(sizes):
            run = parts.run(
                simulate, Chain.bn_linear(d, n), layers - 1, chains=chains,
                initial=FirstLayer(start),
                observables="eigenvalues", rng=sources.generator, threads=threads,
            )  # fmt: skip
            eigenvalues = run["eigenvalues"]
            squares = bounds.wasserstein_squared(eigenvalues)
            shares = eigenvalues / eigenvalues.sum(axis=-1, keepdims=True)
            alphas.append(min(float(shares.min()), 1 / n))
            distances[index, :layers] = banded(squares)
            settled.append(Estimate.from_samples(squares[:, layers // 2 :].mean(axis=1)))
            lemmas[index, :layers] = 2 * n * _gap(eigenvalues).mean(axis=0)
            depth = np.arange(layers)
            corollaries[index, :layers] = bounds.corollary_3(depth, d, n, alphas[-1])
            remembered = (n / (n + 2)) ** (2 * (depth + 1))
            theories[index, :layers] = wide[:layers] + _floor(d, n) * (1 - remembered)
    widths = [d for d, _, _ in sizes]
    floors = [_floor(d, n) for d in widths]
    fitted = slope(widths, settled)
    per_layer = ("width", "layer")
    data = dataset(
        {
            **with_ends(
                "distance",
                per_layer, distances, "mean squared Wasserstein-2 distance"
            ),
            "theory": Variable(per_layer, theories, "the same in theory, leading order in 1/d"),
            "lemma_2": Variable(per_layer, lemmas, "bound 2n E V of Lemma 2"),
            "corollary_3": Variable(per_layer, corollaries, "bound of Corollary 3"),
            "alpha": Variable(("width",), alphas, "smallest share of the spectrum that occurred"),
            **with_ends("plateau", ("width",), ends(settled), "mean over the deeper half"),
            "largest": Variable((), 2 * (1 - 1 / math.sqrt(n)), "largest distance there is"),
            **with_ends("slope", (), ends([fitted])[0], "slope of the plateau in the width"),
        },
        {
            "width": Variable(("width",), widths, "width"),
            "layer": Variable(("layer",), np.arange(1, deepest + 1), "layer"),
        },
        sources,
        full,
        {
            "batch": n, "chains": [chains for *_, chains in sizes],
            "start": f"shares of 1 and {_SPREAD}",
        },
    )  # fmt: skip
    last = [corollaries[index, layers - 1] for index, (_, layers, _) in enumerate(sizes)]
    table = Table(
        ("width", "alpha", "W2^2, deeper half", "theory", "Corollary 3, last layer"),
        tuple(zip(widths, alphas, settled, floors, last, strict=True)),
    )
    findings = (
        f"The distance settles with a slope of {interval(fitted)} in the width, in theory -1; the "
        "floors of the bounds have slope -1/2.",
        *(
            f"At width {d} it settles at {interval(end)}, in theory {floor:.3g}; Corollary 3 has "
            f"{bound:.3g}, {'less' if bound < 2 * (1 - n**-0.5) else 'more'} than the largest "
            "distance there is."
            for d, end, floor, bound in zip(widths, settled, floors, last, strict=True)
        ),
    )
    title = f"Distance of W H from a Gaussian matrix, batch {n}"
    return Experiment("orthogonalizes-wasserstein", title, data, table, findings, _draw_wasserstein)


def _wide_distances(n: int, layers: int) -> Float64Array:
    """The squared distance of the chain of infinite width, layer by layer."""
    shares = np.array([1.0] + [_SPREAD] * (n - 1))
    found = []
    for _ in range(layers):
        shares = bounds.expected_shares(shares)
        found.append(float(bounds.wasserstein_squared(shares)))
    return np.array(found)


def _floor(width: int, batch: int) -> float:
    """Where the squared distance settles: ``σ_i² = 1/n + δ_i`` has ``(σ_i − 1/√n)² ≃ n δ_i²/4``."""
    return batch / 4 * float(bounds.stationary_squared_gap(width, batch))


def _draw_wasserstein(data: xarray.Dataset, figure: Figure) -> None:
    ((ax,),) = axes_of(figure, 1, width=8.4, height=4.8)
    ax.set_yscale("log")
    layers = data.layer.values
    for index, (width, colour) in enumerate(zip(data.width.values, COLOURS, strict=False)):
        exponent = math.log10(width)
        name = f"10^{{{exponent:.0f}}}" if exponent.is_integer() else str(width)
        draw_band(ax, layers, curve(data, "distance")[index], colour, f"$d = {name}$")
        ax.plot(layers, data.theory[index], "--", color="black", linewidth=0.8)
        ax.plot(layers, data.lemma_2[index], ":", color=colour)
        bound = data.corollary_3.values[index]
        below = bound < float(data.largest)
        ax.plot(layers[below], bound[below], "-.", color=colour)
    ax.axhline(float(data.largest), color="grey", linewidth=1)
    ax.annotate(
        "largest distance there is",
        (layers[-1] / 2, float(data.largest)),
        va="top",
        xytext=(0, -3),
        textcoords="offset points",
        color="grey",
        fontsize="small",
    )
    for style, label in (
        ("--", "theory, leading order in $1/d$"),
        (":", "Lemma 2, $2n\\,E\\,V$"),
        ("-.", "Corollary 3, where it says something"),
    ):
        ax.plot([], [], style, color="black", linewidth=1, label=label)
    ax.set_ylim(data.theory.min() / 4, 4)
    ax.set(xlabel="layer", ylabel=r"mean of $W_2^2$, units of $E\,\|W H\|_F^2$")
    ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 0.9))
    ax.set_title(
        f"Distance of $W H$ from a Gaussian matrix, batch {data.attrs['batch']}:\n"
        "mean over networks, 95 % interval"
    )


def _estimate(interval: Float64Array, count: int) -> Estimate:
    """The estimate of a mean and its interval."""
    from scipy.special import stdtrit

    mean, low, high = (float(end) for end in interval)
    stderr = (high - low) / 2 / float(stdtrit(count - 1, (1 + LEVEL) / 2))
    return Estimate(mean, stderr, (low, high), count, "mean over networks", LEVEL)
