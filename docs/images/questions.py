"""Draws questions.png: run it from the root of the repository, with the extra ``plot``."""

import numpy as np
from saving import axes, save

import bnmc
from bnmc.plot import COLOURS

NAMES, WIDTHS, DEPTH = ("relu", "tanh"), (100, 200, 400, 800, 1600, 3200, 6400), 30


def numbers():
    found = {}
    for name in NAMES:
        law = bnmc.MeanField(bnmc.Chain(1000, 5, name)).fluctuations()
        star = bnmc.Distance(law.fixed_point.gram)
        runs = [
            bnmc.simulate(
                bnmc.Chain(width, 5, name),
                DEPTH,
                chains=100,
                burn_in=DEPTH,
                observables=star,
                rng=0,
            )
            for width in WIDTHS
        ]
        squares = [np.square(run["distance"][:, -1]).mean() for run in runs]
        found[name] = np.sqrt(squares)
        found[f"{name} predicted"] = [law.mean_square(width).value ** 0.5 for width in WIDTHS]
    return found


def draw(values):
    figure, ax = axes()
    for name, colour in zip(NAMES, COLOURS, strict=False):
        ax.plot(WIDTHS, values[f"{name} predicted"], color=colour, lw=1.2)
        ax.plot(WIDTHS, values[name], "o", color=colour, label=name)
    ax.set(xscale="log", yscale="log", xlabel="width", ylabel="distance from the fixed point")
    ax.set_xticks(WIDTHS, labels=map(str, WIDTHS))
    ax.minorticks_off()
    ticks = (0.03, 0.1, 0.3)
    ax.set_yticks(ticks, labels=map(str, ticks))
    ax.legend(frameon=False)
    return figure


if __name__ == "__main__":
    save(__file__, numbers, draw)
