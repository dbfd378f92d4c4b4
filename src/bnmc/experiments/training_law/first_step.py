"""The mean change of the tangent kernel of one sample in a first step of ReLU networks."""

from __future__ import annotations

from typing import NamedTuple


class FirstStep(NamedTuple):
    """Means over networks.

    Attributes
    ----------
    kernel : float
        E Θ before the step.
    change : float
        E dΘ/dη, of gradient descent on f²/2 with the rate η, at η = 0.
    """

    kernel: float
    change: float

    @property
    def relative(self) -> float:
        """−E dΘ/dη / (E Θ)²: a step of rate η lowers E Θ by the part `relative` · η E Θ."""
        return -self.change / self.kernel**2


def first_step(width: int, hidden: int, variances: list[float], rates: list[float]) -> FirstStep:
    r"""Return exact means for a ReLU network with layers of one width and one output.

    Parameters
    ----------
    width, hidden : int
        d >= 1, and the number of hidden layers.
    variances : list of float
        s_l of the entries of the matrices W_1, …, W_{H+1}; the first times ‖x‖².
    rates : list of float
        Factors r_l of the learning rates; the first times ‖x‖².  Then Θ has the terms
        r_l ‖δ_l‖² ‖a_{l−1}‖², with the input a_0 of length 1.

    Notes
    -----
    For one sample, a ReLU network has the law of a linear one whose units are each active with
    probability ½, independently of the Gaussian weights.  A step adds −η r_k f δ_k a_{k−1}ᵀ to
    W_k, and so changes the term of each other matrix W_l.  With B = D_{l−1} W_{l−1} ⋯ W_{k+1} D_k
    for k < l, D the diagonal matrices of the active units,

    .. math:: E\, d\Theta/d\eta = -4 \sum_{k<l} r_k r_l s_k s_l E\|a_{k-1}\|^4 E\|\delta_l\|^4
        E\, tr (B B^T)^2

    From layer to layer S = E tr (B Bᵀ)² and Q = E (tr B Bᵀ)² become (1 + 3/d) S + 2 Q/d and
    (1 + 1/d) Q + 4 S/d, times (s d/2)².  For s = 2/d and large d this is of the order β e^{5β}
    with β = H/d: the theorem of Hanin and Nica (arXiv 1909.05989), which leaves the constant open.
    """
    d, matrices = float(width), range(hidden + 1)
    # Means of ‖a_l‖² and ‖a_l‖⁴ from the input on, and of ‖δ_l‖² and ‖δ_l‖⁴ from the output on.
    ahead, ahead_squared, back, back_squared = [1.0], [1.0], [1.0], [1.0]
    for s, t in zip(variances[:-1], variances[:0:-1], strict=True):
        ahead.append(ahead[-1] * s * d / 2)
        ahead_squared.append(ahead_squared[-1] * s**2 * d * (d + 5) / 4)
        back.append(back[-1] * t * d / 2)
        back_squared.append(back_squared[-1] * t**2 * d * (d + 5) / 4)
    back, back_squared = back[::-1], back_squared[::-1]
    kernel = sum(rates[k] * ahead[k] * back[k] for k in matrices)
    change = 0.0
    for k in matrices:
        s_term, q_term = d / 2, d * (d + 1) / 4
        for m in range(k + 1, hidden + 1):
            weight = rates[k] * rates[m] * variances[k] * variances[m]
            change -= 4 * weight * ahead_squared[k] * back_squared[m] * s_term
            size = (variances[m] * d / 2) ** 2
            s_term, q_term = (
                size * ((1 + 3 / d) * s_term + 2 * q_term / d),
                size * ((1 + 1 / d) * q_term + 4 * s_term / d),
            )
    return FirstStep(kernel, change)
