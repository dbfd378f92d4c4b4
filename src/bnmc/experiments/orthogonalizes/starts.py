"""The orthogonal start of Figs 4 and 7."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bnmc._support.extras import import_extra
from bnmc.torch.orthogonalizing import orthogonalize_

__all__ = ["ORTHOGONAL", "orthogonal_start"]

#: Label of the orthogonal start.
ORTHOGONAL = "orthogonal start"


def orthogonal_start(samples: int, power: float) -> Callable[[Any, Any, Any], None]:
    """Return a preparation: orthogonal representations of some images, with small outputs.

    The weights of the hidden layers after the first become those of `bnmc.torch.orthogonalize_`.
    The authors scale each of these layers such that its output has the norm 1 over all `samples`
    and neurons, not the root mean square 1.  For ReLU networks without biases this is one factor of
    all later layers, so it is applied to the second weight layer.

    Parameters
    ----------
    samples : int
        Number of images that are orthogonalized.
    power : {-1, -0.5, 0.5}
    """

    def prepare(model: Any, inputs: Any, rng: np.random.Generator) -> None:
        torch: Any = import_extra("torch", "torch")
        some = inputs[:samples]
        orthogonalize_(model, some, power=power, rng=rng)
        layers = [one for one in model if isinstance(one, (torch.nn.Linear, torch.nn.Conv2d))]
        with torch.no_grad():
            sizes: list[int] = []
            hook = layers[1].register_forward_hook(lambda *given: sizes.append(given[2].numel()))
            model(some)
            hook.remove()
            layers[1].weight.div_(np.sqrt(sizes[0]))

    return prepare
