"""`coordinate_check`: how far each layer of a model moves in training, against its width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from bnmc._support.arguments import Float64Array, draw_key, integer, integers, items, real
from bnmc._support.text import Result, text_table
from bnmc.errors import ArgumentError, ArgumentTypeError
from bnmc.estimate.estimate import Estimate
from bnmc.plot import axes
from bnmc.plot.drawn import Drawn
from bnmc.torch.layers import Layers, chosen_layers, forward, weight_layers
from bnmc.torch.losses import Loss, as_loss
from bnmc.torch.models import as_inputs, torch
from bnmc.torch.preservation import random_states_kept

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: A learning rate, or a function of the name of a parameter and the width.
Rate = float | Callable[[str, int], float]

#: Sizes further than this from 0 are of a network that has diverged.
_LARGEST = 1e150

_LEVEL = 0.95


@dataclass(frozen=True, eq=False, repr=False)
class CoordinateCheck(Drawn, Result):
    """Sizes and movements of layers by width; ``print`` shows a table.

    `plot` draws the movement of each layer in the last step against the width, with the range of
    the networks.

    Attributes
    ----------
    widths : (widths,) ndarray of int
    layers : tuple of str
        Names of the layers, in the order of their calls.
    sizes, movements : (widths, networks, steps + 1, layers) ndarray of float64
        Root mean square over samples and units of the outputs of a layer, and of their change
        since step 0.  NaN after a network diverged.
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the call.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch import coordinate_check
    >>> def mlp(width):
    ...     return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))
    >>> x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    >>> found = coordinate_check(mlp, [64, 256], x, torch.ones(4, 1), networks=3, rng=0)
    >>> found.layers, found.movements.shape
    (('0', '2'), (2, 3, 2, 2))
    """

    widths: np.ndarray[Any, np.dtype[np.int64]]
    layers: tuple[str, ...]
    sizes: Float64Array
    movements: Float64Array
    key: int

    @property
    def slopes(self) -> dict[str, Estimate]:
        """The slope of ln movement in the last step against ln width, by layer.

        Least squares over networks with Student's interval; layers of a network that diverged, or
        that did not move, are left out.  Layers with fewer than three networks left have none.
        """
        x = np.log(np.repeat(self.widths, self.movements.shape[1]).astype(np.float64))
        slopes = {}
        for number, name in enumerate(self.layers):
            y = self.movements[:, :, -1, number].reshape(-1)
            used = np.isfinite(y) & (y > 0.0)
            if used.sum() > 2 and np.ptp(x[used]) > 0.0:
                slopes[name] = _slope(x[used], np.log(y[used]))
        return slopes

    def __str__(self) -> str:
        slopes = self.slopes
        heads = ["layer", *(f"d = {width}" for width in self.widths), "slope"]
        means = self._means()
        rows = [
            [name, *(f"{value:.3g}" for value in means[:, number]),
             f"{slopes[name].value:.2f}" if name in slopes else ""]
            for number, name in enumerate(self.layers)
        ]  # fmt: skip
        steps = self.movements.shape[2] - 1
        count = "1 step" if steps == 1 else f"{steps} steps"
        table = text_table(heads, rows, align=">")
        lines = [f"root mean square change of layers in {count}", table]
        if slopes:
            name = max(slopes, key=lambda name: abs(slopes[name].value))
            lines.append(f"the slope furthest from 0 is that of {name}: {slopes[name]}")
        if lost := int(np.isnan(self.movements[:, :, -1, -1]).sum()):
            lines.append(f"diverged: {lost} of {self.movements[:, :, 0, 0].size} networks")
        return "\n".join(lines)

    def _means(self) -> Float64Array:
        """Return the means over networks of the movements in the last step, (widths, layers)."""
        last = self.movements[:, :, -1]
        counts = np.isfinite(last).sum(axis=1)
        return np.where(counts > 0, np.nansum(last, axis=1) / np.maximum(counts, 1), np.nan)

    @property
    def _about(self) -> str:
        return f"{self.movements.shape[1]} networks of each width, their range"

    def _draw(self, ax: Axes) -> None:
        means, last = self._means(), self.movements[:, :, -1]
        for number, name in enumerate(self.layers):
            values = last[:, :, number]
            low, high = (
                pick(np.where(np.isnan(values), other, values), axis=1)
                for pick, other in ((np.min, np.inf), (np.max, -np.inf))
            )
            finite = np.isfinite(means[:, number])
            axes.band(
                ax, self.widths[finite], means[finite, number], low[finite], high[finite],
                colour=axes.COLOURS[number % len(axes.COLOURS)], label=name, marker="o",
            )  # fmt: skip
        ax.set(xscale="log", xlabel="width", ylabel="root mean square change")
        axes.logarithmic(ax)
        ax.legend(title="layer", fontsize="small")


def coordinate_check(
    factory: Callable[[int], Any],
    widths: Sequence[int],
    batch: Any,
    labels: Any = None,
    *,
    loss: Any = None,
    learning_rate: Any = 0.1,
    steps: int = 1,
    networks: int = 4,
    layers: Any = None,
    rng: Any = None,
) -> CoordinateCheck:
    """Measure how far each layer of a model moves in training, against its width.

    Users of μP check that these movements do not depend on the width. All layers whose entries
    would take much memory are implicit (`implicit_`): their weights are drawn by
    direction. So the widths may exceed what fits in memory, if the factory makes its model on the
    device "meta".

    Parameters
    ----------
    factory : callable
        Returns a new model of a width. A layer on the device "meta" gets the variance of its own
        initialization, any other one the variance of its weights, so that an initialization in the
        factory counts. Weights are Gaussian in both cases.
    widths : sequence of int
        Two or more widths, increasing.
    batch : torch.Tensor, array_like, or collection of these
        Inputs of the model, as in `measure`, with samples on the first axis.
    labels : torch.Tensor or array_like, optional
        Labels of the loss.
    loss : {"cross-entropy", "squared"} or callable, optional
        As in `measure`. Default: cross-entropy for integer labels, squared for other ones.
    learning_rate : float or callable, default 0.1
        Of gradient descent, > 0. A function of the name of a parameter and the width gives each
        parameter its own rate, as μP does.
    steps : int, default 1
        Number of steps, >= 1.
    networks : int, default 4
        Number of networks of each width, >= 1.
    layers : sequence of str, optional
        Names of modules. Default: all linear layers and convolutions.
    rng : optional
        Seed or generator, any argument of `numpy.random.default_rng`.

    Returns
    -------
    CoordinateCheck

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or models of different widths have different layers.
    MissingExtraError
        Without PyTorch (extra ``torch``).

    Examples
    --------
    The second width has a matrix of 40 GB. As in μP, the weights of the readout are smaller by
    √(64/width), by a multiplier, and the rate of the first matrix grows with the width:

    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch import coordinate_check
    >>> class Readout(nn.Linear):
    ...     def forward(self, x):
    ...         return super().forward(x) * (64 / self.in_features) ** 0.5
    >>> def mlp(width):
    ...     with torch.device("meta"):
    ...         first = nn.Linear(8, width, bias=False)
    ...         middle = nn.Linear(width, width, bias=False)
    ...         last = Readout(width, 1, bias=False)
    ...         return nn.Sequential(first, nn.Tanh(), middle, nn.Tanh(), last)
    >>> def mup(name, width):
    ...     return 0.2 * width / 64 if name == "0.weight" else 0.2
    >>> x, y = torch.eye(8)[:4], torch.ones(4, 1)
    >>> found = coordinate_check(mlp, [1000, 100_000], x, y, learning_rate=mup, rng=0)
    >>> for name, slope in found.slopes.items():
    ...     print(name, abs(slope.value) < 0.05)
    0 True
    2 True
    4 True
    """
    if not callable(factory):
        raise ArgumentTypeError("factory", factory, "a function of a width that returns a model")
    numbers = integers("widths", widths, low=1).astype(np.int64)
    if numbers.ndim != 1 or len(numbers) < 2 or (np.diff(numbers) <= 0).any():
        raise ArgumentError("widths", numbers.tolist(), "two or more increasing widths")
    if not callable(learning_rate):
        real("learning_rate", learning_rate, above=0.0)
    count = integer("steps", steps, low=1)
    chains = integer("networks", networks, low=1)
    names = None if layers is None else list(items("layers", layers, "names of modules"))
    key = draw_key(rng)
    runs: list[_Run] = []
    with random_states_kept(), torch.inference_mode(False), torch.enable_grad():
        for width in numbers.tolist():
            for chain in range(chains):
                torch.manual_seed(draw_key((key, width, chain)))
                model = _implicit(factory, width, (key, width, chain))
                goal = loss, labels
                runs.append(_trained(model, width, batch, goal, learning_rate, count, names))
                present, first = runs[-1].layers, runs[0].layers
                if present != first:
                    value = f"layers {present} at width {width}"
                    raise ArgumentError("factory", value, f"layers {first} at each width")
    shape = (len(numbers), chains, count + 1, len(runs[0].layers))
    sizes, movements = (
        np.reshape([getattr(run, name) for run in runs], shape) for name in ("sizes", "movements")
    )
    return CoordinateCheck(numbers, runs[0].layers, sizes, movements, key)


@dataclass(frozen=True)
class _Run:
    """A network in training: names of its layers, and arrays (steps + 1, layers)."""

    layers: tuple[str, ...]
    sizes: Float64Array
    movements: Float64Array


def _implicit(factory: Callable[[int], Any], width: int, seed: Any) -> torch.nn.Module:
    """Return a model of a width, whose large layers are implicit."""
    from bnmc.torch.implicit_models import implicit_

    model = factory(width)
    if not isinstance(model, torch.nn.Module):
        raise ArgumentTypeError("factory", model, "a function that returns a torch.nn.Module")
    return implicit_(model, rng=seed)


def _trained(
    model: torch.nn.Module,
    width: int,
    batch: Any,
    goal: tuple[Any, Any],
    learning_rate: Rate,
    steps: int,
    names: list[Any] | None,
) -> _Run:
    """Return the sizes and movements of the layers of a model in training."""
    inputs = as_inputs(model, batch)
    loss, labels = goal
    target = as_loss(loss, labels, inputs.samples, inputs.tensors[0].device)
    if target is None:
        raise ArgumentError("labels", None, f"one for each of {inputs.samples} samples, or a loss")
    chosen = chosen_layers(model, names) if names else Layers(weight_layers(model), between=False)
    optimizer = _optimizer(model, width, learning_rate)
    start: dict[str, Any] = {}
    sizes: list[list[float]] = []
    movements: list[list[float]] = []
    for step in range(steps + 1):
        now: dict[str, Any] = {}

        def see(name: str, _: Any, tensor: Any, now: dict[str, Any] = now) -> None:
            now[name] = tensor.detach().double()

        output = forward(model, inputs, chosen, see)
        start = start or now
        sizes.append([_rms(now[name]) for name in start])
        movements.append([_rms(now[name] - start[name]) for name in start])
        if not _step(model, optimizer, target, output, step == steps):
            break
    missing = [[math.nan] * len(start)] * (steps + 1 - len(sizes))
    return _Run(tuple(start), np.array([*sizes, *missing]), np.array([*movements, *missing]))


def _step(model: torch.nn.Module, optimizer: Any, target: Loss, output: Any, is_last: bool) -> bool:
    """Take a step of gradient descent; return whether there is one more state."""
    if is_last:
        return False
    value = target.mean(output)
    if not math.isfinite(float(value.detach())):
        return False
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    return True


def _optimizer(model: torch.nn.Module, width: int, learning_rate: Rate) -> Any:
    """Return gradient descent with a rate for each parameter."""
    from bnmc.torch.implicit_steps import ImplicitSGD

    optimizer = ImplicitSGD(model)
    (common,) = optimizer.param_groups
    optimizer.param_groups = [
        {**common, "params": [parameter], "lr": _rate(learning_rate, name, width)}
        for name, parameter in model.named_parameters()
    ]
    return optimizer


def _rate(learning_rate: Rate, name: str, width: int) -> float:
    """Return the learning rate of a parameter."""
    value = learning_rate(name, width) if callable(learning_rate) else learning_rate
    return real("learning_rate", value, low=0.0)


def _rms(tensor: Any) -> float:
    """Return a root mean square, NaN if it is no number of the range."""
    value = float(tensor.square().mean().sqrt())
    return value if value < _LARGEST else math.nan


def _slope(x: Float64Array, y: Float64Array) -> Estimate:
    """Return the slope of y against x by least squares, with Student's interval."""
    centred = x - x.mean()
    value = float(centred @ y / (centred @ centred))
    rest = y - y.mean() - value * centred
    stderr = math.sqrt(float(rest @ rest) / (len(x) - 2) / float(centred @ centred))
    reach = float(stdtrit(len(x) - 2, (1 + _LEVEL) / 2)) * stderr
    ends = value - reach, value + reach
    return Estimate(value, stderr, ends, len(x), "least squares of logarithms", _LEVEL)
