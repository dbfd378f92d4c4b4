"""Adapters from layers with other layouts to steps for `assert_same_law`, (width, batch)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc.chain.convolution import Convolution
from bnmc.errors import ArgumentError, ArgumentTypeError

__all__ = ["as_numpy", "from_features_last", "from_images", "from_linear_first"]

Step = Callable[[NDArray[np.float64]], Any]


def from_features_last(step: Callable[[NDArray[np.float64]], Any]) -> Step:
    """Return a step on (width, batch) arrays for one on (batch, features) arrays.

    Parameters
    ----------
    step : callable
        Takes a float64 array (batch, width) and returns an array of that shape.

    Returns
    -------
    callable
        Takes and returns (width, batch).

    Raises
    ------
    ArgumentTypeError
        If `step` is not callable.

    Examples
    --------
    >>> from bnmc.testing import from_features_last
    >>> import numpy as np
    >>> from_features_last(lambda h: h + [[1.0], [2.0]])(np.zeros((3, 2)))
    array([[1., 2.],
           [1., 2.],
           [1., 2.]])
    """
    if not callable(step):
        raise ArgumentTypeError("step", step, "a function of a (batch, width) array")
    return lambda h: np.swapaxes(as_numpy(step(np.ascontiguousarray(h.T))), -1, -2)


def from_images(step: Callable[[NDArray[np.float64]], Any], shape: tuple[int, int]) -> Step:
    """Return a step on (width, batch) arrays for one on images of PyTorch's layout.

    Parameters
    ----------
    step : callable
        Takes a float64 array (samples, channels, height, width) and returns an array of that shape.
    shape : (int, int)
        Height and width of the images: `shape` of `bnmc.Chain.conv`.

    Returns
    -------
    callable
        Takes and returns (channels, samples * height * width), the states of a convolutional chain.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `step` is not callable, or `shape` is not a pair of integers >= 1.

    Examples
    --------
    >>> from bnmc.testing import from_images
    >>> import numpy as np
    >>> flipped = from_images(lambda images: images[..., ::-1], (1, 3))
    >>> flipped(np.array([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]))  # one channel, two samples
    array([[3., 2., 1., 6., 5., 4.]])
    """
    if not callable(step):
        allowed = "a function of a (samples, channels, height, width) array"
        raise ArgumentTypeError("step", step, allowed)
    sizes = Convolution(shape, (1, 1)).shape

    def flat(h: NDArray[np.float64]) -> Any:
        images = h.reshape(len(h), -1, *sizes).swapaxes(0, 1)
        returned = as_numpy(step(np.ascontiguousarray(images)))
        if np.shape(returned) != images.shape:
            raise ArgumentError("step(h)", np.shape(returned), f"an array of shape {images.shape}")
        return np.swapaxes(returned, 0, 1).reshape(h.shape)

    return flat


def from_linear_first(*layers: Callable[[Any], Any]) -> Step:
    """Return a step that ends with the weights for a block that begins with them.

    For a network Linear → BatchNorm → activation → Linear → …, the argument of the step is the
    output of a Linear.  The step applies norm and activation, and then the next Linear.

    Parameters
    ----------
    *layers : callable
        At least two, in the order of the block.  The first has the weights and must draw new ones
        at every call.

    Returns
    -------
    callable
        ``h -> layers[0](layers[-1](… layers[1](h)))``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If there are fewer than two, or one is not callable.

    Examples
    --------
    >>> from bnmc.testing import from_linear_first
    >>> import numpy as np
    >>> block = (lambda a: 10 * a, lambda h: h - 1, np.abs)
    >>> from_linear_first(*block)(np.array([[0.0, 3.0]]))
    array([[10., 20.]])
    """
    if len(layers) < 2:
        raise ArgumentError("layers", len(layers), "at least two: weights, then norm")
    for layer in layers:
        if not callable(layer):
            raise ArgumentTypeError("layers", layer, "functions of an array")

    def step(h: NDArray[np.float64]) -> Any:
        value: Any = h
        for layer in (*layers[1:], layers[0]):
            value = layer(value)
        return value

    return step


def as_numpy(value: Any) -> Any:
    """Return a NumPy array for an array of another library, detached and copied to the host."""
    for method in ("detach", "cpu"):
        if hasattr(value, method):
            value = getattr(value, method)()
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):
        value = value.get()
    return value if isinstance(value, (list, tuple)) else np.asarray(value)
