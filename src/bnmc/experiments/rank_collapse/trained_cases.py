"""Several kinds of networks in training, and asymmetric weights; shared by Figs 5, 6 and 10."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from bnmc.experiments import kit, pictures
from bnmc.experiments.experiment import Dataset, Drawing, Experiment
from bnmc.experiments.training.runs import CHANCE, Case, Curves, Training, or_diverged
from bnmc.plot.axes import COLOURS
from bnmc.torch.initializing import break_

#: Line styles in turn, which show curves that coincide.
_STYLES = ("-", "-", "--", ":")


def train_cases(
    training: Training,
    cases: Mapping[str, Case],
    shown: tuple[str, ...],
    findings: Callable[[Curves], Iterable[str]],
    title: str,
    **attributes: Any,
) -> Experiment:
    """Train all cases, and return the experiment.

    Parameters
    ----------
    training : Training
    cases : mapping of str to Case
        By label.  If labels have the form "NETWORK: START", each network has a row of panels.
    shown : tuple of str
        Records of `train`, one panel each, besides the accuracy.
    findings : callable
    title : str
    **attributes
        Further attributes of the data.
    """
    curves = Curves(
        training, {(label,): case for label, case in cases.items()},
        dict.fromkeys(("accuracy", "loss", *shown)), case=kit.Axis(cases, "network", ""),
    )  # fmt: skip
    columns = {
        "learning rate": curves.rate,
        **{f"{_plain(name)}, before": curves.before(name).means() for name in shown},
        "accuracy, after": or_diverged(curves.results, curves.after("accuracy")),
    }
    return curves.results.experiment(
        f"{title}, {training.images.name}", kit.table_of(columns, heads=("network",)),
        findings(curves), _draw, **training.attributes(), shown=list(shown), **attributes,
    )  # fmt: skip


def broken(how: str) -> Callable[[Any, Any, np.random.Generator], None]:
    """Return a preparation that breaks the network (`bnmc.torch.break_`)."""

    def prepare(model: Any, inputs: Any, rng: np.random.Generator) -> None:
        break_(model, how=how, rng=rng)

    return prepare


def _plain(name: str) -> str:
    return {"rank_bound": "r", "mean_correlation": "mean cosine"}.get(name, name)


def _draw(data: Dataset, figure: Drawing) -> None:
    rows: dict[str, list[str]] = {}
    for label in map(str, data.case.values):
        rows.setdefault(label.rpartition(": ")[0], []).append(label)
    shown = ("accuracy", *data.attrs["shown"])
    axes = pictures.axes_of(figure, len(shown), len(rows), width=5.0, height=3.6)
    for row, (network, labels) in zip(axes, rows.items(), strict=True):
        for ax, name in zip(row, shown, strict=True):
            for order, label in enumerate(labels):
                pictures.draw_band(
                    ax, data.epoch.values, pictures.curve(data.sel(case=label), name),
                    COLOURS[order % len(COLOURS)], label.rpartition(": ")[2],
                    linestyle=_STYLES[order % len(_STYLES)],
                )  # fmt: skip
            ax.set(xlabel="epoch", ylabel=data[name].attrs["long_name"], ylim=(0, None))
            ax.set_title(network or _plain(name), loc="left")
        row[0].axhline(CHANCE, color="grey", linestyle=":", linewidth=1)
        row[-1].legend(fontsize="small")
    figure.suptitle(
        f"{data.attrs['images']}: mean of {data.attrs['networks']} networks, 95 % interval"
    )
