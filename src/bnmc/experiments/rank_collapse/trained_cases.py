"""Cases of training: several kinds of networks with their curves; shared by Figs 5, 6 and 10."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from bnmc.experiments.data import curve
from bnmc.experiments.experiment import Experiment, Table
from bnmc.experiments.parts import Call
from bnmc.experiments.pictures import axes_of
from bnmc.experiments.training.curves import CHANCE, Axis, cell, draw_curves, training_dataset
from bnmc.experiments.training.images import Images
from bnmc.experiments.training.runs import Case, trained
from bnmc.experiments.training.trainer import Plan
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["Training", "train_cases"]

#: Line styles in turn, which show curves that coincide.
STYLES = ("-", "-", "--", ":")


class Training(NamedTuple):
    """What is trained and shown.

    Attributes
    ----------
    cases : mapping of str to Case
        By label.  If labels have the form "NETWORK: START", each network has a row of panels.
    plan : Plan
    networks : int
    shown : tuple of str
        Keys of `LONG_NAMES`, one panel each, besides the accuracy.
    scale : (float, float)
        Factor of the grey values, and the constant added to them.
    """

    cases: Mapping[str, Case]
    plan: Plan
    networks: int
    shown: tuple[str, ...]
    scale: tuple[float, float] = (1.0, 0.0)


def train_cases(
    call: Call,
    training: Training,
    images: Images,
    settings: dict[str, Any],
    findings: Callable[[xarray.Dataset], tuple[str, ...]],
    title: str,
) -> Experiment:
    """Train all cases, and return the experiment."""
    results = trained(
        call, list(training.cases.values()), images, training.plan, training.networks,
        training.scale,
    )  # fmt: skip
    labels = list(training.cases)
    about = {
        "batch": training.plan.batch, "networks": training.networks,
        "shown": list(training.shown), **settings,
    }  # fmt: skip
    names = ("accuracy", "loss", *training.shown)
    data = training_dataset(call, results, [Axis("case", labels, "network")], names, images, about)
    bands = {name: curve(data, name) for name in ("accuracy", *training.shown)}
    table = Table(
        (
            "network", "learning rate", *(f"{_plain(name)}, before" for name in training.shown),
            "accuracy, after",
        ),
        tuple(
            (
                label, float(data.rate[row]),
                *(float(bands[name][row, 0, 0]) for name in training.shown),
                cell(bands["accuracy"][row, -1], training.networks),
            )
            for row, label in enumerate(labels)
        ),
    )  # fmt: skip
    return Experiment(call.name, f"{title}, {images.name}", data, table, findings(data), _draw)


def _plain(name: str) -> str:
    return {"rank_bound": "r", "mean_correlation": "mean cosine"}.get(name, name.replace("_", " "))


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    labels = [str(one) for one in data.case.values]
    rows = list(
        dict.fromkeys(label.partition(": ")[0] if ": " in label else "" for label in labels)
    )
    shown = ("accuracy", *data.attrs["shown"])
    axes = axes_of(figure, len(shown), len(rows), width=5.0, height=3.6)
    for row, network in enumerate(rows):
        prefix = f"{network}: " if network else ""
        own = [index for index, label in enumerate(labels) if label.startswith(prefix)]
        lines = [
            ((index,), labels[index].removeprefix(prefix), COLOURS[order], STYLES[order % 4])
            for order, index in enumerate(own)
        ]
        for ax, name in zip(axes[row], shown, strict=True):
            draw_curves(ax, data, name, lines)
            ax.set_title(network or _plain(name), loc="left")
            ax.set_ylim(0, None)
        axes[row, 0].axhline(CHANCE, color="grey", linestyle=":", linewidth=1)
        axes[row, -1].legend(fontsize="small")
    figure.suptitle(
        f"{data.attrs['images']}: mean of {data.attrs['networks']} networks, 95 % interval"
    )
