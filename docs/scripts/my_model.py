"""A model for ``bnmc inspect``. As a program, this file writes a batch and its labels."""

import numpy as np
from torch import nn


def mlp(depth=8, width=64):
    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    np.save("batch.npy", rng.standard_normal((32, 64)))
    np.save("labels.npy", np.arange(32) % 10)
