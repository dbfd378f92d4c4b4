"""`ImplicitSGD`: gradient descent that makes room in implicit layers between steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bnmc.torch.implicit_modules import ImplicitLayer, entries
from bnmc.torch.models import torch


class ImplicitSGD(torch.optim.SGD):  # type: ignore[misc]
    """PyTorch's SGD, which also makes room in implicit layers between steps.

    After each step a layer gets room for another step that asks as many new directions. If its
    directions take more memory than its entries, the layer becomes dense: coefficients, gradient
    and momentum become entries. The weights stay the same in both cases, only the objects in
    ``model.parameters()`` are replaced. So collect them anew after a step.

    Parameters
    ----------
    model : torch.nn.Module
        Its parameters are optimized.
    lr : float, default 1e-3
        Learning rate.
    momentum, weight_decay : float, default 0
        As in ``torch.optim.SGD``.
    **options
        Further arguments of ``torch.optim.SGD``.

    Examples
    --------
    >>> import torch
    >>> from bnmc.torch import ImplicitLinear, ImplicitSGD
    >>> layer = ImplicitLinear(10_000, 10_000, columns=4, rng=0)
    >>> optimizer = ImplicitSGD(layer, lr=0.1, momentum=0.9)
    >>> for step in range(3):
    ...     optimizer.zero_grad()
    ...     layer(torch.randn(2, 10_000)).square().mean().backward()
    ...     optimizer.step()
    >>> layer.matrix.asked, tuple(layer.weight.shape)
    ((6, 6), (12, 13))
    """

    def __init__(
        self,
        model: torch.nn.Module,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(
            model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay, **options
        )
        self._asked: dict[int, tuple[int, int]] = {}

        def make_room(*_: Any) -> None:
            with torch.no_grad():
                for layers in _tied_layers(model):
                    self._make_room(layers)

        self.register_step_post_hook(make_room)

    def _make_room(self, layers: list[ImplicitLayer]) -> None:
        """Give tied layers room for another step as large as this one, or entries."""
        matrix, old = layers[0].matrix, layers[0].weight
        assert matrix is not None
        is_dense = matrix.is_crowded
        if is_dense:
            change = entries(matrix)
        else:
            before, self._asked[id(matrix)] = self._asked.get(id(matrix), (0, 0)), matrix.asked
            (right, left), room = matrix.asked, (old.shape[0], old.shape[1] - 1)
            pairs = zip((left, right), reversed(before), room, matrix.shape, strict=True)
            sizes = [
                room if 2 * asked - former <= room else min(max(2 * room, 3 * asked), size)
                for asked, former, room, size in pairs
            ]
            if tuple(sizes) == room:
                return
            change = _padding(*sizes)
        new = torch.nn.Parameter(change(old), requires_grad=old.requires_grad)
        new.grad = None if old.grad is None else change(old.grad)
        for layer in layers:
            layer.weight = new
            layer.matrix = None if is_dense else matrix
        for group in self.param_groups:
            group["params"] = [new if weight is old else weight for weight in group["params"]]
        if old in self.state:
            self.state[new] = {
                name: change(value) if isinstance(value, torch.Tensor) else value
                for name, value in self.state.pop(old).items()
            }


def _tied_layers(model: torch.nn.Module) -> list[list[ImplicitLayer]]:
    """Return the implicit layers of a model whose weights are not dense, by their weight."""
    tied: dict[int, list[ImplicitLayer]] = {}
    for layer in model.modules():
        if isinstance(layer, ImplicitLayer) and layer.matrix is not None:
            tied.setdefault(id(layer.weight), []).append(layer)
    return list(tied.values())


def _padding(left: int, right: int) -> Callable[[Any], Any]:
    """Return the function that pads coefficients with zeros."""

    def padded(w: Any) -> Any:
        larger = w.new_zeros(left, right + 1)
        larger[: w.shape[0], : w.shape[1] - 1] = w[:, :-1]
        larger[0, -1] = w[0, -1]
        return larger

    return padded
