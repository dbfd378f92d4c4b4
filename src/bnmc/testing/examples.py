"""Layers in PyTorch and JAX, as steps that `assert_same_law` takes.

Their defaults have the law of a chain; the other options are what programs do in practice.
Neither framework is an extra of bnmc: they are imported when a step is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import choice, integer, real
from bnmc.errors import BackendError
from bnmc.testing.adapters import from_features_last

__all__ = ["jax_step", "torch_step"]

Step = Callable[[NDArray[np.float64]], Any]
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
        At least 1.
    activation : str, default "relu"
        A function of `torch.nn.functional`, or of `torch`.
    eps : float, default 1e-30
        Of BatchNorm1d, whose own default is 1e-5 and which takes no 0; positive.
    training : bool, default True
        False for evaluation mode, that is with running statistics.
    momentum : float, default 0
        Weight of each state in the running statistics, in [0, 1]. With 0 they are those of a layer
        that has seen no batch; with 1 those of the state alone, whose variance PyTorch divides by
        n - 1 there (ddof = 1).
    weights : {"lecun", "kaiming", "default"}
        N(0, 1/width); ``kaiming_normal_``, N(0, 2/width); or those of ``Linear`` with its bias.
    seed : int, default 0
        Of PyTorch's generator while the step draws; its state outside is left alone.

    Returns
    -------
    callable
        For `assert_same_law`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendError
        For arguments that are not allowed, and without PyTorch.

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
    functional: Any = torch.nn.functional
    known = [name for name in dir(functional) if not name.startswith("_")] + ["sin", "erf", "abs"]
    choice("activation", activation, known)
    sigma = getattr(functional, activation, None) or getattr(torch, activation)
    norm = torch.nn.BatchNorm1d(
        width, eps=eps, momentum=momentum, affine=False, dtype=torch.float64
    )
    init = torch.nn.init
    initialise = (
        init.kaiming_normal_
        if weights == "kaiming"
        else (lambda weight: init.normal_(weight, std=width**-0.5))
    )

    def normalised(h: Any) -> Any:
        x = norm.train()(h)  # which also updates the running statistics
        return x if training else norm.eval()(h)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = torch.get_rng_state()

    def step(h: NDArray[np.float64]) -> Any:
        nonlocal state
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            if weights == "default":
                linear = torch.nn.Linear(width, width, dtype=torch.float64)
            else:
                linear = torch.nn.utils.skip_init(
                    torch.nn.Linear, width, width, bias=False, dtype=torch.float64
                )
                initialise(linear.weight)
            state = torch.get_rng_state()
            return linear(sigma(normalised(torch.from_numpy(h))))

    return from_features_last(step)


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
        At least 1.
    activation : str, default "relu"
        A function of `jax.nn`, or of `jax.numpy`.
    eps : float, default 0
        Of ``standardize``; `jax.nn.standardize` and ``flax.linen.BatchNorm`` default to 1e-5.
    training : bool, default True
        False for evaluation mode, with the running statistics that ``flax.linen.BatchNorm`` begins
        with: mean 0 and variance 1.
    ddof : {0, 1}
        With 1 the variance is divided by n - 1.
    weights : {"lecun", "kaiming", "flax"}
        N(0, 1/width); ``he_normal``, of variance 2/width; or the default of ``flax.linen.Dense``,
        ``lecun_normal``. The latter two are normal laws that are truncated at two standard
        deviations.
    seed : int, default 0
        Of the key, which is split at every call.

    Returns
    -------
    callable
        For `assert_same_law`.

    Raises
    ------
    ArgumentError, ArgumentTypeError, BackendError
        For arguments that are not allowed, and without JAX.

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
        known = {"mean": h.mean(axis=0), "variance": h.var(axis=0, ddof=ddof)} if ddof else {}
        if not training:
            known = {"mean": 0.0, "variance": 1.0}
        a = sigma(jax.nn.standardize(h, axis=0, epsilon=eps, **known))
        return a @ initializer(key, (width, width), h.dtype)

    compiled = jax.jit(layer)

    def step(h: NDArray[np.float64]) -> Any:
        nonlocal key
        key, own = jax.random.split(key)
        return compiled(own, jax.numpy.asarray(h, dtype=jax.numpy.float32))

    return from_features_last(step)


def _framework(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise BackendError(name, f"it is not installed: pip install {name}") from error
