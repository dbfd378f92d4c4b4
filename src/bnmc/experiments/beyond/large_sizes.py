"""Networks of width a million and batches of 512: distances from the fixed point, and speed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.bridging.linear_networks import stationary_linear
from bnmc.experiments.data import Variable, curve, dataset, estimated
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Parts, Store, chosen
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.statistics import interval, rms, slope
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS, estimates
from bnmc.simulation.observables import Distance
from bnmc.simulation.run import simulate

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "scale"]


class Sizes(NamedTuple):
    """Sizes over the width: `widths`, `chains`, `layers`; and over the batch size: the others.

    `chains` and `networks` are numbers of networks; `layers` and `deep` are numbers of layers.
    """

    widths: tuple[int, ...]
    chains: int
    layers: int
    batches: tuple[int, ...]
    width: int
    networks: int
    deep: int


DEFAULT = Sizes((1000, 10_000, 100_000, 1_000_000), 4, 40, (8, 32, 128, 512), 8192, 4, 3)
FULL = Sizes(DEFAULT.widths, 16, 100, DEFAULT.batches, 32_768, 8, 5)

#: Batch size of the networks over the width, and the first of their layers that is averaged over.
BATCH, FIRST = 4, 10

_OVER_WIDTH, _OVER_BATCH = ("linear", "relu"), ("linear", "tanh")


@with_parameters
def scale(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Networks of width a million, and batches of 512.

    Left: linear and relu networks of 4 samples at widths d from 10³ to 10⁶.  Shown is the root mean
    square of :math:`\|G_l - G_*\|_F` over layers 10 to 40.  Middle: linear and tanh networks of
    width 8192 with n = 8 to 512 samples (``full``: width 32768), from independent samples.  Shown
    is the same at layer 0, which is one step from the identity, and at layer 3 (``full``: 5).
    Right: layers per second of all networks together, including set-up, for both.

    Expected: over three decades of width the slope is −1/2, and linear networks have the level of
    `bridging.stationary_linear`.  In the batch size the slope is 1; linear networks have exactly
    :math:`n \sqrt{(m-1)/(m d)}` at layer 0, with m = n − 1.  Layers per second depend on the
    machine and its load.  They are the only numbers of this experiment that a seed does not repeat.

    Returns
    -------
    Experiment
        Variables by ``wide`` (activation) and ``width``, and by ``large`` (activation) and
        ``batch``.
    """
    call = Call("scale", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """Results by activation and width, or by activation and batch size."""

    levels: list[list[Estimate]]
    speeds: list[list[float]]
    at_first_layer: list[list[Estimate]]
    at_last_layer: list[list[Estimate]]
    speeds_over_batch: list[list[float]]


class _Theory(NamedTuple):
    """Root mean square distance of linear networks: deep layers by width, layer 0 by batch."""

    deep: NDArray[np.float64]
    one_step: NDArray[np.float64]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    found = _measure(sizes, call)
    n = np.array(sizes.batches, dtype=np.float64)
    theory = _Theory(
        np.sqrt([stationary_linear(width, BATCH) for width in sizes.widths]),
        n * np.sqrt((n - 2) / ((n - 1) * sizes.width)),
    )
    return Experiment(
        call.name,
        "Widths up to a million, batches up to 512",
        _data(sizes, call, found, theory),
        _table(sizes, found, theory),
        _findings(sizes, found, theory),
        _draw,
    )


def _measure(sizes: Sizes, call: Call) -> _Measured:
    costs = [width / 1000 * sizes.layers * sizes.chains for width in sizes.widths] * 2
    costs += [sizes.width / 1e5 * b**2 * sizes.networks for b in sizes.batches] * 2
    measured = _Measured([], [], [], [], [])
    with call.parts(costs) as parts:
        for name in _OVER_WIDTH:
            chains = [Chain(width, BATCH, name) for width in sizes.widths]
            found = _timed_runs(chains, sizes.layers, sizes.chains, FIRST, call, parts)
            # Layers of one network depend on each other, so each network is one sample.
            measured.levels.append([rms(np.sqrt(np.square(one).mean(axis=1))) for one, _ in found])
            measured.speeds.append([speed for _, speed in found])
        for name in _OVER_BATCH:
            chains = [Chain(sizes.width, batch, name) for batch in sizes.batches]
            found = _timed_runs(chains, sizes.deep, sizes.networks, 0, call, parts)
            measured.at_first_layer.append([rms(one[:, 0]) for one, _ in found])
            measured.at_last_layer.append([rms(one[:, -1]) for one, _ in found])
            measured.speeds_over_batch.append([speed for _, speed in found])
    return measured


def _timed_runs(
    chains: list[Chain], depth: int, networks: int, first: int, call: Call, parts: Parts
) -> list[tuple[NDArray[np.float64], float]]:
    """Return distances from the fixed point, (networks, layers), and layers per second."""

    def run(chain: Chain, *, progress: Progress) -> tuple[NDArray[np.float64], float]:
        star = MeanField(chain).fixed_point().gram
        begun = time.perf_counter()
        found = simulate(
            chain, depth, chains=networks, burn_in=first, rng=call.generator,
            observables=Distance(star), threads=call.threads, progress=progress,
        )["distance"]  # fmt: skip
        return found, networks * (depth + 1) / (time.perf_counter() - begun)

    # Compiles, so that the speeds do not include compilation.
    simulate(Chain(100, BATCH, chains[0].activation), 1, rng=0)
    return [parts.run(run, chain) for chain in chains]


def _data(sizes: Sizes, call: Call, found: _Measured, theory: _Theory) -> xarray.Dataset:
    across, along = ("wide", "width"), ("large", "batch")
    unit, pace = "Frobenius norm", "layers a second"
    return dataset(
        {
            **estimated("distance", across, found.levels, "r.m.s. distance from G*", unit),
            "law": Variable(("width",), theory.deep, "theory for linear networks", unit),
            "speed": Variable(across, found.speeds, "speed of all networks", pace),
            **estimated(
                "one_step", along, found.at_first_layer, "r.m.s. distance at layer 0", unit
            ),
            **estimated(
                "deeper", along, found.at_last_layer, "r.m.s. distance at the last layer", unit
            ),
            "one_step_law": Variable(
                ("batch",), theory.one_step, "theory of layer 0 for linear networks", unit
            ),
            "pace": Variable(along, found.speeds_over_batch, "speed of all networks", pace),
        },
        {
            "wide": Variable(("wide",), list(_OVER_WIDTH), "activation", ""),
            "width": Variable(("width",), list(sizes.widths), "width d", "neurons"),
            "large": Variable(("large",), list(_OVER_BATCH), "activation", ""),
            "batch": Variable(("batch",), list(sizes.batches), "batch n", "samples"),
        },
        call,
        {
            "batch_fixed": BATCH, "width_fixed": sizes.width, "norm": "batch", "deep": sizes.deep,
            "layers": [FIRST, sizes.layers], "networks": [sizes.chains, sizes.networks],
        },
    )  # fmt: skip


def _table(sizes: Sizes, found: _Measured, theory: _Theory) -> Table:
    def row(name: str, width: int, batch: int, level: Estimate, law: float, speed: float) -> Any:
        known = float(law) if name == "linear" else None
        return name, width, batch, level, known, f"{speed:.3g}"

    rows = [
        row(name, width, BATCH, *of_width)
        for name, levels, speeds in zip(_OVER_WIDTH, found.levels, found.speeds, strict=True)
        for width, *of_width in zip(sizes.widths, levels, theory.deep, speeds, strict=True)
    ]
    rows += [
        row(name, sizes.width, batch, *of_batch)
        for name, levels, speeds in zip(
            _OVER_BATCH, found.at_first_layer, found.speeds_over_batch, strict=True
        )
        for batch, *of_batch in zip(sizes.batches, levels, theory.one_step, speeds, strict=True)
    ]
    return Table(
        ("activation", "width", "batch", "r.m.s. distance", "theory", "layers a second"),
        tuple(rows),
    )


def _findings(sizes: Sizes, found: _Measured, theory: _Theory) -> tuple[str, ...]:
    levels, first = found.levels, found.at_first_layer
    return (
        *(
            f"{name}: slope in the width {interval(slope(sizes.widths, row))}; theory, for large "
            "widths: -1/2."
            for name, row in zip(_OVER_WIDTH, levels, strict=True)
        ),
        f"Width {sizes.widths[-1]}, linear: {interval(levels[0][-1])}; theory "
        f"{theory.deep[-1]:.5g}.",
        f"Batch {sizes.batches[-1]}, linear, one layer: {interval(first[0][-1])}; theory "
        f"{theory.one_step[-1]:.5g}.",
        f"tanh, one layer: slope in the batch {interval(slope(sizes.batches, first[1]))}; theory, "
        "for large batches: 1.",
    )


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    left, middle, right = axes_of(figure, 3, width=4.5, height=4.2)[0]
    width, batch = data["width"].values, data["batch"].values
    attrs = data.attrs
    for colour, name in zip(COLOURS, data["wide"].values, strict=False):
        one = data.sel(wide=name)
        estimates(left, width, *curve(one, "distance").T, colour=colour, label=name)
        right.plot(width, one["speed"], "o-", color=colour, label=f"{name}, over width")
    left.plot(width, data["law"], "k--", linewidth=1.2, label="theory, linear")
    left.set(xscale="log", yscale="log", xlabel="width $d$", ylabel=r"$\|G_\ell - G_*\|_F$, r.m.s.")
    left.set_title(f"n = {attrs['batch_fixed']}, deep layers", loc="left")
    left.legend()
    for colour, name in zip((COLOURS[0], COLOURS[2]), data["large"].values, strict=False):
        one = data.sel(large=name)
        for kind, fmt, layer in (("one_step", "o", 0), ("deeper", "s-", attrs["deep"])):
            estimates(
                middle, batch, *curve(one, kind).T, colour=colour, fmt=fmt,
                label=f"{name}, layer {layer}",
            )  # fmt: skip
        right.plot(batch, one["pace"], "s--", color=colour, label=f"{name}, over batch")
    middle.plot(batch, data["one_step_law"], "k--", linewidth=1.2, label="theory, linear, layer 0")
    middle.set(xscale="log", yscale="log", xlabel="batch $n$")
    middle.set_title(f"d = {attrs['width_fixed']}", loc="left")
    middle.legend(fontsize="small")
    right.set(xscale="log", yscale="log", xlabel="width or batch", ylabel="layers a second")
    right.set_ylim(top=30 * right.get_ylim()[1])  # room for the legend
    right.set_title("speed of this machine", loc="left")
    right.legend(fontsize="small", loc="upper right")
    figure.suptitle("Distance from the fixed point at large widths and batches, 95 % intervals")
