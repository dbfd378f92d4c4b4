"""Keywords that other libraries, and earlier versions, use for an argument of ours."""

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

#: Names that 0.3 changed: arguments of functions, attributes of classes, options of commands,
#: and constructors, with the calls that replace them.
RENAMED = {
    "Chain": {
        "bn_linear": 'Chain(width, batch, "linear", norm="batch-uncentred")',
        "bn_mlp": "Chain(width, batch, activation)",
        "vanilla": 'Chain(width, batch, activation, norm="none")',
    },
    "bnmc certify": {"--replicates": "--chains"},
    "bnmc check": {"--size": "--chains"},
    "experiments.run": {
        "networks": "chains", "batch_networks": "batch_chains", "wide_networks": "wide_chains",
        "pairs": "contraction_chains", "replicates": "bound_chains",
        "references": "reference_chains", "vanilla": "vanilla_chains",
    },
    "gradients.Backpropagation": {
        "rate": "backward_rate", "mean_field_rate": "mean_field_backward_rate"
    },
    "infinite_width.Convergence": {"stderr": "distances"},
    "infinite_width.SimulatedKernel": {"networks": "chains"},
    "infinite_width.convergence": {"networks": "chains"},
    "infinite_width.nngp": {"networks": "chains"},
    "infinite_width.ntk": {"networks": "chains"},
    "infinite_width.train_networks": {"networks": "chains"},
    "invariant.CheckReport": {"size": "chains"},
    "invariant.InvariantSample": {"tolerance": "atol"},
    "invariant.check": {"size": "chains", "tolerance": "atol"},
    "invariant.expectation": {"replicates": "chains"},
    "invariant.sample": {"size": "chains", "tolerance": "atol"},
    "mean_field.CorrelationMap.fixed_points": {"tolerance": "atol"},
    "mean_field.CorrelationMap.phase": {"tolerance": "atol"},
    "mean_field.PairTrajectory": {"gradient_factor": "backward_rate"},
    "mean_field.Phase": {"gradient_factor": "backward_rate"},
    "mixing.Contraction": {"exponent_stderr": "exponent"},
    "mixing.LaggedDistance": {"replicates": "chains"},
    "mixing.LaggedDistance.layers_to": {"tolerance": "atol"},
    "mixing.Relaxation": {"deviation_stderr": "deviation"},
    "mixing.Spectrum": {"singular_errors": "singular_values"},
    "mixing.TVBound": {
        "replicates": "chains", "survival": "lagged", "survival_ci": "lagged",
        "survival_band": "lagged",
    },
    "mixing.TVBound.layers_to": {"tolerance": "atol"},
    "mixing.autocorrelation": {"tol": "least_times"},
    "mixing.compare": {"pairs": "chains", "replicates": "chains"},
    "mixing.contraction": {"pairs": "chains"},
    "mixing.tv_bound": {"replicates": "chains"},
    "plot.gradient_norms": {"rate": "backward_rate"},
    "plot.measurement": {"rate": "backward_rate"},
    "torch.Measurement": {"rate": "backward_rate"},
}  # fmt: skip


def renamed(thing: Any) -> dict[str, str]:
    """Return the present names of arguments or attributes of a function or class, by earlier one.

    Examples
    --------
    >>> from bnmc._support.keywords import renamed
    >>> from bnmc.mixing import tv_bound
    >>> renamed(tv_bound)
    {'replicates': 'chains'}
    """
    package = thing.__module__.removeprefix("bnmc.").partition(".")[0]
    place = f"{package}.{thing.__qualname__.removesuffix('.__init__')}"
    return RENAMED.get(place.removeprefix("chain."), {})


class NamesReplacements(type):
    """The type of classes whose error about a former constructor has the present call."""

    def __getattr__(cls, name: str) -> Any:
        text = f"type object {cls.__name__!r} has no attribute {name!r}"
        if name in (names := renamed(cls)):
            text = f"{text}; it is now `{names[name]}`"
        raise AttributeError(text, name=name, obj=cls)


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
    owner, earlier = function.__qualname__.removesuffix(".__init__"), renamed(function)
    foreign = {
        name: (argument, what)
        for argument, (what, *names) in _KEYWORDS.items()
        for name in names
        if argument in ours and name not in ours
    }

    @functools.wraps(function)
    def explained(*arguments: Any, **options: Any) -> Any:
        for name in options:
            if name in earlier:
                new = earlier[name]
                raise ArgumentTypeError(name, options[name], new, f"`{name}` is now `{new}`")
            if name in foreign:
                argument, what = foreign[name]
                hint = f"{owner} has no argument {name}"
                raise ArgumentTypeError(name, options[name], f"{argument}, {what}", hint)
        return function(*arguments, **options)

    return explained  # type: ignore[return-value]
