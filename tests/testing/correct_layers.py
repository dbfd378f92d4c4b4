"""Random layers that have the law of a chain, in NumPy and of PyTorch's own modules."""

import numpy as np
from numpy_network import normalised
from numpy_steps import LAWS
from oracle import FORMULAS

import bnmc

ORDERS = ("norm-activation", "activation-norm", "pre-activation")
NORMS = ("batch", "batch-uncentred", "layer", "rms", "none")

#: PyTorch's names of activations, and of norms with the arguments that follow the width.
ACTIVATIONS = {
    "linear": "Identity", "relu": "ReLU", "tanh": "Tanh", "sigmoid": "Sigmoid", "selu": "SELU",
    "celu": "CELU", "gelu": "GELU", "silu": "SiLU",
}  # fmt: skip


def random_chain(rng):
    """Return a chain of any kind with a width of at most 64, and factors of any size."""
    d, n = int(rng.choice([4, 6, 10, 16, 32, 64])), int(rng.choice([2, 3, 4, 8, 16]))
    groups = [f"group({g})" for g in range(2, d // 2 + 1) if d % g == 0]
    norm = rng.choice([*NORMS, rng.choice(groups)])
    skip = float(rng.choice([0.0, 0.0, 0.1, -0.5, 1.0]))
    bias = float(rng.choice([0.0, 0.0, 0.3]))
    weights = str(rng.choice(["gaussian"] * 5 + ["haar", "uniform", "rademacher"]))
    activation = str(rng.choice(list(FORMULAS)))
    gain = float(10.0 ** rng.choice([0.0, rng.uniform(-3.0, 3.0)]))
    eps, order = float(rng.choice([0.0, 1e-12, 1e-5, 1e-3])), str(rng.choice(ORDERS))
    if order == "activation-norm" and activation == "relu":
        eps = eps or 1e-5  # negative numbers alone have no variance after relu
    return bnmc.Chain(
        d, n, activation, norm=str(norm), skip=skip, gain=gain, weights=weights, eps=eps,
        order=order, bias_variance=0.0 if weights == "haar" else bias,
    )  # fmt: skip


class CorrectLayer:
    """A layer of a chain in NumPy, which computes in a type of floating-point numbers."""

    def __init__(self, chain, dtype, rng):
        self.chain, self.dtype, self.rng = chain, np.dtype(dtype).type, rng
        self.law = LAWS[chain.weights]

    def norm(self, h):
        return normalised(h, self.chain.norm, self.dtype(self.chain.eps))

    def sigma(self, x):
        return FORMULAS[self.chain.activation.name](x).astype(self.dtype)

    def linear(self, a):
        """Return gain W a + b."""
        chain, d = self.chain, self.chain.width
        weights = chain.gain * self.law(self.rng, (d, d)) / np.sqrt(d)
        bias = np.sqrt(chain.bias_variance) * self.rng.standard_normal((d, 1))
        return weights.astype(self.dtype) @ a + bias.astype(self.dtype)

    def __call__(self, h):
        h = h.astype(self.dtype)
        if self.chain.order == "activation-norm":
            carried, a = h, self.norm(self.sigma(h))
        else:
            x = self.norm(h)
            carried, a = x if self.chain.order == "norm-activation" else h, self.sigma(x)
        return self.dtype(self.chain.skip) * carried + self.linear(a)


class TorchLayer(CorrectLayer):
    """The same layer of modules of PyTorch; arrays have the features last there."""

    def __init__(self, chain, dtype, rng):
        import torch

        super().__init__(chain, dtype, rng)
        nn, d, self.torch = torch.nn, chain.width, torch
        options = {"eps": chain.eps, "dtype": getattr(torch, np.dtype(dtype).name)}
        norms = {
            "none": nn.Identity,
            "batch": lambda: nn.BatchNorm1d(d, affine=False, **options),
            "layer": lambda: nn.LayerNorm(d, elementwise_affine=False, **options),
            "rms": lambda: nn.RMSNorm(d, elementwise_affine=False, **options),
        }
        self.module = norms.get(
            chain.norm, lambda: nn.GroupNorm(chain.normalization.groups, d, affine=False, **options)
        )()
        self.activation = getattr(nn, ACTIVATIONS[chain.activation.name])()

    def norm(self, h):
        return self.module(self.torch.from_numpy(h).T).T.numpy()

    def sigma(self, x):
        return self.activation(self.torch.from_numpy(x)).numpy()


def correct_layer(number):
    """Return a random chain, a layer that has its law, and the type in which the layer computes."""
    rng = np.random.default_rng([2026, number])
    chain, dtype = random_chain(rng), rng.choice(["float32", "float64"])
    # PyTorch has no uncentred norm over the batch, and none without ε.
    has_norm = not chain.norm.startswith("batch") or (chain.norm == "batch" and chain.eps > 0.0)
    has_modules = has_norm and chain.activation.name in ACTIVATIONS
    kind = TorchLayer if has_modules and rng.random() < 0.5 else CorrectLayer
    return chain, kind(chain, dtype, rng), dtype
