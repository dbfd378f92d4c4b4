"""Measure networks with PyTorch's defaults, and write the figures of the README's table.

Each network has 40 blocks Linear(512, 512), BatchNorm1d(512), activation, all as PyTorch
initializes them, in train mode, then a readout with 10 outputs and cross-entropy.  The batch has 64
independent normal samples.  Run it from the root of the repository, with PyTorch: a minute.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

import bnmc

WIDTH, BATCH, DEPTH, NETWORKS = 512, 64, 40, 24
#: Layers of the fits and means: away from both ends.
INNER = slice(8, 34)
ACTIVATIONS = {
    "relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid,
    "selu": nn.SELU, "elu": nn.ELU, "gelu": nn.GELU, "silu": nn.SiLU,
}  # fmt: skip


def measured(activation):
    """Return ln of the squared gradient norms, (depth,), and the cosine of two samples."""
    network, cosines, weights = nn.Sequential(), [], []
    for _ in range(DEPTH):
        linear = nn.Linear(WIDTH, WIDTH)
        weights.append(linear.weight)
        network.extend([linear, nn.BatchNorm1d(WIDTH), activation()])
    h = torch.randn(BATCH, WIDTH)
    for module in network:
        h = module(h)
        if isinstance(module, activation):
            gram = h.detach() @ h.detach().T
            total, diagonal = gram.sum(), gram.diagonal()
            cosines.append((total - diagonal.sum()) / diagonal.sum() / (BATCH - 1))
    loss = nn.functional.cross_entropy(nn.Linear(WIDTH, 10)(h), torch.randint(10, (BATCH,)))
    gradients = torch.autograd.grad(loss, weights)
    norms = [2 * one.norm().double().log().item() for one in gradients]
    return np.array(norms), float(torch.stack(cosines[INNER]).mean())


def growth(norms):
    """Return the growth of squared gradient norms per layer, of networks (networks, depth)."""
    slopes = -np.polyfit(np.arange(DEPTH)[INNER], norms[:, INNER].T, 1)[0]
    return bnmc.Estimate.from_samples(slopes)


def simulated(name):
    """Return the growth that bnmc simulates at this width, without PyTorch."""
    labels = np.arange(BATCH) % 10
    chain, options = bnmc.Chain(WIDTH, BATCH, name), {"loss": "cross-entropy", "labels": labels}
    run = bnmc.backpropagate(chain, DEPTH, chains=2 * NETWORKS, rng=0, **options)
    return growth(2 * run.log_gradient_norm)


def main():
    torch.manual_seed(0)
    found = {}
    for name, activation in ACTIVATIONS.items():
        runs = [measured(activation) for _ in range(NETWORKS)]
        norms = np.array([one for one, _ in runs])
        rate, ours = growth(norms), simulated(name)
        cosine = bnmc.Estimate.from_samples(np.array([one for _, one in runs]))
        found[name] = {
            "rate": float(np.exp(rate.value)),
            "rate_error": float(np.exp(rate.value) * rate.stderr),
            "simulated": float(np.exp(ours.value)),
            "simulated_error": float(np.exp(ours.value) * ours.stderr),
            "cosine": cosine.value,
            "cosine_error": cosine.stderr,
            "norms": np.round(norms.mean(0) - norms.mean(0)[-1], 3).tolist(),
        }
        star = bnmc.MeanField(bnmc.Chain(WIDTH, BATCH, name)).fixed_point()
        print(
            f"{name:10} {found[name]['rate']:.3f} ± {found[name]['rate_error']:.3f} "
            f"predicted {star.backward_rate:.3f}; cosine {cosine.value:.3f} ± {cosine.stderr:.3f} "
            f"predicted {star.c:.3f}; stable {star.stable}"
        )
    sizes = {"width": WIDTH, "batch": BATCH, "depth": DEPTH, "networks": NETWORKS}
    document = {"torch": torch.__version__, **sizes, "activations": found}
    path = Path(__file__).parents[1] / "images" / "pytorch.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
