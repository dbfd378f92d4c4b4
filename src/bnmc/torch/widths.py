"""The architecture of a model at other widths, from a function of the width."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bnmc._support.arguments import integer, items
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.torch.models import torch


def as_widths(factory: object, widths: object) -> list[int]:
    """Return the widths of the arguments `factory` and `widths`; none if both are None."""
    if factory is None and widths is None:
        return []
    if not callable(factory) or isinstance(factory, torch.nn.Module):
        raise ArgumentTypeError("factory", factory, "a function of the width, as there are widths")
    allowed = "integers of at least 1, which the factory takes"
    sizes = [integer("widths", width, low=1) for width in items("widths", widths, allowed)]
    if not sizes:
        raise ArgumentError("widths", widths, allowed)
    return sizes


def at_width(factory: Callable[[int], Any], width: int) -> Callable[[], torch.nn.Module]:
    """Return a factory of models of a width, whose large layers have no weights."""
    from bnmc.torch.implicit_models import implicit_  # derives classes from those of PyTorch

    def made() -> torch.nn.Module:
        with torch.device("meta"):
            model = factory(width)
        return implicit_(model)

    return made
