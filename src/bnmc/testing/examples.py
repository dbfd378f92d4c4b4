"""Layers in PyTorch and JAX, as steps for `assert_same_law`.

With the default options the layers have the law of a chain.  The other options are common settings
with another law.  PyTorch and JAX are imported when a step is built.  PyTorch is the extra
`torch`; JAX is no extra.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from bnmc._support.arguments import Float64Array, choice, integer, real
from bnmc._support.extras import import_extra
from bnmc.chain.convolution import Convolution
from bnmc.errors import ArgumentError, ArgumentTypeError, BackendError, MissingExtraError

__all__ = ["jax_step", "torch_conv_step", "torch_step"]

Step = Callable[[Float64Array], Any]

#: Names of the laws of weights.
_TORCH_WEIGHTS = ("lecun", "kaiming", "default")
_JAX_WEIGHTS = ("lecun", "kaiming", "flax")


def torch_step(
    width: int,
    activation: str = "relu",
    *,
    eps: float = 1e-30,
    training: bool = True,
    momentum: float = 0.0,
    weights: str = "lecun",
    seed: int = 0,
) -> Step:
    """Build a layer of ``BatchNorm1d``, activation and a new ``Linear`` in PyTorch, in float64.

    Parameters
    ----------
    width : int
        Width of the layer, >= 1.
    activation : str, default "relu"
        Name of a function of `torch.nn.functional` or of `torch`.
    eps : float, default 1e-30
        ε of BatchNorm1d, > 0.  The default of BatchNorm1d is 1e-5.
    training : bool, default True
        False for evaluation mode, with running statistics.
    momentum : float, default 0
        Weight of each state in the running statistics, in [0, 1].  With 0 they keep their initial
        values.  With 1 they are those of the last state, with a variance divided by n - 1
        (ddof = 1).
    weights : {"lecun", "kaiming", "default"}
        N(0, 1/width); ``kaiming_normal_``, N(0, 2/width); or the default of ``Linear``, with bias.
    seed : int, default 0
        Seed of the random numbers of the step; PyTorch's global generator is unchanged.

    Returns
    -------
    callable
        A step for `assert_same_law`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendError, MissingExtraError
        For arguments that are not allowed, and if PyTorch is missing.

    Examples
    --------
    .. code-block:: python

        chain = bnmc.Chain(width=64, batch=8, activation="relu")
        assert_same_law(torch_step(64), chain)  # passes
        assert_same_law(torch_step(64, eps=1e-5), chain)  # LawMismatch: eps
        assert_same_law(torch_step(64, training=False, momentum=1.0), chain)  # ... ddof
    """
    width, seed = integer("width", width, low=1), integer("seed", seed, low=0, high=2**63 - 1)
    eps, weights = real("eps", eps, above=0.0), choice("weights", weights, _TORCH_WEIGHTS)
    momentum = real("momentum", momentum, low=0.0, high=1.0)
    torch: Any = _framework("torch")
    sigma = _torch_activation(torch, activation)
    norm = torch.nn.BatchNorm1d(
        width, eps=eps, momentum=momentum, affine=False, dtype=torch.float64
    )

    def apply(linear: Any, h: Float64Array) -> Any:
        batch = torch.from_numpy(h)
        x = norm.train()(batch)  # also updates the running statistics
        return linear(sigma(x if training else norm.eval()(batch)))

    def draw() -> Any:
        return _torch_layer(torch, "Linear", width, width, weights=weights)

    return from_features_last(_torch_drawing(torch, draw, apply, seed))


def torch_conv_step(
    channels: int,
    activation: str = "relu",
    *,
    shape: tuple[int, int] = (8, 8),
    kernel: tuple[int, int] = (3, 3),
    padding: str = "circular",
    norm: str = "batch",
    weights: str = "lecun",
    eps: float = 1e-30,
    seed: int = 0,
) -> Step:
    """Build a layer of ``BatchNorm2d``, activation and a new ``Conv2d`` in PyTorch, in float64.

    Parameters
    ----------
    channels : int
        Number of channels, >= 1.
    activation : str, default "relu"
        Name of a function of `torch.nn.functional` or of `torch`.
    shape, kernel : (int, int)
        Height and width of images and kernel, as in `bnmc.Chain.conv`.
    padding : {"circular", "zeros", "reflect", "replicate"}
        ``padding_mode`` of Conv2d.  Its default is "zeros".
    norm : {"batch", "instance", "flattened"}
        "batch" is BatchNorm2d, over samples and pixels.  "instance" is InstanceNorm2d, over the
        pixels of each sample.  "flattened" is BatchNorm1d of images that are flattened to features,
        over the samples alone.
    weights : {"lecun", "kaiming", "default"}
        N(0, 1/(channels · taps)); ``kaiming_normal_``, twice the variance; or the default of
        ``Conv2d``, with bias.
    eps : float, default 1e-30
        ε of the norm, > 0.  Its default in PyTorch is 1e-5.
    seed : int, default 0
        Seed of the random numbers of the step; PyTorch's global generator is unchanged.

    Returns
    -------
    callable
        A step for `assert_same_law`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendError, MissingExtraError
        For arguments that are not allowed, and if PyTorch is missing.

    Examples
    --------
    .. code-block:: python

        chain = bnmc.Chain.conv(32, 2, "relu", shape=(4, 4))
        assert_same_law(torch_conv_step(32, shape=(4, 4)), chain)  # passes
        assert_same_law(torch_conv_step(32, shape=(4, 4), padding="zeros"), chain)  # LawMismatch
    """
    channels = integer("channels", channels, low=1)
    seed = integer("seed", seed, low=0, high=2**63 - 1)
    eps, weights = real("eps", eps, above=0.0), choice("weights", weights, _TORCH_WEIGHTS)
    choice("padding", padding, ("circular", "zeros", "reflect", "replicate"))
    choice("norm", norm, ("batch", "instance", "flattened"))
    convolution = Convolution(shape, kernel)
    torch: Any = _framework("torch")
    sigma = _torch_activation(torch, activation)
    features = channels * (convolution.positions if norm == "flattened" else 1)
    kind = {"batch": "BatchNorm2d", "instance": "InstanceNorm2d", "flattened": "BatchNorm1d"}[norm]
    normal = getattr(torch.nn, kind)(features, eps=eps, affine=False, dtype=torch.float64)

    def draw() -> Any:
        sizes, options = (channels, channels, convolution.kernel), {"padding_mode": padding}
        return _torch_layer(torch, "Conv2d", *sizes, weights=weights, padding="same", **options)

    def apply(layer: Any, h: Float64Array) -> Any:
        images = torch.from_numpy(h)
        parts = images.flatten(1) if norm == "flattened" else images
        return layer(sigma(normal(parts).reshape(images.shape)))

    return from_images(_torch_drawing(torch, draw, apply, seed), convolution.shape)


def jax_step(
    width: int,
    activation: str = "relu",
    *,
    eps: float = 0.0,
    training: bool = True,
    ddof: int = 0,
    weights: str = "lecun",
    seed: int = 0,
) -> Step:
    """Build a layer of ``jax.nn``: ``standardize`` over the batch, activation, new weights.

    It computes in JAX's default precision, float32.

    Parameters
    ----------
    width : int
        Width of the layer, >= 1.
    activation : str, default "relu"
        Name of a function of `jax.nn` or of `jax.numpy`.
    eps : float, default 0
        ε of ``standardize``, >= 0.  Its default in JAX and Flax is 1e-5.
    training : bool, default True
        False for evaluation mode, with the initial running statistics of
        ``flax.linen.BatchNorm``: mean 0 and variance 1.
    ddof : {0, 1}
        The variance is divided by n - ddof.
    weights : {"lecun", "kaiming", "flax"}
        N(0, 1/width); ``he_normal``, of variance 2/width; or ``lecun_normal``, the default of
        ``flax.linen.Dense``.  The last two are normal laws truncated at two standard deviations.
    seed : int, default 0
        Seed of the key, which is split at every call.

    Returns
    -------
    callable
        A step for `assert_same_law`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendError, MissingExtraError
        For arguments that are not allowed, and if JAX is missing.

    Examples
    --------
    .. code-block:: python

        chain = bnmc.Chain(width=64, batch=8, activation="relu")
        assert_same_law(jax_step(64), chain)  # passes
        assert_same_law(jax_step(64, weights="flax"), chain)  # LawMismatch: truncated
    """
    width, seed = integer("width", width, low=1), integer("seed", seed, low=0, high=2**32 - 1)
    eps, weights = real("eps", eps, low=0.0), choice("weights", weights, _JAX_WEIGHTS)
    ddof = integer("ddof", ddof, low=0, high=1)
    jax: Any = _framework("jax")
    named = jax.nn, jax.numpy
    choice("activation", activation, [name for module in named for name in dir(module)])
    sigma = getattr(jax.nn, activation, None) or getattr(jax.numpy, activation)
    initializer = {
        "lecun": jax.nn.initializers.normal(stddev=width**-0.5),
        "kaiming": jax.nn.initializers.he_normal(),
        "flax": jax.nn.initializers.lecun_normal(),
    }[weights]
    key = jax.random.key(seed)

    def layer(key: Any, h: Any) -> Any:
        moments = {"mean": h.mean(axis=0), "variance": h.var(axis=0, ddof=ddof)} if ddof else {}
        if not training:
            moments = {"mean": 0.0, "variance": 1.0}
        a = sigma(jax.nn.standardize(h, axis=0, epsilon=eps, **moments))
        return a @ initializer(key, (width, width), h.dtype)

    compiled = jax.jit(layer)

    def step(h: Float64Array) -> Any:
        nonlocal key
        key, fresh = jax.random.split(key)
        return compiled(fresh, jax.numpy.asarray(h, dtype=jax.numpy.float32))

    return from_features_last(step)


def _torch_activation(torch: Any, name: str) -> Any:
    """Return a function of PyTorch by its name, or raise."""
    functional: Any = torch.nn.functional
    names = [name for name in dir(functional) if not name.startswith("_")] + ["sin", "erf", "abs"]
    choice("activation", name, names)
    return getattr(functional, name, None) or getattr(torch, name)


def _torch_layer(torch: Any, kind: str, *sizes: Any, weights: str, **options: Any) -> Any:
    """Return a new ``Linear`` or ``Conv2d`` with weights of a law."""
    make, options = getattr(torch.nn, kind), {"dtype": torch.float64, **options}
    if weights == "default":
        return make(*sizes, **options)
    layer = torch.nn.utils.skip_init(make, *sizes, bias=False, **options)
    if weights == "kaiming":
        torch.nn.init.kaiming_normal_(layer.weight)
    else:
        torch.nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
    return layer


def _torch_drawing(
    torch: Any, draw: Callable[[], Any], apply: Callable[[Any, Float64Array], Any], seed: int
) -> Step:
    """Return a step that draws a layer at every call and applies it, without gradients.

    The random numbers come from a state of their own, which only the draws advance.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = torch.get_rng_state()

    def step(h: Float64Array) -> Any:
        nonlocal state
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            linear = draw()
            state = torch.get_rng_state()
            return apply(linear, h)

    return step


def _framework(name: str) -> ModuleType:
    """Import a framework, or raise `BackendError` if it is missing."""
    try:
        return import_extra(name, name)
    except MissingExtraError as error:
        raise BackendError(name, f"it is not installed: pip install {name}") from error


# --- adapters from layers with other layouts to steps on (width, batch) arrays


def from_features_last(step: Callable[[Float64Array], Any]) -> Step:
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


def from_images(step: Callable[[Float64Array], Any], shape: tuple[int, int]) -> Step:
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
        Raises `ArgumentError` for an array of another shape.

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
    images_of = Convolution(shape, (1, 1))
    sizes, pixels = images_of.shape, images_of.positions

    def flat(h: Float64Array) -> Any:
        if np.ndim(h) != 2 or np.shape(h)[1] % pixels:
            allowed = f"an array (channels, columns), with a multiple of {pixels} columns"
            raise ArgumentError("h", np.shape(h), allowed)
        images = np.reshape(h, (len(h), -1, *sizes)).swapaxes(0, 1)
        returned = as_numpy(step(np.ascontiguousarray(images)))
        if np.shape(returned) != images.shape:
            raise ArgumentError("step(h)", np.shape(returned), f"an array of shape {images.shape}")
        return np.swapaxes(returned, 0, 1).reshape(np.shape(h))

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

    def step(h: Float64Array) -> Any:
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
