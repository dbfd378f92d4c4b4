"""Parts of all kinds are read again, also with the names that classes had before they moved."""

import hashlib
import importlib
import io
import math
import pickle
from types import FunctionType

import pytest

from bnmc.experiments.beyond import estimated_rates
from bnmc.experiments.bridging import certified_mixing, distance_over_width
from bnmc.experiments.orthogonalizes import other_activations
from bnmc.experiments.parts import Call
from bnmc.experiments.rank_collapse import ensembles, regularity_over_width
from bnmc.experiments.unpickling import FORMER_NAMES, unpickled

#: Experiments whose parts hold all kinds of results: module, small sizes, and the module and names
#: of the functions that make a part.
KINDS = {
    "bridging-1b": (
        distance_over_width,
        distance_over_width.Sizes(widths=(400, 800), chains=4, first=41, last=60),
        (distance_over_width, "simulate"),
    ),
    "bridging-certificate": (
        certified_mixing,
        certified_mixing.Sizes(("tanh",), width=100, replicates=50, pairs=4, depth=20),
        (certified_mixing, "tv_bound", "contraction"),
    ),
    "orthogonalizes-6": (
        other_activations,
        other_activations.Sizes(other_activations.PUBLISHED, widths=(16, 32), layers=10, chains=6),
        (other_activations, "simulate"),
    ),
    "rank-collapse-8": (
        regularity_over_width,
        (ensembles.EnsembleSizes(math.inf, (8, 16), 8),),
        (ensembles, "figures"),
    ),
    "rates": (
        estimated_rates,
        estimated_rates.Sizes(
            ("tanh",), (3,), (100, 1000), {"pairs": 4, "replicates": 30, "chains": 6}
        ),
        (estimated_rates, "compare"),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_each_kind_of_result_can_be_kept(name, tmp_path, monkeypatch):
    module, sizes, makers = KINDS[name]
    first = module.experiment(sizes, Call(name, store=tmp_path / "parts"))
    forbid_parts(monkeypatch, *makers)
    again = module.experiment(sizes, Call(name, store=tmp_path / "parts"))
    assert again.data.identical(first.data)
    assert str(again) == str(first)


@pytest.mark.parametrize("name", KINDS)
def test_parts_with_former_names_of_classes_are_read(name, tmp_path, monkeypatch):
    """A part as it was written before modules moved, by the names in its pickle."""
    module, sizes, makers = KINDS[name]
    folder = tmp_path / "parts"
    first = module.experiment(sizes, Call(name, store=folder))
    written = set()
    for file in folder.glob("part-*.pickle"):
        pickled, names = with_former_names(unpickled(file.read_bytes()[32:]))
        file.write_bytes(hashlib.sha256(pickled).digest() + pickled)
        written |= names
    assert written
    forbid_parts(monkeypatch, *makers)
    again = module.experiment(sizes, Call(name, store=folder))
    assert again.data.identical(first.data)
    assert str(again) == str(first)


def test_an_interrupted_experiment_with_former_names_goes_on(tmp_path):
    sizes = distance_over_width.Sizes(widths=(400, 800), chains=4, first=41, last=60)
    folder = tmp_path / "parts"
    first = distance_over_width.experiment(sizes, Call("bridging-1b", store=folder))
    file = folder / "part-0000.pickle"
    pickled, _ = with_former_names(unpickled(file.read_bytes()[32:]))
    file.write_bytes(hashlib.sha256(pickled).digest() + pickled)
    (folder / "part-0001.pickle").unlink()
    again = distance_over_width.experiment(sizes, Call("bridging-1b", store=folder))
    assert again.data.identical(first.data)


@pytest.mark.parametrize(("former", "name"), FORMER_NAMES.items())
def test_each_former_name_leads_to_what_may_be_called(former, name, tmp_path):
    pickled = pickle.PROTO + b"\x04" + b"".join(
        [pickle.SHORT_BINUNICODE + bytes([len(one)]) + one.encode() for one in former]
    ) + pickle.STACK_GLOBAL + pickle.STOP  # fmt: skip
    found = unpickled(pickled)
    assert found.__module__.startswith("bnmc.")
    assert found.__name__ in (name[1], "_chain")


class FormerPickler(pickle._Pickler):
    """A pickler that writes former names of functions and classes, and records them."""

    def __init__(self, file):
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.former, self.written = {}, set()
        for former, (module, name) in FORMER_NAMES.items():
            found = getattr(importlib.import_module(module), name)
            self.former[found.__module__, found.__name__] = former

    def save_global(self, obj, name=None):
        former = self.former.get((obj.__module__, obj.__name__))
        if former is None:
            return super().save_global(obj, name)
        self.written.add(former)
        for one in former:
            self.save(one)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)

    dispatch = {**pickle._Pickler.dispatch, FunctionType: save_global}  # noqa: RUF012


def with_former_names(part):
    """Pickle a part with former names; return the pickle and the names."""
    file = io.BytesIO()
    pickler = FormerPickler(file)
    pickler.dump(part)
    return file.getvalue(), pickler.written


def forbid_parts(monkeypatch, module, *names):
    """Make a test fail that makes a part again.  Only the makers of parts report progress."""

    def guarded(make):
        def guard(*arguments, **named):
            assert "progress" not in named, "made again"
            return make(*arguments, **named)

        return guard

    for name in names:
        monkeypatch.setattr(module, name, guarded(getattr(module, name)))
