"""``bnmc inspect``: ranks and gradients in the layers of a PyTorch model."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from bnmc.cli.command import Report, command


@command(plot=True, needs=lambda _: {"torch": "torch"})
def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY",
            help="Module, and the name of a model in it or of a function that returns one.",
        ),
    ],
    input_: Path,
    labels: Path | None = None,
    loss: str | None = None,
    layers: str | None = None,
    networks: int = 1,
    view: str = "sample",
    eval_: bool = False,
    *,
    seed: int,
) -> Report:
    """Measure ranks and gradients in a PyTorch model.

    The table has one line per layer, and a verdict in words follows it. The module is imported from
    the current folder or from Python's path, so its code runs; what it prints goes to standard
    error. Without --eval, the model stays in the mode in which the factory returns it.

    Example: bnmc inspect models:resnet --input batch.npy --labels labels.npy --plot layers.png

    Parameters
    ----------
    input_ : FILE
        Batch in a .npy or .npz file, with samples on the first axis.
    labels : FILE
        Labels in a .npy or .npz file, one per sample.
    loss : NAME
        Loss: cross-entropy or squared. Default: cross-entropy of integer labels, squared of
        others.
    layers : NAMES
        Names of modules to measure, separated by commas. Default: its blocks.
    networks
        Number of networks, each with new random parameters.
    view : NAME
        Rows of the representation: sample or position.
    eval_
        Evaluation mode: normalization by running statistics.
    """
    from bnmc._support.extras import import_extra
    from bnmc.cli.inputs import read_states
    from bnmc.torch import measure
    from bnmc.torch.representations import layout

    torch: Any = import_extra("torch", "torch")
    states = read_states(input_, "input")
    targets = None if labels is None else read_states(labels, "labels")
    torch.manual_seed(seed)  # the import may draw a model
    with _code_of_the_user(model):
        factory = _factory(model, eval_)
        torch.manual_seed(seed)
        result = measure(
            factory, states, labels=targets, loss=loss, networks=networks, view=view,
            layers=None if layers is None else layers.split(","),
        )  # fmt: skip
    head = f"input: {layout(states.shape, states.ndim > 3)}"
    document = {"input": list(states.shape), **result.to_dict()}
    return Report(document, [head, result], result.plot)


def _factory(text: str, evaluate: bool) -> Any:
    """Return a factory of the model that ``module:name`` names."""
    from bnmc.errors import ArgumentError, ArgumentTypeError

    allowed = "MODULE:NAME of a torch.nn.Module, or of a function that returns one"
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise ArgumentError("model", text, allowed)
    with _current_folder_first():
        try:
            value: Any = importlib.import_module(module_name)
            for part in name.split("."):
                value = getattr(value, part)
        except Exception as error:  # the module of a user raises anything
            hint = f"{type(error).__name__}: {error}"
            raise ArgumentError("model", text, allowed, hint) from error
    from bnmc._support.extras import import_extra

    torch: Any = import_extra("torch", "torch")

    def made() -> Any:
        try:
            model = value if isinstance(value, torch.nn.Module) else value()
        except Exception as error:  # the function of a user raises anything
            hint = f"{type(error).__name__}: {error}"
            raise ArgumentError("model", text, allowed, hint) from error
        if not isinstance(model, torch.nn.Module):
            raise ArgumentTypeError("model", text, allowed, f"it is a {type(model).__name__}")
        return model.eval() if evaluate else model

    return made() if isinstance(value, torch.nn.Module) else made


@contextlib.contextmanager
def _code_of_the_user(text: str) -> Iterator[None]:
    """Send prints to standard error, as the report has standard output; an exit is an error."""
    from bnmc.errors import ArgumentError

    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except SystemExit as end:
        hint = f"SystemExit: {end.code}"
        raise ArgumentError("model", text, "a model whose code does not exit", hint) from end


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    """Look for modules in the current folder first."""
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(os.getcwd())
