"""Kernels of infinitely wide networks: the Gaussian process, the tangent kernel, and training.

`nngp` and `ntk` compute the covariance K of the outputs of a random network of infinite width, and
its tangent kernel Θ, also with batch normalization, or simulate them at finite width.
`convergence` measures the distance between the kernels of finite and infinite width.  `descent`
trains the network by gradient descent, which is a differential equation in the space of functions
with the kernel Θ.  `posterior` is the law of the trained outputs of an ensemble of networks.
`alignment` and `complexity` relate a kernel to labels.  `dual` returns the dual activations: the
Gaussian integrals in the kernels.  A `Scaling` specifies how weights and learning rates depend on
the width, which determines the limit of the networks; `train_networks` trains networks of finite
width under a scaling, and `logit_divergence` compares them.

The sources are Jacot, Gabriel and Hongler, *Neural tangent kernel* (arXiv 1806.07572); Lee et al.,
*Wide neural networks of any depth evolve as linear models under gradient descent* (arXiv
1902.06720); and Arora, Du, Hu, Li and Wang, *Fine-grained analysis of optimization and
generalization for overparameterized two-layer neural networks* (arXiv 1901.08584).

The package may import `bnmc.mean_field`, `bnmc.plot`, `bnmc.chain`, `bnmc._kernels`,
`bnmc._support` and `bnmc.errors`.  Read `kernels.py` first.  It chooses
among `tiles.py` (norms of samples), `batches.py` (batch normalization) and `networks.py` (finite
width).
"""

from __future__ import annotations

from bnmc._support.arithmetic import make_public
from bnmc.infinite_width.distances import Convergence as Convergence
from bnmc.infinite_width.distances import convergence, logit_divergence
from bnmc.infinite_width.kernels import nngp, ntk
from bnmc.infinite_width.networks import SimulatedKernel as SimulatedKernel
from bnmc.infinite_width.scalings import SCALINGS as SCALINGS
from bnmc.infinite_width.scalings import Properties as Properties
from bnmc.infinite_width.scalings import Scaling
from bnmc.infinite_width.trained_networks import NetworkTraining as NetworkTraining
from bnmc.infinite_width.trained_networks import train_networks
from bnmc.infinite_width.training import Alignment as Alignment
from bnmc.infinite_width.training import Descent as Descent
from bnmc.infinite_width.training import Posterior as Posterior
from bnmc.infinite_width.training import alignment, complexity, descent, posterior
from bnmc.mean_field.duals.duals import Dual as Dual
from bnmc.mean_field.duals.duals import dual

__all__ = [
    "Scaling",
    "alignment",
    "complexity",
    "convergence",
    "descent",
    "dual",
    "logit_divergence",
    "nngp",
    "ntk",
    "posterior",
    "train_networks",
]

make_public(__name__)
