"""Starts of training: plain, prepared, and with batch norm, at several depths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Float64Array
from bnmc.experiments.statistics import short_interval
from bnmc.experiments.training.runs import Case, Curves, Preparation, Training, mean_at, or_diverged
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import torch

#: Numbers of the last hidden layer that are shown before training, as a table calls them, and
#: whether the prepared start should make them smaller or larger.
_SUMMARIES = {"orthogonality_gap": "orthogonality gap", "rank_bound": "r"}
_AIMS = {"orthogonality_gap": "smaller", "rank_bound": "larger"}

_PLAIN = {"test_loss": "test loss", "test_accuracy": "test accuracy"}

#: Networks of ten classes have learnt something if their final loss is below this number.
_LEARNT = 0.9 * math.log(10.0)


def compare(
    training: Training,
    build: Callable[..., torch.nn.Module],
    labels: tuple[str, str],
    prepare: Preparation,
    depths: kit.Axis,
    summary: str,
    **attributes: Any,
) -> Experiment:
    """Train plain networks, prepared ones, and plain ones with batch norm, at several depths.

    Parameters
    ----------
    training : Training
    build : callable
        Returns a network of a depth, with the keyword argument `norm`.
    labels : (str, str)
        Labels of plain and of prepared networks.
    prepare : callable
        As a `Case` has it.
    depths : kit.Axis
    summary : str
        A key of `_SUMMARIES`.
    **attributes
        Further attributes of the data.
    """
    plain, prepared = labels
    starts = {plain: ("none", None), prepared: ("none", prepare), "batch norm": ("batch", None)}
    cases = {
        (start, depth): Case(partial(build, depth, norm=norm), preparation, depth + 1.0)
        for start, (norm, preparation) in starts.items()
        for depth in depths.labels
    }
    tested = ("test_loss", "test_accuracy") if training.tests else ()
    curves = Curves(
        training, cases, ("loss", "accuracy", summary, "gradient_norm", *tested),
        start=kit.Axis(starts, "start", ""), depth=depths,
    )  # fmt: skip
    columns = {
        "learning rate": curves.rate,
        f"{_SUMMARIES[summary]} before": curves.before(summary).means(),
        "loss after": or_diverged(curves.results, curves.after("loss")),
        **{
            f"{_PLAIN[name]} after": or_diverged(curves.results, curves.after(name))
            for name in tested
        },
    }
    return curves.results.experiment(
        f"Starts of training, {training.images.name}",
        kit.table_of(columns, heads=("start", depths.text)),
        _findings(curves, prepared, depths.text, summary), _draw,
        **training.attributes(), summary=summary, own=prepared, **attributes,
    )  # fmt: skip


def _findings(curves: Curves, prepared: str, depth_text: str, summary: str) -> Iterator[str]:
    """Compare the prepared networks with each other start at each depth."""
    starts, depths = curves.rate.axes.values()
    others = [start for start in starts if start != prepared]
    before, loss = curves.before(summary), curves.after("loss")
    deepest = f"{depths[-1]} {depth_text}"
    numbers = ", ".join(
        f"{short_interval(mean_at(before, start, depths[-1]))} with {start}" for start in others
    )
    yield (
        f"Before training at {deepest} the {_SUMMARIES[summary]} of the last hidden layer is "
        f"{short_interval(mean_at(before, prepared, depths[-1]))} with {prepared}; {numbers}."
    )
    places: dict[str, list[Any]] = {}
    for depth in depths:
        kinds = [(mean_at(before, start, depth), mean_at(loss, start, depth)) for start in starts]
        places.setdefault(_test(_AIMS[summary], *kinds[:2]), []).append(depth)
    for words, where in places.items():
        yield words.format(
            where=", ".join(map(str, where)), depths=depth_text, plain=others[0],
            prepared=prepared, summary=_SUMMARIES[summary], aim=_AIMS[summary],
        )  # fmt: skip
    for start in others:
        words = ", ".join(
            f"{_verdict(mean_at(loss, prepared, depth), mean_at(loss, start, depth))} at {depth}"
            for depth in depths
        )
        note = " (undecided: the intervals overlap)" if "undecided" in words else ""
        yield (
            f"Final loss with {prepared} beside that with {start}, by {depth_text}: {words}{note}."
        )
    gradient = curves.before("gradient_norm")
    shallow, deep = (mean_at(gradient, prepared, depth)[0] for depth in (depths[0], depths[-1]))
    yield (
        f"Before training the norm of the gradient by the first weights with {prepared} is "
        f"{deep:.2g} at {deepest}, {deep / shallow:.2g} times that at {depths[0]}."
    )


def _test(
    aim: str, plain: tuple[Float64Array, Float64Array], prepared: tuple[Float64Array, Float64Array]
) -> str:
    """Return whether a depth tests the claim: the start has its property, and networks learn."""
    if _verdict(prepared[0], plain[0]) != aim:
        return (
            "The claim is not tested at {where} {depths}: before training the {summary} with "
            "{prepared} is not {aim} than with {plain}."
        )
    if not (prepared[1][2] < _LEARNT and plain[1][2] < _LEARNT):  # False for NaN
        return "The claim is not tested at {where} {depths}: networks do not learn."
    return (
        "The claim is tested at {where} {depths}: before training the {summary} with {prepared} "
        "is {aim} than with {plain}, and both learn."
    )


def _verdict(mean: Float64Array, other: Float64Array) -> str:
    """Return a word for two means with their ends: smaller, larger, or undecided."""
    if not np.isfinite(mean).all():
        return "diverged"
    if not np.isfinite(other).all():
        return "smaller (the other diverged)"
    if mean[2] < other[1]:
        return "smaller"
    return "larger" if mean[1] > other[2] else "undecided"


def _draw(data: Dataset, figure: Drawing) -> None:
    depths, depth_text = data.depth.values, data.depth.attrs["long_name"]
    *panels, last = pictures.axes_of(figure, len(depths) + 1, width=3.7)[0]
    top = 1.3 * float(data["loss_high"].isel(epoch=0).max())  # later losses may diverge
    for ax, depth in zip(panels, depths, strict=True):
        losses = pictures.curve(data.sel(depth=depth), "loss")
        for colour, start, values in zip(COLOURS, data.start.values, losses, strict=False):
            label = str(start) + " (diverges)" * (not np.isfinite(values[-1]).all())
            pictures.draw_band(ax, data.epoch.values, values, colour, label)
            if "test_loss" in data:
                tested = data["test_loss"].sel(depth=depth, start=start)
                ax.plot(data.epoch.values, tested, "--", color=colour, linewidth=1.0)
        if "test_loss" in data:
            ax.plot([], [], "--", color="0.4", linewidth=1.0, label="test images")
        text = data.loss.attrs["long_name"]
        title = f"{depth} {depth_text}"
        pictures.finish(ax, title, "epoch", text, ylim=(0, top), legend=True)
    summary = data.attrs["summary"]
    pictures.lines(last, data.isel(epoch=0), summary, "depth", by="start", marker="o")
    text = _SUMMARIES[summary]
    pictures.finish(last, "Before training", depth_text, text, ylim=(0, None), legend=True)
    figure.suptitle(pictures.about(data, "Starts of training, {images}"))
