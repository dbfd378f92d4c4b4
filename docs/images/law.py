"""Draws law.png: run it from the root of the repository, with the extra ``plot``."""

import numpy as np
from saving import axes, save
from scipy.stats import chi2

import bnmc
from bnmc.plot import COLOURS

WIDTH, BATCH, CALLS, ALPHA = 32, 4, 128, 1e-6
#: What the divisor of the variance is below the number of samples.
STEPS = {"right step": 0, "variance divided by n − 1": 1}
LEVELS = np.linspace(0.005, 0.995, 199)


def numbers():
    rng = np.random.default_rng(0)
    h = rng.standard_normal((WIDTH, BATCH))

    def activations(ddof):
        centred = h - h.mean(axis=1, keepdims=True)
        return np.maximum(centred / h.std(axis=1, keepdims=True, ddof=ddof), 0)

    law = bnmc.gram.gram(activations(0))  # rows of the next state are N(0, G)
    found = {}
    for name, ddof in STEPS.items():
        weights = rng.standard_normal((CALLS * WIDTH, WIDTH)) / WIDTH**0.5
        rows = weights @ activations(ddof)
        squares = np.einsum("ri,ij,rj->r", rows, np.linalg.inv(law), rows)
        shares = np.searchsorted(np.sort(chi2.cdf(squares, BATCH)), LEVELS, side="right")
        found[name] = shares / len(rows) - LEVELS
    return found


def draw(values):
    figure, ax = axes()
    reach = np.sqrt(np.log(2 / ALPHA) / (2 * CALLS * WIDTH))  # Dvoretzky, Kiefer, Wolfowitz
    ax.axhspan(
        -reach, reach, color="0.85", label=r"contains a right step with probability $1 - 10^{-6}$"
    )
    for (name, differences), colour in zip(values.items(), COLOURS, strict=False):
        ax.plot(LEVELS, differences, color=colour, lw=1.6, label=name)
    ax.set(
        xlabel="distribution function of the law, F", ylabel="measured distribution function − F"
    )
    ax.set_ylim(-0.06, 0.28)
    ax.legend(frameon=False, loc="upper left")
    return figure


if __name__ == "__main__":
    save(__file__, numbers, draw)
