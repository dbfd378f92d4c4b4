"""``bnmc inspect``: ranks and gradients in the layers of a PyTorch model."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnmc._support.text import Table, wrapped
from bnmc.cli.command import Report, command
from bnmc.cli.forecast import Progress
from bnmc.cli.options import integers, names

if TYPE_CHECKING:
    from bnmc.torch.representations import FloatArray
    from bnmc.torch.result import Measurement

#: Random networks beside a model, and their seconds, at most.
_RANDOM_NETWORKS, _RANDOM_SECONDS = 200, 10.0

#: What names a model.
_MODEL = "MODULE:NAME of a torch.nn.Module, or of a function that returns one"

#: Suffixes of files of PyTorch.
_TENSORS = (".pt", ".pth")

#: The numbers of all pairs of samples, and the heads of their tables.
_RANGE = ("smallest", "mean", "largest")
_HEADS = {
    "cosines": "Cosines of two samples:",
    "gradient_cosines": "Cosines of the gradients of the losses of two samples:",
}

#: Numbers of the last layer in the table of widths, with their heads.
_OF_LAST = {
    "soft_rank": "soft rank", "orthogonality_gap": "gap", "mean_correlation": "correlation",
    "scale": "scale", "layer_gradient_norm": "‖∂L/∂W‖",
}  # fmt: skip


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
    tries: bool = False,
    weights: Path | None = None,
    widths: str | None = None,
    cosines: bool = False,
    *,
    seed: int,
    progress: Progress = True,
) -> Report:
    """Measure ranks and gradients in a PyTorch model.

    The verdict says whether SGD and Adam may train the model, and names a cure if not. Change the
    model, and inspect it again; --tries measures cures of the weights in memory. The tables below
    the verdict have one line per layer.

    The module is imported from the current folder or from Python's path, so its code runs; what it
    prints goes to standard error. Without --eval, the model stays in the mode in which the factory
    returns it.

    Example: bnmc inspect models:resnet --input batch.npy --labels labels.npy --plot layers.png

    With --widths, the factory is a function of the width. Large layers have no weights
    (bnmc.torch.implicit_), so models may be wider than memory. The first table has one line per
    width, with the numbers of the last layer; verdict, tables and picture of the last width follow.

    Example: bnmc inspect models:mlp --input batch.npy --widths 512,4096,65536

    Parameters
    ----------
    input_ : FILE
        Batch in a .npy, .npz or .pt file, with samples on the first axis.
    labels : FILE
        Labels in a .npy, .npz or .pt file, one per sample.
    loss : NAME
        Loss: cross-entropy or squared. Default: cross-entropy of integer labels, squared of
        others.
    layers : NAME,NAME,…
        Modules to measure, separated by commas. Default: the blocks of the model.
    networks
        Number of networks, each with new random parameters.
    view : NAME
        Rows of the representation: sample or position.
    eval_
        Evaluation mode: normalization by running statistics.
    tries
        Try on this batch, in memory: 20 steps of Adam at seven rates, which the verdict needs to
        say that Adam does not train, and cures of the weights.
    weights : FILE
        Parameters of the model in a .pt file with a state_dict, which is read without running code.
    widths : N,N,…
        Widths that the factory takes, separated by commas.
    cosines
        Smallest, mean and largest cosine of two samples after each layer; with labels, also of the
        gradients of the losses of two samples, for each parameter.
    """
    from bnmc._support.extras import import_extra
    from bnmc._support.progress import waiting

    module, _ = _parts_of(model)
    sizes = [] if widths is None else integers("widths", widths)
    loading = f"inspect: loading PyTorch and the module {module}"
    with waiting(loading, progress=progress, at_once=sys.stderr.isatty()):
        states = _array("input", input_)  # before PyTorch is imported, which takes seconds
        targets = None if labels is None else _array("labels", labels)
        from bnmc.torch import measure
        from bnmc.torch.representations import layout
        from bnmc.torch.widths import as_widths, at_width

        torch: Any = import_extra("torch", "torch")
        torch.manual_seed(seed)  # the import may draw a model
        with _code_of_the_user(model):
            factory = _factory(model, eval_, weights)
    results: list[Measurement] = []
    with _code_of_the_user(model):
        if sizes:
            as_widths(factory, sizes)
        for made in [at_width(factory, size) for size in sizes] or [factory]:
            if progress:
                torch.manual_seed(seed)
                _announce(made, states, targets, loss, networks, tries)
            torch.manual_seed(seed)
            results.append(
                measure(
                    made, states, labels=targets, loss=loss, networks=networks, view=view,
                    tries=tries, layers=None if layers is None else names(layers),
                    cosines=cosines and labels is not None,
                )
            )  # fmt: skip
    head = f"input: {layout(states.shape, states.ndim > 3)}"
    if states.ndim == 2 and states.dtype.kind in "iu":
        head = f"input: {states.shape[0]} samples × {states.shape[1]} positions"
    facts: dict[str, Any] = {"input": list(states.shape)}
    pairs = [_cosines(result) if cosines else {} for result in results]
    last = results[-1]

    def document() -> dict[str, Any]:
        with _code_of_the_user(model):
            wholes = [result.to_dict() for result in results]
        if not sizes:
            verdict = _with_options(last.verdict)
            return facts | wholes[0] | {"verdict": verdict} | pairs[0]
        rows = zip(sizes, wholes, pairs, strict=True)
        return facts | {"rows": [{"width": size, **row, **more} for size, row, more in rows]}

    def text() -> Iterator[object]:
        yield head
        if sizes:
            yield _by_width(sizes, results)
            yield f"\nwidth {sizes[-1]}:"
        parts, verdict = last.parts(), _with_options(last.verdict)
        first = next(parts)
        yield first if verdict == last.verdict else f"{wrapped(verdict)}\n"
        yield next(parts)
        running = "inspect: random networks of these layers run, for the last table"
        with waiting(running, progress=progress), _code_of_the_user(model):
            rest = list(parts)
        yield from rest
        yield from _tables_of(pairs[-1])

    return Report(document, text(), last.plot)


def _announce(
    made: Any, states: Any, targets: Any, loss: str | None, networks: int, tries: bool
) -> None:
    """Say how long a measurement will take, by the time of one pass, if it takes long."""
    from bnmc._support.progress import announce
    from bnmc.errors import BnmcError
    from bnmc.torch.initializing import as_networks
    from bnmc.torch.losses import as_loss
    from bnmc.torch.models import as_inputs, is_implicit
    from bnmc.torch.trying import PASSES, seconds_of_a_pass

    with contextlib.suppress(BnmcError):  # the measurement raises it, with its reason
        model = as_networks(made, 1, None)[0]
        batch = as_inputs(model, states)
        goal = as_loss(loss, targets, batch.samples, batch.tensors[0].device)
        seconds = seconds_of_a_pass(model, batch, goal)
        tries = tries and networks == 1 and goal is not None
        passes = networks + (PASSES if tries else 0)
        duration = passes * seconds
        why = f"{passes} pass{'es' if passes > 1 else ''} through the model, each {seconds:.2g} s"
        if tries:
            why = f"{why} ({PASSES} of them with steps of Adam)"
        if not any(map(is_implicit, model.modules())):
            duration += min(_RANDOM_NETWORKS * seconds, _RANDOM_SECONDS)
            why = f"{why}, and up to {_RANDOM_NETWORKS} random networks of its layers"
        announce("inspect", duration, why)


def _with_options(verdict: str) -> str:
    """Return a verdict that names the option for what it lacks."""
    from bnmc.torch.outlook import NO_LOSS

    if not verdict.endswith(NO_LOSS):
        return verdict
    return f"{verdict.removesuffix(NO_LOSS)}Add --labels FILE for an outlook."


def _array(name: str, path: Path) -> Any:
    """Return the array of a file, the argument `name`."""
    from bnmc.cli.inputs import read_states
    from bnmc.errors import ArgumentTypeError

    if path.suffix.lower() not in _TENSORS:
        return read_states(path, name)
    value = _loaded(name, path)
    if not hasattr(value, "numpy"):
        raise ArgumentTypeError(name, str(path), "a file with one tensor")
    return value.numpy()


def _loaded(name: str, path: Path) -> Any:
    """Return the content of a file of PyTorch: tensors and containers, no objects with code."""
    from bnmc._support.extras import import_extra
    from bnmc.errors import ArgumentError

    with path.open("rb"):
        pass  # so that an error of the operating system is not reported as damage
    torch: Any = import_extra("torch", "torch")
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # damaged files raise anything
        reason = str(error).splitlines()[0]
        raise ArgumentError(name, str(path), "a .pt file of tensors alone", reason) from error


def _cosines(result: Measurement) -> dict[str, list[dict[str, Any]]]:
    """Return the range of the cosines of two samples, by layer, and of their gradients."""
    import numpy as np

    norms = np.sqrt(np.diagonal(result.gram, axis1=-2, axis2=-1))
    with np.errstate(invalid="ignore"):  # samples that are zero have no cosine
        of_samples = result.gram / (norms[..., :, None] * norms[..., None, :])
    tables = {"cosines": _ranges("layer", result.layers, of_samples)}
    if result.gradient_cosine is not None:
        of_gradients = _ranges("parameter", result.parameters, result.gradient_cosine)
        tables["gradient_cosines"] = of_gradients
    return tables


def _ranges(what: str, names: Sequence[str], cosines: FloatArray) -> list[dict[str, Any]]:
    """Return smallest, mean and largest cosine of two samples, over all networks, by name."""
    import numpy as np

    pairs = cosines[..., *np.triu_indices(cosines.shape[-1], 1)]
    rows = []
    for place, name in enumerate(names):
        values = pairs[:, place][np.isfinite(pairs[:, place])]
        numbers = (values.min(), values.mean(), values.max()) if values.size else (None,) * 3
        rows.append({what: name, **dict(zip(_RANGE, numbers, strict=True))})
    return rows


def _tables_of(pairs: dict[str, list[dict[str, Any]]]) -> Iterator[object]:
    """Yield the tables of cosines, below their heads: all rows, or 24 at equal distances."""
    from bnmc.torch.prediction import left_out, shown_of

    for name, rows in pairs.items():
        yield f"\n{_HEADS[name]}"
        cells = [
            [label, *("-" if number is None else f"{number:.4g}" for number in numbers)]
            for label, *numbers in (rows[row].values() for row in shown_of(len(rows)))
        ]
        yield Table(list(rows[0]), cells, "<>")
        yield from left_out(len(rows), f"{next(iter(rows[0]))}s")


def _by_width(sizes: Sequence[int], results: Sequence[Measurement]) -> Table:
    """Return a table of the numbers of the last layer, a line for each width."""
    columns = {
        head: [f"{getattr(result, name)[:, -1].mean():.5g}" for result in results]
        for name, head in _OF_LAST.items()
        if getattr(results[0], name) is not None
    }
    columns = {head: cells for head, cells in columns.items() if cells[0] != "nan"}
    rows = [list(cells) for cells in zip(map(str, sizes), *columns.values(), strict=True)]
    return Table(["width", *columns], rows, ">")


def _parts_of(model: str) -> tuple[str, str]:
    """Return the names of the module and of the model in it."""
    from bnmc.errors import ArgumentError

    module, _, name = model.partition(":")
    if not (module and name):
        raise ArgumentError("model", model, _MODEL)
    if module.endswith(".py"):
        near = f"{module.removesuffix('.py')}:{name}"
        raise ArgumentError("model", model, _MODEL, f"did you mean {near}?")
    return module, name


def _factory(text: str, evaluate: bool, weights: Path | None) -> Any:
    """Return a factory of the model that ``module:name`` names, with the weights of a file."""
    from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError

    allowed, (module_name, name) = _MODEL, _parts_of(text)
    with _current_folder_first():
        try:
            value: Any = importlib.import_module(module_name)
            for part in name.split("."):
                value = getattr(value, part)
        except Exception as error:  # the module of a user raises anything
            hint = f"{type(error).__name__}: {error}"
            if isinstance(error, AttributeError) and error.obj is not None:
                near = UnknownNameError("model", str(error.name), dir(error.obj)).suggestion
                hint += f"; did you mean {near!r}?" if near else ""
            raise ArgumentError("model", text, allowed, hint) from error
    from bnmc._support.extras import import_extra

    torch: Any = import_extra("torch", "torch")
    content = None if weights is None else _loaded("weights", weights)

    def made(*width: int) -> Any:
        try:
            model = value if isinstance(value, torch.nn.Module) else value(*width)
        except Exception as error:  # the function of a user raises anything
            hint = f"{type(error).__name__}: {error}"
            raise ArgumentError("model", text, allowed, hint) from error
        if not isinstance(model, torch.nn.Module):
            raise ArgumentTypeError("model", text, allowed, f"it is a {type(model).__name__}")
        if content is not None:
            try:
                model.load_state_dict(content)
            except Exception as error:  # of other shapes, or no mapping
                hint = " ".join(str(error).split())[:200]
                wanted = "the state_dict of the model"
                raise ArgumentError("weights", str(weights), wanted, hint) from error
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
