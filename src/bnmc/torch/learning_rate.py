"""The largest stable learning rate of a PyTorch model."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnmc._support.arguments import Float64Array, choice, real
from bnmc.errors import ArgumentError, ArgumentTypeError, PartialEstimateError
from bnmc.gradients.lanczos import extreme_eigenvalue
from bnmc.torch.models import as_batch, as_model, torch
from bnmc.torch.preservation import as_it_was, random_states_kept

#: Losses whose Hessian with respect to the outputs is known.
RATED = "squared", "cross-entropy"


def rate_of_model(
    model: torch.nn.Module, batch: Any, *, loss: str = "squared", rtol: float = 1e-3
) -> float:
    r"""Return the learning rate below which gradient descent of the linearized model is stable.

    It is 2/λ, with λ the largest eigenvalue of the Gauss-Newton matrix
    :math:`J^T H J / n` of a batch of n samples, where J is the derivative of the outputs with
    respect to all parameters that require gradients, and H the Hessian of the loss of a sample with
    respect to its outputs.  The model runs in its present mode, and no bit of it changes, as in
    `measure`.

    Parameters
    ----------
    model : torch.nn.Module
        The model.  Its output is a tensor of floating-point numbers.
    batch : torch.Tensor or array_like, shape (n, ...)
        n >= 2 samples on the first axis, as in `measure`.
    loss : {"squared", "cross-entropy"}
        The mean over samples of half the squared distance, or of the cross-entropy with softmax
        over the last axis of the output; further axes are samples then.
    rtol : float, default 1e-3
        Relative accuracy of the eigenvalue, in (0, 1).

    Returns
    -------
    float
        The rate; infinite if no output depends on a parameter.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, no parameter requires a gradient, or the outputs are no
        finite numbers.
    PartialEstimateError
        If the eigenvalue does not converge.
    MissingExtraError
        Without PyTorch (extra ``torch``).

    Notes
    -----
    Lanczos' method multiplies vectors v over the outputs by :math:`H^{1/2} J J^T H^{1/2}`: a
    product with Jᵀ by a backward pass, and one with J by the derivative of a backward pass with
    respect to v.  So neither J nor the tangent kernel is in memory.  Real networks may converge at
    larger rates; see `bnmc.training.largest_rate`.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch.learning_rate import rate_of_model
    >>> seed = torch.manual_seed(0)
    >>> model = nn.Sequential(
    ...     nn.Linear(32, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10)
    ... )
    >>> rate = rate_of_model(model, torch.randn(64, 32), loss="cross-entropy")
    >>> print(f"{rate:.2f}")
    0.29
    """
    kind = choice("loss", loss, RATED)
    rtol = real("rtol", rtol, above=0.0, below=1.0)
    with random_states_kept(), torch.inference_mode(False):
        inner = as_model(model)
        weights = [weight for weight in inner.parameters() if weight.requires_grad]
        if not weights:
            raise ArgumentError("model", type(inner).__name__, "a parameter with requires_grad")
        data = as_batch(inner, batch)
        math_only = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        with as_it_was(inner), math_only:
            outputs: Any = inner(data)
            if not (isinstance(outputs, torch.Tensor) and outputs.is_floating_point()):
                raise ArgumentTypeError("model", type(outputs).__name__, "a tensor as output")
            if not bool(torch.isfinite(outputs).all()):
                raise ArgumentError("model", "infinite outputs or NaN", "finite outputs")
            if not outputs.requires_grad:
                return float("inf")
            value = _largest(_Kernel(outputs, weights, kind), rtol)
    samples = len(data) if kind == "squared" else outputs.numel() // outputs.shape[-1]
    return 2.0 * samples / value if value > 0.0 else float("inf")


class _Kernel:
    """Products with H^½ Θ H^½ over all outputs."""

    def __init__(self, outputs: Any, weights: list[Any], loss: str) -> None:
        self._outputs, self._weights = outputs, weights
        self._root = None if loss == "squared" else _roots(outputs.detach())
        # The gradient along u is linear in u, so its derivative is the transpose.
        self._u = torch.zeros_like(outputs, requires_grad=True)
        gradients = torch.autograd.grad(
            outputs, weights, self._u, create_graph=True, allow_unused=True
        )
        self._linear = [gradient for gradient in gradients if gradient is not None]

    @property
    def size(self) -> int:
        """Number of outputs of all samples."""
        return int(self._outputs.numel())

    def __call__(self, v: Float64Array) -> Float64Array:
        """Return the product with a vector."""
        vector = self._weighted(torch.as_tensor(v).to(self._outputs).reshape(self._outputs.shape))
        along = torch.autograd.grad(
            self._outputs, self._weights, vector, retain_graph=True, allow_unused=True
        )
        along = tuple(part for part in along if part is not None)
        (moved,) = torch.autograd.grad(self._linear, self._u, along, retain_graph=True)
        result: Float64Array = self._weighted(moved).reshape(-1).cpu().double().numpy()
        return result

    def _weighted(self, vector: Any) -> Any:
        if self._root is None:
            return vector
        rows = vector.reshape(-1, vector.shape[-1], 1)
        return (self._root @ rows).reshape(vector.shape)


def _roots(outputs: Any) -> Any:
    """Return the roots of diag(p) − p pᵀ for the probabilities of each sample."""
    p = torch.softmax(outputs.reshape(-1, outputs.shape[-1]).double(), 1)
    values, vectors = torch.linalg.eigh(torch.diag_embed(p) - p[:, :, None] * p[:, None, :])
    scaled = vectors * values.clamp(min=0.0).sqrt()[:, None, :]
    return (scaled @ vectors.mT).to(outputs)


def _largest(kernel: _Kernel, rtol: float) -> float:
    begin = np.random.default_rng(0).standard_normal(kernel.size)
    value = extreme_eigenvalue(kernel, begin, rtol)
    if value is None:
        raise PartialEstimateError("the largest eigenvalue does not converge", None)
    return value
