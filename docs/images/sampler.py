"""Draws sampler.png: run it from the root of the repository, with the extra ``plot``."""

import numpy as np
from saving import axes, save

import bnmc
from bnmc.plot import COLOURS

SAMPLERS = {"conditional": "rows given the Gram matrix", "weights": "drawn weights"}
LEVELS = np.linspace(0.005, 0.995, 100)


def numbers():
    chain = bnmc.Chain(50, 3, "relu")
    star = bnmc.MeanField(chain).fixed_point()
    found = {}
    for seed, sampler in enumerate(SAMPLERS):
        run = bnmc.simulate(chain, 5, chains=2000, sampler=sampler, rng=seed)
        found[sampler] = np.quantile(bnmc.gram.distance(run.gram[:, -1], star.gram), LEVELS)
    return found


def draw(values):
    figure, ax = axes()
    for sampler, line, colour in zip(SAMPLERS, ("-", "--"), COLOURS, strict=False):
        ax.plot(values[sampler], LEVELS, line, color=colour, lw=2, label=SAMPLERS[sampler])
    ax.set(xlabel="distance from the fixed point, layer 5", ylabel="share of the networks below")
    ax.legend(frameon=False)
    return figure


if __name__ == "__main__":
    save(__file__, numbers, draw)
