"""Activations: the scalar functions that a network applies to every entry of its hidden state.

Named activations, with Φ the distribution function of a standard normal:

============ ==========================================================
name         σ(x)
============ ==========================================================
linear       x
relu         max(x, 0)
leaky_relu   x where x > 0, else x / 100
abs          −x where x < 0, else x
tanh         tanh x
sigmoid      1 / (1 + exp(−x))
sin          sin x
erf          2/√π ∫₀ˣ exp(−t²) dt
elu, celu    x where x > 0, else exp(x) − 1  (α = 1, where the two agree)
selu         s x where x > 0, else s α (exp(x) − 1), with the published s and α
gelu         x Φ(x), the exact form
silu         x / (1 + exp(−x))
============ ==========================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from bnmc._kernels.scalar.activations import BUILTIN
from bnmc._support.arguments import choice, host_array, items, precision, real
from bnmc._support.interruption import interruptible
from bnmc._support.workers import received, sendable
from bnmc.chain.code_digest import ScalarFunction, is_importable
from bnmc.chain.freezing import frozen
from bnmc.errors import ArgumentError, ArgumentTypeError

if TYPE_CHECKING:
    from bnmc._kernels.compiling import Sigma

# Nearly all entries of normalized hidden states are in this range.
_CHECKED = np.linspace(-4.0, 4.0, 801)

#: Lower-case names that differ from ours in more than underscores.
_OTHER_NAMES = {"identity": "linear", "swish": "silu"}

_WITHOUT_UNDERSCORES = {name.replace("_", ""): name for name in BUILTIN}


@dataclass(frozen=True, init=False, repr=False)
class Activation:
    """A scalar function for every entry of the hidden state.

    Parameters
    ----------
    function : callable
        Maps a real number to a real number; Numba must be able to compile it.  Its result depends
        on its argument only.  All that it reads is copied now: variables, arrays, defaults,
        attributes of modules, and the functions that it calls with all that they read.  So later
        changes have no effect.
    kinks : iterable of float, default ()
        The points where the function or its derivative is discontinuous.  Numerical integration
        splits its range there; without declared kinks it takes longer; see Notes.
    name : str, optional
        Name in messages and tables; the default is the name of the function.
    derivative : callable or Activation, optional
        The derivative of the function, which `backpropagate` needs.  At a kink it may have any
        finite value.

    Attributes
    ----------
    name : str
    kinks : tuple of float
        In increasing order.
    derivative : Activation or None
        The argument `derivative`; None for a named activation, whose derivative is built in.
    digest : str
        Identifies the compiled code: the name of a named activation, else a SHA-256 of the bytecode
        and of all values that it refers to.  It is the same in every process with the same Python
        version and source.
    function : callable
        The argument `function`.
    builtin : bool
        Whether it is a named activation.

    Raises
    ------
    ArgumentTypeError
        If `function` or `derivative` is not callable, `kinks` not real numbers or `name` not a
        string.
    ArgumentError
        If a kink is not finite, or if `function` or `derivative` refers to what cannot be copied,
        such as an object of your own class or a pointer to a C function, or has a ``with``
        statement, such as Numba's ``objmode``.

    See Also
    --------
    as_activation : Returns the activation of a name or a function.

    Notes
    -----
    `MeanField.fixed_point` finds kinks, jumps, singular derivatives and bumps that are not declared
    at every number of the function's code, and at the sum, difference, product or ratio of two.
    Elsewhere it finds those that are at least 8e-6 wide on [−2, 2], or 2e-5 wide on [−4, 4].  It
    may miss a narrower feature of height H and width w.  The error of b is then at most about H² w,
    and that of the backward rate is unbounded, so declare the place of the feature in `kinks`.

    Two activations are equal if digest, kinks, name and derivative are.  Pickle stores a named
    activation by its name, a function of an importable module by reference, and any other function
    (a lambda, a closure) by value.  If a function that was stored by reference has another digest
    when it is read, because its module has changed, reading raises `ArgumentError`.

    The process keeps the compiled code of each function until it ends, also after the activation
    is deleted, because Numba cannot unload code.  Per function and precision this takes about
    2.3 MB if the process compiles it (1.7 MB without a simulation), and 0.3 MB if it loads the code
    from disk.  To try thousands of functions, divide them among processes.

    Examples
    --------
    >>> from bnmc import Activation
    >>> import numpy as np
    >>> swish = Activation(lambda x: x / (1 + np.exp(-2 * x)), name="swish")
    >>> swish(np.array([-1.0, 0.0, 1.0])).round(6)
    array([-0.119203,  0.      ,  0.880797])
    >>> Activation.named("relu").kinks
    (0.0,)
    """

    name: str
    kinks: tuple[float, ...]
    digest: str
    derivative: Activation | None
    function: ScalarFunction = field(compare=False)
    builtin: bool = field(compare=False)
    _scalars: dict[str, ScalarFunction] = field(compare=False)

    def __init__(
        self,
        function: ScalarFunction,
        *,
        kinks: Iterable[float] = (),
        name: str | None = None,
        derivative: ScalarFunction | Activation | None = None,
    ) -> None:
        if not callable(function) or isinstance(function, Activation):
            hint = f"Activation.named({function!r})" if isinstance(function, str) else ""
            allowed = "a function of one real number"
            raise ArgumentTypeError("function", function, allowed, hint)
        if name is None:
            name = str(getattr(function, "__name__", type(function).__name__))
        elif not isinstance(name, str):
            raise ArgumentTypeError("name", name, "a string")
        given = items("kinks", kinks, "a sequence of real numbers")
        scalar, digest = frozen(function, name)
        slope = derivative
        if slope is not None and not isinstance(slope, Activation):
            if not callable(slope):
                raise ArgumentTypeError("derivative", slope, "a function of one real number")
            slope = Activation(slope, kinks=given, name=f"derivative of {name}")
        self._set(
            name=name,
            kinks=tuple(sorted({real("kinks", kink) for kink in given})),
            digest=digest,
            derivative=slope,
            function=function,
            builtin=False,
            _scalars={"float32": scalar, "float64": scalar},
        )

    def _set(self, **values: object) -> None:
        for attribute, value in values.items():
            object.__setattr__(self, attribute, value)

    @classmethod
    def named(cls, name: str) -> Activation:
        """Return the activation of a name; the table of the module lists the names.

        Parameters
        ----------
        name : str
            In any spelling: "ReLU" is "relu", "swish" is "silu", "identity" is "linear".

        Returns
        -------
        Activation

        Raises
        ------
        UnknownNameError
            If no activation has that name; the message proposes the nearest name.

        Examples
        --------
        >>> from bnmc import Activation
        >>> Activation.named("tahn")
        Traceback (most recent call last):
            ...
        bnmc.errors.UnknownNameError: activation: got 'tahn', allowed: linear, relu, leaky_relu,
        abs, tanh, sigmoid, sin, erf, elu, celu, selu, gelu, silu (did you mean 'tanh'?)
        """
        builtin = builtin_name(name) if isinstance(name, str) else None
        return _named(builtin or choice("activation", name, BUILTIN))

    @property
    def is_linear(self) -> bool:
        """Whether it is the activation "linear"."""
        return self.builtin and self.name == "linear"

    def scalar(self, dtype: DTypeLike) -> ScalarFunction:
        """Return the plain Python function of a scalar that kernels compile for a dtype.

        Parameters
        ----------
        dtype : dtype
            float32 or float64.

        Returns
        -------
        callable

        Raises
        ------
        ArgumentError
            If `dtype` is another one.

        Examples
        --------
        >>> from bnmc import Activation
        >>> import numpy as np
        >>> float(Activation.named("relu").scalar("float32")(np.float32(-1)))
        0.0
        """
        return self._scalars[precision(dtype)]

    def __call__(self, x: ArrayLike) -> Any:
        """Apply the function to every entry.

        Parameters
        ----------
        x : array_like of real numbers

        Returns
        -------
        ndarray or scalar
            Of the shape of `x`; float32 if `x` is float32, else float64.

        Raises
        ------
        ArgumentTypeError
            If `x` is not an array of real numbers.
        ArgumentError
            If Numba cannot compile the function.

        Examples
        --------
        >>> from bnmc import Activation
        >>> Activation.named("abs")([[1, -2]])
        array([[1., 2.]])
        """
        given = host_array("x", x)
        if given.dtype.kind not in "biuf":
            raise ArgumentTypeError("x", x, "real numbers")
        dtype = np.float32 if given.dtype == np.float32 else np.float64
        with np.errstate(over="ignore", under="ignore"):  # infinite or 0 beyond float64
            result = np.array(given, dtype=dtype, order="C", subok=False)
        _compiled(self, result.dtype.name)(result.reshape(-1))
        return result[()]

    def check(self) -> None:
        """Raise unless the function compiles, and is real, finite and the same twice on [−4, 4].

        Raises
        ------
        ArgumentError
            With the reason.

        Examples
        --------
        >>> from bnmc import Activation
        >>> import numpy as np
        >>> Activation(np.log).check()
        Traceback (most recent call last):
            ...
        bnmc.errors.ArgumentError: activation: got 'log', allowed: a function that is finite on
        [-4, 4] (it is nan at -4)
        """
        if self.builtin:
            return
        allowed = "a function that is finite on [-4, 4]"
        _compiled(self, "float64")
        try:
            values, again = interruptible(lambda: (self(_CHECKED), self(_CHECKED)))
        except Exception as error:  # the user's function may raise anything
            hint = f"it raises {type(error).__name__}: {error}"
            raise ArgumentError("activation", self.name, allowed, hint) from error
        if values.tobytes() != again.tobytes():
            at = int((values.view(np.int64) != again.view(np.int64)).argmax())
            hint = f"at {_CHECKED[at]:.6g} it is {values[at]}, and then {again[at]}"
            allowed = "a function whose result depends on its argument only"
            raise ArgumentError("activation", self.name, allowed, hint)
        wrong = ~np.isfinite(values)
        if wrong.any():
            hint = f"it is {values[wrong][0]} at {_CHECKED[wrong][0]:.6g}"
            raise ArgumentError("activation", self.name, allowed, hint)

    def check_derivative(self) -> None:
        """Raise unless `derivative` is the derivative of the function, on most of [−4, 4].

        Raises
        ------
        ArgumentError
            If it is not finite, or differs from differences of the function at more than a tenth of
            801 points.  So kinks that were not declared do no harm.

        Examples
        --------
        >>> from bnmc import Activation
        >>> Activation(lambda x: x * x, derivative=lambda x: 3 * x).check_derivative()
        Traceback (most recent call last):
            ...
        bnmc.errors.ArgumentError: derivative: got 'derivative of <lambda>', allowed: the derivative
        of <lambda> (at -4 it is -12, and differences of the function are -8)
        """
        if self.derivative is None:
            return
        self.derivative.check()
        step = 2.0**-17
        differences = (self(_CHECKED + step) - self(_CHECKED - step)) / (2.0 * step)
        slopes = self.derivative(_CHECKED)
        wrong = np.abs(slopes - differences) > 1e-4 * (1.0 + np.abs(slopes))
        if wrong.mean() > 0.1:
            at = int(wrong.argmax())
            hint = (
                f"at {_CHECKED[at]:.6g} it is {slopes[at]:.6g}, and differences of the function "
                f"are {differences[at]:.6g}"
            )
            allowed = f"the derivative of {self.name}"
            raise ArgumentError("derivative", self.derivative.name, allowed, hint)

    def __repr__(self) -> str:
        if self.builtin:
            return f"Activation.named({self.name!r})"
        return f"<Activation {self.name!r}, kinks={self.kinks}, digest {self.digest[:8]}>"

    def __reduce__(self) -> tuple[Callable[..., Activation], tuple[Any, ...]]:
        if self.builtin:
            return _named, (self.name,)
        function: ScalarFunction | bytes = self.function
        if not is_importable(self.function):
            function = sendable("activation", self.name, self._scalars["float64"])
        options = {"kinks": self.kinks, "name": self.name, "derivative": self.derivative}
        return _rebuilt, (function, options, self.digest)

    def __copy__(self) -> Activation:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Activation:
        return self


#: What `as_activation` takes.
ActivationLike = str | ScalarFunction | Activation


def as_activation(spec: ActivationLike) -> Activation:
    """Return the activation of a name or a function, or the activation itself.

    Parameters
    ----------
    spec : str, callable, Activation or module of PyTorch
        ``torch.nn.ReLU()`` is "relu".

    Returns
    -------
    Activation

    Raises
    ------
    UnknownNameError
        If `spec` is an unknown name.
    ArgumentTypeError
        If `spec` is neither a name, a function nor an activation.

    Examples
    --------
    >>> from bnmc.chain.activations import as_activation
    >>> as_activation("tanh")
    Activation.named('tanh')
    >>> as_activation(lambda x: x * x)
    <Activation '<lambda>', kinks=(), digest ...>
    """
    if isinstance(spec, Activation):
        return spec
    if isinstance(spec, str):
        return Activation.named(spec)
    if is_torch_module(spec):
        name = name_of_module(spec)
        if name is None:
            names = ", ".join(BUILTIN)
            allowed = f"a scalar function, or one of {names} with PyTorch's default parameters"
            raise ArgumentTypeError("activation", spec, allowed)
        return _named(name)
    if callable(spec):
        return Activation(spec)
    raise ArgumentTypeError("activation", spec, "a name, a function or an Activation")


@cache
def _named(name: str) -> Activation:
    entry = BUILTIN[name]
    activation = Activation.__new__(Activation)
    activation._set(
        name=name,
        kinks=entry.kinks,
        digest=name,
        derivative=None,
        function=entry.function64,
        builtin=True,
        _scalars={"float32": entry.function32, "float64": entry.function64},
    )
    return activation


# --- compilation


@lru_cache(maxsize=256)
def _compiled(activation: Activation, dtype: str) -> Callable[[NDArray[Any]], None]:
    """Return the kernel that applies an activation to an array, compiled for a dtype."""
    from bnmc._kernels.cpu.elementwise import apply  # Numba takes long to import

    kernel = partial(apply, sigma_of(activation))
    try:
        kernel(np.empty(0, dtype))
    except Warning:  # the kernel cache warns, and a filter made an error of that
        raise
    except Exception as error:  # Numba raises more than its own errors
        allowed = "a function of one real number, to one, that Numba can compile"
        hint = _complaint(activation.scalar(dtype), dtype) or _first_line(error)
        raise ArgumentError("activation", activation.name, allowed, hint) from error
    return kernel


def _complaint(function: ScalarFunction, dtype: str) -> str:
    """The error of Numba for the function alone, without its kernel."""
    import numba

    compiled: Any = numba.njit(function)
    try:
        compiled.compile((numba.from_dtype(np.dtype(dtype)),))
    except Exception as error:  # as above
        return _first_line(error)
    returned = compiled.nopython_signatures[0].return_type
    return f"it returns {returned}"


def _first_line(error: Exception) -> str:
    """The first line of an error that is not empty, without colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines()]
    return next((s for s in lines if s and not s.startswith("Failed in")), type(error).__name__)


def _rebuilt(function: ScalarFunction | bytes, options: dict[str, Any], digest: str) -> Activation:
    given = received(function) if isinstance(function, bytes) else function
    activation = Activation(given, **options)
    if activation.digest != digest:
        allowed = "the function that was pickled"
        hint = "its code, a value that it reads or the version of Python is another one here"
        raise ArgumentError("activation", activation.name, allowed, hint)
    return activation


# --- an activation and its derivative, as arguments of kernels


def sigma_of(activation: Activation) -> Sigma:
    """Return the activation as an argument of kernels."""
    from bnmc._kernels.compiling import Sigma

    sigma = Sigma.by_digest.get(activation.digest)
    return Sigma(activation.digest, activation._scalars) if sigma is None else sigma


def require_derivative(activation: Activation) -> None:
    """Raise unless the derivative of an activation is known and agrees with differences.

    Raises
    ------
    ArgumentError
        If a function has no derivative, or another one.
    """
    if activation.derivative is None and not activation.builtin:
        allowed = "a named activation, or one with its derivative"
        hint = "bnmc.Activation(function, derivative=...)"
        raise ArgumentError("activation", activation.name, allowed, hint)
    activation.check_derivative()


def slope_of(activation: Activation) -> Sigma:
    """Return the derivative of an activation that `require_derivative` accepts."""
    if activation.derivative is not None:
        return sigma_of(activation.derivative)
    from bnmc._kernels.compiling import Sigma
    from bnmc._kernels.scalar.slopes import SLOPES

    # No function of Python has this digest, as digests of functions are hexadecimal.
    digest = f"slope of {activation.name}"
    if digest not in Sigma.by_digest:
        Sigma(digest, dict(zip(("float32", "float64"), SLOPES[activation.name], strict=True)))
    return Sigma.by_digest[digest]


def slope_at(activation: Activation, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the derivative of an activation that `require_derivative` accepts, at every entry."""
    from bnmc._kernels.cpu.elementwise import apply

    values = np.array(x, np.float64, order="C")
    apply(slope_of(activation), values.reshape(-1))
    return values


# --- names in other libraries: of PyTorch's modules, and other spellings


def builtin_name(name: str) -> str | None:
    """Return the built-in name of an activation in any spelling, or None.

    Examples
    --------
    >>> from bnmc.chain.activations import builtin_name
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
