"""The outlook of models beside the outcome of training: counts, misses and false alarms."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bnmc.experiments import kit, pictures
from bnmc.experiments.kit import Dataset, Drawing, Experiment, Progress, Run
from bnmc.experiments.statistics import proportion
from bnmc.plot.axes import COLOURS

#: Names of the collections of models.
_COLLECTIONS = ("collection", "held out")

#: What `Outlook` says, from best to worst; an outcome is never "undecided".
_ANSWERS = ("trains", "undecided", "late", "no")

#: Of these, what says that a model does not train in its first hundreds of steps.
_ALARMS = ("late", "no")

#: Panels of the picture: the share, the models of which it is one, the title, what they do.
_PANELS = (
    ("found", "fails", "Failures found", "fail"),
    ("false_alarms", "trains", "False alarms", "train"),
)

#: Outlooks, with the optimizer that each is about.
_OUTLOOKS = {
    "SGD": "SGD", "Adam": "Adam", "Adam, tried": "Adam", "SGD, by hand": "SGD",
    "Adam, by hand": "Adam",
}  # fmt: skip


class _Sizes(NamedTuple):
    """Sizes of the figure.

    models: largest number of models of each collection
    steps: steps of training within which a model trains, or does not
    sgd: learning rates of SGD, in the order in which they are tried
    adam: learning rates of Adam, in the order in which they are tried
    """

    models: int = 43
    steps: int = 300
    sgd: tuple[float, ...] = (0.1, 0.01, 0.3, 0.001, 1.0)
    adam: tuple[float, ...] = (3e-3, 1e-3, 1e-2, 1e-4)


@kit.figure(
    "outlook-table", _Sizes(), torch=True,
    sgd=(0.1, 0.03, 0.3, 0.01, 1.0, 0.003, 0.001),
    adam=(3e-3, 1e-3, 1e-2, 1e-4, 3e-4, 3e-2, 0.1),
)  # fmt: skip
def outlook_table(run: Run, sizes: _Sizes) -> Experiment:
    r"""How often the outlook of `bnmc.torch.measure` is right, on models that are trained.

    Two collections of small models are trained with SGD and with Adam, at four or five learning
    rates each (``full``: seven).  The "collection" has models of many kinds, with which the rules
    of the outlook are tested.  The models "held out" were written afterwards, with larger networks,
    other data, half precision, and weights that were trained before.  The
    page on verdicts lists the rules that changed after these had been measured.

    A model *trains* if its loss, the mean over 30 batches, falls below half of chance within 300
    steps at one of the rates.  Chance is the loss of the best constant output.  If the model does
    not train, it goes on at its best rate for 600 steps: it is *late* if its loss falls below half
    of chance there, and *no* otherwise.  All models are trained before the first one is measured.

    A model *fails* if it is late or no.  The outlook *finds* a failure if it is "late" or "no"
    too.  It is a *false alarm* if the outlook is "late" or "no" and the model trains.  "Tried" is
    the outlook of Adam with ``tries=True``.  "By hand" is what a person said of the models held
    out, before they were trained or measured.

    Returns
    -------
    Experiment
        Variables by ``model`` and ``optimizer``, and by ``model`` and ``outlook``.
    """
    # These import PyTorch.
    from bnmc.experiments.outlooks.collection import COLLECTION
    from bnmc.experiments.outlooks.held_out import HELD_OUT
    from bnmc.experiments.outlooks.outcomes import outcome_of, outlooks_of

    collections = [list(entries)[: sizes.models] for entries in (COLLECTION, HELD_OUT)]
    entries = COLLECTION | HELD_OUT
    names = [name for collection in collections for name in collection]
    seeds = dict(zip(names, run.generator.integers(2**31, size=len(names)).tolist(), strict=True))
    rates = {"SGD": sizes.sgd, "Adam": sizes.adam}

    def part(what: str, name: str, progress: Progress) -> Any:
        """Return the outcome with an optimizer: answer and steps; or the outlooks."""
        del progress
        if what == "measure":
            return outlooks_of(entries[name], seeds[name])
        return outcome_of(entries[name], what, rates[what], sizes.steps, seeds[name])

    # The outcomes come first: nothing is measured before everything has been trained.
    order = [(what, name) for what in ("SGD", "Adam", "measure") for name in names]
    parts = run.parts(part, order, [0.3 if what == "measure" else 1.0 for what, _ in order])
    results = kit.Results(
        run, model=kit.Axis(names, "model", ""), optimizer=kit.Axis(rates, "optimizer", ""),
        outlook=kit.Axis(_OUTLOOKS, "outlook", ""),
        models=kit.Axis(_COLLECTIONS, "collection of models", ""),
    )  # fmt: skip
    results.add(
        "held_out", ("model",), [name in collections[1] for name in names],
        "whether the model was held out",
    )  # fmt: skip
    steps = {(name, what): parts[what, name][1] for name in names for what in rates}
    results.add("steps", ("model", "optimizer"), steps, "steps until the model trains", "steps")
    answers = {
        (name, outlook): answer
        for name in names
        for outlook, answer in zip(
            _OUTLOOKS, [*parts["measure", name], entries[name].sgd, entries[name].adam], strict=True
        )
    }
    results.add(
        "answer", ("model", "outlook"), kit.each(answers, _ANSWERS.index),
        f"outlook: its place in {', '.join(_ANSWERS)}",
    )  # fmt: skip
    counts = {
        (models, outlook): _Counts.of(
            {name: parts[optimizer, name][0] for name in collection},
            {name: answers[name, outlook] for name in collection},
        )
        for models, collection in zip(_COLLECTIONS, collections, strict=True)
        for outlook, optimizer in _OUTLOOKS.items()
        if models == "held out" or not outlook.endswith("by hand")
    }
    for share, total, text, _ in _PANELS:
        groups = kit.each(counts, operator.attrgetter(total))
        results.add(total, ("models", "outlook"), kit.each(groups, len), f"models: {total}")
        results.add(
            share, ("models", "outlook"),
            {point: _alarms(group) for point, group in groups.items() if group},
            f"{text}: share of {total}", within=(0.0, 1.0),
        )  # fmt: skip
    columns = {
        head: results.column(("models", "outlook"), kit.each(counts, head_of))
        for head, head_of in _HEADS.items()
    }
    return results.experiment(
        "The outlook of models beside what training gives", kit.table_of(columns),
        [_finding(*point, each) for point, each in counts.items()], _draw,
        steps=sizes.steps,
    )  # fmt: skip


class _Counts(NamedTuple):
    """Models by what an outlook says and what training gives.

    Attributes
    ----------
    fails, trains : dict of str to str
        The outlook by model: of the models that fail, and of those that train.
    """

    fails: dict[str, str]
    trains: dict[str, str]

    @classmethod
    def of(cls, outcomes: Mapping[str, str], answers: Mapping[str, str]) -> _Counts:
        """Count models by their outcomes and outlooks, each by name."""
        fails = {name: answers[name] for name, each in outcomes.items() if each != "trains"}
        return cls(fails, {name: answers[name] for name in outcomes if name not in fails})

    @property
    def undecided(self) -> list[str]:
        """Names of models whose outlook is "undecided"."""
        return _names(self.fails | self.trains, "undecided")

    def errors(self) -> str:
        """Return the counts in words, with the names of the models."""
        missed, false = _names(self.fails, "trains"), _names(self.trains, *_ALARMS)
        return (
            f"{len(_names(self.fails, *_ALARMS))} of {len(self.fails)} failures are found, "
            f"{_listed(missed)} missed; {_listed(false)} of {len(self.trains)} models that train "
            f"raise a false alarm; {_listed(self.undecided)} of all are undecided."
        )

    def ends(self) -> str:
        """Return the counts of "no" in words."""
        return (
            f"no for {len(_names(self.fails, 'no'))} of {len(self.fails)} failures, and for "
            f"{_listed(_names(self.trains, 'no'))} of {len(self.trains)} models that train."
        )


def _finding(models: str, outlook: str, counts: _Counts) -> str:
    """Return what an outlook of some models states."""
    said = counts.ends() if outlook.endswith("tried") else counts.errors()
    return f"{models}, {outlook}: {said}"


def _names(answers: Mapping[str, str], *wanted: str) -> list[str]:
    return [name for name, answer in answers.items() if answer in wanted]


def _listed(names: Sequence[str]) -> str:
    return f"{len(names)} ({'; '.join(names)})" if names else "0"


def _alarms(answers: Mapping[str, str]) -> Any:
    """Return the share of "late" and "no", with its exact interval; None of no models."""
    return proportion([each in _ALARMS for each in answers.values()]) if answers else None


#: Columns of the table.
_HEADS: dict[str, Callable[[_Counts], Any]] = {
    "fail": lambda counts: len(counts.fails),
    "found": lambda counts: _alarms(counts.fails),
    "found, as no": lambda counts: len(_names(counts.fails, "no")),
    "train": lambda counts: len(counts.trains),
    "false alarms": lambda counts: _alarms(counts.trains),
    "false alarms, no": lambda counts: len(_names(counts.trains, "no")),
    "undecided": lambda counts: len(counts.undecided),
}


def _draw(data: Dataset, figure: Drawing) -> None:
    points = [
        (models, outlook)
        for models in data["models"].values
        for outlook in data["outlook"].values
        if models == "held out" or not outlook.endswith("by hand")
    ]
    axes = pictures.axes_of(figure, 2, width=4.8, height=3.6)[0]
    for ax, (name, total, title, of) in zip(axes, _PANELS, strict=True):
        ax.sharey(axes[0])
        for group, models in enumerate(_COLLECTIONS):
            rows = [row for row, point in enumerate(points) if point[0] == models]
            part = data.sel(models=models, outlook=[points[row][1] for row in rows])
            share, low, high = 100.0 * pictures.curve(part, name).T
            ax.errorbar(
                share, rows, xerr=[share - low, high - share], fmt="os"[group], markersize=5,
                capsize=2.5, color=COLOURS[group],
            )  # fmt: skip
            for row, each, count in zip(rows, share, part[total].values, strict=True):
                if count:
                    text = f"{round(count * each / 100.0)} of {round(count)}"
                    ax.text(104.0, row, text, va="center", fontsize="small")
        pictures.finish(ax, title, f"share of the models that {of}, %", xlim=(-3.0, 128.0))
        ax.set_xticks(range(0, 101, 20))
    axes[0].set_yticks(range(len(points)), [": ".join(point) for point in points])
    axes[0].set_ylim(len(points) - 0.5, -0.5)
    axes[1].tick_params(labelleft=False)
    figure.suptitle("Outlook of small models: counts, shares and exact 95 % intervals")
