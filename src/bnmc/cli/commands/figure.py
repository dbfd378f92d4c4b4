"""``bnmc figure``: the experiments of `bnmc.experiments`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bnmc._support.text import Table
from bnmc.cli.command import Command, Report, command

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
    set_ : SIZE=VALUE
        Size that differs, for example width=500 or activations=relu,tanh. May be repeated.
        bnmc figure NAME --help lists the sizes of a figure.
    seed
        Seed of the random numbers.
    data : FOLDER
        Folder with training images of MNIST, Fashion-MNIST (IDX) or CIFAR-10 (binary
        version), for figures that train networks. Default: digits that bnmc includes.
    """
    import bnmc.experiments as experiments
    from bnmc.errors import ArgumentError
    from bnmc.experiments.registry import sizes_of
    from bnmc.experiments.sizes import parsed

    if list_:
        if name is not None:
            raise ArgumentError("name", name, "nothing, with --list")
        return Report(dict(_names("")), [_list()], repeat=None)
    if name is None:
        raise ArgumentError("name", None, "an experiment", "bnmc figure --list prints their names")
    sizes = parsed(type(sizes_of(name)[0]), set_) if set_ else {}
    begun = time.perf_counter()
    try:
        result = experiments.run(
            name, full=full, rng=seed, threads=threads, progress=progress, store=store, data=data,
            **sizes,
        )  # fmt: skip
    except KeyboardInterrupt:
        if store is not None:
            print(f"bnmc: finished parts are in {store}; the same command resumes", file=sys.stderr)
        raise
    seconds = round(time.perf_counter() - begun, 3)
    return report_of(result)._replace(repeat={"seconds": seconds})


def report_of(result: Experiment) -> Report:
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
