"""Rows of a Gaussian matrix that are drawn when their index is first asked for: an embedding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bnmc._support.arguments import Key
from bnmc.errors import ArgumentError
from bnmc.implicit.words import key_of, normals
from bnmc.torch.models import torch


class GaussianRows:
    """A Gaussian matrix of which only single rows are asked for.

    It has the methods of `GaussianMatrix` that layers call, with other vectors: the position of an
    index among those that were asked takes the place of a vector as long as the matrix.  So both
    bases are those of unit vectors, and nothing but the indices is kept.
    """

    def __init__(self, shape: tuple[int, int], scale: float, rng: Any, dtype: str) -> None:
        self.shape, self.scale, self.dtype = shape, scale, np.dtype(dtype)
        self.key, self.indices = key_of(rng), np.zeros(0, np.int64)
        #: An index whose row is zero.
        self.padding: int | None = None

    def positions(self, indices: Any, room: int) -> Any:
        """Return the positions of different indices among those that were asked."""
        asked = indices.detach().cpu().numpy()
        if len(asked) and not 0 <= asked.min() <= asked.max() < self.shape[0]:
            value = asked.min() if asked.min() < 0 else asked.max()
            raise ArgumentError("input", int(value), f"indices from 0 to {self.shape[0] - 1}")
        more = np.concatenate([self.indices, asked[~np.isin(asked, self.indices)]])
        if len(more) > room:
            hint = f"{len(self.indices)} indices were asked, {room - len(self.indices)} are left"
            raise ArgumentError("columns", room, f"at least {len(more)}", hint)
        self.indices = more
        order = np.argsort(more)
        places = order[np.searchsorted(more, asked, sorter=order)]
        return torch.as_tensor(places, device=indices.device)

    def locate(self, x: Any, side: int, room: int | None = None) -> Any:
        """Return coordinates: positions as unit vectors, or the entries of gradients."""
        return x[:, : len(self.indices)].double() if side == 1 else x.double()

    def image_of(
        self, coordinates: Any, side: int, weight: float, coefficients: Any, dtype: str
    ) -> Any:
        """Return rows of weight · W₀ + M."""
        used = coordinates.any(0).nonzero()[:, 0]
        rows = weight * self._drawn(self.indices[used.cpu().numpy()], coordinates)
        if coefficients is not None:
            rows += coefficients[used].double()
        return (coordinates[:, used] @ rows).to(getattr(torch, dtype))

    def entries(self) -> Callable[[Any], Any]:
        """Return the function that makes entries of coefficients."""
        base = self.scale * self._drawn(np.arange(self.shape[0]), torch.empty(0))

        def dense(w: Any) -> Any:
            entries = w[0, -1] * base.to(w)
            entries[torch.as_tensor(self.indices)] += w[: len(self.indices), :-1]
            return entries

        return dense

    @property
    def asked(self) -> tuple[int, int]:
        """Directions of either side, as `GaussianMatrix.asked`."""
        return self.shape[1], len(self.indices)

    @property
    def is_crowded(self) -> bool:
        """Whether most rows were asked for."""
        return 2 * len(self.indices) > self.shape[0]

    def restart(self, rng: Any = None) -> None:
        """Forget all that is decided, and take a new key."""
        self.key, self.indices = key_of(rng), self.indices[:0]

    def move(self, device: Any) -> None:
        """Do nothing: no vectors are kept."""

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that forgets all that is asked from now on."""
        state = dict(self.__dict__)
        return lambda: self.__dict__.update(state)

    def state(self) -> dict[str, Any]:
        """Return all that the rows are."""
        return {"words": np.array([*self.shape, self.key], np.uint64), "indices": self.indices}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over what `state` returned, for a matrix of the same shape."""
        *shape, key = state["words"]
        if tuple(shape) != self.shape:
            raise ArgumentError("state", tuple(shape), f"the state of a matrix {self.shape}")
        self.key, self.indices = Key(key), np.array(state["indices"], np.int64)

    def _drawn(self, indices: Any, x: Any) -> Any:
        """Return rows of W₀ / scale, float64, where x is; each depends on its index and the key."""
        rows = normals(self.key, 0, indices, self.shape[1], self.dtype.name, x).double()
        if self.padding is not None:
            rows[torch.as_tensor(indices == self.padding, device=rows.device)] = 0.0
        return rows
