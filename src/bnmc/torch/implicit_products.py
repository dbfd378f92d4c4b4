"""Products with matrices that are drawn by direction, as functions of autograd.

A weight is κ σ W₀ + Cᵀ M A: W₀ is drawn by direction, A and C are the orthonormal directions
that it and its transpose were asked for (`bnmc.implicit.matrix`).  M and κ are one parameter w of
shape (rows, columns + 1), whose last column holds κ in its first row, and zeros.  Its rows and
columns beyond what was asked are zero, too.  All gradients lie in the spans of A and C.  So the
gradient of κ is zero by definition, and that of M has the norms and inner products of the dense
gradient.
"""

from __future__ import annotations

from typing import Any

from bnmc.errors import ArgumentError
from bnmc.torch.models import torch


class Product(torch.autograd.Function):  # type: ignore[misc]
    """(W x, coordinates of x) for rows x, or Wᵀ x for side 1; linear in x and in w."""

    @staticmethod
    def forward(x: Any, w: Any, matrix: Any, side: int) -> Any:
        """Ask the matrix."""
        coordinates = matrix.locate(x, side, _room(w, side))
        right, left = matrix.asked
        coefficients = w[:left, :right]
        if w[left:, :-1].any() or w[:, right:-1].any():
            value, allowed = "coefficients beyond the stored directions", "zeros there"
            hint = "coefficients of another copy of the layer, or random numbers, have no meaning"
            raise ArgumentError("weight", value, allowed, hint)
        moved = coefficients if coefficients.any() else None
        weight, dtype = matrix.scale * float(w[0, -1]), str(x.dtype).rpartition(".")[2]
        y = matrix.image_of(coordinates, side, weight, moved, dtype)
        return y.to(x.device), coordinates

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep the arguments, and the coordinates for `_Outer`."""
        x, w, ctx.matrix, ctx.side = inputs
        ctx.coordinates = output[1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, w)
        ctx.save_for_forward(x, w)

    @staticmethod
    def backward(ctx: Any, g: Any, _: Any) -> Any:
        """Ask the transpose, only if x needs a gradient."""
        x, w = ctx.saved_tensors
        of_x = of_w = coordinates = None
        if ctx.needs_input_grad[0]:
            of_x, coordinates = Product.apply(g, w, ctx.matrix, 1 - ctx.side)
        if ctx.needs_input_grad[1]:
            of_w = _Outer.apply(g, x, coordinates, ctx.coordinates, w, ctx.matrix, ctx.side)
        return of_x, of_w, None, None

    @staticmethod
    def jvp(ctx: Any, of_x: Any, of_w: Any, *_: Any) -> Any:
        """Apply the rule for products."""
        x, w = ctx.saved_tensors
        pairs = [(of_x, w), (x, of_w)]
        terms = [
            Product.apply(*pair, ctx.matrix, ctx.side)[0]
            for pair in pairs
            if all(part is not None for part in pair)
        ]
        return sum(terms[1:], terms[0]), None

    @staticmethod
    def vmap(info: Any, dims: Any, x: Any, w: Any, matrix: Any, side: int) -> Any:
        """Join the batches of rows."""
        if dims[1] is not None:
            allowed = "one set of coefficients in a call"
            raise ArgumentError("weight", "a batch under torch.vmap", allowed, "loop over models")
        x = x.movedim(dims[0], 0)
        outputs = Product.apply(x.flatten(0, 1), w, matrix, side)
        return tuple(output.unflatten(0, x.shape[:2]) for output in outputs), (0, 0)


class _Outer(torch.autograd.Function):  # type: ignore[misc]
    """The gradient of ⟨g, W x⟩ for w: coordinates of Σ g xᵀ, which are bilinear in g and x."""

    @staticmethod
    def forward(g: Any, x: Any, of_g: Any, of_x: Any, w: Any, matrix: Any, side: int) -> Any:
        """Multiply coordinates."""
        if of_g is None:
            of_g = matrix.locate(g, 1 - side, _room(w, 1 - side))
        left, right = (of_g, of_x) if side == 0 else (of_x, of_g)
        block = left.T @ right
        gradient = torch.zeros_like(w)
        gradient[: block.shape[0], : block.shape[1]] = block
        return gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep the arguments."""
        g, x, _, _, w, ctx.matrix, ctx.side = inputs
        ctx.save_for_backward(g, x)
        ctx.save_for_forward(g, x, w)

    @staticmethod
    def backward(ctx: Any, of_w: Any) -> Any:
        """Return products with the given coefficients; κ takes no part."""
        g, x = ctx.saved_tensors
        of_w = torch.cat([of_w[:, :-1], torch.zeros_like(of_w[:, -1:])], 1)
        of_g = of_x = None
        if ctx.needs_input_grad[0]:
            of_g, _ = Product.apply(x, of_w, ctx.matrix, ctx.side)
        if ctx.needs_input_grad[1]:
            of_x, _ = Product.apply(g, of_w, ctx.matrix, 1 - ctx.side)
        return of_g, of_x, *[None] * 5

    @staticmethod
    def jvp(ctx: Any, of_g: Any, of_x: Any, *_: Any) -> Any:
        """Apply the rule for products."""
        g, x, w = ctx.saved_tensors
        pairs = [(of_g, x), (g, of_x)]
        terms = []
        for left, right in pairs:
            if left is not None and right is not None:
                _, coordinates = Product.apply(right, w, ctx.matrix, ctx.side)
                terms.append(_Outer.apply(left, right, None, coordinates, w, ctx.matrix, ctx.side))
        return sum(terms[1:], terms[0])

    @staticmethod
    def vmap(info: Any, dims: Any, *given: Any) -> Any:
        """Multiply each pair of the batch on its own: each has its gradient."""
        gradients = [
            _Outer.apply(*(
                part if dim is None else part.movedim(dim, 0)[index]
                for part, dim in zip(given, dims, strict=True)
            ))
            for index in range(info.batch_size)
        ]  # fmt: skip
        return torch.stack(gradients), 0


def _room(w: Any, side: int) -> int:
    return w.shape[0] if side == 1 else w.shape[1] - 1
