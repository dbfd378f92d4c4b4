"""The networks that are trained: perceptrons and convolutional networks, in float64.

PyTorch draws the weights in float64, too: processors round float32 draws differently, and training
multiplies the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from bnmc._support.extras import import_extra
from bnmc.errors import ArgumentError
from bnmc.experiments.training.images import Images
from bnmc.torch.preservation import random_states_kept

if TYPE_CHECKING:
    import torch

#: Channels of the convolutions of VGG19, which has three linear layers more.
VGG19 = ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run PyTorch on one thread from a seed, so that equal seeds give equal bits; restore both."""
    torch: Any = import_extra("torch", "torch")
    threads = torch.get_num_threads()
    with random_states_kept():
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def mlp(
    features: int, width: int, depth: int, *, norm: str = "none", bias: bool = True
) -> torch.nn.Sequential:
    """Return a ReLU network: `depth` hidden layers of one width, and a readout of 10 classes.

    Parameters
    ----------
    features, width : int
    depth : int
        Number of hidden layers, >= 1.
    norm : {"none", "batch", "batch-uncentred"}
        Normalization before each ReLU.  It uses the statistics of the batch in each call.
    bias : bool, default True

    Returns
    -------
    torch.nn.Sequential
        With PyTorch's default initialization, from its random state.

    Examples
    --------
    >>> from bnmc.experiments.training.networks import mlp, seeded
    >>> with seeded(0):
    ...     model = mlp(64, 16, 2, norm="batch")
    >>> [type(layer).__name__ for layer in model]
    ['Flatten', 'Linear', 'BatchNorm1d', 'ReLU', 'Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    """
    torch: Any = import_extra("torch", "torch")
    nn = torch.nn
    layers: list[Any] = [nn.Flatten()]
    for layer in range(depth):
        fan_in = features if layer == 0 else width
        layers.append(nn.Linear(fan_in, width, bias=bias, dtype=torch.float64))
        layers += [*_norm(norm, width, 1), nn.ReLU()]
    layers.append(nn.Linear(width, 10, bias=bias, dtype=torch.float64))
    model: torch.nn.Sequential = nn.Sequential(*layers).double()
    return model


def convolutional(
    channels: int, side: int, stages: Sequence[Sequence[int]], *, norm: str = "none"
) -> torch.nn.Sequential:
    """Return a network of 3 × 3 convolutions with ReLU, and a readout of 10 classes.

    As in VGG nets, max pooling halves the side after each stage.

    Parameters
    ----------
    channels, side : int
        Of the images.  The side must be divisible by 2 to the power of the number of stages.
    stages : sequence of sequences of int
        Output channels of the convolutions of each stage.
    norm : {"none", "batch", "batch-uncentred"}
        Normalization before each ReLU, over samples and positions.

    Returns
    -------
    torch.nn.Sequential
        With PyTorch's default initialization, from its random state.
    """
    torch: Any = import_extra("torch", "torch")
    nn = torch.nn
    layers: list[Any] = []
    for stage in stages:
        for out in stage:
            layers.append(nn.Conv2d(channels, out, 3, padding=1, dtype=torch.float64))
            layers += [*_norm(norm, out, 2), nn.ReLU()]
            channels = out
        layers.append(nn.MaxPool2d(2))
        side //= 2
    layers += [nn.Flatten(), nn.Linear(channels * side * side, 10, dtype=torch.float64)]
    model: torch.nn.Sequential = nn.Sequential(*layers).double()
    return model


def pooled(channels: int, width: int, depth: int) -> torch.nn.Sequential:
    """Return a network of 3 × 3 convolutions with ReLU, the mean over positions, and a readout.

    Parameters
    ----------
    channels : int
        Of the images.
    width, depth : int
        Output channels of the convolutions, and their number.

    Returns
    -------
    torch.nn.Sequential
        Without biases, with normal weights of variance 2/fan-in, those of the readout 1/fan-in.
    """
    torch: Any = import_extra("torch", "torch")
    nn = torch.nn
    layers: list[Any] = []
    for layer in range(depth):
        fan_in = channels if layer == 0 else width
        conv = nn.Conv2d(fan_in, width, 3, padding=1, bias=False, dtype=torch.float64)
        nn.init.kaiming_normal_(conv.weight)
        layers += [conv, nn.ReLU()]
    readout = nn.Linear(width, 10, bias=False, dtype=torch.float64)
    nn.init.normal_(readout.weight, std=width**-0.5)
    model: torch.nn.Sequential = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), readout
    )
    return model


def residual(
    channels: int, side: int, stages: Sequence[Sequence[int]], *, norm: str = "none"
) -> torch.nn.Sequential:
    """Return `convolutional` with a skip path around each convolution, as in ResNets.

    The first convolution of each stage has none, since it may change the number of channels.

    The arguments are those of `convolutional`.
    """
    torch: Any = import_extra("torch", "torch")

    class Residual(torch.nn.Module):  # type: ignore[misc]
        """Adds the input of a layer to its output."""

        def __init__(self, *modules: Any) -> None:
            super().__init__()
            self.branch = torch.nn.Sequential(*modules)

        def forward(self, x: Any) -> Any:
            return torch.relu(x + self.branch(x))

    plain = convolutional(channels, side, stages, norm=norm)
    layers: list[Any] = []
    for module in plain:
        if isinstance(module, torch.nn.ReLU):
            conv = layers.pop() if norm == "none" else layers.pop(-2)
            parts = (conv,) if norm == "none" else (conv, layers.pop())
            is_first = conv.in_channels != conv.out_channels or not layers
            layers += [*parts, module] if is_first else [Residual(*parts)]
        else:
            layers.append(module)
    model: torch.nn.Sequential = torch.nn.Sequential(*layers)
    return model


def convolutions_of(
    images: Images,
    stages: Sequence[Sequence[int]],
    kind: Callable[..., torch.nn.Sequential] = convolutional,
) -> partial[torch.nn.Sequential]:
    """Return `convolutional`, or another kind, with the channels and the side of some images.

    Raises
    ------
    ArgumentError
        If there are so many stages that no pixel would be left.
    """
    channels, side = images.pixels.shape[1:3]
    most = side.bit_length() - 1
    if len(stages) > most:
        allowed = f"at most {most} stages, each of which halves the side of the images, {side}"
        raise ArgumentError("stages", f"{len(stages)} stages", allowed)
    return partial(kind, channels, side, stages)


def xavier_(model: torch.nn.Module, *, gain: float = 1.0, normal: bool = False) -> torch.nn.Module:
    """Draw all weights with variance 2 gain²/(fan_in + fan_out), set biases to 0, in place.

    Parameters
    ----------
    model : torch.nn.Module
    gain : float, default 1
    normal : bool, default False
        Whether the law is normal.  Otherwise it is uniform.

    Returns
    -------
    torch.nn.Module
        The argument `model`.
    """
    torch: Any = import_extra("torch", "torch")
    init = torch.nn.init
    draw = init.xavier_normal_ if normal else init.xavier_uniform_
    for module in model.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):
            draw(module.weight, gain=gain)
            if module.bias is not None:
                init.zeros_(module.bias)
    return model


def _norm(norm: str, width: int, axes: int) -> list[Any]:
    """Return the normalization as a list of no module or one; `axes` is 1 or 2."""
    torch: Any = import_extra("torch", "torch")
    if norm == "none":
        return []
    if norm == "batch":
        kind = torch.nn.BatchNorm1d if axes == 1 else torch.nn.BatchNorm2d
        return [kind(width, track_running_stats=False)]
    return [_uncentred(width)]


def _uncentred(width: int) -> Any:
    """Return a module that divides each feature by its root mean square over the batch."""
    torch: Any = import_extra("torch", "torch")

    class Uncentred(torch.nn.Module):  # type: ignore[misc]
        """Batch normalization that does not subtract the mean."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(width))
            self.bias = torch.nn.Parameter(torch.zeros(width))

        def forward(self, x: Any) -> Any:
            shape = (1, -1) + (1,) * (x.ndim - 2)
            axes = [axis for axis in range(x.ndim) if axis != 1]
            mean_square = x.square().mean(dim=axes, keepdim=True)
            scaled = x * torch.rsqrt(mean_square + 1e-5)  # the epsilon of PyTorch's BatchNorm
            return scaled * self.weight.reshape(shape) + self.bias.reshape(shape)

    return Uncentred()
