"""The statements of Joudaki, Daneshmand and Bach on mean field and finite width, as functions.

The paper is *On bridging the gap between mean field and finite width in deep random neural networks
with batch normalization* (arXiv 2205.13076), with its poster. Its chain is that of
`bnmc.Chain.bn_mlp`. G_l is the Gram matrix of layer l, and G* is the stable fixed point of the
mean-field map. Each function carries the number of its statement and returns the printed bound. Its
notes list the errors of the paper. `gram_concentration` and `one_step_total_variation` are provable
versions of Lemmas 9 and 11. `distortion` computes γ.

Arguments are keywords, real numbers or arrays, and broadcast:

============== ====================================================================================
depth          layer l >= 0
width, batch   d >= 1, n >= 1
alpha          α of Assumption 1, in (0, 1]
t              size of the deviation in units of the bound, >= 0
inverse_norm   ``‖G*⁻¹‖ > 0``, the inverse of the smallest eigenvalue of G*
star           in place of `inverse_norm`, one G*: an (n, n) matrix, or a mean-field `FixedPoint`
distortion     γ > 0 of (10), or a `Distortion`, whose upper bound is used
constant       absolute constant behind ≲, ≳ or O(·), > 0; the paper does not give its value
============== ====================================================================================

Results are float64, a scalar for scalars. Probabilities and total variation distances are capped
at 1. If the ε of ``ε ln 1/ε`` is at least 1, the statement is vacuous and the radius infinite.

All functions raise `ArgumentError` or `ArgumentTypeError` for an argument that lies outside its
range or does not broadcast, and `SingularGramError` for a singular `star`.

Assumption 1 (geometric ergodicity) is that the chain has a unique stationary law μ* and ``‖μ_l −
μ*‖_tv <= (1−α)^l ‖μ_0 − μ*‖_tv`` "holds almost surely for all h_0". Here μ_l is the law of the
pre-activation h_l. Every statement with an `alpha` rests on this assumption, and

- No α holds for all starts. Equal samples stay equal. Hence for n >= 3 and continuous σ, a start
  with nearly equal samples stays far from μ* for arbitrarily many layers. Read α as a constant of
  the start.
- α depends on n. In the limit of large width, 1 − rate of the fixed point takes its place. For relu
  it is

  ====== === === === ===
  n        5  10  20 100
  1−rate .39 .21 .11 .02
  ====== === === === ===

  The stationary parts of (8), (9), (11), (17) and (18) lack the power of α that they should have
  (see `theorem_3`).
- The proof uses Lemmas 10 to 12. Lemmas 11 and 12 are false, and Lemma 10 is not proved (see their
  notes). With an absolute constant, Theorem 3 is false too. With a constant that depends on σ, n
  and the start, the theorems are supported by simulation only.

``ε ln 1/ε`` increases with ε up to ε = 1/e and decreases to 0 at ε = 1. A bound with ε > 1/e is
therefore smaller than the bound of a wider network, and should not be used.

`theorems.py` has the theorems and their corollaries, `lemmas.py` the lemmas,
`activation_distortion.py` the distortion γ, and `arguments.py` the common arguments. Read
`theorems.py` first.
"""

from __future__ import annotations

from bnmc.bounds.bridging.activation_distortion import Distortion, distortion
from bnmc.bounds.bridging.lemmas import (
    equation_19,
    equation_47,
    gram_concentration,
    lemma_5,
    lemma_9,
    lemma_10,
    lemma_11,
    lemma_12,
    one_step_total_variation,
)
from bnmc.bounds.bridging.theorems import (
    Bulk,
    Concentration,
    corollary_2,
    corollary_4,
    corollary_6,
    corollary_7,
    corollary_8,
    equation_6,
    poster_theorem,
    theorem_1,
    theorem_3,
)

__all__ = [
    "Bulk",
    "Concentration",
    "Distortion",
    "corollary_2",
    "corollary_4",
    "corollary_6",
    "corollary_7",
    "corollary_8",
    "distortion",
    "equation_6",
    "equation_19",
    "equation_47",
    "gram_concentration",
    "lemma_5",
    "lemma_9",
    "lemma_10",
    "lemma_11",
    "lemma_12",
    "one_step_total_variation",
    "poster_theorem",
    "theorem_1",
    "theorem_3",
]
