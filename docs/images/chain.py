"""Draws chain.png: run it from the root of the repository, with the extra ``plot``."""

from saving import axes, save

import bnmc
from bnmc.plot import COLOURS

NAMES = ("relu", "tanh", "sin", "selu", "gelu", "silu")
BATCHES = (4, 6, 8, 12, 16, 20, 26, 32, 39, 48, 64, 96, 128)


def numbers():
    fields = {name: [bnmc.MeanField(bnmc.Chain(1, n, name)) for n in BATCHES] for name in NAMES}
    return {name: [one.fixed_point().rate for one in many] for name, many in fields.items()}


def draw(values):
    figure, ax = axes()
    for name, colour in zip(NAMES, COLOURS, strict=False):
        ax.plot(BATCHES, values[name], ".-", color=colour, label=name)
    ax.axhline(1.0, color="k", ls="--", lw=1.0)
    ticks = (4, 8, 16, 32, 64, 128)
    ax.set(xscale="log", xlabel="batch size", ylabel="rate of the fixed point")
    ax.set_xticks(ticks, labels=map(str, ticks))
    ax.minorticks_off()
    ax.annotate("unstable", (4.2, 1.01), va="bottom")
    ax.legend(frameon=False, ncols=2, loc="lower right")
    return figure


if __name__ == "__main__":
    save(__file__, numbers, draw)
