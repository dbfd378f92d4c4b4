"""Closed forms of random matrix theory, and distances between centred Gaussians.

The package has the Marchenko–Pastur law of the eigenvalues of a Gram matrix and the law of the
singular values of a representation, Lyapunov exponents of products of Gaussian layers, moments of
Wishart matrices, laws of networks that are as deep as wide, and the Kullback–Leibler divergence,
Wasserstein distance and total variation distance of ``N(0, S1)`` and ``N(0, S2)``.

Let S be the Gram matrix of a layer of the linear chain without normalization. Given S, the next
layer has d i.i.d. rows ``N(0, S)``, and its Gram matrix is a Wishart matrix. So `width` is d
throughout. With ``rows=d``, a distance between Gaussians is a distance between the laws of layers.

The package may import `estimate`, `gram`, `_support` and `errors`. Read `marchenko_pastur.py`
first.
"""

from __future__ import annotations

from bnmc._support.arithmetic import make_public
from bnmc.random_matrix.depth_over_width import LogNorm as LogNorm
from bnmc.random_matrix.depth_over_width import (
    four_point_vertex,
    log_norm,
    shaped_relu,
    tangent_kernel_dispersion,
)
from bnmc.random_matrix.gaussian_distances import kl, total_variation, wasserstein
from bnmc.random_matrix.linear_chain import WishartMoments as WishartMoments
from bnmc.random_matrix.linear_chain import (
    linear_covariance,
    lyapunov_ginibre,
    lyapunov_residual,
    lyapunov_residual_estimate,
    vanilla_deviation,
)
from bnmc.random_matrix.marchenko_pastur import MarchenkoPastur
from bnmc.random_matrix.marchenko_pastur import SingularValueLaw as SingularValueLaw
from bnmc.random_matrix.product_law import Factor as Factor
from bnmc.random_matrix.product_law import ProductLaw as ProductLaw

__all__ = [
    "MarchenkoPastur",
    "four_point_vertex",
    "kl",
    "linear_covariance",
    "log_norm",
    "lyapunov_ginibre",
    "lyapunov_residual",
    "lyapunov_residual_estimate",
    "shaped_relu",
    "tangent_kernel_dispersion",
    "total_variation",
    "vanilla_deviation",
    "wasserstein",
]

make_public(__name__)
