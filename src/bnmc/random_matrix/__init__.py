"""Closed forms of random matrix theory, and distances between centred Gaussians.

Four families: the Marchenko–Pastur law of the eigenvalues of a Gram matrix and of the singular
values of a representation; Lyapunov exponents of products of Gaussian layers; moments of Wishart
matrices; Kullback–Leibler divergence, Wasserstein and total variation distance of ``N(0, S1)`` and
``N(0, S2)``.

Given the Gram matrix S of a layer, the next one of the linear chain without normalization has d
i.i.d. rows ``N(0, S)``, and its Gram matrix is a Wishart matrix.  So `width` is d throughout, and
``rows=d`` makes a distance between Gaussians one between layers.
"""

from __future__ import annotations

from bnmc.random_matrix.gaussians import kl, total_variation, wasserstein
from bnmc.random_matrix.lyapunov import (
    lyapunov_ginibre,
    lyapunov_residual,
    lyapunov_residual_estimate,
)
from bnmc.random_matrix.marchenko_pastur import MarchenkoPastur, SingularValueLaw
from bnmc.random_matrix.wishart import WishartMoments, vanilla_deviation

__all__ = [
    "MarchenkoPastur",
    "SingularValueLaw",
    "WishartMoments",
    "kl",
    "lyapunov_ginibre",
    "lyapunov_residual",
    "lyapunov_residual_estimate",
    "total_variation",
    "vanilla_deviation",
    "wasserstein",
]
