"""Draws start.png: run it from the root of the repository, with the extra ``plot``."""

import numpy as np
from saving import axes, save

import bnmc
from bnmc.plot import COLOURS, band

WIDTHS, DEPTH = (250, 1000, 4000), 25


def numbers():
    found = {}
    star = bnmc.MeanField(bnmc.Chain(1000, 10, "relu")).fixed_point()
    for width in WIDTHS:
        rng = np.random.default_rng(0)
        five = rng.standard_normal((width, 5))
        x = np.hstack([five, five + 0.1 * rng.standard_normal((width, 5))])
        chain = bnmc.Chain(width, 10, "relu")
        run = bnmc.simulate(chain, DEPTH, chains=200, initial=x, rng=0)
        distance = bnmc.gram.distance(run.gram, star.gram)
        found[f"mean {width}"] = distance.mean(axis=0)
        found[f"low {width}"], found[f"high {width}"] = np.quantile(distance, (0.05, 0.95), axis=0)
    field = bnmc.MeanField(chain).trajectory(run.gram[0, 0], DEPTH)
    return found | {"field": bnmc.gram.distance(field.gram, star.gram)}


def draw(values):
    figure, ax = axes()
    layers = np.arange(DEPTH + 1)
    for width, colour in zip(WIDTHS, COLOURS, strict=False):
        mean, low, high = (values[f"{what} {width}"] for what in ("mean", "low", "high"))
        band(ax, layers, mean, low, high, colour=colour, label=f"width {width}")
    ax.plot(layers, values["field"], "k:", lw=1.2, label="mean field")
    ax.set(yscale="log", ylim=(0.05, 1.6), xlabel="layer", ylabel="distance from the fixed point")
    ax.legend(frameon=False)
    return figure


if __name__ == "__main__":
    save(__file__, numbers, draw)
