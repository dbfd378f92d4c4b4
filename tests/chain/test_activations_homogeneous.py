"""Positively homogeneous activations are known from their values."""

import numpy as np
from mean_field_maps import HOMOGENEOUS, SMOOTH

from bnmc.chain.activations import Activation, homogeneous_slopes


class Plain:
    """What `homogeneous_slopes` needs of an activation, without a compiler."""

    def __init__(self, function, kinks=()):
        self.function, self.kinks = function, kinks

    def __call__(self, x):
        return self.function(np.asarray(x, dtype=np.float64))


def test_homogeneity_is_seen_from_values():
    known = {"linear": (1, 1), "relu": (0, 1), "leaky_relu": (0.01, 1), "abs": (-1, 1)}
    for name in (*HOMOGENEOUS, *SMOOTH, "erf", "elu", "celu", "selu", "silu"):
        assert homogeneous_slopes(Activation.named(name)) == known.get(name)
    assert homogeneous_slopes(Plain(lambda x: np.where(x > 0, 3.0 * x, -0.1 * x))) == (-0.1, 3.0)
    assert homogeneous_slopes(Plain(lambda x: 0.0 * x)) == (0.0, 0.0)
    assert homogeneous_slopes(Plain(lambda x: np.maximum(x, 0.0), kinks=(0.0,))) == (0.0, 1.0)
    others = [
        Plain(lambda x: np.maximum(x, 0.0), kinks=(0.0, 50.0)),
        Plain(lambda x: np.clip(x, -1.0, 1.0)),
        Plain(lambda x: np.minimum(x, 1e9)),
        Plain(lambda x: x + 1e-12),
        Plain(lambda x: x + 1e-13 * np.sin(x)),
        Plain(lambda x: x * np.abs(x)),
        Plain(np.sign),
        Plain(lambda x: np.where(np.abs(x - 3.7) < 0.002, 0.0, x)),
        Plain(lambda x: np.where(np.abs(x + 27.7) < 0.002, 0.0, x)),
        Plain(lambda x: np.where(x == 0.0, 1.0, x)),
        Plain(lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))),
        Plain(lambda x: np.where(x > 0.0, np.nan, x)),
    ]
    for activation in others:
        assert homogeneous_slopes(activation) is None
