"""Results as JSON, which has neither arrays nor numbers that are not finite."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bnmc.errors import ArgumentTypeError

__all__ = ["dumps", "plain"]


def dumps(document: Any) -> str:
    """Return the text of a JSON document, without a newline at its end."""
    return json.dumps(plain(document), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """Return what JSON has for a value.

    An infinite number becomes the string "Infinity" or "-Infinity", which `float` reads, as
    JavaScript's `Number` does; one that is not a number becomes None.
    """
    if hasattr(value, "as_json"):
        return plain(value.as_json())
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise ArgumentTypeError("value", value, "a string, a number, or lists or dicts of them")
