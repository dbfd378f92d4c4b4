"""`measure`: representations and gradients of a model, layer by layer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from bnmc import gram
from bnmc._support.arguments import choice, instance, integer
from bnmc._support.machine import require_memory
from bnmc.errors import ArgumentError, BnmcError, NonFiniteError
from bnmc.torch import losses, representations
from bnmc.torch.facts import (
    Facts,
    are_probabilities,
    gradient_facts,
    live_units,
    ratio_of_states,
    ratios_of_states,
    spread_of,
)
from bnmc.torch.fresh import Fresh, fresh_networks, redrawing
from bnmc.torch.gains import takes_gain
from bnmc.torch.initializing import as_networks
from bnmc.torch.layers import chosen_layers, forward
from bnmc.torch.learning_rate import RATED, rate_of_model
from bnmc.torch.models import Inputs, as_inputs, is_implicit, tensor_of, torch
from bnmc.torch.outlook import asks_for_gain, is_doubtful, outlook_of
from bnmc.torch.prediction import Gradient, Prediction, beside_copies, is_affordable, predicted
from bnmc.torch.preservation import as_it_was, random_states_kept
from bnmc.torch.reading import ModelNetwork, network_of
from bnmc.torch.representations import FloatArray, Numbers
from bnmc.torch.result import Measurement
from bnmc.torch.trying import facts_of_cures, steps_tried
from bnmc.torch.widths import as_widths, at_width

#: Other draws of the weights that decide a doubtful outlook.
_DRAWS = 7

#: They are made if a forward pass has at most so many products of a weight and an input.
_PRODUCTS = 1 << 30


def measure(
    model: torch.nn.Module | Callable[[], torch.nn.Module] | None = None,
    batch: Any = None,
    labels: Any = None,
    *,
    loss: Any = None,
    layers: Any = None,
    networks: int = 1,
    reset: Callable[[torch.nn.Module], Any] | None = None,
    forward: Callable[..., Any] | None = None,
    factory: Callable[[int], torch.nn.Module] | None = None,
    widths: Any = None,
    view: str = "sample",
    cosines: bool | None = None,
    largest_rate: bool = False,
    tries: bool = False,
) -> Measurement:
    """Measure the representations of a batch in the layers of a model, and gradients of a loss.

    The model runs in its present mode, training or evaluation. The measurement changes no bit of
    its parameters, buffers, modes, ``.grad``, hooks and attributes, nor of the random states of
    PyTorch, NumPy and Python.  In attributes it restores tensors, arrays, lists, dictionaries, sets
    and generators of random numbers, but no objects of other classes that the model changes.

    Parameters
    ----------
    model : torch.nn.Module or callable
        The model. Of a compiled model and of ``DataParallel``, the module inside is measured. A
        callable is a function that returns a new model at each call. Default: with `factory`, its
        models at the first of `widths`.
    batch : torch.Tensor or array_like, shape (n, ...); or tuple or mapping of them
        n >= 2 samples on the first axis. A tensor keeps its dtype; floating-point numbers of other
        arrays get the dtype of the model. The batch is moved to the device of the model. A tuple of
        tensors has the arguments of the model, a mapping its keyword arguments.
    labels : torch.Tensor or array_like, shape (n, ...), optional
        Labels of the samples: integers are classes, floating-point numbers are targets of the shape
        of the output. For classes in floating point, pass ``labels.long()``.
    loss : {"cross-entropy", "squared"} or callable, optional
        "squared" is half the squared distance. Default: "cross-entropy" for labels that are
        integers, "squared" for other labels, and no gradients without labels. These take the first
        tensor of the output that has axes. A callable takes the whole output of the model, and the
        labels if there are any, as ``torch.nn.CrossEntropyLoss()`` does. It returns one number per
        sample, or one for the batch.
    layers : sequence of str or torch.nn.Module, optional
        Modules whose outputs are measured. By default the blocks of the model: the modules of the
        class that repeats and contains most linear layers and convolutions. If there is no such
        class, each linear layer or convolution begins a block, which contains the norms,
        activations and functions before the next one. The readout is not measured.
    networks : int, default 1
        Number of networks. If it is above 1, or `model` is a factory, or `reset` is given, each
        network has new parameters: from the factory, from `reset`, or from the
        ``reset_parameters`` of all modules. ``torch.manual_seed`` sets the seed.
    reset : callable, optional
        Draws new parameters in place; called with the module.
    forward : callable, optional
        Function of the model and the arguments in `batch` that returns the output. Default: a call
        of the model. For layers that take the samples on the second axis, such as
        ``torch.nn.LSTM(…)``: ``forward=lambda model, x: model(x.transpose(0, 1))``.
    factory, widths : callable and sequence of int, optional
        Function of a width that returns the architecture of the model at this width, and the widths
        to measure it at: `Measurement.by_width`. Large layers have no weights there
        (`bnmc.torch.implicit_`). `networks` is then the number of new networks at each width, and
        `model` is measured as it is.
    view : {"sample", "position"}
        The rows of a representation. "sample": the output of each sample, flattened. "position":
        for convolutions and sequences, the features at each position of each sample.
    cosines : bool, optional
        Whether to compute the cosines between gradients of single samples, by one backward pass
        per sample. Default: if the loss is one number per sample, and samples × parameters is at
        most 2**24.
    largest_rate : bool, default False
        Whether to compute the largest learning rate at which gradient descent of the linearized
        model is stable, for the loss "cross-entropy" or "squared", by products with the
        Gauss-Newton matrix.
    tries : bool, default False
        Whether to try, in memory: 20 steps of Adam on the batch at seven rates, which `outlook`
        needs to say that Adam does not train; and cures of the weights, if the model needs one.

    Returns
    -------
    Measurement
        With `table`, `plot`, `to_xarray`, `verdict`, and the prediction of the mean field.

    Raises
    ------
    ArgumentError, ArgumentTypeError, UnknownNameError
        If an argument is not allowed, the model raises an error for the batch, or the axis of the
        samples is not the first one in a layer.
    NonFiniteError
        If the output of a layer, the loss or a gradient is infinite or NaN, in float64 too. The
        message names it.
    MissingExtraError
        Without PyTorch (extra ``torch``).

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch import measure
    >>> seed = torch.manual_seed(0)
    >>> blocks = [
    ...     nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU()) for _ in range(20)
    ... ]
    >>> model = nn.Sequential(*blocks, nn.Linear(128, 10))
    >>> measurement = measure(model, torch.randn(32, 128), labels=torch.arange(32) % 10)
    >>> measurement.gram.shape, measurement.rank[0, -1]
    ((1, 20, 32, 32), np.int64(32))
    >>> print(measurement.verdict)
    Nothing found that stops training: loss 2.41 (chance 2.3); gradients of activations ×57 from the
    last block to the first; effective rank of the samples 27.2 in the last block.

    A module of your own, with skip connections, and a loss of your own:

    >>> class Block(nn.Module):
    ...     def __init__(self, width):
    ...         super().__init__()
    ...         self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)
    ...
    ...     def forward(self, x):
    ...         return x + self.linear(torch.relu(self.norm(x)))
    >>> model = nn.Sequential(*(Block(16) for _ in range(3)), nn.Linear(16, 1))
    >>> found = measure(model, torch.randn(8, 16), torch.rand(8, 1), loss=nn.SmoothL1Loss())
    >>> found.layers, found.outlook.sgd
    (('0', '1', '2'), 'trains')

    Tokens are integers; of a language model, labels are the next tokens:

    >>> class Language(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)
    ...         layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    ...         self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    ...
    ...     def forward(self, tokens):
    ...         return self.head(self.blocks(self.table(tokens)))
    >>> tokens = torch.randint(50, (8, 6))
    >>> found = measure(Language(), tokens, tokens.roll(-1, dims=1))
    >>> found.layers, found.layouts[0]
    (('blocks.layers.0', 'blocks.layers.1'), '8 samples × 6 positions × 16 features')

    The documentation lists the verdicts, what they mean and what to do: page "PyTorch models".
    """
    networks = integer("networks", networks, low=1)
    sizes = as_widths(factory, widths)
    if factory is not None and sizes:
        fresh = partial(
            measure, batch=batch, labels=labels, loss=loss, networks=networks, view=view,
            cosines=False, forward=forward,
        )  # fmt: skip
        options: dict[str, Any] = {"largest_rate": largest_rate, "tries": tries}
        if model is None:
            made = fresh(partial(factory, sizes.pop(0)), layers=layers, **options)
        else:
            made = fresh(model, layers=layers, networks=1, reset=reset, **options)
        given = None if layers is None else made.layers
        by_width = {size: fresh(at_width(factory, size), layers=given) for size in sizes}
        if any(each.layers != made.layers for each in by_width.values()):
            allowed = "models whose layers have the same names at all widths"
            raise ArgumentError("factory", getattr(factory, "__name__", "a function"), allowed)
        return replace(made, by_width=by_width)
    view = choice("view", view, representations.VIEWS)
    wants_rate = instance("largest_rate", largest_rate, bool, "a bool")
    with random_states_kept(), torch.inference_mode(False):
        inner, next_network = as_networks(model, networks, reset)
        data = as_inputs(inner, batch, forward)
        goal = losses.as_loss(loss, labels, data.samples, data.tensors[0].device)
        if goal is not None and not any(weight.requires_grad for weight in inner.parameters()):
            raise ArgumentError("loss", goal.name, "None, as no parameter has requires_grad")
        plain = len(data.tensors) == 1 and forward is None
        rated = goal is not None and goal.name in RATED and plain
        if wants_rate and not rated:
            allowed = 'False unless the loss is "cross-entropy" or "squared", of one argument'
            raise ArgumentError("largest_rate", True, allowed)
        passes: list[_Pass] = []
        rates: list[float] = []
        fall: float | None = None
        after: Facts | None = None
        draws: list[Facts] = []
        cures: dict[str, Facts] = {}
        with as_it_was(inner):
            for _ in range(networks):
                network = next_network()
                with nullcontext() if network is inner else as_it_was(network):
                    if not passes:
                        reading = ModelNetwork(None, ("forward= is a function, not the model's",))
                        if forward is None:
                            reading = network_of(network, batch=data.samples)
                    passes.append(_pass_of(network, data, goal, layers, view, cosines, reading))
                    facts = passes[-1].facts
                    if asks_for_gain(facts):
                        passes[-1].facts = replace(facts, takes_gain=takes_gain(network))
                    if wants_rate and goal is not None:
                        rates.append(rate_of_model(network, data.tensors[0], loss=goal.name))
                    if networks == 1 and goal is not None:
                        others = _Others(network, data, goal, layers, view, passes[0])
                        draws = others.draws()
                        if tries:
                            about = network, data, goal, passes[0].facts
                            fall, after = steps_tried(*about, others.facts)
                            cures = others.cures(draws)
                if passes[-1].signature != passes[0].signature:
                    allowed = "networks whose layers have the same names and shapes"
                    raise ArgumentError("model", type(inner).__name__, allowed)
                if len(passes) == 1:
                    # Those of each network, and the arrays that join them.
                    require_memory("networks", (2 * networks - 1) * passes[0].bytes_of_matrices)
            notes = _notes(inner, passes[0], goal)
            if isinstance(model, type):
                notes = *notes, f"a new model was drawn from {model.__name__}"

            def copies(with_loss: bool, weights: tuple[str, ...]) -> tuple[Fresh | None, str]:
                given = None if layers is None else passes[0].chosen
                about = inner, data, goal if with_loss else None, given, weights
                return fresh_networks(*about, passes[0].products)

            prediction = _prediction(reading, data, passes, copies)
    name = type(inner).__name__
    made = _result(name, data.samples, view, passes, reading, prediction, notes)
    made = replace(made, draws=(*made.draws, *draws), fall=fall, after=after, tried=cures)
    return replace(made, largest_rate=np.array(rates)) if rates else made


def _pass_of(
    model: torch.nn.Module, batch: Inputs, goal: losses.Loss | None, *options: Any
) -> _Pass:
    """Return the numbers of a network, in float64 if some are beyond the range of its dtype."""
    try:
        return _Pass(model, batch, goal, *options)
    except NonFiniteError as error:
        if any(part.dtype == torch.float64 for part in model.parameters()):
            raise
        precision = next(part.dtype for part in model.parameters())
        with as_it_was(model):
            try:
                wide = batch.map(lambda part: part.double() if part.is_floating_point() else part)
                numbers = _Pass(model.double(), wide, goal, *options)
            except BnmcError:
                raise error from None
        text = f"the {error.quantity} is beyond {str(precision).removeprefix('torch.')}"
        numbers.facts = replace(numbers.facts, overflow=text)
        return numbers


class _Others:
    """The facts of a model with other weights: drawn anew, or after a cure."""

    def __init__(
        self,
        model: torch.nn.Module,
        batch: Inputs,
        goal: losses.Loss,
        layers: object,
        view: str,
        first: _Pass,
    ) -> None:
        self.model, self.batch, self.goal, self.first = model, batch, goal, first
        self.options = layers, view, False, ModelNetwork(None, ("not read",))

    def facts(self, part: slice = slice(None)) -> Facts:
        """Return the facts of the model as it is now, on a part of the batch."""
        labels = None if self.goal.labels is None else self.goal.labels[part]
        goal = replace(self.goal, labels=labels)
        batch = self.batch.map(lambda tensor: tensor[part])
        return _pass_of(self.model, batch, goal, *self.options).facts

    def draws(self) -> list[Facts]:
        """Return the facts of new draws of the weights, if these may change the outlook."""
        facts: list[Facts] = []
        implicit = any(map(is_implicit, self.model.modules()))
        if implicit or self.first.products > _PRODUCTS or not is_doubtful(self.first.facts):
            return facts
        with as_it_was(self.model):
            torch.manual_seed(0)
            redraw = redrawing(self.model)
            for _ in range(_DRAWS):
                redraw()
                with suppress(BnmcError):
                    facts.append(replace(self.facts(), takes_gain=self.first.facts.takes_gain))
        return facts

    def cures(self, draws: list[Facts]) -> dict[str, Facts]:
        """Return the facts after each cure, if the model needs one and is small."""
        if self.first.products > _PRODUCTS:
            return {}
        wrong = outlook_of([self.first.facts, *draws]).wrong
        return facts_of_cures(self.model, self.batch, self.facts) if wrong else {}


class _Pass:
    """The numbers of one network."""

    def __init__(
        self,
        model: torch.nn.Module,
        batch: Inputs,
        goal: losses.Loss | None,
        layers: object,
        view: str,
        cosines: bool | None,
        reading: ModelNetwork,
    ) -> None:
        chosen = chosen_layers(model, layers)
        self.chosen = list(chosen.modules)
        of_model = representations.channels_second(model)
        self.names: list[str] = []
        self.layouts: list[str] = []
        self.numbers: list[Numbers] = []
        self.weights: list[tuple[str, ...]] = []
        self.products = 0.0
        trained = {name: part for name, part in model.named_parameters() if part.requires_grad}
        identities = {id(weight): name for name, weight in trained.items()}

        states: list[torch.Tensor] = []
        self.live: list[tuple[int, int]] = []

        def visit(name: str, module: Any, tensor: Any) -> None:
            states.append(tensor)
            tensor = representations.samples_first(module, tensor, batch.samples)
            second = representations.features_second(module, tuple(tensor.shape), of_model)
            self.numbers.append(representations.measured(name, tensor, batch.samples, view, second))
            if bool(tensor.any()) and not bool((tensor < 0.0).any()):  # those of a ReLU
                self.live.append(live_units(tensor, second=second))
            self.names.append(name or type(model).__name__)
            self.layouts.append(representations.layout(tuple(tensor.shape), second))
            matrices = [part for part in module.parameters() if part.ndim > 1]
            positions = batch.samples
            if tensor.ndim > 2:
                positions = tensor.numel() // tensor.shape[1 if second or tensor.ndim > 3 else -1]
            self.products += sum(part.numel() for part in matrices) * positions
            names = (identities.get(id(matrix)) for matrix in matrices)
            self.weights.append(tuple(filter(None, names)))

        with (
            torch.set_grad_enabled(goal is not None),
            _inputs_seen(model, () if reading.unfit else reading.layers) as self.seen,
            _units_seen(model, of_model) as units,
        ):
            whole = forward(model, batch, chosen, visit)
        output: Any = tensor_of(whole)
        self.live += units.live
        self.shapes = {name: tuple(weight.shape) for name, weight in trained.items()}
        self.loss = 0.0
        self.norms: dict[str, float] = {}
        self.direction: FloatArray | Gradient | None = None
        self.cosines: FloatArray | None = None
        self.without_cosines = ""
        by_state: list[Any] = []
        facts: dict[str, Any] = {}
        if goal is not None:
            facts, by_state = self._backward(goal, whole, trained, states, cosines)
        self.facts = self._facts(model, batch, output, states, by_state, units.numbers, facts)

    @property
    def bytes_of_matrices(self) -> int:
        """Bytes of the Gram matrices and of the cosines."""
        cosines = 0 if self.cosines is None else self.cosines.nbytes
        return sum(layer.gram.nbytes for layer in self.numbers) + cosines

    @property
    def signature(self) -> tuple[list[str], ...]:
        """What all networks must have in common."""
        return self.names, self.layouts, list(self.norms)

    def _backward(
        self,
        goal: losses.Loss,
        whole: Any,
        trained: dict[str, torch.Tensor],
        states: list[torch.Tensor],
        cosines: bool | None,
    ) -> tuple[dict[str, Any], list[Any]]:
        """Measure the gradients; return their facts, and the gradients by states."""
        values: Any = goal(whole)
        output: Any = tensor_of(whole)
        if not values.requires_grad:
            raise ArgumentError("loss", goal.name, "a loss that depends on the parameters")
        self.loss = float(values.detach().double().mean())
        chosen = [state for state in states if state.requires_grad]
        gradients, by_state, lost = losses.gradients_of(values.mean(), trained, chosen)
        self.norms = {
            name: 0.0 if gradient is None else float(gradient.double().norm())
            for name, gradient in gradients.items()
        }
        chance, most = goal.chance(output)
        facts = gradient_facts(trained, gradients) | {
            "loss": self.loss, "chance": chance, "most_of_chance": most, "lost": lost,
            "probabilities": goal.takes_logits and are_probabilities(output),
        }  # fmt: skip
        places = iter(by_state)
        all_states = [next(places) if state.requires_grad else None for state in states]
        if self.seen.output is output and output.ndim == 2:
            self.direction = losses.gradient_of_outputs(goal, output)
        elif self.seen.output is not None:
            self.direction = losses.gradient_by(values.mean(), self.seen.output)
        size = len(output) * sum(weight.numel() for weight in trained.values())
        if values.ndim == 0:
            if cosines:
                raise ArgumentError("cosines", cosines, "None: the loss is one number of a batch")
        elif cosines or (cosines is None and size <= losses.MOST_NUMBERS):
            self.cosines = losses.gradient_cosines(values, trained)
        elif cosines is None:
            self.without_cosines = (
                "cosines between gradients of samples are left out, as samples × parameters is "
                f"{size:.2g}; cosines=True computes them"
            )
        return facts, all_states

    def _facts(
        self,
        model: torch.nn.Module,
        batch: Inputs,
        output: torch.Tensor,
        states: list[torch.Tensor],
        by_state: list[Any],
        numbers: list[float],
        facts: dict[str, Any],
    ) -> Facts:
        """Return the facts of this network."""
        self.state_ratios = np.full(len(self.names), np.nan)
        if any(gradient is not None for gradient in by_state):
            reached = [place for place, each in enumerate(by_state) if each is not None]
            shapes = [tuple(states[place].shape) for place in reached]
            norms = [float(by_state[place].double().norm()) for place in reached]
            facts |= ratio_of_states([self.names[place] for place in reached], shapes, norms)
            self.state_ratios[reached] = ratios_of_states(shapes, norms)
        matrices = [part for part in model.parameters() if part.ndim > 1]
        measured = {name for names in self.weights for name in names}
        total = sum(part.numel() for part in model.parameters())
        inside = sum(math.prod(self.shapes[name]) for name in measured)
        inputs, first = math.nan, batch.tensors[0]
        if first.is_floating_point():
            inputs = representations.mean_correlation(first)
        narrowed = [live for live, units in self.live if live < units]
        return Facts(
            bool(self.norms),
            effective_rank=self.numbers[-1].effective_rank,
            input_correlation=inputs,
            first_correlation=self.numbers[0].mean_correlation,
            last_correlation=self.numbers[-1].mean_correlation,
            output_spread=spread_of(output),
            zero_head=bool(matrices) and not bool(matrices[-1].any()),
            least_live_units=float(min(narrowed, default=math.inf)),
            all_dead=any(live == 0 for live, _ in self.live),
            numbers_per_channel=min(numbers, default=math.nan),
            running_statistics=any(map(_uses_running_statistics, model.modules())),
            measured_share=inside / total if total else math.nan,
            **facts,
        )


def _uses_running_statistics(module: Any) -> bool:
    """Whether a module is a batch norm that does not see the statistics of the batch."""
    is_norm = isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
    return is_norm and not module.training and module.running_mean is not None


class _Units:
    """Live units of all ReLUs, and the numbers over which batch norms take statistics."""

    def __init__(self) -> None:
        self.live: list[tuple[int, int]] = []
        self.numbers: list[float] = []


@contextmanager
def _units_seen(model: Any, second: bool) -> Iterator[_Units]:
    """Count the live units of ReLUs, and the numbers of each channel of batch norms."""
    units = _Units()

    def relu(_: Any, __: Any, output: Any) -> None:
        units.live.append(live_units(output, second=second))

    def norm(_: Any, received: Any) -> None:
        units.numbers.append(received[0].numel() / received[0].shape[1])

    handles = []
    for module in model.modules():
        if isinstance(module, (torch.nn.ReLU, torch.nn.ReLU6)):
            handles.append(module.register_forward_hook(relu))
        elif isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training:
            handles.append(module.register_forward_pre_hook(norm))
    try:
        yield units
    finally:
        for handle in handles:
            handle.remove()


class _Inputs:
    """The Gram matrices of the inputs of weight layers, and the output of the last one."""

    def __init__(self) -> None:
        self.grams: list[FloatArray] = []
        self.output: Any = None


@contextmanager
def _inputs_seen(model: Any, names: tuple[str, ...]) -> Iterator[_Inputs]:
    """Keep the Gram matrices of the inputs of weight layers, if these are (samples, features)."""
    seen = _Inputs()

    def before(_: Any, received: Any) -> None:
        rows = received[0].detach().to("cpu", torch.float64).numpy()
        if rows.ndim == 2 and np.isfinite(rows).all():  # else the layer raises, with its name
            seen.grams.append(gram.cross_gram(rows.T, rows.T))

    def after(_: Any, __: Any, output: Any) -> None:
        seen.output = output

    named = dict(model.named_modules())
    modules = [named.get(name, model) for name in names]  # a single layer has the name of its class
    handles = [module.register_forward_pre_hook(before) for module in modules]
    handles += [module.register_forward_hook(after) for module in modules[-1:]]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _prediction(
    reading: ModelNetwork, batch: Inputs, passes: list[_Pass], copies: Callable[..., Any]
) -> Prediction:
    """Return the prediction beside the numbers of all networks.

    `copies` takes a loss and weight layers, and returns `Fresh` networks, or None and the reason.
    """
    first = passes[0]
    weights = [f"{name}.weight" for name in reading.layers]
    if weights and "weight" in first.shapes:
        weights = ["weight"]  # of a single layer, which has the name of its class
    grams = [each.seen.grams for each in passes]
    # Images that the model flattens are columns of its first layer.
    inputs, rows = batch.tensors[0].reshape(batch.samples, -1), None
    if reading.network is not None and inputs.shape[1] == reading.network.widths[0]:
        rows = inputs.to("cpu", torch.float64).numpy().T
    gradients, reasons = None, reading.unfit
    if not reasons:
        complete = bool(weights) and all(len(each) == len(weights) for each in grams)
        if rows is None or not complete:
            reasons = ("the layers take positions of samples, not samples alone",)
    if not reasons and reading.network is not None and rows is not None:
        if first.direction is not None and all(name in first.norms for name in weights):
            gradients = np.array([[each.norms[name] for name in weights] for each in passes])
        direction = None if gradients is None else first.direction
        fresh, why = None, ""
        if reading.dropouts or not is_affordable(reading.network):
            fresh, why = copies(gradients is not None, reading.layers)
        if why:
            return Prediction(None, reasons=(why,))
        return predicted(reading, rows, np.array(grams), gradients, direction, fresh)
    fresh, why = copies(bool(first.norms), ())
    of_layers = np.array([[layer.gram for layer in each.numbers] for each in passes])
    if first.norms:
        gradients = np.array([_layer_norms(each) for each in passes])
    reasons = (*reasons, why) if why else reasons
    return beside_copies(tuple(first.names), of_layers, gradients, reasons, fresh)


def _notes(model: Any, first: _Pass, goal: losses.Loss | None) -> tuple[str, ...]:
    """Return remarks on the layout, the mode, the loss and what was left out."""
    notes = [_note_of_copies(model, first.chosen), first.without_cosines]
    notes.append("" if goal is None else goal.note)
    sequence_first = (torch.nn.MultiheadAttention, torch.nn.RNNBase)
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, sequence_first) and not module.batch_first
    ]
    if names:
        notes.append(
            f"{names[0]!r} has batch_first=False: it takes samples on the second axis, where "
            "forward= can move them"
        )
    modes = {module.training for module in model.modules()}
    if len(modes) > 1:
        notes.append("some modules are in training mode, some in evaluation mode")
    return tuple(filter(None, notes))


def _note_of_copies(model: Any, names: list[str]) -> str:
    """Return why a model of blocks with equal weights departs from random networks, or ""."""
    named = dict(model.named_modules())
    blocks = [(name, [part for part in named[name].parameters() if part.ndim > 1])
              for name in names if name in named]  # fmt: skip
    copies = [pair for pair in pairwise(blocks) if _are_copies(pair[0][1], pair[1][1])]
    if not copies:
        return ""
    return (
        f"blocks {copies[0][0][0]!r} to {copies[-1][1][0]!r} have equal weights, as "
        "nn.TransformerEncoder copies its layer, and random networks have not. To draw a block "
        "anew: nn.init.xavier_uniform_(p) for each p of block.parameters() with p.ndim > 1"
    )


def _are_copies(weights: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """Whether two blocks have equal weights that are not the same tensors, nor all constant."""
    same = len(weights) == len(others) and all(
        first is not second and first.device == second.device and torch.equal(first, second)
        for first, second in zip(weights, others, strict=True)
    )
    return same and any(bool(weight.min() < weight.max()) for weight in weights)


def _result(
    name: str,
    samples: int,
    view: str,
    passes: list[_Pass],
    reading: ModelNetwork,
    prediction: Prediction,
    notes: tuple[str, ...],
) -> Measurement:
    first = passes[0]
    numbers = {
        field: [[getattr(layer, field) for layer in each.numbers] for each in passes]
        for field in Numbers._fields
    }
    spectra = zip(*numbers.pop("spectrum"), strict=True)
    (rank_threshold, *_) = numbers.pop("rank_threshold")
    arrays: dict[str, Any] = {field: np.array(values) for field, values in numbers.items()}
    parameters = tuple(first.norms)
    arrays |= dict.fromkeys(("loss", "gradient_norm", "layer_gradient_norm"))
    arrays["state_gradient_ratio"] = None
    if parameters:
        arrays["loss"] = np.array([each.loss for each in passes])
        arrays["gradient_norm"] = np.array([list(each.norms.values()) for each in passes])
        arrays["layer_gradient_norm"] = np.array([_layer_norms(each) for each in passes])
        arrays["state_gradient_ratio"] = np.array([each.state_ratios for each in passes])
    cosines = None if first.cosines is None else np.array([each.cosines for each in passes])
    return Measurement(
        model=name, samples=samples, layers=tuple(first.names), layouts=tuple(first.layouts),
        view=view, spectrum=tuple(map(np.array, spectra)), rank_threshold=np.array(rank_threshold),
        parameters=parameters, gradient_cosine=cosines, comparable=_comparable(first),
        reading=reading, prediction=prediction, notes=notes,
        draws=tuple(each.facts for each in passes), **arrays,
    )  # fmt: skip


def _layer_norms(network: _Pass) -> list[float]:
    """Return the norms of the gradients by all weights of each layer, NaN without weights."""
    norms = ([network.norms[name] for name in names] for names in network.weights)
    return [float(np.linalg.norm(parts)) if parts else np.nan for parts in norms]


def _comparable(network: _Pass) -> tuple[int, ...]:
    """Return the layers whose weights have the most frequent shapes; none without a loss."""
    shapes = [tuple(network.shapes[name] for name in names) for names in network.weights]
    counts = Counter(shape for shape in shapes if shape)
    if not (counts and network.norms):
        return ()
    (most, _), *_ = counts.most_common(1)
    return tuple(layer for layer, shape in enumerate(shapes) if shape == most)
