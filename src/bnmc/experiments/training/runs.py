"""Several trained networks of each case: the images of a call, and one part for each network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.extras import import_extra
from bnmc._support.progress import Progress
from bnmc.experiments.parts import Call
from bnmc.experiments.training.images import Images, images
from bnmc.experiments.training.networks import seeded
from bnmc.experiments.training.trainer import Plan, train

if TYPE_CHECKING:
    import torch

__all__ = ["Case", "images_of", "trained"]

Float64Array = NDArray[np.float64]


class Case(NamedTuple):
    """One kind of network.

    Attributes
    ----------
    build : callable
        Returns a new network; draws from PyTorch's random state.
    rates : tuple of float
        Learning rates.  The results are those of the rate with the smallest mean final loss.
    prepare : callable, optional
        Called with the network, the images and a generator before the training; changes the
        network in place.
    cost : float
        Relative run time.
    noise : bool
        Whether the images are replaced by independent uniform grey values in [0, 1].
    """

    build: Callable[[], torch.nn.Module]
    rates: tuple[float, ...]
    prepare: Callable[[Any, Any, np.random.Generator], object] | None = None
    cost: float = 1.0
    noise: bool = False


def images_of(call: Call, count: int, batch: int) -> Images:
    """Return the images of a call, and make them part of the identity of its kept parts.

    Raises
    ------
    MissingExtraError
        If PyTorch (extra ``torch``) is not installed.
    ArgumentError, ArgumentTypeError
        As for `images`, or if `threads` is invalid.
    """
    import_extra("torch", "torch")
    call.processors()  # training takes one thread; an invalid number raises nevertheless
    found = images(call.data, count, batch)
    call.further["images"] = found.digest()
    return found


def trained(
    call: Call,
    cases: Sequence[Case],
    found: Images,
    plan: Plan,
    networks: int,
    scale: tuple[float, float] = (1.0, 0.0),
) -> list[dict[str, Float64Array]]:
    """Train networks of each case; each network and learning rate is one part of the call.

    Parameters
    ----------
    call : Call
    cases : sequence of Case
    found : Images
    plan : Plan
        Its learning rate is replaced by those of the cases.
    networks : int
        Networks of each case, >= 2.  They differ in weights and in the order of the images.
    scale : (float, float)
        Factor of the grey values, and the constant added to them.

    Returns
    -------
    list of dict of str to ndarray
        For each case the arrays of `train`, stacked along a new first axis of the networks, and
        the learning rate as ``rate``, shape ().
    """
    torch: Any = import_extra("torch", "torch")
    pixels = torch.from_numpy(found.pixels)
    labels = torch.from_numpy(found.labels)
    results: list[dict[str, Float64Array]] = []
    costs = [case.cost for case in cases for _ in range(len(case.rates) * networks)]
    with call.parts(costs) as parts:
        for case in cases:
            tried = []
            for rate in case.rates:
                own = plan._replace(rate=rate)
                ones = [
                    parts.run(_network, call.generator, case, (pixels, labels), scale, own)
                    for _ in range(networks)
                ]
                stacked = {name: np.stack([one[name] for one in ones]) for name in ones[0]}
                tried.append({**stacked, "rate": np.array(rate)})
            results.append(min(tried, key=_final_loss))
    return results


def _network(
    rng: np.random.Generator,
    case: Case,
    data: tuple[Any, Any],
    scale: tuple[float, float],
    plan: Plan,
    progress: Progress,
) -> dict[str, Float64Array]:
    """Return the records of one network; seeds of weights and order come from `rng`."""
    torch: Any = import_extra("torch", "torch")
    weights, order = (int(one) for one in rng.integers(2**63, size=2))
    own = np.random.default_rng(order)
    pixels, labels = data
    with seeded(weights):
        model = case.build()
        if case.noise:
            pixels = torch.rand(pixels.shape, dtype=pixels.dtype)
        inputs = pixels * scale[0] + scale[1]
        if case.prepare is not None:
            case.prepare(model, inputs, own)
        return train(model, inputs, labels, plan, own, progress)


def _final_loss(result: dict[str, Float64Array]) -> float:
    mean = float(result["loss"][:, -1].mean())
    return mean if np.isfinite(mean) else np.inf
