"""The options that several commands share, by the name of the parameter that takes their value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any

import typer

# A type with an option of Typer, and the default.
_Option = tuple[Any, Any]


def _option(kind: Any, default: Any, text: str, *names: str, **settings: Any) -> _Option:
    return Annotated[kind, typer.Option(*names, help=text, **settings)], default


def seed_of(text: str) -> int:
    """Return the seed, or the key of a run, that an option contains."""
    from bnmc._support.arguments import Key

    try:
        # A default is an integer.
        return Key.of(text) if str(text).startswith("key:") else int(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither an integer nor the key of a run, as in key:0123456789abcdef"
        ) from None


#: Options by the name of the parameter: first those of a chain, which are arguments of `Chain`.
OPTIONS: dict[str, _Option] = {
    "width": _option(int, 1000, "Number of neurons per layer."),
    "batch": _option(int, 10, "Number of samples in the batch."),
    "activation": _option(
        str, "relu",
        "Activation: linear, relu, leaky_relu, abs, tanh, sigmoid, sin, erf, elu, celu, selu, "
        "gelu or silu.",
        metavar="NAME",
    ),
    "norm": _option(
        str, "batch",
        "Normalization: batch, batch-uncentred, layer, rms, group(8) (8 groups) or none.",
        metavar="NAME",
    ),
    "order": _option(
        str, "norm-activation",
        "Order in a layer: norm-activation, activation-norm or pre-activation (residual).",
        metavar="NAME",
    ),
    "skip": _option(float, 0.0, "Factor of the skip connection; 0 for none."),
    "gain": _option(
        float | None, None, "Factor of the weights. Default: 1; 1/√3 for the law pytorch.",
        show_default=False,
    ),
    "weights": _option(
        str, "gaussian",
        "Law of the weights: gaussian, uniform, rademacher, haar, or pytorch (the default of "
        "nn.Linear, with its bias).",
        metavar="LAW",
    ),
    "eps": _option(
        float, 0.0,
        "Constant that the normalization adds to the variance; PyTorch's default is 1e-5.",
    ),
    "bias_variance": _option(float, 0.0, "Variance of the biases."),
    "seed": _option(
        int | None, None,
        "Seed of the random numbers, or the printed key of a run. Default: a random seed, which is "
        "printed.",
        parser=seed_of, metavar="SEED",
    ),
    "sampler": _option(str, "auto", "Sampler: auto, conditional or weights.", metavar="NAME"),
    "dtype": _option(str, "float64", "Precision: float64 or float32.", metavar="TYPE"),
    "threads": _option(
        int | None, None,
        "Number of threads; results do not depend on it. Default: all processors.",
    ),
    "hours": _option(
        float, 1.0, "Longest duration allowed, in hours; a longer forecast raises an error."
    ),
    "store": _option(
        Path | None, None,
        "Folder for finished parts. After an interruption, the same command resumes.",
        metavar="FOLDER",
    ),
    "timeout": _option(
        float | None, None,
        "Time limit in seconds; the report then contains the finished part.",
        metavar="SECONDS",
    ),
    "plot": _option(
        Path | None, None, "File for the picture: .png, .pdf, .svg, .jpg and others of Matplotlib.",
        metavar="FILE",
    ),
    "force": _option(bool, False, "Replace existing files.", "--force"),
    "as_json": _option(
        str | None, None,
        "JSON document: printed instead of the text, or written to FILE (.json) beside it.",
        "--json", metavar="[FILE]",
    ),
    "progress": _option(
        bool | None, None,
        "Progress on standard error: a bar on a terminal, lines elsewhere. Default: on a terminal; "
        "also with --store or --full, if the command has them.",
        "--progress/--no-progress", show_default=False,
    ),
}  # fmt: skip


#: The end of the word for the value of an option that takes several, separated by commas.
_SEVERAL = ",…"


def require_one_list(parameters: Iterable[Any], arguments: Sequence[str]) -> None:
    """Raise if an option that takes a list is repeated: Typer would take the last list alone."""
    # "--norm=batch" is "--norm", "batch".
    words = list(chain.from_iterable(word.split("=", word[:2] == "--") for word in arguments))
    for parameter in parameters:
        if (parameter.metavar or "").endswith(_SEVERAL) and not parameter.multiple:
            option = parameter.opts[-1]
            values = [value for word, value in pairwise(words) if word == option]
            if len(values) > 1:
                from bnmc.errors import ArgumentError  # imports NumPy

                name, hint = option.strip("-"), f"{option} {','.join(values)}"
                allowed = "one list, separated by commas"
                raise ArgumentError(name, " ".join(values), allowed, hint)


def names(text: str) -> list[str]:
    """Return the names of an option, separated by commas."""
    return [name.strip() for name in text.split(",")]


def integers(name: str, text: str) -> list[int]:
    """Return the integers of an option, separated by commas."""
    from bnmc.errors import ArgumentError

    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise ArgumentError(name, text, "integers, separated by commas") from None
