"""Keywords that other libraries use for an argument of ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from bnmc.errors import ArgumentTypeError

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Keywords of other libraries: our argument, and the values that it takes.
_OURS = {
    "seed": ("rng", "a seed or a generator"),
    "random_state": ("rng", "a seed or a generator"),
    "key": ("rng", "a seed or a generator"),
    "generator": ("rng", "a seed or a generator"),
    "n_chains": ("chains", "the number of networks"),
    "num_chains": ("chains", "the number of networks"),
    "networks": ("chains", "the number of networks"),
    "device": ("backend", '"cpu" or "cuda"'),
    "batch_size": ("batch", "the number of samples"),
    "n_samples": ("batch", "the number of samples"),
    "hidden_size": ("width", "the number of neurons per layer"),
    "n_layers": ("depth", "the number of layers"),
    "num_layers": ("depth", "the number of layers"),
    "layers": ("depth", "the number of layers"),
    "n_jobs": ("threads", "the number of threads"),
    "num_workers": ("threads", "the number of threads"),
    "x": ("initial", "the input, of shape (width, batch)"),
    "X": ("initial", "the input, of shape (width, batch)"),
    "precision": ("dtype", '"float32" or "float64"'),
    "verbose": ("progress", "True or False"),
    "normalization": ("norm", "the name of a norm"),
    "nonlinearity": ("activation", "a name or a function"),
    "act": ("activation", "a name or a function"),
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
    foreign = {name: hint for name, hint in _OURS.items() if name not in ours and hint[0] in ours}

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
