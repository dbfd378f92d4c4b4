"""Layers whose weights are drawn by direction: `ImplicitLinear`, and what it replaces."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from bnmc._support import arguments
from bnmc.errors import ArgumentError
from bnmc.implicit.matrix import GaussianMatrix
from bnmc.torch.implicit_optimizers import remember
from bnmc.torch.implicit_products import Product
from bnmc.torch.implicit_rows import GaussianRows
from bnmc.torch.models import torch

#: Directions for which a layer has room by default.
COLUMNS = 512


class ImplicitLayer(torch.nn.Module):  # type: ignore[misc]
    """A layer with a Gaussian weight, which is drawn by direction.

    `weight` holds the coefficients that updates change, and a factor of the random part; `matrix`
    is the random part.  Layers with a tied weight share both.  Once the entries take less memory,
    `matrix` is None, and `weight` holds the entries.
    """

    matrix: GaussianMatrix | GaussianRows | None
    weight: torch.nn.Parameter

    def begin(
        self,
        shape: tuple[int, ...],
        std: float,
        *,
        rng: Any = None,
        columns: int = COLUMNS,
        device: Any = None,
        dtype: Any = None,
        by_rows: bool = False,
    ) -> None:
        """Make the weight of a new layer; std 0 makes a weight of zeros, which updates change."""
        columns = arguments.integer("columns", columns, low=1)
        self.std, self.fan_in = arguments.real("std", std, low=0.0), shape[1]
        kind = torch.get_default_dtype() if dtype is None else dtype
        name = "float64" if kind == torch.float64 else "float32"
        rng = drawn_seed() if rng is None else rng
        scale, (left, right) = self.std or 1.0, (min(size, columns) for size in shape)
        if by_rows:
            self.matrix, right = GaussianRows((shape[0], shape[1]), scale, rng, name), shape[1]
        else:
            self.matrix = GaussianMatrix(*shape, scale=scale, rng=rng, dtype=name)
        factor = torch.zeros(left, right + 1, device=device, dtype=getattr(torch, name))
        factor[0, -1] = float(self.std > 0.0)
        self.weight = torch.nn.Parameter(factor)
        remember(self)

    def share(self, other: ImplicitLayer) -> None:
        """Tie the weight to that of another layer."""
        if self.matrix is None or other.matrix is None or self.matrix.shape != other.matrix.shape:
            raise ArgumentError("model", "tied weights of two shapes", "tied weights of one shape")
        self.std, self.matrix, self.weight = other.std, other.matrix, other.weight
        remember(self)

    def multiplied(self, x: Any, side: int = 0) -> Any:
        """Return W x, or Wᵀ x for side 1, for the vectors on the last axis of x."""
        if self.matrix is None:
            return x @ (self.weight.mT if side == 0 else self.weight)
        if x.shape[-1:] != self.matrix.shape[1 - side :][:1]:
            allowed = f"{self.matrix.shape[1 - side]} numbers on the last axis"
            raise ArgumentError("input", tuple(x.shape), allowed)
        return _eager_product(x, self.weight, self.matrix, side)

    def dense(self, coefficients: Any = None) -> Any:
        """Return entries, (out_features, in_features).

        What is not decided is drawn in a copy, given all answers until now: the layer decides other
        entries later on.

        Parameters
        ----------
        coefficients : torch.Tensor, optional
            A tensor such as ``weight.grad``, whose entries are returned; `weight` by default.
        """
        w = (self.weight if coefficients is None else coefficients).detach()
        return w if self.matrix is None else entries(copy.deepcopy(self.matrix))(w)

    def reset_parameters(self) -> None:
        """Draw a new weight and a new bias, from PyTorch's random state."""
        with torch.no_grad():
            if self.matrix is None:
                self.weight.normal_(0.0, self.std)
            else:
                self.matrix.restart(drawn_seed())
                self.weight.zero_()
                self.weight[0, -1] = float(self.std > 0.0)
            bias = getattr(self, "bias", None)
            if bias is not None:
                bound = self.fan_in**-0.5
                bias.uniform_(-bound, bound)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the random part in types that ``torch.load`` trusts."""
        state = {} if self.matrix is None else self.matrix.state()
        return {
            name: _trimmed(value) if isinstance(value, torch.Tensor) else value.tolist()
            for name, value in state.items()
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Go on where a saved layer was."""
        if not state:
            self.matrix = None
        elif self.matrix is None:
            hint = "load it into a new model"
            raise ArgumentError("state_dict", "undecided weights", "entries of weights", hint)
        else:
            self.matrix.restore(state)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """Take a weight of another size, if its layer had more room or was dense."""
        given = state_dict.get(f"{prefix}weight")
        if f"{prefix}_extra_state" in state_dict and given is not None:
            self.weight.data = self.weight.data.new_zeros(given.shape)
        super()._load_from_state_dict(state_dict, prefix, *others)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Move the random part as well; coefficients keep float32 where others get less."""
        if self.matrix is None:
            return super()._apply(fn, recurse)
        former, gradient = self.weight.data, self.weight.grad
        gradient = None if gradient is None else gradient.data
        super()._apply(fn, recurse)
        weight = self.weight
        if torch.finfo(weight.dtype).bits < 32:
            weight.data = former.to(weight.device)
            weight.grad = None if gradient is None else gradient.to(weight.device)
        if self.matrix.asked == (0, 0):
            self.matrix.dtype = np.dtype("float64" if weight.dtype == torch.float64 else "float32")
        elif weight.device.type != "meta":
            self.matrix.move(weight.device)
        return self

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)
        remember(self)


class ImplicitLinear(ImplicitLayer):
    """A linear layer whose weight is drawn by direction, in place of ``torch.nn.Linear``.

    Outputs, gradients and trained weights have exactly the law that they have for a drawn Gaussian
    weight, at sizes that no memory holds.

    Parameters
    ----------
    in_features, out_features : int
        Sizes, at least 1.
    bias : bool, default True
        Whether the layer has a bias, initialized as that of ``torch.nn.Linear``.
    device, dtype : optional
        Those of the parameters. Coefficients are float32 in layers of lower precision, too.
    std : float, optional
        Standard deviation of the entries, at least 0. Default: 1/√(3 in_features), that of
        ``torch.nn.Linear``.
    rng : optional
        Source of the random numbers, any argument of `numpy.random.default_rng`. Default:
        PyTorch's random state, so ``torch.manual_seed`` sets the seed.
    columns : int, default 512
        Room: the most directions for which the weight can be asked, and its transpose. Each new
        input vector takes one of the first, each new output gradient one of the second.
        `ImplicitSGD` enlarges the room between steps.

    Attributes
    ----------
    weight : torch.nn.Parameter
        Coefficients, not entries: what updates have changed, and the factor of the random part.
    bias : torch.nn.Parameter or None
    matrix : GaussianMatrix or None
        The random part, with `asked` and `nbytes`. None after `ImplicitSGD` has replaced the
        coefficients by entries, which then take less memory.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed. In a call: if the input has another length, is not finite,
        or needs more directions than there is room for (before the state changes); if the model is
        in ``DistributedDataParallel``; if coefficients are not those of this layer.

    Notes
    -----
    The weight is κ W₀ + C M Aᵀ: W₀ is the random part, and the columns of A and C are the
    orthonormal directions of W₀ and of its transpose. `weight` holds M and κ. As A
    and C are orthonormal, norms and inner products of gradients are those of dense gradients. So
    PyTorch's SGD, momentum, weight decay, Muon, clipping by norm, Hessian products, ``torch.func``
    and checkpoints work as with a dense layer. Optimizers that act on single entries, such as Adam,
    raise `ArgumentTypeError`. Nobody can notice entrywise changes by other means, such as
    ``clip_grad_value_``: they are wrong.

    ``state_dict``, ``copy.deepcopy`` and `pickle` keep the state: the copy gives the same answers
    as the original. For independent answers call ``copy.reset_parameters()``. Under
    ``torch.autocast`` the output has the dtype of the input. ``torch.compile`` runs the product
    outside the graph.

    Examples
    --------
    A layer of 40 GB in a training step:

    >>> import torch
    >>> from bnmc.torch import ImplicitLinear
    >>> layer = ImplicitLinear(100_000, 100_000, rng=0)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    >>> layer(torch.ones(2, 100_000)).square().mean().backward()
    >>> optimizer.step()
    >>> layer.matrix.asked
    (1, 1)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        std: float | None = None,
        rng: Any = None,
        columns: int = COLUMNS,
    ) -> None:
        super().__init__()
        self.in_features = arguments.integer("in_features", in_features, low=1)
        self.out_features = arguments.integer("out_features", out_features, low=1)
        std = (3.0 * in_features) ** -0.5 if std is None else std
        options = {"rng": rng, "columns": columns, "device": device, "dtype": dtype}
        self.begin((out_features, in_features), std, **options)
        self.register_parameter("bias", None)
        if bias:
            bound = in_features**-0.5
            values = torch.empty(out_features, device=device, dtype=dtype)
            self.bias = torch.nn.Parameter(values.uniform_(-bound, bound))

    def forward(self, input: Any) -> Any:
        """Return input Wᵀ + bias."""
        output = self.multiplied(input)
        return output if self.bias is None else output + self.bias

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{shape}, bias={self.bias is not None}{_state_of(self)}"


class ImplicitEmbedding(ImplicitLayer):
    """Rows of a weight by their index, in the place of ``torch.nn.Embedding``.

    If the weight is tied to a layer that multiplies by it, rows are products with unit vectors.
    """

    def __init__(self, embedding: Any, *, is_tied: bool, std: float, **options: Any) -> None:
        super().__init__()
        rows, columns = shape = embedding.weight.shape
        self.num_embeddings, self.embedding_dim = rows, columns
        self.padding_idx = embedding.padding_idx
        self.begin(shape, std, by_rows=not is_tied, **options)
        if isinstance(self.matrix, GaussianRows):
            self.matrix.padding = self.padding_idx

    def forward(self, input: Any) -> Any:
        """Return the rows of some indices."""
        if self.matrix is None:
            return torch.nn.functional.embedding(input, self.weight, self.padding_idx)
        indices, places = input.unique(return_inverse=True)
        vectors, length = indices, self.num_embeddings
        if isinstance(self.matrix, GaussianRows):
            length = len(self.weight)
            vectors = self.matrix.positions(indices, length)
        units = torch.nn.functional.one_hot(vectors, length).to(self.weight.dtype)
        rows = _eager_product(units, self.weight, self.matrix, 1)
        if self.padding_idx is not None:
            rows = torch.where((indices == self.padding_idx)[:, None], rows.detach(), rows)
        return torch.nn.functional.embedding(places, rows)

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        return f"{self.num_embeddings}, {self.embedding_dim}{_state_of(self)}"


class ImplicitConv(ImplicitLayer):
    """A convolution by unfolding, in the place of ``torch.nn.Conv1d`` and ``Conv2d``."""

    def __init__(self, convolution: Any, *, std: float, **options: Any) -> None:
        super().__init__()
        weight = convolution.weight
        self.register_parameter("bias", None)
        self.axes, self.padding_mode = weight.ndim - 2, convolution.padding_mode
        self.padding = tuple(convolution._reversed_padding_repeated_twice)
        # A convolution over lines is one over images of height 1.
        self.kernel_size, self.stride, self.dilation = (
            (1,) * (2 - self.axes) + tuple(getattr(convolution, name))
            for name in ("kernel_size", "stride", "dilation")
        )
        self.begin((weight.shape[0], weight[0].numel()), std, **options)

    def forward(self, input: Any) -> Any:
        """Return the convolution of images (samples, channels, ...), or of one image."""
        if input.ndim == self.axes + 1:
            return self.forward(input[None])[0]
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        x = torch.nn.functional.pad(input, self.padding, mode)
        if self.axes == 1:
            x = x.unsqueeze(2)
        size = [
            (length - dilation * (taps - 1) - 1) // stride + 1
            for length, taps, dilation, stride in zip(
                x.shape[2:], self.kernel_size, self.dilation, self.stride, strict=True
            )
        ]
        options = {"dilation": self.dilation, "stride": self.stride}
        patches = torch.nn.functional.unfold(x, self.kernel_size, **options)
        y = self.multiplied(patches.mT)
        y = (y if self.bias is None else y + self.bias).mT.unflatten(-1, size)
        return y.squeeze(2) if self.axes == 1 else y

    def extra_repr(self) -> str:
        """Return what ``repr`` shows."""
        shape = f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"
        return f"{shape}, bias={self.bias is not None}{_state_of(self)}"


def _state_of(layer: ImplicitLayer) -> str:
    """Return in words how much of a weight is decided."""
    return (
        ", dense" if layer.matrix is None else f", std={layer.std:.3g}, asked={layer.matrix.asked}"
    )


def entries(matrix: GaussianMatrix | GaussianRows) -> Any:
    """Decide all of a matrix; return the function that makes entries of coefficients."""
    if isinstance(matrix, GaussianRows):
        return matrix.entries()
    right, left = (torch.as_tensor(rows) for rows in matrix.decide())
    base = torch.as_tensor(matrix.dense())

    def dense(w: Any) -> Any:
        moved = w[: len(left), :-1][:, : len(right)].to(base.dtype)
        rows, columns = moved.shape
        entries = w[0, -1] * base + left[:rows].mT @ moved @ right[:columns]
        return entries.to(w.dtype).contiguous()

    return dense


def drawn_seed() -> int:
    """Return a seed from PyTorch's random state."""
    return int(torch.randint(1 << 62, (), device="cpu"))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _eager_product(x: Any, w: Any, matrix: Any, side: int) -> Any:
    """Return a product: a question changes the state, so a graph must not repeat it."""
    if torch.nn.parallel.DistributedDataParallel._active_ddp_module is not None:
        hint = "each process has directions of its own, so averages of gradients are wrong"
        allowed = "a model without implicit layers"
        raise ArgumentError("model", "DistributedDataParallel", allowed, hint)
    rows = x.reshape(-1, x.shape[-1])
    if rows.dtype not in (torch.float32, torch.float64):
        rows = rows.float()
    with torch.autocast(x.device.type, enabled=False):
        y, _ = Product.apply(rows, w, matrix, side)
    return y.to(x.dtype).reshape(*x.shape[:-1], y.shape[-1])


def _trimmed(rows: Any) -> Any:
    """Return vectors without the rest of their buffer, which ``torch.save`` would write."""
    whole = rows.untyped_storage().nbytes() == rows.numel() * rows.element_size()
    return rows if whole else rows.clone()
