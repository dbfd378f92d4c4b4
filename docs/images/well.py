"""Draws well.png: run it from the root of the repository, with the extra ``plot``."""

import numpy as np
from saving import axes, save

import bnmc
from bnmc.plot import COLOURS

WIDTH, BATCH, DEPTH, EVERY, CHAINS = 6000, 64, 800, 40, 3


def numbers():
    chain = bnmc.Chain(WIDTH, BATCH, "relu")
    star = bnmc.Distance(bnmc.MeanField(chain).fixed_point().gram)
    usual = np.random.default_rng(0).standard_normal((BATCH, BATCH))
    apart = usual * np.where(np.arange(BATCH) == 0, 30.0, 1.0)
    starts = {"independent samples": usual, "one sample stands out": apart}
    return {
        name: bnmc.simulate(
            chain,
            DEPTH,
            initial=bnmc.FirstLayer(start),
            chains=CHAINS,
            every=EVERY,
            observables=star,
            rng=0,
        )["distance"]
        for name, start in starts.items()
    }


def draw(values):
    figure, ax = axes()
    layers = np.arange(0, DEPTH + 1, EVERY)
    for (name, distances), colour in zip(values.items(), COLOURS, strict=False):
        curves = distances.reshape(CHAINS, -1).T
        ax.plot(layers, curves, color=colour, lw=1.2, label=[name, *[None] * (CHAINS - 1)])
    ax.set(xlabel="layer", ylabel=r"distance from the fixed point", yscale="log")
    ax.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    ax.legend(frameon=False)
    return figure


if __name__ == "__main__":
    save(__file__, numbers, draw)
