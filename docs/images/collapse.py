"""Draws collapse.png: run it from the root of the repository, with the extra ``plot``."""

import numpy as np
from saving import axes, save

import bnmc
from bnmc.plot import COLOURS

WIDTH, BATCH, DEPTH = 256, 16, 40
NETWORKS = {
    "ReLU, no norm": bnmc.Chain(WIDTH, BATCH, "relu", norm="none", gain=2**0.5),
    "ReLU, batch norm": bnmc.Chain(WIDTH, BATCH, "relu"),
    "ReLU, batch norm, skip": bnmc.Chain(WIDTH, BATCH, "relu", skip=1.0, gain=0.5),
    "tanh, no norm, gain 5/3": bnmc.Chain(WIDTH, BATCH, "tanh", norm="none", gain=5 / 3),
}


def numbers():
    found = {}
    for name, chain in NETWORKS.items():
        run = bnmc.simulate(chain, DEPTH, chains=32, rng=0)
        found[f"rank {name}"] = bnmc.gram.rank_bound(run.gram).mean(axis=0)
        back = bnmc.backpropagate(chain, DEPTH, chains=32, rng=0)
        norms = back.log_gradient_norm.mean(axis=0)
        found[f"gradient {name}"] = np.exp(norms - norms[-1])
    return found


def draw(values):
    figure, (left, right) = axes(columns=2)
    for name, colour in zip(NETWORKS, COLOURS, strict=False):
        line = "--" if "skip" in name else "-"
        left.plot(values[f"rank {name}"], line, color=colour, label=name)
        gradient = values[f"gradient {name}"]
        right.plot(np.arange(1, DEPTH + 1), gradient, line, color=colour)
    left.set(xlabel="layer", ylabel=f"rank bound of {BATCH} samples", ylim=(0, BATCH))
    right.set(yscale="log", xlabel="layer", ylabel=f"gradient norm, over layer {DEPTH}")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


if __name__ == "__main__":
    save(__file__, numbers, draw)
