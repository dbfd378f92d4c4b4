"""Keywords that other libraries use for an argument of ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from bnmc.errors import ArgumentTypeError

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Our arguments: the values that they take, and keywords of other libraries for them.
_KEYWORDS = {
    "rng": ("a seed or a generator", "seed", "random_state", "key", "generator"),
    "chains": ("the number of networks", "n_chains", "num_chains", "networks"),
    "backend": ('"cpu" or "cuda"', "device"),
    "batch": ("the number of samples", "batch_size", "n_samples"),
    "width": ("the number of neurons per layer", "hidden_size"),
    "depth": ("the number of layers", "n_layers", "num_layers", "layers"),
    "threads": ("the number of threads", "n_jobs", "num_workers"),
    "initial": ("the input, of shape (width, batch)", "x", "X"),
    "dtype": ('"float32" or "float64"', "precision"),
    "progress": ("True or False", "verbose"),
    "norm": ("the name of a norm", "normalization"),
    "activation": ("a name or a function", "nonlinearity", "act"),
}


def explains_keywords(function: _Function) -> _Function:
    """Let the error of an unknown keyword name the argument that the caller may mean.

    Examples
    --------
    >>> from bnmc._support.keywords import explains_keywords
    >>> @explains_keywords
    ... def draw(*, rng=None):
    ...     return rng
    >>> draw(seed=3)
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentTypeError: seed: got 3, allowed: rng, a seed or a generator (draw has no
    argument seed)
    """
    ours = inspect.signature(function).parameters
    foreign = {
        name: (argument, what)
        for argument, (what, *names) in _KEYWORDS.items()
        for name in names
        if argument in ours and name not in ours
    }

    @functools.wraps(function)
    def explained(*arguments: Any, **options: Any) -> Any:
        if not foreign.keys().isdisjoint(options):
            name = next(name for name in options if name in foreign)
            argument, what = foreign[name]
            owner = function.__qualname__.removesuffix(".__init__")
            raise ArgumentTypeError(
                name, options[name], f"{argument}, {what}", f"{owner} has no argument {name}"
            )
        return function(*arguments, **options)

    return explained  # type: ignore[return-value]
