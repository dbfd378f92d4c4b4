"""Names of activations in other libraries: of PyTorch's modules, and other spellings."""

from __future__ import annotations

from typing import Any

from bnmc._kernels.scalar.activations import BUILTIN

#: Lower-case names that differ from ours in more than underscores.
_OTHER_NAMES = {"identity": "linear", "swish": "silu"}

_WITHOUT_UNDERSCORES = {name.replace("_", ""): name for name in BUILTIN}


def builtin_name(name: str) -> str | None:
    """Return the built-in name of an activation in any spelling, or None.

    Examples
    --------
    >>> from bnmc.chain.activation_names import builtin_name
    >>> builtin_name("LeakyReLU"), builtin_name("swish"), builtin_name("softmax")
    ('leaky_relu', 'silu', None)
    """
    plain = name.lower().replace("_", "").replace("-", "")
    return _OTHER_NAMES.get(plain) or _WITHOUT_UNDERSCORES.get(plain)


def is_torch_module(value: object) -> bool:
    """Return whether a value is one of the activations of PyTorch, without importing PyTorch."""
    return type(value).__module__ == "torch.nn.modules.activation"


def name_of_module(module: Any) -> str | None:
    """Return the built-in name of a module of PyTorch with its parameters, or None.

    The built-in functions are PyTorch's with the default parameters: a slope of 0.01, alpha = 1,
    and GELU without approximation.
    """
    parameters = {"negative_slope": 0.01, "alpha": 1.0, "approximate": "none"}
    if any(getattr(module, name, value) != value for name, value in parameters.items()):
        return None
    return builtin_name(type(module).__name__)
