"""Bounds of *Batch normalization orthogonalizes representations in deep random networks*.

Daneshmand, Joudaki and Bach, arXiv 2106.03970 (statement numbers are those of the arXiv version).
The chain is ``H₊ = BN(W H)/√d``: linear, uncentred, ``d >= n``, W with i.i.d. N(0, 1/d) entries,
so ``‖H‖_F = 1``. It is the chain of `bnmc.Chain.bn_linear`, whose representations are ``√(nd) H``.

All bounded quantities depend on H through its *shares* only, the eigenvalues of ``HᵀH``, which sum
to 1. Functions of ``eigenvalues`` take the eigenvalues of any multiple of ``HᵀH``, such as the
observable ``"eigenvalues"`` of a run, and divide by their sum.

- `printed_bounds.py`: `theorem_1`, `corollary_3`, `theorem_5`, `lemma_6` and `lemma_8` are the
  bounds as printed.
- `one_step.py`: `shortfall` is V̂, the Lyapunov function of the proofs. `expected_shares`,
  `expected_squared_gap`, `one_step_variance` and `wasserstein_squared` are the bounded quantities,
  exact for a given spectrum.
- `stationary.py`: `stationary_squared_gap` and `stationary_squared_distance` are stationary means,
  to leading order in 1/d. Expect these values; the bounds exceed them by far.

Read `printed_bounds.py` first.

Errors of the paper
-------------------
- Assumption A₁(α, ℓ) requires a smallest singular value ``σ_n(H_k) >= α``. The proofs use
  ``σ_n² >= α``, and with the printed assumption Theorem 1 is false. For n = 100 and infinite width,
  the chain contracts by n/(n+2) = .980 per layer. ``σ_n >= α`` with α near ``1/√n`` would allow
  ``1 − 2α/3 = .93``. So here α is a bound of the *squared* singular values, and at most 1/n.
- No α > 0 satisfies A₁ with certainty, because the rows of W H have a density and may be almost
  collinear. Without A₁ the proof still shows that ``E[V(H_{ℓ+1}); A₁(α, ℓ)]``, the part of the mean
  on which the assumption holds, is at most the bound of Theorem 1.
- V is always below 1. Since α <= 1/n, the floor ``3n/(α√d)`` is below 1 only for d > 9 n⁴. For
  d <= 9 n⁶ Corollary 3 is vacuous.
- The proof of Theorem 1 ends in ``3n/(2α√d)``, although its own steps give the 3n/(α√d) of the
  theorem. Lemma 4 allows a factor of 2 (``V <= n V̂``), so half of both terms would suffice.
- Corollary 3 combines Lemma 2 for H_ℓ with Theorem 1 for H_{ℓ+1}. Either its exponent must be
  ℓ − 1, or its layer ℓ + 1. The introduction prints its second term without the square of n.
- Theorem 5: eq. (14) has V in place of V̂, and appendix B.1 repeats the theorem with 2/√d.
  Eq. (13) has the index n in place of i, and eq. (15) the exponent 1/2 in place of −1/2.
"""

from __future__ import annotations

from bnmc.bounds.orthogonalizes.one_step import (
    expected_shares,
    expected_squared_gap,
    one_step_variance,
    shortfall,
    wasserstein_squared,
)
from bnmc.bounds.orthogonalizes.printed_bounds import (
    corollary_3,
    lemma_6,
    lemma_8,
    theorem_1,
    theorem_5,
)
from bnmc.bounds.orthogonalizes.stationary import (
    stationary_squared_distance,
    stationary_squared_gap,
)

__all__ = [
    "corollary_3",
    "expected_shares",
    "expected_squared_gap",
    "lemma_6",
    "lemma_8",
    "one_step_variance",
    "shortfall",
    "stationary_squared_distance",
    "stationary_squared_gap",
    "theorem_1",
    "theorem_5",
    "wasserstein_squared",
]
