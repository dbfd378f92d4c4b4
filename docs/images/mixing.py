"""Draws mixing.png: run it from the root of the repository, with the extra ``plot``."""

import numpy as np
from saving import axes, save

import bnmc
from bnmc.plot import COLOURS, band

NAMES, DEPTH, LEAST = ("relu", "tanh", "linear"), 40, 1e-4


def numbers():
    found = {}
    for name in NAMES:
        chain = bnmc.Chain(1000, 5, name)
        cert = bnmc.mixing.tv_bound(chain, DEPTH, lag=20, chains=400, rng=0)
        found[name], found[f"{name} low"], found[f"{name} high"] = cert.bound, *cert.ci.T
    return found


def draw(values):
    figure, ax = axes()
    for name, colour in zip(NAMES, COLOURS, strict=False):
        mean, low, high = (
            np.clip(values[key], LEAST, None) for key in (name, f"{name} low", f"{name} high")
        )
        band(ax, np.arange(DEPTH + 1), mean, low, high, colour=colour, label=name)
    ax.axhline(1.0, color="k", ls="--", lw=1.0, label="vacuous above")
    ax.set(yscale="log", ylim=(2e-3, 2), xlabel="layer", ylabel="total variation, at most")
    ax.legend(frameon=False)
    return figure


if __name__ == "__main__":
    save(__file__, numbers, draw)
