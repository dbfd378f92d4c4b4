"""``bnmc figure``, ``compare-norms`` and ``demo``: the experiments of `bnmc.experiments`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnmc._support.text import Table
from bnmc.cli.command import Command, Report, command
from bnmc.cli.options import names

if TYPE_CHECKING:
    from bnmc.experiments import Experiment


class FigureCommand(Command):
    """A command whose help lists the sizes of the figure that is named beside ``--help``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Remember the figures among the arguments, for the help."""
        import bnmc.experiments as experiments

        ctx.meta["figures"] = [name for name in args if name in experiments.names()]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, and the sizes of the figures among the arguments."""
        super().format_help(ctx, formatter)
        for name in ctx.meta.get("figures", ()):
            with formatter.section(f"Sizes of {name}, for --set"):
                formatter.write_dl(_sizes(name))


def _names(incomplete: str) -> list[tuple[str, str]]:
    """Return names and descriptions of the experiments whose names begin with a text."""
    import bnmc.experiments as experiments

    return [
        (name, experiments.describe(name))
        for name in experiments.names()
        if name.startswith(incomplete)
    ]


def _sizes(name: str) -> list[tuple[str, str]]:
    """Return the sizes of a figure with their default values, and what they are."""
    from bnmc.experiments import sizes
    from bnmc.experiments.registry import sizes_of

    default, full = sizes_of(name)
    rows = []
    for size, meaning in sizes.meanings(type(default)).items():
        value, in_full = (sizes.as_text(getattr(values, size)) for values in (default, full))
        beside = f" With --full: {in_full}." if in_full != value else ""
        rows.append((f"{size}={value}", f"{meaning[0].upper()}{meaning[1:]}.{beside}"))
    return rows


def _needs(values: Mapping[str, Any]) -> Mapping[str, str]:
    import bnmc.experiments as experiments

    return {} if values["name"] is None else experiments.extras_of(values["name"])


@command(plot=True, needs=_needs)
def figure(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the figure, as bnmc figure --list prints it.",
            autocompletion=_names,
        ),
    ] = None,
    list_: bool = False,
    full: bool = False,
    set_: list[str] | None = None,
    seed: int = 0,
    data: Path | None = None,
    timeout: float | None = None,
    *,
    store: Path | None,
    threads: int | None,
    progress: bool,
) -> Report:
    """Compute a figure of the papers, or one beyond them.

    The command prints a table and the findings. --plot draws the picture.

    Example: bnmc figure bridging-1a --plot error.png

    Example: bnmc figure --list

    Example: bnmc figure gap --set widths=100,1000 --set activations=relu,tanh

    Example: bnmc figure bridging-2 --full --seed 1 --json spectra.json

    Example: bnmc figure rates --full --store rates.parts --progress

    Example: bnmc figure rank-collapse-1 --data fashion --full --store parts

    Parameters
    ----------
    list_
        Print the names of the figures, with descriptions.
    full
        Use the sizes of the paper (minutes to days) instead of small ones (seconds).
    set_ : SIZE=VALUE,…
        Size that differs, for example width=500, or several values, separated by commas:
        activations=relu,tanh. Repeat --set for further sizes.
        bnmc figure NAME --help lists the sizes of a figure.
    seed
        Seed of the random numbers, or the printed key of a run.
    data : FOLDER
        Folder with training images of MNIST, Fashion-MNIST (IDX) or CIFAR-10 (binary
        version), for figures that train networks. Default: digits that bnmc includes.
    timeout : SECONDS
        Time limit in seconds, after which no further part begins. An unfinished figure has the
        exit status 3; with --store, the same command resumes.
    """
    import bnmc.experiments as experiments
    from bnmc.errors import ArgumentError
    from bnmc.experiments.registry import sizes_of
    from bnmc.experiments.sizes import parsed

    if list_:
        if name is not None:
            raise ArgumentError("name", name, "nothing, with --list")
        rows = [{"name": name, "description": text} for name, text in _names("")]
        return Report({"rows": rows}, [_list()], repeat=None)
    if name is None:
        raise ArgumentError("name", None, "a figure", "bnmc figure --list prints their names")
    sizes = parsed(type(sizes_of(name)[0]), set_) if set_ else {}
    begun = time.perf_counter()
    result = experiments.run(
        name, full=full, rng=seed, threads=threads, progress=progress, store=store, data=data,
        timeout=timeout, **sizes,
    )  # fmt: skip
    seconds = round(time.perf_counter() - begun, 3)
    return _report_of(result)._replace(repeat={"seconds": seconds})


def _report_of(result: Experiment) -> Report:
    """Return the report of a figure: title, table, findings and picture."""
    table = Table(result.table.columns, result.table.cells(), "<>")
    text = [f"{result.title}\n", table, "", *result.findings]
    return Report(result.to_dict(), text, result.plot)


def _list() -> object:
    """Return the names and descriptions of all figures: a table, or lines if they are not shown."""
    names = _names("")
    if sys.stdout.isatty():
        return Table(["name", "description"], names)
    width = max(len(name) for name, _ in names)
    return "\n".join(f"{name:<{width}}  {description}" for name, description in names)


@command(plot=True, needs=lambda _: {"xarray": "xarray"})
def compare_norms(
    activation: str,
    width: int = 400,
    batch: int = 8,
    depth: int = 30,
    chains: int = 8,
    norm: str | None = None,
    *,
    seed: int,
    threads: int | None,
    progress: bool,
) -> Report:
    """Compare ranks and gradients of networks by their norm.

    The table and the picture show soft rank, orthogonality gap, mean correlation and gradient norms
    against depth, beside the mean field. The samples are independent and Gaussian. The gain is such
    that networks without a norm keep their variance.

    Example: bnmc compare-norms --activation tanh --depth 50 --plot norms.png

    Example: bnmc compare-norms --norm batch,layer --width 1000 --seed 0 --json

    Parameters
    ----------
    depth
        Number of layers, at least 4.
    chains
        Number of networks per norm, at least 2.
    norm : NAME,NAME,…
        Normalizations as in bnmc simulate, separated by commas. Default: batch, layer, rms,
        group(8) and none.
    """
    from bnmc._support.arguments import integer
    from bnmc.experiments.beyond import norms

    batch, chains = integer("batch", batch, low=3), integer("chains", chains, low=2)
    return _report_of(
        norms(
            norms=None if norm is None else tuple(dict.fromkeys(names(norm))),
            activation=activation, width=width, batch=batch, depth=depth, chains=chains, rng=seed,
            progress=progress, threads=threads,
        )
    )  # fmt: skip


@command()
def demo(
    plot: Path = Path("bnmc-demo.png"),
    depth: int = 1000,
    chains: int = 200,
    seed: int = 0,
    force: Annotated[bool, typer.Option(hidden=True)] = True,
    *,
    threads: int | None,
    progress: bool,
) -> Report:
    """Simulate handwritten digits until the fixed point.

    The first table shows the distance of their Gram matrix from the fixed point of the mean field:
    bnmc figure digits. The second table is Fig. 1a of Joudaki, Daneshmand and Bach, arXiv
    2205.13076, bnmc figure bridging-1a: the error of the mean field with and without normalization,
    for linear networks of width 1000 with 5 orthogonal samples.

    Example: bnmc demo --depth 200 --plot digits.png

    Parameters
    ----------
    plot : FILE
        File for the picture; an existing file is replaced.
    depth
        Number of layers of the comparison.
    chains
        Number of networks with normalization; five times as many have none.
    seed
        Seed of the random numbers, or the printed key of a run.
    """
    from bnmc._support.arguments import integer
    from bnmc._support.workers import thread_count
    from bnmc.experiments import beyond, bridging

    depth, chains = integer("depth", depth, low=1), integer("chains", chains, low=2)
    count, begun = thread_count(threads), time.perf_counter()
    shared: dict[str, Any] = {"rng": seed, "threads": threads, "progress": progress}
    figures = (
        beyond.digits(**shared),
        bridging.fig_1a(depth=depth, chains=chains, vanilla_chains=5 * chains, **shared),
    )
    repeat = {"threads": count, "seconds": round(time.perf_counter() - begun, 3)}
    document = {figure.name: figure.to_dict() for figure in figures}
    first, second = (_report_of(figure).text for figure in figures)
    text = [*first, "", *second, ""]
    return Report(document, text, lambda: _beside(*figures), repeat=repeat)


def _beside(*figures: Experiment) -> Any:
    """Draw figures beside each other."""
    from bnmc.plot.axes import empty_figure

    made: Any = empty_figure(figsize=(7.0 * len(figures), 5.2), dpi=150)
    for part, figure in zip(made.subfigures(1, len(figures)), figures, strict=True):
        figure.plot(part)
    return made
