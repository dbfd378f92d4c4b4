"""Networks without norm that learn a few samples: those of the figures against the width."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bnmc.chain.chain import Network
from bnmc.experiments.kit import Run
from bnmc.training.result import Training
from bnmc.training.running import train

#: Features and samples of the inputs.
FEATURES, SAMPLES = 10, 4

#: Gains with which activations keep the size of a layer.
GAINS = {"tanh": 1.0, "relu": math.sqrt(2.0), "gelu": math.sqrt(1.5), "sigmoid": 1.0}

#: The largest stable learning rate of `stable_rate` is a mean over so many networks.
_NETWORKS = 16


def trained(
    width: int,
    activation: str,
    hidden: int,
    chains: int,
    run: Run,
    *,
    targets: ArrayLike = (1.0, -1.0, 1.0, -1.0),
    **settings: Any,
) -> Training:
    """Return networks with hidden layers of a width and one output, trained on the squared loss.

    They learn as many samples as there are `targets`.
    """
    gain, values = GAINS[activation], np.asarray(targets)
    network = Network.of(
        width=[FEATURES, *hidden * [width]], batch=len(values), activation=activation, norm="none",
        gain=[1.0, *(hidden - 1) * [gain]],
    )  # fmt: skip
    return train(
        network, inputs(len(values)), values[:, None], loss="squared", readout_gain=gain,
        chains=chains, **{**run.options(False), **settings},
    )  # fmt: skip


def inputs(samples: int) -> Any:
    """Return the inputs, (FEATURES, samples)."""
    return np.random.default_rng(0).standard_normal((FEATURES, samples))


def stable_rate(activation: str, hidden: int, width: int, run: Run) -> float:
    """Return 2n/λ_max of the mean tangent kernel of networks of a width, before training."""
    networks = trained(
        width, activation, hidden, _NETWORKS, run, steps=0, learning_rate=1.0, observables="kernel"
    )
    return float(2 * SAMPLES / np.linalg.eigvalsh(networks["kernel"][:, 0].mean(axis=0))[-1])
