"""Draws mixing.png: run it from the root of the repository, with the extra ``plot``."""

import numpy as np
from saving import axes, save

import bnmc
from bnmc.plot import COLOURS

NAMES, DEPTH = ("relu", "tanh", "linear"), 60


def numbers():
    found = {}
    for name in NAMES:
        chain = bnmc.Chain(1000, 10, name)
        cert = bnmc.mixing.tv_bound(chain, DEPTH, lag=30, chains=400, rng=0)
        found[name], found[f"{name} certified"] = cert.bound, cert.ci[:, 1]
    return found


def draw(values):
    figure, ax = axes()
    for name, colour in zip(NAMES, COLOURS, strict=False):
        mean = np.where(values[name] > 0.0, values[name], np.nan)
        ax.plot(values[f"{name} certified"], color=colour, label=f"{name}, certified at 95 %")
        ax.plot(
            mean, color=colour, lw=0.7, label="mean of the pairs" if name == NAMES[-1] else None
        )
    ax.axhline(1.0, color="k", ls="--", lw=1.0, label="vacuous above")
    ax.set(yscale="log", ylim=(2e-3, 2), xlabel="layer", ylabel="total variation, at most")
    ax.legend(frameon=False)
    return figure


if __name__ == "__main__":
    save(__file__, numbers, draw)
