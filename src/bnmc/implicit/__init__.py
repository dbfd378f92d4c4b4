"""Random matrices that are drawn by direction.

A random matrix need not exist before somebody multiplies by it.  `GaussianMatrix` and `HaarMatrix`
keep the directions that were multiplied, and draw each product from its law given all products
before.  So any
program of products with W and Wᵀ, and of updates W + u vᵀ, has exactly the law that it has for a
drawn matrix, at sizes that no memory holds.  They are `scipy.sparse.linalg.LinearOperator` objects.

The package may import `kernels` and lower levels.  Read `matrix.py` first.
"""

from __future__ import annotations

from bnmc._support.arithmetic import make_public
from bnmc.implicit.matrix import GaussianMatrix, HaarMatrix, load

__all__ = ["GaussianMatrix", "HaarMatrix", "load"]

make_public(__name__)
